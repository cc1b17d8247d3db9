"""One manager per process, for a host that owns its nursery and wants the servers to be a part of it."""

from __future__ import annotations

import trio
from attrs import define, field

from ..status import ServerStatus
from ._manager import MCPManager
from ._open import open_manager

__all__ = ["load_mcp_servers", "server_status", "shutdown_mcp_servers"]


@define(eq=False)
class _Held:
    """The manager of this process, from its loading to its end. ``loaded`` is set when it is there or will not be."""

    manager: MCPManager | None = None
    loaded: trio.Event = field(factory=trio.Event)
    stop: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)

    async def hold(self, task_status: trio.TaskStatus[MCPManager]) -> None:
        try:
            async with open_manager() as manager:
                self.manager = manager
                self.loaded.set()
                task_status.started(manager)
                await self.stop.wait()
        finally:
            self.forget()

    def forget(self) -> None:
        """It has ended, or was never loaded."""
        global _held
        self.loaded.set()
        self.ended.set()
        if _held is self:
            _held = None


_held: _Held | None = None


async def load_mcp_servers(nursery: trio.Nursery) -> MCPManager:
    """Start the saved servers in a nursery of the host's, once per process.

    Does not wait for them. Called again, it does nothing and gives the same manager.

    Args:
        nursery: It holds the servers; cancelled, it takes them down.
    """
    global _held
    while _held is not None:
        held = _held
        if held.manager is not None and not held.stop.is_set():
            return held.manager
        # Somebody else is loading them at this moment, or stopping them.
        await (held.ended if held.stop.is_set() else held.loaded).wait()
    held = _held = _Held()
    try:
        manager: MCPManager = await nursery.start(held.hold)
    except BaseException:
        held.forget()
        raise
    return manager


async def shutdown_mcp_servers() -> None:
    """Stop what :func:`load_mcp_servers` has started, and wait for its end. Without it, nothing happens."""
    held = _held
    if held is not None:
        held.stop.set()
        await held.ended.wait()


def server_status() -> dict[str, ServerStatus]:
    """The status of the servers of this process, by name; empty when none are loaded."""
    return _held.manager.status() if _held is not None and _held.manager is not None else {}
