"""What is true of one server now: its row, its tools, and who waits for its verdict.

The state changes in :meth:`Standing.move` alone, along the table of ``status``. Owns no task and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time
from types import MappingProxyType
from typing import Any, Final

import trio
from attrs import define, evolve, field

from ..adapter import RemoteTool
from ..config import MCPServerConfig
from ..status import ServerState, ServerStatus, check_transition, rfc3339

__all__ = ["DOWN", "NEEDS_SIGN_IN", "NO_TOOLS", "UNSETTLED", "WAY_UP", "Standing"]

DOWN: Final = frozenset({ServerState.DISABLED, ServerState.DISCONNECTED})
"""Somebody wants it down."""

UNSETTLED: Final = frozenset({ServerState.PENDING, ServerState.STARTING})
"""Its verdict is still out."""

WAY_UP: Final[Mapping[ServerState, tuple[ServerState, ...]]] = {
    ServerState.DISABLED: (ServerState.PENDING, ServerState.STARTING),
    ServerState.PENDING: (ServerState.STARTING,),
    ServerState.STARTING: (),
    ServerState.CONNECTED: (),
    ServerState.RECONNECTING: (ServerState.STARTING,),
    ServerState.FAILED: (ServerState.STARTING,),
    ServerState.NEEDS_AUTH: (ServerState.STARTING,),
    ServerState.NEEDS_CLIENT_REGISTRATION: (ServerState.STARTING,),
    ServerState.DISCONNECTED: (ServerState.PENDING, ServerState.STARTING),
}
"""How a server comes up that an edit has made a connection for, from each state."""

NEEDS_SIGN_IN: Final = frozenset({ServerState.NEEDS_AUTH, ServerState.NEEDS_CLIENT_REGISTRATION})
"""A human has to do something about its sign-in."""

_TELLS_WHY: Final = frozenset({ServerState.FAILED, ServerState.RECONNECTING}) | NEEDS_SIGN_IN

NO_TOOLS: Final[Mapping[str, RemoteTool]] = MappingProxyType({})
"""One object for all: its owner sees by identity whether the tools have changed."""


@define(eq=False)
class Standing:
    """The status of one server.

    Args:
        row: What is known of it; what changes by itself (pid, queue, …) is added by whoever shows it.
        on_change: Called, synchronously, after every change.
    """

    row: ServerStatus
    _on_change: Callable[[], None]
    tools: Mapping[str, RemoteTool] = field(default=NO_TOOLS, init=False)
    _settled: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @classmethod
    def of(cls, config: MCPServerConfig, on_change: Callable[[], None]) -> Standing:
        """The status of a server that nothing has been done for."""
        row = ServerStatus(
            name=config.name,
            type=config.resolved_type,
            enabled=config.enabled,
            description=config.description,
            status=ServerState.PENDING if config.enabled else ServerState.DISABLED,
            since=rfc3339(time()),
        )
        return cls(row, on_change)

    @property
    def state(self) -> ServerState:
        """What it is doing."""
        return self.row.status

    def move(self, state: ServerState, **changes: Any) -> None:
        """Go on to a state; nobody is told yet. What was said of the one before is said no more.

        Args:
            state: The state; that it may follow is checked.
            changes: What else is known by now.
        """
        check_transition(self.state, state)
        if state is not self.state:
            changes["since"] = rfc3339(time())
        cleared: dict[str, Any] = {}
        if state not in _TELLS_WHY:
            cleared |= {"error": None, "error_kind": None, "phase": None, "remedy": None, "retry_at": None}
        if state in UNSETTLED:
            cleared |= {"exit_code": None, "exit_way": None}
        if state is not ServerState.CONNECTED:
            cleared |= {"protocol_version": None, "server_info": None, "warnings": ()}
        self.row = evolve(self.row, **{**cleared, **changes, "status": state})

    def configure(self, config: MCPServerConfig) -> None:
        """Say what its configuration says; nobody is told yet."""
        self.row = evolve(self.row, type=config.resolved_type, description=config.description, enabled=config.enabled)

    def note(self, **changes: Any) -> bool:
        """Something more is known; nobody is told yet. Says whether it is news."""
        before, self.row = self.row, evolve(self.row, **changes)
        return self.row != before

    def tell(self) -> None:
        """Tell that something has changed."""
        self._on_change()

    async def changed(self) -> None:
        """Wait until its state has changed, or :meth:`wake` was called."""
        await self._settled.park()

    def wake(self) -> None:
        """Wake whoever waits, to look again."""
        self._settled.unpark_all()
