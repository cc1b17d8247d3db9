"""A session with a fake server in memory, where time is Trio's and may be jumped over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio

from openprogram_mcp.session import Session, open_session
from openprogram_mcp.testing import FakeServer
from openprogram_mcp.transports._link import StreamLink
from openprogram_mcp.transports.stdio import StdioDispatcher

__all__ = ["methods", "raises_within", "session_with"]


@asynccontextmanager
async def session_with(fake: FakeServer, **options: Any) -> AsyncIterator[Session]:
    """A negotiated session; what it raises comes in groups."""
    async with trio.open_nursery() as nursery:
        server = fake.start_memory(nursery)
        dispatcher = StdioDispatcher(StreamLink(server.stdout, server.stdin))
        async with open_session(dispatcher, server="fake", **options) as session:
            yield session
        nursery.cancel_scope.cancel()


@contextmanager
def raises_within(kind: type[Exception], match: str | None = None) -> Iterator[list[Any]]:
    """Expect one error of this kind, however many nurseries it comes through; it is put into the list."""
    found: list[Any] = []
    with pytest.raises(ExceptionGroup) as caught:
        yield found
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        assert len(error.exceptions) == 1, error.exceptions
        error = error.exceptions[0]
    with pytest.raises(kind, match=match):
        raise error
    found.append(error)


def methods(fake: FakeServer) -> list[str]:
    """The methods of all that came in, in order."""
    return [message["method"] for message in fake.received() if "method" in message]
