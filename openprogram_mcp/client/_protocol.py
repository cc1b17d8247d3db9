"""Where a connection meets the SDK. Imported once a process was started, since the SDK takes its time to import."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from pydantic import ValidationError

from ..config import MCPServerConfig
from ..session import BrokenAnswer, ClosedWhileProbing, Session, SessionHooks, open_session
from ..transports._process import ServerProcess
from ..transports.stdio import ConnectionClosed, Fate, FateState, RequestOptions, StdioDispatcher, serving_request
from ..transports.wire import Noise

__all__ = [
    "METHOD_NOT_FOUND",
    "REFUSALS",
    "BrokenAnswer",
    "ClosedWhileProbing",
    "ConnectionClosed",
    "Fate",
    "FateState",
    "ListenNotSupportedError",
    "MCPError",
    "RequestOptions",
    "open_stdio",
    "serving_request",
]

REFUSALS: Final = (MCPError, SubscriptionLost, ListenNotSupportedError, ValidationError)
"""What means that the server did not do what it was asked, by its own will or by its end."""

_NOISE_TOLD: Final = 5


@asynccontextmanager
async def open_stdio(
    config: MCPServerConfig, process: ServerProcess, known_era: Any, watcher: Any
) -> AsyncIterator[tuple[Session, trio.Event]]:
    """A negotiated session over the pipes of a process.

    Yields:
        The session, and an event that is set when the server has closed the connection.

    Raises:
        See :func:`openprogram_mcp.session.open_session`; and whatever the body raises, in a group.
    """
    noise = 0
    ended = trio.Event()

    def on_noise(line: Noise) -> None:
        # A server that prints to its standard output is told of, but not for ever.
        nonlocal noise
        noise += 1
        if noise <= _NOISE_TOLD:
            sample = line.sample.decode("utf-8", "replace")
            if len(line.sample) < line.size:
                # Its last word is cut, and the half of a secret would not be known as one.
                sample = f"{sample.rpartition(' ')[0]} …"
            said = watcher.mask(sample)
            watcher.log("warning", "stdout", f"skipped {line.size} bytes on standard output, {line.reason}: {said}")

    class Dispatcher(StdioDispatcher):
        async def run(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super().run(*args, **kwargs)
            finally:
                ended.set()

    async def on_log(level: str, logger: str | None, text: str) -> None:
        watcher.log(level, logger, watcher.mask(text))

    hooks = SessionHooks(
        on_log=on_log, on_list_changed=watcher.list_changed, on_resource_updated=watcher.resource_updated
    )
    dispatcher = Dispatcher(process.link(), max_frame_bytes=config.max_frame_bytes, on_noise=on_noise)
    async with open_session(
        dispatcher, server=config.name, era=config.era, known_era=known_era, hooks=hooks
    ) as session:
        yield session, ended
