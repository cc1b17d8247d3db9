"""The dispatcher of a stdio connection, written for Trio, under the SDK's ``ClientSession``.

One task reads bytes, cuts and decodes them, and wakes the caller that an answer is for; that caller's own task does the
rest. A request is written by its caller straight into the pipe when the pipe is idle (see ``_outbox``), so that a call
alone costs one write and one wake. Progress callbacks run in the waiting caller's task, in order and never after its
return. What the peer asks and tells is served by ``_inbound``.

Owns no process and closes no pipe: see ``_process``. What bytes a peer may send is the business of ``wire``.

MCP specification: basic/transports/stdio; basic/patterns/cancellation and progress; JSON-RPC 2.0.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import trio
from attrs import define
from mcp.shared.dispatcher import (
    CallOptions,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    run_notify_intercept,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT

from . import wire
from ._clock import CallClock
from ._inbound import Inbound, serving_request
from ._link import Link
from ._outbox import Fate, FateState, Frame, Outbox
from ._requests import ConnectionClosed, RequestOptions, as_number, outcome_of, tell_progress, with_meta
from ._tracing import Tracer
from .wire import Envelope, Noise, RequestId, Slot, as_request_id, correlation_key

__all__ = ["ConnectionClosed", "Fate", "FateState", "RequestOptions", "StdioDispatcher", "serving_request"]

logger = logging.getLogger(__name__)

# Outcomes are compared by identity: a peer can send the same codes.
_CLOSED: Final = object()
_TIMED_OUT: Final = object()

# How long a peer that has closed its input may still answer what it was asked before.
_LAST_ANSWERS_SECONDS: Final = 5.0
# So many requests that were given up are remembered, to know their late answers.
_GIVEN_UP_KEPT: Final = 256


@define(eq=False)
class _Caller:
    """The task that waits for a request. It is woken at most once a park."""

    _task: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    async def park(self) -> None:
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        # Cleared here, so that an answer in the same step finds nobody to wake a second time.
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class StdioDispatcher(Dispatcher[TransportContext]):
    """JSON-RPC over a link of bytes, one message a line.

    Single use: it runs once, and after its end every request fails with :class:`ConnectionClosed`.

    Args:
        link: The bytes.
        max_frame_bytes: The longest line that is accepted; a longer one costs only its own message.
        on_noise: Told each line that is no message.
    """

    def __init__(
        self, link: Link, *, max_frame_bytes: int = 64 * 1024 * 1024, on_noise: Callable[[Noise], None] | None = None
    ) -> None:
        self._link = link
        self._lines = wire.LineBuffer(max_frame_bytes)
        self._on_noise = on_noise
        self._outstanding = wire.Outstanding()
        self._clock = CallClock(self._set_timer)
        self._outbox = Outbox(link, self._clock.now)
        self._inbound = Inbound(self, self._post, TransportContext(kind="stdio", can_send_request=True))
        self._tracer = Tracer()
        self._timer = trio.CancelScope()
        self._answers = trio.lowlevel.ParkingLot()
        self._state = "new"
        self._late = 0
        self._given_up: dict[RequestId, Fate] = {}
        self._heard_at = 0.0

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._state == "closed"

    @property
    def in_flight(self) -> int:
        """How many requests of ours wait for an answer."""
        return len(self._outstanding)

    @property
    def dropped(self) -> int:
        """How many messages found nobody: late and unknown answers, and in a flood those either way."""
        return self._late + self._inbound.dropped + self._outbox.dropped

    @property
    def heard_at(self) -> float:
        """When the peer said anything last, by Trio's clock; 0 before it has."""
        return self._heard_at

    def standing_still(self) -> AbstractContextManager[None]:
        """Let the limits of all requests stand still, while somebody is asked on whom the peer may depend."""
        return self._clock.standing_still()

    # What we ask and tell.

    @trio.lowlevel.enable_ki_protection
    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its result.

        Args:
            method: The method.
            params: Its parameters; copied where something is added to them, never changed.
            opts: See :class:`RequestOptions`. Limits are in seconds.

        Raises:
            MCPError: The peer answered with an error; or ``REQUEST_TIMEOUT``, when a limit ran out.
            ConnectionClosed: The connection ended first.
            RuntimeError: The dispatcher does not run yet.
            ValueError: The given ``request_id`` is in use, or is none.
        """
        if self._state != "running":
            if self._state == "closed":
                # Who tries again at once must let others learn that the connection has ended.
                await trio.lowlevel.checkpoint()
                raise ConnectionClosed
            raise RuntimeError("StdioDispatcher.send_raw_request called before run()")
        options: RequestOptions = opts or {}  # type: ignore[assignment]  # the SDK's own callers give its own options
        on_progress = options.get("on_progress")
        wire_id = options.get("request_id")
        if wire_id is None:
            wire_id = self._outstanding.mint()
        elif as_request_id(wire_id) is None:
            raise ValueError(f"{wire_id!r} is no request id")
        caller = _Caller()
        slot = Slot(correlation_key(wire_id), caller.wake, progress=None if on_progress is None else [])
        fate = options.get("fate") or Fate()
        self._outstanding.add(slot)
        try:
            with self._tracer.traced(method, params, wire_id) as trace:
                wants_progress = on_progress is not None or options.get("wants_progress", False)
                meta = {**trace.meta, "progressToken": wire_id} if wants_progress else trace.meta
                line = wire.encode_request(wire_id, method, with_meta(params, meta) if meta else params)
                frame = Frame(memoryview(line), slot, fate)
                self._arm(slot, options.get("timeout"), options.get("hard_timeout"))
                try:
                    await self._send(frame, slot)
                    while slot.outcome is not _TIMED_OUT and slot.outcome is not _CLOSED:
                        if slot.progress and on_progress is not None:
                            await tell_progress(on_progress, slot)
                        elif slot.settled:
                            break
                        else:
                            await caller.park()
                finally:
                    if not slot.settled or slot.outcome is _TIMED_OUT:
                        self._abandon(frame, wire_id, fate, options.get("cancel_on_abandon", True))
                trace.outcome(slot.outcome)
        finally:
            self._outstanding.remove(slot)
        return self._result(method, slot, fate)

    def _result(self, method: str, slot: Slot, fate: Fate) -> dict[str, Any]:
        outcome = slot.outcome
        if outcome is _CLOSED:
            raise ConnectionClosed
        if outcome is _TIMED_OUT:
            fate.expired = slot.expired
            fate.silence = trio.current_time() - self._heard_at if self._heard_at else None
            if slot.last_heard is not None:
                at, progress, total, message = slot.last_heard
                fate.last_progress = (self._clock.now() - at, progress, total, message)
            raise MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out")
        fate.state = FateState.ANSWERED
        if isinstance(outcome, MCPError):
            raise outcome
        result: dict[str, Any] = outcome
        return result

    async def _send(self, frame: Frame, slot: Slot) -> None:
        # Past this point the request counts as issued, unless it can still be taken out of the outbox.
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._outbox.full and not slot.settled:
            await self._outbox.wait_for_room()
        if not slot.settled:
            # Where others are on their way too, more of them are likely to follow in this moment.
            self._outbox.post(frame, alone=len(self._outstanding) == 1)

    def _abandon(self, frame: Frame, wire_id: RequestId, fate: Fate, tell: bool) -> None:
        """Nobody waits any more: take the request out of the outbox if it still stands there, else tell the peer."""
        frame.withdrawn = True
        if not frame.begun or self._state != "running":
            return
        if len(self._given_up) >= _GIVEN_UP_KEPT:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[correlation_key(wire_id)] = fate
        if tell:
            self._post(wire.encode_notification("notifications/cancelled", {"requestId": wire_id}))

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification, without waiting. After the end of the connection it is dropped."""
        del opts
        if self._state != "closed":
            self._post(wire.encode_notification(method, params))

    def _post(self, line: bytes) -> None:
        self._outbox.post(Frame(memoryview(line)))

    # Limits: one task for all requests, so that a limit costs a request next to nothing.

    def _arm(self, slot: Slot, timeout: float | None, hard_timeout: float | None) -> None:
        if timeout is None and hard_timeout is None:
            return
        now = self._clock.now()
        slot.idle = timeout
        slot.hard_deadline = math.inf if hard_timeout is None else now + hard_timeout
        slot.deadline = min(slot.hard_deadline, math.inf if timeout is None else now + timeout)
        deadline = self._clock.when(slot.deadline)
        if deadline < self._timer.deadline:
            self._timer.deadline = deadline

    def _set_timer(self) -> None:
        earliest = min((slot.deadline for slot in self._outstanding), default=math.inf)
        self._timer.deadline = self._clock.when(earliest)

    @trio.lowlevel.enable_ki_protection
    async def _expire(self) -> None:
        while True:
            with self._timer:
                await trio.sleep_forever()
            now = self._clock.now()
            for slot in self._outstanding:
                if slot.deadline <= now:
                    # One that is answered already has somebody listening to its progress, for too long.
                    slot.deadline = math.inf
                    if slot.give_up(_TIMED_OUT):
                        slot.expired = "hard" if slot.hard_deadline <= now else "idle"
            self._outbox.wake_waiting()
            self._timer = trio.CancelScope()
            self._set_timer()

    # What we hear.

    @trio.lowlevel.enable_ki_protection
    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until the peer closes it or the caller cancels this.

        ``task_status.started()`` is called when requests can be sent.
        """
        if self._state != "new":
            raise RuntimeError("a StdioDispatcher runs once")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._outbox.run)
                nursery.start_soon(self._expire)
                nursery.start_soon(self._inbound.deliver, on_notify)
                nursery.start_soon(self._leave_when_unheard, nursery.cancel_scope)
                self._state = "running"
                task_status.started()

                def take(message: Envelope, size: int) -> None:
                    self._take(message, size, nursery, on_request, on_notify_intercept)

                try:
                    while chunk := await self._link.receive():
                        self._heard_at = trio.current_time()
                        for line in self._lines.feed(chunk):
                            self._take_line(line, take)
                        await self._inbound.let_deliver()
                    for line in self._lines.finish():
                        self._take_line(line, take, whole=False)
                finally:
                    # The callers are woken before the handlers are cancelled and waited for, whatever the way out.
                    self._close()
                nursery.cancel_scope.cancel()
        finally:
            self._close()

    @trio.lowlevel.enable_ki_protection
    async def _leave_when_unheard(self, connection: trio.CancelScope) -> None:
        """End a connection whose peer has closed its input: once it has answered what it was asked, or soon after."""
        await self._outbox.broken.wait()
        with trio.move_on_after(_LAST_ANSWERS_SECONDS):
            while any(slot.issued and not slot.settled for slot in self._outstanding):
                await self._answers.park()
        self._close()
        connection.cancel()

    def _close(self) -> None:
        """Wake everybody who waits. Synchronous, since it may run in a cancelled scope; idempotent."""
        self._state = "closed"
        # The task that writes may be on its way to do so, while those who wait are told what has become of theirs.
        self._outbox.withdraw_requests()
        self._outstanding.settle_all(_CLOSED)
        self._outbox.wake_waiting()

    def _take_line(
        self, line: bytes | bytearray | Noise, take: Callable[[Envelope, int], None], *, whole: bool = True
    ) -> None:
        try:
            if isinstance(line, Noise):
                self._take_noise(line, whole)
                return
            message = wire.decode(line)
            if isinstance(message, Envelope):
                take(message, len(line))
            elif isinstance(message, Noise):
                self._take_noise(message, whole)
            else:
                for item in message or ():
                    take(item, len(line))
        except Exception:  # a message that trips us must cost itself, never the connection
            logger.exception("a message could not be handled")

    def _take(
        self,
        message: Envelope,
        size: int,
        nursery: trio.Nursery,
        on_request: OnRequest,
        on_notify_intercept: OnNotifyIntercept | None,
    ) -> None:
        method = message.method
        if not isinstance(method, str):
            self._take_answer(message)
            return
        params = message.params if isinstance(message.params, dict) else None
        request_id = as_request_id(message.id)
        if request_id is not None:
            self._inbound.take_request(nursery, on_request, request_id, method, params)
            return
        if method == "notifications/progress":
            self._take_progress(params or {})
        elif method == "notifications/cancelled":
            self._inbound.cancel((params or {}).get("requestId"))
        if not run_notify_intercept(on_notify_intercept, method, params):
            self._inbound.take_notification(method, params, size)

    def _take_answer(self, message: Envelope) -> None:
        slot = self._outstanding.find(message.id)
        if slot is None and message.id in (None, wire.UNSET) and message.error:
            # An error that could not say what it is about: with one request on its way it can only be that one.
            slot = self._outstanding.only()
        if slot is None or not slot.settle(outcome_of(message)):
            self._take_late(message.id)
        if self._answers:
            self._answers.unpark_all()

    def _take_late(self, answered: object) -> None:
        """An answer that nobody waits for: what it was asked for is over now, if we know of it."""
        self._late += 1
        wire_id = as_request_id(answered)
        fate = None if wire_id is None else self._given_up.pop(correlation_key(wire_id), None)
        if fate is not None:
            fate.state = FateState.ANSWERED
            if fate.on_late_answer is not None:
                fate.on_late_answer()

    def _take_progress(self, params: Mapping[str, Any]) -> None:
        slot = self._outstanding.find(params.get("progressToken"))
        progress, message = as_number(params.get("progress")), params.get("message")
        if slot is None or progress is None:
            return
        total = as_number(params.get("total"))
        slot.heard(progress, total, message if isinstance(message, str) else None, self._clock.now())

    def _take_noise(self, noise: Noise, whole: bool) -> None:
        # What was cut off by the end of the connection is no answer, but the loss of one.
        slot = self._outstanding.find(noise.id) if whole else None
        if slot is not None:
            slot.settle(MCPError(code=INTERNAL_ERROR, message=f"the server's answer was {noise.reason}"))
            self._answers.unpark_all()
        elif noise.id is not None:
            self._take_late(noise.id)
        if self._on_noise is not None:
            self._on_noise(noise)
