"""One manager per process, for a host that owns its nursery and wants the servers to be a part of it."""

from __future__ import annotations

import trio

from ..errors import AlreadyRunning
from ..status import ServerStatus
from ._manager import MCPManager, open_manager

__all__ = ["load_mcp_servers", "server_status", "shutdown_mcp_servers"]


class _Held:
    """The manager of this process, from its loading to its end."""

    def __init__(self) -> None:
        self.manager: MCPManager | None = None
        self.stop = trio.Event()
        self.ended = trio.Event()

    async def hold(self, task_status: trio.TaskStatus[MCPManager]) -> None:
        global _held
        try:
            async with open_manager() as manager:
                self.manager = manager
                task_status.started(manager)
                await self.stop.wait()
        finally:
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
    if _held is not None:
        if _held.manager is None:
            raise AlreadyRunning("the servers of this process are being loaded already")
        return _held.manager
    held = _held = _Held()
    try:
        manager: MCPManager = await nursery.start(held.hold)
    except BaseException:
        _held = None
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
