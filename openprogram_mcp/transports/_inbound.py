"""What the peer asks and tells: each request in a task and a scope of its own, notifications one after the other.

A request that the peer has cancelled is never answered; one that is cut off by the end of the connection is told so.
What a handler raises becomes an answer here and nowhere else, and no text of ours goes out with it. Whatever a peer
sends and however fast, the number of tasks and the memory held for it are bounded, and reading goes on.
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
_NOTIFICATION_BYTES_HELD: Final = 16 * 1024 * 1024
_REQUESTS_AT_ONCE: Final = 64
# What is said often and can be missed: in a flood it is refused, while as much again of all else still finds room.
_DISPENSABLE: Final = frozenset({"notifications/message", "notifications/progress"})
# So often the reader lets others run, while that gets notifications delivered, before it reads on regardless.
_PATIENCE: Final = 8


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
    progress_token: RequestId | None = None
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
        if self.progress_token is None:
            return
        params: dict[str, Any] = {"progressToken": self.progress_token, "progress": progress}
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
        self._serving = 0
        self._notifications: deque[tuple[str, Mapping[str, Any] | None, int]] = deque()
        self._held_bytes = 0
        self._delivered = 0
        self._arrival = trio.lowlevel.ParkingLot()
        self.dropped = 0
        """How many notifications were dropped in a flood."""

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
        if self._serving >= _REQUESTS_AT_ONCE:
            self._post(wire.encode_error(request_id, INTERNAL_ERROR, "too many requests at once"))
            return
        meta = (params or {}).get("_meta")
        token = as_request_id(meta.get("progressToken")) if isinstance(meta, dict) else None
        served = _Served(_Context(self._outbound, self._transport, request_id, progress_token=token))
        # Counted apart from the table, in which a second request under the same id takes the place of the first.
        self._serving += 1
        self._served[correlation_key(request_id)] = served
        nursery.start_soon(self._serve, served, on_request, request_id, method, params)

    def cancel(self, request_id: object) -> None:
        """The peer does not want the answer to a request any more."""
        wire_id = as_request_id(request_id)
        served = None if wire_id is None else self._served.get(correlation_key(wire_id))
        if served is not None:
            served.context.cancel_requested.set()
            served.scope.cancel()

    @trio.lowlevel.enable_ki_protection
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
            self._serving -= 1
            key = correlation_key(request_id)
            if self._served.get(key) is served:  # a second request under the same id may have taken its place
                del self._served[key]
            if not served.context.cancel_requested.is_set():
                self._post(answer)

    # Notifications.

    def take_notification(self, method: str, params: Mapping[str, Any] | None, size: int) -> None:
        """Hold a notification for :meth:`deliver`. In a flood some are dropped, and counted.

        Args:
            method: Its method.
            params: Its parameters.
            size: How many bytes it came in.
        """
        dispensable = method in _DISPENSABLE
        share = 1 if dispensable else 2
        while self._notifications and (
            len(self._notifications) >= share * _NOTIFICATIONS_HELD
            or self._held_bytes + size > share * _NOTIFICATION_BYTES_HELD
        ):
            self.dropped += 1
            if dispensable:
                return
            self._held_bytes -= self._notifications.popleft()[2]
        self._notifications.append((method, params, size))
        self._held_bytes += size
        self._arrival.unpark()

    async def let_deliver(self) -> None:
        """Where many notifications wait, let them be delivered before more are read.

        Only as long as that gets on: a handler may itself wait for something that has yet to be read.
        """
        idle = 0
        while len(self._notifications) > _NOTIFICATIONS_HELD // 2 and idle < _PATIENCE:
            before = self._delivered
            await trio.lowlevel.checkpoint()
            idle = 0 if self._delivered > before else idle + 1

    @trio.lowlevel.enable_ki_protection
    async def deliver(self, on_notify: OnNotify) -> None:
        """Hand over the notifications in the order in which they came, for ever."""
        while True:
            while not self._notifications:
                await self._arrival.park()
            method, params, size = self._notifications.popleft()
            self._held_bytes -= size
            context = cast("DispatchContext[TransportContext]", _Context(self._outbound, self._transport))
            await contained(on_notify, context, method, params)
            self._delivered += 1


@trio.lowlevel.disable_ki_protection
async def _answer(
    on_request: OnRequest, context: _Context, request_id: RequestId, method: str, params: Mapping[str, Any] | None
) -> bytes:
    """What a request is answered with. Whatever its handler raises, the connection lives."""
    try:
        try:
            result = await on_request(cast("DispatchContext[TransportContext]", context), method, params)
            return wire.encode_result(request_id, result)
        except MCPError as error:
            return wire.encode_error(request_id, error.code, error.message, error.data)
        except ValidationError:
            return wire.encode_error(request_id, INVALID_PARAMS, "Invalid request parameters")
    except Exception:  # whatever a handler raises, and an answer of its that is no JSON
        logger.exception("the handler of %r raised", method)
    except BaseExceptionGroup as group:
        # A handler with a nursery that was cancelled while it failed: the cancellation goes its way alone.
        _log_and_pass(group, f"the handler of {method!r} raised")
    return wire.encode_error(request_id, INTERNAL_ERROR, "Internal error")


@trio.lowlevel.disable_ki_protection
async def contained(callback: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run a callback of somebody else's: what it raises is logged, and costs nothing but itself.

    Ctrl-C may fall into it, since it is not our code.
    """
    try:
        await callback(*args)
    except Exception:  # any exception of a callback's; a cancellation passes
        logger.exception("a callback raised")
    except BaseExceptionGroup as group:
        _log_and_pass(group, "a callback raised")


def _log_and_pass(group: BaseExceptionGroup[BaseException], what: str) -> None:
    """Log the exceptions of a group and raise the rest of it: a cancellation, Ctrl-C."""
    failures, rest = group.split(Exception)
    if failures is not None:
        logger.error(what, exc_info=failures)
    if rest is not None:
        raise rest
