"""Edits of one server: make before break.

An edit is tried beside the connection in force. What does not come up, or cannot be saved, changes nothing; what does
takes its place in one step. Edits of one server are made one at a time, in a task of its supervisor, so that nothing of
one outlives the server; whoever has asked for one waits for it, and takes it back by going away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio
from attrs import define, field

from ..config import MCPServerConfig
from ..errors import AuthRequired, NotConnected, OpenProgramMCPError, RevisionConflict, ServerFailed
from ..status import ServerState
from ._held import Held

__all__ = ["Edit", "EditQueue", "already", "make_edit"]

# Putting away what was tried bounds itself; this bounds the wait for it.
_TAKEN_BACK_SECONDS: Final = 60.0

# Whatever was changed, it may be what was wrong.
_WAITS_FOR_A_CHANGE: Final = frozenset(
    {ServerState.FAILED, ServerState.NEEDS_AUTH, ServerState.NEEDS_CLIENT_REGISTRATION}
)


async def _nothing_to_save() -> None:
    return


@define(eq=False)
class Edit:
    """One edit.

    Args:
        config: The server's new configuration, as it is stored.
        expanded: The same with the values of variables.
        save: Saves it; whatever it raises, the edit was not made.
        force: Make it though it does not come up.
        by_hand: It was made in the file, so that there is nothing to save and nobody who waits.
    """

    config: MCPServerConfig
    expanded: MCPServerConfig
    save: Callable[[], Awaitable[None]] = _nothing_to_save
    force: bool = False
    by_hand: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    done: trio.Event = field(factory=trio.Event, init=False)
    error: Exception | None = field(default=None, init=False)


@define(eq=False)
class EditQueue:
    """The edits of one server that are still to be made, and the one that is being made.

    Args:
        server: The server's name.
    """

    _server: str
    _waiting: deque[Edit] = field(factory=deque, init=False)
    _now: Edit | None = field(default=None, init=False)
    _arrival: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def busy(self) -> bool:
        """Whether an edit is being made or waits."""
        return self._now is not None or bool(self._waiting)

    def post(self, edit: Edit) -> None:
        """Let an edit be made in its turn. A later edit by hand says what an earlier one was to be."""
        if self._closed:
            self._fail(edit, NotConnected(f"server {self._server!r} was stopped", server=self._server))
            return
        if edit.by_hand:
            self.forget_by_hand()
        self._waiting.append(edit)
        self._arrival.unpark_all()

    def forget_by_hand(self) -> None:
        """The file says something else by now than in the edits by hand that are not made yet."""
        for earlier in [edit for edit in self._waiting if edit.by_hand]:
            self._waiting.remove(earlier)
            earlier.done.set()
        if self._now is not None and self._now.by_hand:
            self._now.scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def made(self, edit: Edit) -> None:
        """Post an edit and wait until it is made. Cancelled, it is taken back, unless it is made by then.

        Raises:
            ConfigError, ServerFailed: It did not come up; nothing was changed.
            RevisionConflict: Somebody else has changed the same; nothing was changed.
            StorageError: It could not be saved; nothing was changed.
            NotConnected: The server is on its way out.
        """
        self.post(edit)
        try:
            await edit.done.wait()
        finally:
            if not edit.done.is_set():
                edit.scope.cancel()
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _TAKEN_BACK_SECONDS):
                    await edit.done.wait()
        if edit.error is not None:
            raise edit.error

    def supersede(self) -> None:
        """Somebody has told the server something else: the edit that is being made is not made, unless it is saved."""
        if self._now is not None:
            self._now.scope.cancel()

    async def run(self, make: Callable[[Edit], Awaitable[bool]]) -> None:
        """Make the edits, one after the other, for ever.

        Args:
            make: Makes an edit, in its scope; says whether it was made.
        """
        try:
            while True:
                while not self._waiting:
                    await self._arrival.park()
                edit = self._now = self._waiting.popleft()
                made = False
                try:
                    with edit.scope:
                        made = await make(edit)
                except OpenProgramMCPError as error:
                    edit.error = error
                finally:
                    self._now = None
                    if not made and edit.error is None:
                        edit.error = self._overtaken()
                    edit.done.set()
        finally:
            self.close()

    def close(self) -> None:
        """The server is on its way out: whoever waits is told so."""
        self._closed = True
        while self._waiting:
            edit = self._waiting.popleft()
            self._fail(edit, NotConnected(f"server {self._server!r} was stopped", server=self._server))

    def _overtaken(self) -> OpenProgramMCPError:
        if self._closed:
            return NotConnected(f"server {self._server!r} was stopped", server=self._server)
        return RevisionConflict(
            f"server {self._server!r} was told something else while it was being edited",
            remedy="Nothing was changed. Look at its status and edit it again.",
            server=self._server,
        )

    @staticmethod
    def _fail(edit: Edit, error: OpenProgramMCPError) -> None:
        edit.error = error
        edit.done.set()


class Edited(Protocol):
    """The server that an edit is made of, as far as an edit needs to know it."""

    config: MCPServerConfig

    @property
    def state(self) -> ServerState: ...

    def take(self, config: MCPServerConfig) -> None: ...

    def refuse_edit(self, why: str) -> None: ...

    def want_now(self, state: ServerState) -> None: ...

    def told(self) -> None: ...

    async def try_beside(self, connections: trio.Nursery, expanded: MCPServerConfig) -> Held: ...

    async def stop_for_edit(self) -> Callable[[], None]: ...

    def adopt(self, held: Held) -> None: ...


async def already(config: MCPServerConfig) -> MCPServerConfig:
    """A configuration that is prepared."""
    return config


async def make_edit(server: Edited, connections: trio.Nursery, edit: Edit) -> bool:
    """Make an edit. Whatever it raises, nothing has changed.

    Args:
        server: The server.
        connections: Where its connections live.
        edit: The edit.

    Returns:
        True: it was made, though it may have been cancelled at its last moment.
    """
    config, before = edit.config, server.config
    changed = config.fingerprint() != before.fingerprint()
    if not (config.enabled and (changed or not before.enabled)):
        # No connection of its own is needed to tell that it is good.
        await edit.save()
        server.take(config)
        if config.enabled != before.enabled or server.state in _WAITS_FOR_A_CHANGE:
            server.want_now(ServerState.PENDING)
        else:
            server.told()
        return True
    try:
        await _replace(server, connections, edit)
    except ServerFailed as failure:
        signs_in = isinstance(failure, AuthRequired) and not failure.rejected
        if edit.by_hand and not signs_in:
            server.refuse_edit(f"{failure.phase}: {failure.message}")
            raise
        if not (edit.force or signs_in):
            raise
        await edit.save()
        server.take(config)
        server.want_now(ServerState.PENDING)
    return True


async def _replace(server: Edited, connections: trio.Nursery, edit: Edit) -> None:
    held: Held | None = None
    again = await server.stop_for_edit() if edit.config.stop_first else None
    try:
        held = await server.try_beside(connections, edit.expanded)
        await edit.save()
        # No checkpoint since the configuration was saved.
        server.take(edit.config)
        server.adopt(held)
        held = None
    finally:
        if held is not None:
            held.retire()
        if again is not None:
            again()
