"""What the peer asks and tells: each request in a task and a scope of its own, notifications one after the other.

A request that the peer has cancelled is never answered; one that is cut off by the end of the connection is told so.
What a handler raises becomes an answer here and nowhere else, and no text of ours goes out with it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, cast

import trio
from attrs import define, field
from mcp.shared.dispatcher import CallOptions, DispatchContext, OnNotify, OnRequest
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS
from pydantic import ValidationError

from . import wire
from .wire import RequestId, as_request_id, correlation_key

__all__ = ["Inbound", "contained", "serving_request"]

logger = logging.getLogger(__name__)

serving_request: ContextVar[object | None] = ContextVar("serving_request", default=None)
"""In a handler of a server's own request: the dispatcher it came over. A call from there must not wait for itself."""

_NOTIFICATIONS_HELD: Final = 4096
_REQUESTS_AT_ONCE: Final = 64


class _Outbound(Protocol):
    """What a handler may send back."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]: ...

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None: ...


@define(eq=False)
class _Context:
    """What a handler is given: the SDK's ``DispatchContext``."""

    _outbound: _Outbound
    transport: TransportContext
    request_id: RequestId | None = None
    message_metadata: MessageMetadata = None
    _progress_token: RequestId | None = None
    _closed: bool = False
    cancel_requested: trio.Event = field(factory=trio.Event)

    @property
    def can_send_request(self) -> bool:
        return self.transport.can_send_request and not self._closed

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        if not self.can_send_request:
            raise NoBackChannelError(method)
        return await self._outbound.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        if not self._closed:
            await self._outbound.notify(method, params, opts)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._progress_token is None:
            return
        params: dict[str, Any] = {"progressToken": self._progress_token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)

    def close(self) -> None:
        self._closed = True


@define(eq=False)
class _Served:
    """A request that is being served."""

    context: _Context
    scope: trio.CancelScope = field(factory=trio.CancelScope)


class Inbound:
    """The peer's requests and notifications on one connection.

    Args:
        outbound: How a handler talks back.
        post: Sends a line without waiting.
        transport: What handlers are told of the transport.
    """

    def __init__(self, outbound: _Outbound, post: Callable[[bytes], None], transport: TransportContext) -> None:
        self._outbound = outbound
        self._post = post
        self._transport = transport
        self._served: dict[RequestId, _Served] = {}
        self._notifications: deque[tuple[str, Mapping[str, Any] | None]] = deque()
        self._arrival = trio.lowlevel.ParkingLot()
        self.dropped = 0

    # Requests.

    def take_request(
        self,
        nursery: trio.Nursery,
        on_request: OnRequest,
        request_id: RequestId,
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        """Begin to serve a request, in a task in ``nursery``."""
        if len(self._served) >= _REQUESTS_AT_ONCE:
            self._post(wire.encode_error(request_id, INTERNAL_ERROR, "too many requests at once"))
            return
        meta = (params or {}).get("_meta")
        token = as_request_id(meta.get("progressToken")) if isinstance(meta, dict) else None
        served = _Served(_Context(self._outbound, self._transport, request_id, progress_token=token))
        self._served[correlation_key(request_id)] = served
        nursery.start_soon(self._serve, served, on_request, request_id, method, params)

    def cancel(self, request_id: object) -> None:
        """The peer does not want the answer to a request any more."""
        wire_id = as_request_id(request_id)
        served = None if wire_id is None else self._served.get(correlation_key(wire_id))
        if served is not None:
            served.context.cancel_requested.set()
            served.scope.cancel()

    async def _serve(
        self,
        served: _Served,
        on_request: OnRequest,
        request_id: RequestId,
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        serving_request.set(self._outbound)
        # What it is answered with if the handler does not come to an end: the connection ended first.
        answer = wire.encode_error(request_id, CONNECTION_CLOSED, "Connection closed")
        try:
            with served.scope:
                answer = await _answer(on_request, served.context, request_id, method, params)
        finally:
            served.context.close()
            key = correlation_key(request_id)
            if self._served.get(key) is served:  # a second request under the same id may have taken its place
                del self._served[key]
            if not served.context.cancel_requested.is_set():
                self._post(answer)

    # Notifications.

    def take_notification(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Hold a notification for :meth:`deliver`. In a flood the oldest are forgotten, and counted."""
        if len(self._notifications) >= _NOTIFICATIONS_HELD:
            self._notifications.popleft()
            self.dropped += 1
        self._notifications.append((method, params))
        self._arrival.unpark()

    async def deliver(self, on_notify: OnNotify) -> None:
        """Hand over the notifications in the order in which they came, for ever."""
        while True:
            while not self._notifications:
                await self._arrival.park()
            method, params = self._notifications.popleft()
            context = cast("DispatchContext[TransportContext]", _Context(self._outbound, self._transport))
            await contained(on_notify, context, method, params)


async def _answer(
    on_request: OnRequest, context: _Context, request_id: RequestId, method: str, params: Mapping[str, Any] | None
) -> bytes:
    try:
        result = await on_request(cast("DispatchContext[TransportContext]", context), method, params)
        return wire.encode_result(request_id, result)
    except MCPError as error:
        return wire.encode_error(request_id, error.code, error.message, error.data)
    except ValidationError:
        return wire.encode_error(request_id, INVALID_PARAMS, "Invalid request parameters")
    except Exception:  # whatever a handler raises, the peer is answered and the connection lives
        logger.exception("the handler of %r raised", method)
        return wire.encode_error(request_id, INTERNAL_ERROR, "Internal error")


async def contained(callback: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run a callback of somebody else's: what it raises is logged, and costs nothing but itself."""
    try:
        await callback(*args)
    except Exception:  # any exception of a callback's; a cancellation passes
        logger.exception("a callback raised")
