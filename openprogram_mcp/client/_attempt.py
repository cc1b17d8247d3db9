"""From the start of a server's process to the reaping of it: one generation of the client.

Everything that a connection needs lives inside :func:`hold_connection`; when it returns or raises, nothing of it is
left. It tells that it is up with ``started()``. Until then every failure is a :class:`ServerFailed` that says in which
phase it fell, with the exit code and the last lines of standard error; from then on it ends with an ``Ending``.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import trio
from attrs import define, evolve, field

from ..config import MCPServerConfig
from ..errors import ServerFailed
from ..status import Phase
from ..transports._launch import child_environment, prepare_launch
from ..transports._ownership import Instance
from ..transports._process import ServerProcess, start_process
from ._connection import (
    LAST_WORDS_SECONDS,
    Connection,
    Ending,
    Watcher,
    Withdrawn,
    is_closed,
    leaves,
    protocol,
)
from ._gate import Slot, StartGate
from ._listening import Listening

__all__ = ["hold_connection"]

# How long a process that has closed its output may take to exit, so that its exit code can be told.
_EXIT_SECONDS: Final = 1.0
# How long the tools are not read because the server has not agreed yet to tell when they change.
_LISTEN_SECONDS: Final = 0.5

_ASKED: Final[Mapping[str, str]] = {"spawn": "anything", "initialize": "initialize", "list_tools": "tools/list"}


async def hold_connection(
    prepare: Callable[[], Awaitable[MCPServerConfig]],
    *,
    generation: int,
    known_era: Any,
    gate: StartGate,
    owner: Instance,
    environ: Mapping[str, str],
    watcher: Watcher,
    task_status: trio.TaskStatus[Connection] = trio.TASK_STATUS_IGNORED,
) -> Ending:
    """Connect, and hold the connection until it is lost, retired or cancelled.

    Args:
        prepare: Gives the server's configuration, expanded, when its turn to start has come.
        generation: The number of this connection.
        known_era: How the server spoke last time, or ``None``.
        gate: Limits how many servers work at their start at once; the limit on the start counts from the slot.
        owner: Whose the processes are.
        environ: Our own environment.
        watcher: Told what happens.
        task_status: Given the connection when its tools can be called.

    Raises:
        ServerFailed: It did not come up.
        Withdrawn: Its start is not wanted any more.
    """
    try:
        return await _Attempt(prepare, generation, known_era, gate, owner, environ, watcher, task_status).run()
    except (ServerFailed, Withdrawn):
        raise
    except Exception as error:
        if not isinstance(error, protocol().ClosedWhileProbing):
            raise
    # It did not survive the question how it speaks, so it speaks the old way.
    return await _Attempt(prepare, generation, "legacy", gate, owner, environ, watcher, task_status).run()


@define(eq=False)
class _Attempt:
    """One run of :func:`hold_connection`: what its steps share."""

    prepare: Callable[[], Awaitable[MCPServerConfig]]
    generation: int
    known_era: Any
    gate: StartGate
    owner: Instance
    environ: Mapping[str, str]
    watcher: Watcher
    task_status: trio.TaskStatus[Connection]
    config: MCPServerConfig = field(init=False)
    phase: Phase = "spawn"
    process: ServerProcess | None = None
    limit: trio.CancelScope = field(factory=trio.CancelScope)
    gone: bool = False
    ending: Ending = field(factory=Ending)

    async def run(self) -> Ending:
        try:
            with self.limit:
                async with self.gate.slot() as slot:
                    self.config = await self.prepare()
                    if self.config.resolved_type != "local":
                        raise _not_yet(self.config)
                    # The limit counts from here: waiting for others to start is not this server's fault.
                    self.limit.deadline = trio.current_time() + self.config.startup_seconds
                    async with trio.open_nursery() as nursery:
                        await self._with_process(nursery, slot)
        except Withdrawn:
            raise
        except (Exception, BaseExceptionGroup) as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error
        if self.limit.cancelled_caught:
            raise self._too_slow()
        if self.gone:
            raise self._gone()
        return self.ending

    @trio.lowlevel.enable_ki_protection
    async def _with_process(self, nursery: trio.Nursery, slot: Slot) -> None:
        config = self.config
        self._enter("spawn")
        env = child_environment(self.environ, config.inherit_env, config.env)
        launch = prepare_launch(config.name, config.argv, env, config.cwd)
        process = await start_process(
            nursery,
            config.name,
            launch,
            mask=self.watcher.mask,
            on_stderr=lambda line: self.watcher.log("info", "stderr", line),
            mark=self.owner.next_mark(),
        )
        try:
            self.process = process
            self.watcher.process(process)
            lost = False
            async with trio.open_nursery() as inner:
                inner.start_soon(slot.give_back_when_quiet, process.pid)
                inner.start_soon(self._give_up_on_exit, process, inner.cancel_scope)
                lost = await self._with_session(process, slot)
                inner.cancel_scope.cancel()
            if lost:
                # Its session is over, so that nobody waits for an answer any more while we find out why.
                await self._last_words(process)
                exited = process.exited.is_set()
                self.ending = Ending(self._loss(), process.exit_code, "own" if exited else None)
                self.watcher.lost(self.ending)
        except Exception as error:
            if is_closed(error):
                # Its output has ended; its exit is not far, and says more.
                await self._last_words(process)
            raise
        finally:
            await process.stop(config.stop_timeout_seconds)
            self.ending = evolve(self.ending, exit_code=process.exit_code, exit_way=process.exit_way)

    async def _with_session(self, process: ServerProcess, slot: Slot) -> bool:
        """The session's life, from the first word to its loss (true) or its retirement (false)."""
        # The SDK costs half a second to import: the process is up by now and uses the time to start.
        sdk = await trio.to_thread.run_sync(protocol)
        self._enter("initialize")
        async with sdk.open_stdio(self.config, process, self.known_era, self.watcher) as (session, closed):
            connection = Connection(self.generation, session, process, self.config)
            self._enter("list_tools")
            async with trio.open_nursery() as nursery:
                # A change that comes between the reading and the listening would be missed, so listening comes first.
                listening = Listening(partial(session.listen, _heard_by_hook), self._missed, self._log)
                if session.wants_listener:
                    nursery.start_soon(listening.run)
                    with trio.move_on_after(_LISTEN_SECONDS):
                        await listening.settled.wait()
                    listening.late = not listening.agreed
                await self._read_tools(connection)
                slot.give_back()
                self.limit.deadline = float("inf")
                # Where the limit has struck already, at this very moment, it did not come up.
                await trio.lowlevel.checkpoint_if_cancelled()
                self._enter("running")
                self.task_status.started(connection)
                lost = await connection.until_lost(closed)
                nursery.cancel_scope.cancel()
        return lost

    async def _read_tools(self, connection: Connection) -> None:
        sdk = protocol()
        try:
            await connection.read_tools()
        except sdk.ConnectionClosed:
            raise
        except sdk.MCPError as error:
            broken = isinstance(error, sdk.BrokenAnswer)
            reason = f"{error.message[:300] or 'no reason given'} (code {error.code})"
            raise ServerFailed(
                error.message if broken else f"it refused tools/list: {reason}",
                phase="list_tools",
                remedy="See what the server needs (its documentation, and its standard error).",
                server=self.config.name,
            ) from error

    async def _missed(self) -> None:
        """What has changed while nobody listened was not told."""
        for kind in ("tools", "resources", "prompts"):
            await self.watcher.list_changed(kind)

    def _log(self, level: str, text: str) -> None:
        self.watcher.log(level, None, text)

    async def _give_up_on_exit(self, process: ServerProcess, scope: trio.CancelScope) -> None:
        """Do not wait for the answer of a process that is gone, though a child of it still holds its output open."""
        await process.exited.wait()
        with trio.move_on_after(LAST_WORDS_SECONDS):
            await trio.sleep_forever()
        if self.phase != "running":
            self.gone = True
            scope.cancel()

    @staticmethod
    async def _last_words(process: ServerProcess) -> None:
        with trio.move_on_after(_EXIT_SECONDS):
            await process.exited.wait()
        await process.stderr_ended(LAST_WORDS_SECONDS)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.watcher.phase(phase)

    def _loss(self) -> str:
        code = None if self.process is None else self.process.exit_code
        return "it closed its output" if code is None else f"it {_exited(code)}"

    # Failures, said so that they can be acted upon.

    def _explained(self, error: BaseException) -> BaseException:
        """A failure with what is known of the process; what is no failure of the server's passes as it is."""
        found = leaves(error)
        if any(not isinstance(leaf, (ServerFailed, trio.Cancelled)) and not _is_foreign(leaf) for leaf in found):
            return error
        if isinstance(error, BaseExceptionGroup):
            cancelled = error.subgroup(trio.Cancelled)
            if cancelled is not None:
                # Who cancelled it has said what is wanted instead; that it failed in the same moment means nothing now.
                return cancelled
        # A failure of the server's comes before what followed from it.
        leaf = next((leaf for leaf in found if isinstance(leaf, ServerFailed)), found[0])
        if isinstance(leaf, ServerFailed):
            return (
                leaf if self.process is None else self._failure(leaf.message, leaf.remedy, leaf.transient, leaf.phase)
            )
        return self._gone() if is_closed(leaf) else leaf

    def _gone(self) -> ServerFailed:
        code = None if self.process is None else self.process.exit_code
        happened = "closed its output" if code is None else _exited(code)
        return self._failure(
            f"it {happened} before it answered {_ASKED.get(self.phase, self.phase)}",
            "Read its standard error; start its command by hand to see more.",
            True,
            self.phase,
        )

    def _too_slow(self) -> ServerFailed:
        remedy = "Raise 'startup_timeout_seconds' if it needs longer, or read its standard error."
        if self.process is not None and self.process.stderr.last():
            remedy = "It may still be downloading or preparing itself: " + remedy
        return self._failure(
            f"it did not answer {_ASKED.get(self.phase, self.phase)} within {self.config.startup_seconds:g} s",
            remedy,
            True,
            self.phase,
        )

    def _failure(self, message: str, remedy: str | None, transient: bool, phase: str) -> ServerFailed:
        process = self.process
        return ServerFailed(
            self.watcher.mask(message),
            phase=phase,
            exit_code=None if process is None or process.exit_way not in ("own", None) else process.exit_code,
            transient=transient,
            stderr=() if process is None else process.stderr.last(),
            remedy=None if remedy is None else self.watcher.mask(remedy),
            server=self.config.name,
        )


async def _heard_by_hook(_kind: object) -> None:
    """The hook of the session hears every change as well, whatever the era; told twice, a list would be read twice."""


def _exited(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name} (exit code {code})"
    except ValueError:
        return f"was ended by signal {-code} (exit code {code})"


def _not_yet(config: MCPServerConfig) -> ServerFailed:
    return ServerFailed(
        f"servers of type {config.resolved_type!r} cannot be reached by this version yet",
        phase="config",
        remedy="Run the server locally, or through a stdio bridge such as mcp-remote.",
        server=config.name,
    )


def _is_foreign(error: BaseException) -> bool:
    return isinstance(error, (*protocol().REFUSALS, protocol().ClosedWhileProbing))
