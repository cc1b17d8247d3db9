"""What a request is to its caller, whatever carries it: its options, how it can end, how its progress is told.

Shared by the dispatchers. Owns no stream and no task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import trio
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from . import wire
from ._inbound import contained
from ._outbox import Fate
from .wire import Envelope, Slot

__all__ = [
    "CLOSED",
    "TIMED_OUT",
    "ConnectionClosed",
    "RequestLost",
    "RequestOptions",
    "SessionLost",
    "as_number",
    "outcome_of",
    "tell_progress",
    "with_meta",
]


CLOSED: Final = object()
TIMED_OUT: Final = object()
"""Outcomes of ours. They are compared by identity: a peer can send the same codes."""


class ConnectionClosed(MCPError):
    """The connection ended, by our doing or the peer's, before the answer came. No peer can send this."""

    def __init__(self) -> None:
        super().__init__(code=CONNECTION_CLOSED, message="Connection closed")


class SessionLost(ConnectionClosed):
    """The server does not know the session any more that the request was made in, and did nothing of it."""


class RequestLost(MCPError):
    """A request alone was lost on its way or on the way back; the connection lives. No peer can send this.

    Args:
        message: What happened, in a few words.
    """

    def __init__(self, message: str) -> None:
        super().__init__(code=CONNECTION_CLOSED, message=message)


class RequestOptions(CallOptions, total=False):
    """The SDK's options of a request, and ours."""

    fate: Fate
    """Told how far the request has come, and which limit ran out."""

    hard_timeout: float
    """Seconds after which the request is given up whatever is heard of it; progress moves ``timeout`` only."""

    wants_progress: bool
    """Ask the peer for progress even where no ``on_progress`` hears it, so that it moves ``timeout``."""


def with_meta(params: Mapping[str, Any] | None, meta: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the parameters with something added to their ``_meta``."""
    params = params or {}
    return {**params, "_meta": {**(params.get("_meta") or {}), **meta}}


def outcome_of(message: Envelope) -> dict[str, Any] | MCPError:
    """What an answer means; what is none by the rules of JSON-RPC fails its request alone."""
    error = None if message.error is wire.UNSET else message.error
    result = None if message.result is wire.UNSET else message.result
    if error is None and isinstance(result, dict):
        return result
    if result is None and isinstance(error, dict):
        code, text = error.get("code"), error.get("message")
        return MCPError(
            code=code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR,
            message=text if isinstance(text, str) else "",
            data=error.get("data"),
        )
    return MCPError(code=INTERNAL_ERROR, message="the server's answer is neither a result nor an error")


async def tell_progress(on_progress: ProgressFnT, slot: Slot) -> None:
    """Tell what was heard, until that is done or the request is given up."""
    heard, slot.progress = slot.progress or [], []
    with trio.CancelScope() as listening:
        slot.interrupt = listening.cancel
        for progress in heard:
            await contained(on_progress, *progress)
    slot.interrupt = None


def as_number(value: object) -> float | None:
    """A number from the wire, or ``None`` for what is none, or none that can be counted with."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
