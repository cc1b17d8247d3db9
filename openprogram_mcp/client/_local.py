"""A server that is a program of ours: from the start of its process to the reaping of it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, evolve, field

from ..errors import ServerFailed
from ..transports._launch import child_environment, prepare_launch
from ..transports._process import ServerProcess, start_process
from ._connection import LAST_WORDS_SECONDS, Ending, is_closed, protocol

if TYPE_CHECKING:
    from ._attempt import Attempt

__all__ = ["LocalWay"]

# How long a process that has closed its output may take to exit, so that its exit code can be told.
_EXIT_SECONDS: Final = 1.0

_ASKED: Final[Mapping[str, str]] = {"spawn": "anything", "initialize": "initialize", "list_tools": "tools/list"}


@define(eq=False)
class LocalWay:
    """See ``_attempt.Way``."""

    _attempt: Attempt
    ending: Ending = field(factory=Ending, init=False)
    _process: ServerProcess | None = field(default=None, init=False)
    _gone_early: bool = field(default=False, init=False)

    async def hold(self) -> None:
        """Start the process, speak with it, and stop it."""
        async with trio.open_nursery() as nursery:
            await self._with_process(nursery)

    @trio.lowlevel.enable_ki_protection
    async def _with_process(self, nursery: trio.Nursery) -> None:
        attempt, config, watcher = self._attempt, self._attempt.config, self._attempt.watcher
        attempt.enter("spawn")
        env = child_environment(attempt.environ, config.inherit_env, config.env)
        launch = prepare_launch(config.name, config.argv, env, config.cwd)
        process = await start_process(
            nursery,
            config.name,
            launch,
            mask=watcher.mask,
            on_stderr=lambda line: watcher.log("info", "stderr", line),
            tree=attempt.owner.plant(config.name),
        )
        try:
            self._process = process
            watcher.process(process)
            lost = False
            async with trio.open_nursery() as inner:
                inner.start_soon(attempt.slot.give_back_when_quiet, process.pid)
                inner.start_soon(self._give_up_on_exit, process, inner.cancel_scope)
                lost = await self._with_session(process)
                inner.cancel_scope.cancel()
            if lost:
                # Its session is over, so that nobody waits for an answer any more while we find out why.
                await self._last_words(process)
                exited = process.exited.is_set()
                self.ending = Ending(self._loss(), process.exit_code, "own" if exited else None)
                watcher.lost(self.ending)
        except Exception as error:
            if is_closed(error):
                # Its output has ended; its exit is not far, and says more.
                await self._last_words(process)
            raise
        finally:
            await process.stop(config.stop_timeout_seconds)
            self.ending = evolve(self.ending, exit_code=process.exit_code, exit_way=process.exit_way)

    async def _with_session(self, process: ServerProcess) -> bool:
        # The SDK costs half a second to import: the process is up by now and uses the time to start.
        sdk = await trio.to_thread.run_sync(protocol)
        attempt = self._attempt
        attempt.enter("initialize")
        opened = sdk.open_stdio(attempt.config, process, attempt.known_era, attempt.watcher)
        return await attempt.serve(opened, process)

    async def _give_up_on_exit(self, process: ServerProcess, scope: trio.CancelScope) -> None:
        """Do not wait for the answer of a process that is gone, though a child of it still holds its output open."""
        await process.exited.wait()
        with trio.move_on_after(LAST_WORDS_SECONDS):
            await trio.sleep_forever()
        if self._attempt.phase != "running":
            self._gone_early = True
            scope.cancel()

    @staticmethod
    async def _last_words(process: ServerProcess) -> None:
        with trio.move_on_after(_EXIT_SECONDS):
            await process.exited.wait()
        await process.stderr_ended(LAST_WORDS_SECONDS)

    def _loss(self) -> str:
        code = None if self._process is None else self._process.exit_code
        return "it closed its output" if code is None else f"it {_exited(code)}"

    # Failures, said so that they can be acted upon.

    def explained(self, failure: BaseException) -> BaseException:
        """A failure with what is known of the process."""
        if not isinstance(failure, ServerFailed):
            return self._gone() if is_closed(failure) else failure
        if self._process is None:
            return failure
        return self._failure(failure.message, failure.remedy, failure.transient, failure.phase)

    def gave_up(self) -> ServerFailed | None:
        """It has exited before it came up."""
        return self._gone() if self._gone_early else None

    def _gone(self) -> ServerFailed:
        code = None if self._process is None else self._process.exit_code
        happened = "closed its output" if code is None else _exited(code)
        return self._failure(
            f"it {happened} before it answered {_ASKED.get(self._attempt.phase, self._attempt.phase)}",
            "Read its standard error; start its command by hand to see more.",
            True,
            self._attempt.phase,
        )

    def too_slow(self) -> ServerFailed:
        """It did not come up in time."""
        remedy = "Raise 'startup_timeout_seconds' if it needs longer, or read its standard error."
        if self._process is not None and self._process.stderr.last():
            remedy = "It may still be downloading or preparing itself: " + remedy
        phase, seconds = self._attempt.phase, self._attempt.config.startup_seconds
        return self._failure(f"it did not answer {_ASKED.get(phase, phase)} within {seconds:g} s", remedy, True, phase)

    def _failure(self, message: str, remedy: str | None, transient: bool, phase: str) -> ServerFailed:
        process = self._process
        return ServerFailed(
            self._attempt.watcher.mask(message),
            phase=phase,
            exit_code=None if process is None or process.exit_way not in ("own", None) else process.exit_code,
            transient=transient,
            stderr=() if process is None else process.stderr.last(),
            remedy=None if remedy is None else self._attempt.watcher.mask(remedy),
            server=self._attempt.config.name,
        )


def _exited(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name} (exit code {code})"
    except ValueError:
        return f"was ended by signal {-code} (exit code {code})"
