"""Where a connection meets the SDK. Imported once a process was started, since the SDK takes its time to import."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import trio
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from pydantic import ValidationError

from ..config import MCPServerConfig
from ..session import BrokenAnswer, ClosedWhileProbing, Session, SessionHooks, open_session
from ..transports._http_answers import HttpRefused
from ..transports._http_base import HttpDispatcher
from ..transports._http_client import configured_credentials, open_client, own_headers
from ..transports._process import ServerProcess
from ..transports._requests import RequestLost, SessionLost
from ..transports._sse import SseDispatcher
from ..transports.http import StreamableDispatcher
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
    "HttpRefused",
    "ListenNotSupportedError",
    "MCPError",
    "RequestLost",
    "RequestOptions",
    "SessionLost",
    "make_remote",
    "open_client",
    "open_over",
    "open_stdio",
    "serving_request",
]

REFUSALS: Final = (MCPError, SubscriptionLost, ListenNotSupportedError, ValidationError)
"""What means that the server did not do what it was asked, by its own will or by its end."""

_NOISE_TOLD: Final = 5


def open_stdio(
    config: MCPServerConfig, process: ServerProcess, known_era: Any, watcher: Any
) -> AbstractAsyncContextManager[tuple[Session, trio.Event]]:
    """A negotiated session over the pipes of a process. See :func:`open_over`."""
    ended = trio.Event()

    class Dispatcher(StdioDispatcher):
        async def run(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super().run(*args, **kwargs)
            finally:
                ended.set()

    # A server that prints to its standard output is told of, but not for ever.
    on_noise = _teller_of_noise("stdout", "on standard output", watcher)
    dispatcher = Dispatcher(process.link(), max_frame_bytes=config.max_frame_bytes, on_noise=on_noise)
    return open_over(dispatcher, ended, config, known_era, watcher)


def make_remote(
    transport: str,
    client: Any,
    config: MCPServerConfig,
    watcher: Any,
    on_sent: Callable[[], None],
) -> HttpDispatcher:
    """A dispatcher for a remote server.

    Args:
        transport: ``http`` or ``sse``.
        client: Makes the requests.
        config: The configuration, expanded.
        watcher: Told what the server says that is no message.
        on_sent: Told, once, that something has reached the server.
    """
    made = {"http": StreamableDispatcher, "sse": SseDispatcher}[transport]
    return made(
        client,
        config.url or "",
        headers=own_headers(config),
        credentials=configured_credentials(config),
        max_frame_bytes=config.max_frame_bytes,
        on_noise=_teller_of_noise("http", "of a response", watcher),
        on_sent=on_sent,
    )


@asynccontextmanager
async def open_over(
    dispatcher: Any, ended: trio.Event, config: MCPServerConfig, known_era: Any, watcher: Any
) -> AsyncIterator[tuple[Session, trio.Event]]:
    """A negotiated session over a dispatcher.

    Args:
        dispatcher: It does not run yet.
        ended: Set when it takes no requests any more.
        config: The configuration.
        known_era: How the server spoke last time, or ``None``.
        watcher: Told what the server says.

    Yields:
        The session, and ``ended``.

    Raises:
        See :func:`openprogram_mcp.session.open_session`; and whatever the body raises, in a group.
    """

    async def on_log(level: str, logger: str | None, text: str) -> None:
        watcher.log(level, logger, watcher.mask(text))

    hooks = SessionHooks(
        on_log=on_log, on_list_changed=watcher.list_changed, on_resource_updated=watcher.resource_updated
    )
    async with open_session(
        dispatcher, server=config.name, era=config.era, known_era=known_era, hooks=hooks
    ) as session:
        yield session, ended


def _teller_of_noise(logger: str, where: str, watcher: Any) -> Callable[[Noise], None]:
    """What tells the first few pieces of noise."""
    told = 0

    def on_noise(noise: Noise) -> None:
        nonlocal told
        told += 1
        if told <= _NOISE_TOLD:
            sample = noise.sample.decode("utf-8", "replace")
            if len(noise.sample) < noise.size:
                # Its last word is cut, and the half of a secret would not be known as one.
                sample = f"{sample.rpartition(' ')[0]} …"
            said = watcher.mask(sample)
            watcher.log("warning", logger, f"skipped {noise.size} bytes {where}, {noise.reason}: {said}")

    return on_noise
