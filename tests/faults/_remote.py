"""A manager with one scripted server over HTTP, as the tests of reported failures want it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeHttpServer, do
from openprogram_mcp.testing.do import Step
from tests.faults._host import hosting

__all__ = ["AT_ONCE", "ERAS", "LATE", "MANNERS", "answering", "fake_of", "remote"]

AT_ONCE = {"initial_seconds": 0.01, "max_seconds": 0.05}
LATE = {"initial_seconds": 600, "max_seconds": 600}

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])

MANNERS: dict[str, dict[str, Any]] = {
    "legacy": {"era": "legacy"},
    "modern": {"era": "modern"},
    "sse": {"era": "legacy", "transport": "sse"},
}
"""The ways to be a server over HTTP: of both eras, and over the transport before."""


def fake_of(manner: str, **more: Any) -> FakeHttpServer:
    """A server of one of the manners."""
    return FakeHttpServer(**{**MANNERS[manner], **more})


@asynccontextmanager
async def remote(fake: FakeHttpServer, *, seconds: float = 30, **fields: Any) -> AsyncIterator[MCPManager]:
    """A manager with the server ``f``, once that has had its verdict. The server runs longer than the manager."""
    async with fake.serving(), hosting({"f": fake.config(**fields)}, seconds=seconds) as manager:
        yield manager


def answering(text: str) -> Step:
    """An event with the answer to a tool call."""
    result = {"content": [{"type": "text", "text": text}]}
    return do.event({"jsonrpc": "2.0", "id": "$id", "result": result})
