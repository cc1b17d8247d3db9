"""Server-sent events (the HTML standard's ``text/event-stream``): one response that lives as long as its client.

It ends when its producer ends, when the client closes it, and when the worker stops. While nothing happens it sends a
comment now and then, so that a connection that is gone is noticed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from attrs import define, field
from litestar.response import Response

from ._guard import Receive, Scope, Send
from ._json import encode

__all__ = ["EventSource", "EventStream", "cancel_when_closed", "frame"]

EventSource = Callable[["Writer"], Awaitable[None]]
"""What fills a stream: it is given the writer and returns when there is nothing more."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # A proxy that gathers the answer before it passes it on would make a stream of events useless.
    (b"x-accel-buffering", b"no"),
]


def frame(event: str, data: Any, number: int | None = None) -> bytes:
    """One event as it stands in the stream. JSON has no line break of its own, so that ``data`` is one line."""
    lines = [b"event: " + event.encode(), b"data: " + encode(data)]
    if number is not None:
        lines.insert(0, b"id: %d" % number)
    return b"\n".join(lines) + b"\n\n"


async def cancel_when_closed(receive: Callable[[], Awaitable[Any]], scope: trio.CancelScope) -> None:
    """Cancel ``scope`` when the client closes the request."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


@define
class Writer:
    """Writes to one stream; pieces of two tasks are not mixed."""

    _send: Send
    _lock: trio.Lock = field(factory=trio.Lock, init=False)

    async def write(self, data: bytes) -> None:
        """Write whole frames."""
        async with self._lock:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})


class EventStream(Response[Any]):
    """A response that is a stream of events.

    Args:
        source: Fills the stream.
        stop: Ends it when set, or ``None`` where the source ends in time by itself.
        heartbeat_seconds: How often a comment is sent.
    """

    def __init__(self, source: EventSource, *, stop: trio.Event | None, heartbeat_seconds: float) -> None:
        super().__init__(None, media_type="text/event-stream")
        self._source = source
        self._stop = stop
        self._heartbeat_seconds = heartbeat_seconds

    def to_asgi_response(self, *_args: Any, **_options: Any) -> Any:
        """The ASGI application that answers (called by the framework)."""
        return self._answer

    async def _answer(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        writer = Writer(send)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when_closed, receive, nursery.cancel_scope)
            nursery.start_soon(self._beat, writer)
            if self._stop is not None:
                nursery.start_soon(self._cancel_on_stop, nursery.cancel_scope)
            await self._source(writer)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, writer: Writer) -> None:
        while True:
            await writer.write(b": \n\n")
            await trio.sleep(self._heartbeat_seconds)

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        assert self._stop is not None  # noqa: S101 - started only where there is one
        await self._stop.wait()
        scope.cancel()
