"""A manager with fake servers, as the tests of reported failures want it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from openprogram_mcp import open_manager
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeHttpServer, FakeServer

__all__ = ["hosting", "well_behaved"]


def well_behaved() -> FakeServer:
    """A server that does nothing wrong, to see that others do it no harm."""
    return FakeServer(name="good", era="legacy").tool("echo", read_only=True)


@asynccontextmanager
async def hosting(servers: dict[str, Any], *, seconds: float = 30) -> AsyncIterator[MCPManager]:
    """A manager of these servers, each a fake or an entry of a configuration, once all have had their verdict."""
    fakes = (FakeServer, FakeHttpServer)
    entries = {name: one.config() if isinstance(one, fakes) else one for name, one in servers.items()}
    with trio.fail_after(seconds):
        async with open_manager(entries, raise_internal=True) as manager:
            await manager.started.wait()
            yield manager
