"""One generation of a server's connection, from its start to the end of all that it needed.

Everything that a connection needs lives inside :func:`hold_connection`; when it returns or raises, nothing of it is
left. It tells that it is up with ``started()``. Until then every failure is a :class:`ServerFailed` that says in which
phase it fell; from then on it ends with an ``Ending``. How a server is reached is the business of ``_local`` and
``_remote``: this is what both ways have in common.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Protocol

import trio
from attrs import define, field

from ..config import MCPServerConfig
from ..errors import ServerFailed
from ..status import Phase
from ..transports._ownership import Instance
from ..transports._process import ServerProcess
from ._connection import Connection, Ending, Known, Watcher, Withdrawn, leaves, protocol
from ._gate import Slot, StartGate
from ._listening import Listening
from ._local import LocalWay
from ._remote import RemoteWay

__all__ = ["hold_connection"]

# How long the tools are not read because the server has not agreed yet to tell when they change.
_LISTEN_SECONDS: Final = 0.5


async def hold_connection(
    prepare: Callable[[], Awaitable[MCPServerConfig]],
    *,
    generation: int,
    known: Known | None,
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
        known: How the server spoke last time, or ``None``.
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
        return await Attempt(prepare, generation, known, gate, owner, environ, watcher, task_status).run()
    except (ServerFailed, Withdrawn):
        raise
    except Exception as error:
        if not isinstance(error, protocol().ClosedWhileProbing):
            raise
    # It did not survive the question how it speaks, so it speaks the old way.
    return await Attempt(prepare, generation, Known("legacy"), gate, owner, environ, watcher, task_status).run()


class Way(Protocol):
    """How a server is reached, and what is known of it from there."""

    ending: Ending

    async def hold(self) -> None:
        """Reach the server, and hold the connection until it is lost, retired or cancelled."""

    def explained(self, failure: BaseException) -> BaseException:
        """A failure of the server's, said so that it can be acted upon."""
        ...

    def too_slow(self) -> ServerFailed:
        """It did not come up in time."""
        ...

    def gave_up(self) -> ServerFailed | None:
        """Why it was given up before it came up, where that was no error and no limit."""
        ...


@define(eq=False)
class Attempt:
    """One run of :func:`hold_connection`: what its steps share."""

    prepare: Callable[[], Awaitable[MCPServerConfig]]
    generation: int
    known: Known | None
    gate: StartGate
    owner: Instance
    environ: Mapping[str, str]
    watcher: Watcher
    task_status: trio.TaskStatus[Connection]
    config: MCPServerConfig = field(init=False)
    slot: Slot = field(init=False)
    phase: Phase = "spawn"
    limit: trio.CancelScope = field(factory=trio.CancelScope)
    _way: Way | None = None

    @property
    def known_era(self) -> Any:
        """How the server spoke last time, or ``None``."""
        return None if self.known is None else self.known.era

    async def run(self) -> Ending:
        """Make the attempt, and hold what comes of it."""
        try:
            with self.limit:
                async with self.gate.slot() as self.slot:
                    self.config = await self.prepare()
                    # The limit counts from here: waiting for others to start is not this server's fault.
                    self.limit.deadline = trio.current_time() + self.config.startup_seconds
                    self._way = LocalWay(self) if self.config.resolved_type == "local" else RemoteWay(self)
                    await self._way.hold()
        except Withdrawn:
            raise
        except (Exception, BaseExceptionGroup) as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error
        way = self._way
        if way is None:
            raise AssertionError("the limit on a start has struck before it began")
        if self.limit.cancelled_caught:
            raise way.too_slow()
        failure = way.gave_up()
        if failure is not None:
            raise failure
        return way.ending

    async def serve(
        self,
        opened: AbstractAsyncContextManager[tuple[Any, trio.Event]],
        process: ServerProcess | None,
        lost: Callable[[], Awaitable[None]] | None = None,
        hears: Callable[[float], Awaitable[None]] | None = None,
    ) -> bool:
        """The session's life, from the first word to its loss (true) or its retirement (false).

        Args:
            opened: Opens the session; gives it, and what tells that it has ended.
            process: The process behind it, where there is one.
            lost: Awaited when it is lost, before what is left of it is taken away.
            hears: Waits until what the server says by itself is heard, for so many seconds at most.
        """
        async with opened as (session, closed):
            connection = Connection(self.generation, session, process, self.config)
            self.enter("list_tools")
            async with trio.open_nursery() as nursery:
                # A change that comes between the reading and the listening would be missed, so listening comes first.
                listening = Listening(partial(session.listen, _heard_by_hook), self._missed, self._log)
                if session.wants_listener:
                    nursery.start_soon(listening.run)
                    with trio.move_on_after(_LISTEN_SECONDS):
                        await listening.settled.wait()
                    listening.late = not listening.agreed
                elif hears is not None and session.tells_changes:
                    await hears(_LISTEN_SECONDS)
                await self._read_tools(connection)
                self.slot.give_back()
                self.limit.deadline = float("inf")
                # Where the limit has struck already, at this very moment, it did not come up.
                await trio.lowlevel.checkpoint_if_cancelled()
                self.enter("running")
                self.watcher.up(connection)
                self.task_status.started(connection)
                was_lost = await connection.until_lost(closed)
                if was_lost and lost is not None:
                    await lost()
                nursery.cancel_scope.cancel()
        return was_lost

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

    def enter(self, phase: Phase) -> None:
        """The connection has come so far."""
        self.phase = phase
        self.watcher.phase(phase)

    def _explained(self, error: BaseException) -> BaseException:
        """A failure as its way explains it; what is no failure of the server's passes as it is."""
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
        return leaf if self._way is None else self._way.explained(leaf)


async def _heard_by_hook(_kind: object) -> None:
    """The hook of the session hears every change as well, whatever the era; told twice, a list would be read twice."""


def _is_foreign(error: BaseException) -> bool:
    return isinstance(error, (*protocol().REFUSALS, protocol().ClosedWhileProbing))
