"""What comes from a server, whatever carries it: answers, questions, notifications and noise.

An answer belongs to the request that it names, on whichever stream it comes; only an error that names none belongs to
the request on whose stream it came, or to the only one there is.

MCP specification: basic/transports, "Multiple Connections"; JSON-RPC 2.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio
from attrs import define, field
from mcp.shared.dispatcher import OnNotifyIntercept, OnRequest, run_notify_intercept
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT

from . import wire
from ._asked import Asked
from ._clock import CallClock
from ._events import EventBuffer
from ._inbound import Inbound
from ._outbox import Fate, FateState
from ._requests import CLOSED, TIMED_OUT, ConnectionClosed, as_number, outcome_of
from .wire import Envelope, Noise, Outstanding, RequestId, Slot, as_request_id, correlation_key

__all__ = ["Hearing"]

logger = logging.getLogger(__name__)

# So many requests that were given up are remembered, to know their late answers.
_GIVEN_UP_KEPT: Final = 256


@define(eq=False)
class Hearing:
    """The messages of one connection.

    ``late`` counts the answers that found nobody, and ``heard_at`` tells when anything came last, by Trio's clock. Who
    waits for the next answer of any request parks on ``answers``.

    Args:
        outstanding: The requests that wait for an answer.
        inbound: Serves what the server asks, and delivers what it tells.
        clock: What the limits of requests run by.
        on_noise: Told what is no message.
    """

    outstanding: Outstanding
    inbound: Inbound
    clock: CallClock
    on_noise: Callable[[Noise], None] | None
    late: int = field(default=0, init=False)
    heard_at: float = field(default=0.0, init=False)
    answers: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _given_up: dict[RequestId, Fate] = field(factory=dict, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _on_request: OnRequest | None = field(default=None, init=False)
    _on_intercept: OnNotifyIntercept | None = field(default=None, init=False)

    def begin(self, nursery: trio.Nursery, on_request: OnRequest, on_intercept: OnNotifyIntercept | None) -> None:
        """Requests of the server's are served from now on, in this nursery."""
        self._nursery, self._on_request, self._on_intercept = nursery, on_request, on_intercept

    def end(self) -> None:
        """They are served no longer."""
        self._nursery = None

    def heard(self) -> None:
        """Something has come, whatever it was."""
        self.heard_at = trio.current_time()

    def gave_up(self, slot: Slot, fate: Fate) -> None:
        """Nobody waits for an answer any more that may still come."""
        if len(self._given_up) >= _GIVEN_UP_KEPT:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[slot.key] = fate

    def result(self, method: str, slot: Slot, fate: Fate) -> dict[str, Any]:
        """What a request has come to, for its caller and its fate.

        Raises:
            MCPError: The peer answered with an error; or ``REQUEST_TIMEOUT``, when a limit ran out.
            ConnectionClosed: The connection ended first.
        """
        outcome = slot.outcome
        if outcome is CLOSED:
            raise ConnectionClosed
        if outcome is TIMED_OUT:
            fate.expired = slot.expired
            fate.silence = trio.current_time() - self.heard_at if self.heard_at else None
            if slot.last_heard is not None:
                at, progress, total, message = slot.last_heard
                fate.last_progress = (self.clock.now() - at, progress, total, message)
            raise MCPError(code=REQUEST_TIMEOUT, message=f"Request {method!r} timed out")
        fate.state = FateState.ANSWERED
        if isinstance(outcome, MCPError):
            raise outcome
        result: dict[str, Any] = outcome
        return result

    def take_events(self, buffer: EventBuffer, chunk: bytes, asked: Asked | None) -> bool:
        """Take the messages in a piece of a stream; says whether there were any.

        Args:
            buffer: Cuts the stream.
            chunk: The piece.
            asked: The request whose stream it is.
        """
        self.heard()
        found = False
        for event in buffer.feed(chunk):
            if isinstance(event, Noise):
                self.take(event, asked)
            elif event.type == "message" and event.data:
                self.take(event.data, asked)
            else:
                continue
            found = True
        return found

    def take(self, said: bytes | bytearray | Noise, asked: Asked | None, *, whole: bool = True) -> None:
        """Take what may be a message.

        Args:
            said: Its bytes; or what is known already to be none.
            asked: The request on whose stream it came, where it came on one.
            whole: Whether it has come to its end; what was cut off is no answer, but the loss of one.
        """
        try:
            if isinstance(said, Noise):
                self._take_noise(said, asked, whole)
                return
            message = wire.decode(said)
            if isinstance(message, Envelope):
                self._take(message, len(said), asked)
            elif isinstance(message, Noise):
                self._take_noise(message, asked, whole)
            else:
                for item in message or ():
                    self._take(item, len(said), asked)
        except Exception:  # a message that trips us must cost itself, never the connection
            logger.exception("a message could not be handled")

    def _take(self, message: Envelope, size: int, asked: Asked | None) -> None:
        method = message.method
        if not isinstance(method, str):
            self._take_answer(message, asked)
            return
        params = message.params if isinstance(message.params, dict) else None
        request_id = as_request_id(message.id)
        if request_id is not None:
            if self._nursery is not None and self._on_request is not None:
                self.inbound.take_request(self._nursery, self._on_request, request_id, method, params)
            return
        if method == "notifications/progress":
            self._take_progress(params or {})
        elif method == "notifications/cancelled":
            self.inbound.cancel((params or {}).get("requestId"))
        if not run_notify_intercept(self._on_intercept, method, params):
            self.inbound.take_notification(method, params, size)

    def _take_answer(self, message: Envelope, asked: Asked | None) -> None:
        slot = self.outstanding.find(message.id)
        if slot is None and message.id in (None, wire.UNSET) and message.error:
            # An error that could not say what it is about: on the stream of a request it can only be that one.
            slot = asked or self.outstanding.only()
        if slot is None or not slot.settle(outcome_of(message)):
            self._take_late(message.id)
        if self.answers:
            self.answers.unpark_all()

    def _take_late(self, answered: object) -> None:
        """An answer that nobody waits for: what it was asked for is over now, if we know of it."""
        self.late += 1
        wire_id = as_request_id(answered)
        fate = None if wire_id is None else self._given_up.pop(correlation_key(wire_id), None)
        if fate is not None:
            fate.state = FateState.ANSWERED
            if fate.on_late_answer is not None:
                fate.on_late_answer()

    def _take_progress(self, params: Mapping[str, Any]) -> None:
        slot = self.outstanding.find(params.get("progressToken"))
        progress, message = as_number(params.get("progress")), params.get("message")
        if slot is None or progress is None:
            return
        total = as_number(params.get("total"))
        slot.heard(progress, total, message if isinstance(message, str) else None, self.clock.now())

    def _take_noise(self, noise: Noise, asked: Asked | None, whole: bool) -> None:
        """Where it stands for an answer that can be told, its request alone fails; else it may be noise before the
        answer, and counts as the answer of whose response it is only if no other comes.
        """
        error = MCPError(code=INTERNAL_ERROR, message=f"the server's answer was {noise.reason}")
        slot = self.outstanding.find(noise.id) if whole else None
        if slot is not None:
            slot.settle(error)
            self.answers.unpark_all()
        elif noise.id is not None:
            self._take_late(noise.id)
        elif asked is not None:
            asked.garbled = error
        if self.on_noise is not None:
            self.on_noise(noise)
