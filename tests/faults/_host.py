"""A manager with fake servers, as the tests of reported failures want it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from openprogram_mcp import open_manager
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeHttpServer, FakeServer, do

__all__ = ["ODD_PROGRESS", "hosting", "well_behaved"]

ODD_PROGRESS = (
    do.progress(2.5, total=0),
    do.progress(1, message="backwards"),
    do.progress(3, token="nope"),
    do.progress(4, token=9999),
    do.progress("many"),
    do.notify("notifications/progress", {"progress": 5}),
    do.notify("notifications/progress"),
    do.progress(3.5),
)
"""Of all these only two are progress of the call: the first and the last."""


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
