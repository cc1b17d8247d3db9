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
)
from mcp.shared.transport_context import TransportContext

from . import wire
from ._clock import CallClock
from ._hearing import Hearing
from ._inbound import Inbound, serving_request
from ._link import Link
from ._outbox import Fate, FateState, Frame, Outbox
from ._requests import CLOSED, TIMED_OUT, ConnectionClosed, RequestOptions, tell_progress, with_meta
from ._tracing import Tracer
from .wire import Noise, RequestId, Slot, correlation_key

__all__ = ["ConnectionClosed", "Fate", "FateState", "RequestOptions", "StdioDispatcher", "serving_request"]

logger = logging.getLogger(__name__)

# How long a peer that has closed its input may still answer what it was asked before.
_LAST_ANSWERS_SECONDS: Final = 5.0


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
        self._outstanding = wire.Outstanding()
        self._clock = CallClock(self._set_timer)
        self._outbox = Outbox(link, self._clock.now)
        self._inbound = Inbound(self, self._post, TransportContext(kind="stdio", can_send_request=True))
        self._hearing = Hearing(self._outstanding, self._inbound, self._clock, on_noise)
        self._tracer = Tracer()
        self._timer = trio.CancelScope()
        self._state = "new"

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
        return self._hearing.late + self._inbound.dropped + self._outbox.dropped

    @property
    def heard_at(self) -> float:
        """When the peer said anything last, by Trio's clock; 0 before it has."""
        return self._hearing.heard_at

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
        wire_id = self._outstanding.id_for(options.get("request_id"))
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
                    while slot.outcome is not TIMED_OUT and slot.outcome is not CLOSED:
                        if slot.progress and on_progress is not None:
                            await tell_progress(on_progress, slot)
                        elif slot.settled:
                            break
                        else:
                            await caller.park()
                finally:
                    if not slot.settled or slot.outcome is TIMED_OUT:
                        self._abandon(frame, slot, wire_id, fate, options.get("cancel_on_abandon", True))
                trace.outcome(slot.outcome)
        finally:
            self._outstanding.remove(slot)
        return self._hearing.result(method, slot, fate)

    async def _send(self, frame: Frame, slot: Slot) -> None:
        # Past this point the request counts as issued, unless it can still be taken out of the outbox.
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._outbox.full and not slot.settled:
            await self._outbox.wait_for_room()
        if not slot.settled:
            # Where others are on their way too, more of them are likely to follow in this moment.
            self._outbox.post(frame, alone=len(self._outstanding) == 1)

    def _abandon(self, frame: Frame, slot: Slot, wire_id: RequestId, fate: Fate, tell: bool) -> None:
        """Nobody waits any more: take the request out of the outbox if it still stands there, else tell the peer."""
        frame.withdrawn = True
        if not frame.begun or self._state != "running":
            return
        self._hearing.gave_up(slot, fate)
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
        slot.arm(self._clock.now(), timeout, hard_timeout)
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
                    if slot.give_up(TIMED_OUT):
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
                self._hearing.begin(nursery, on_request, on_notify_intercept)
                self._state = "running"
                task_status.started()
                try:
                    while chunk := await self._link.receive():
                        self._hearing.heard()
                        for line in self._lines.feed(chunk):
                            self._hearing.take(line, None)
                        await self._inbound.let_deliver()
                    for line in self._lines.finish():
                        self._hearing.take(line, None, whole=False)
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
                await self._hearing.answers.park()
        self._close()
        connection.cancel()

    def _close(self) -> None:
        """Wake everybody who waits. Synchronous, since it may run in a cancelled scope; idempotent."""
        self._state = "closed"
        # The task that writes may be on its way to do so, while those who wait are told what has become of theirs.
        self._outbox.withdraw_requests()
        self._outstanding.settle_all(CLOSED)
        self._outbox.wake_waiting()
