"""The language in which an exchange between a client and its peer is written down: a list of small steps.

A step says what one of the two does, or what the clock does, and nothing about what ought to come of it: the same steps
are played to the SDK's dispatcher and to ours (see ``_stage``), and what each made of them is compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

__all__ = [
    "Advance",
    "Ask",
    "AskBack",
    "Cancel",
    "Finish",
    "IdOf",
    "Leave",
    "PeerCloses",
    "PeerHangsUp",
    "PeerLine",
    "PeerReads",
    "PeerSays",
    "PeerStopsReading",
    "Run",
    "Step",
    "Tell",
    "answer",
    "cancelled",
    "progress",
    "refusal",
    "request",
    "says",
]


@frozen
class IdOf:
    """In what the peer says: the id of the client's request of this method, as the peer read it off the wire.

    Args:
        method: The request.
        other_form: The same id in its other form: ``7`` for ``"7"`` and the other way round.
    """

    method: str
    other_form: bool = False


# The client.


@frozen
class Run:
    """The client lets its dispatcher run; ``again`` for a second time."""

    again: bool = False


@frozen
class Ask:
    """The client sends a request, from a task of its own. Its method is its name in what is seen."""

    method: str
    params: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(factory=dict)
    hears_progress: bool = False
    breaks_at_progress: bool = False
    """What is told progress raises."""
    takes_time_to_hear: bool = False
    """What is told progress lets others run, for more or less long."""
    cancelled_already: bool = False
    """It is asked in a scope that has been cancelled before."""
    traced: bool = False
    """It is asked within an OpenTelemetry span."""


@frozen
class AskBack:
    """A handler's context is used to ask, once more or after its end."""

    context: int | str
    method: str


@frozen
class Cancel:
    """The caller of a request is cancelled."""

    method: str


@frozen
class Tell:
    """The client sends a notification."""

    method: str
    params: Mapping[str, Any] | None = None


@frozen
class Finish:
    """What a handler waits for has come, for the peer's request of this id."""

    request_id: int | str


@frozen
class Leave:
    """The client ends the connection: the scope around ``run`` is cancelled."""


@frozen
class Advance:
    """The clock goes on by so many seconds."""

    seconds: float


# The peer.


@frozen
class PeerSays:
    """The peer sends messages, all at once; ``jsonrpc`` is added where it does not stand."""

    messages: tuple[Mapping[str, Any], ...]


@frozen
class PeerLine:
    """The peer sends a line of any text."""

    text: str


@frozen
class PeerCloses:
    """The peer closes what the client reads."""


@frozen
class PeerHangsUp:
    """The peer closes what the client writes to."""


@frozen
class PeerStopsReading:
    """The peer reads no more, so that what the client writes does not leave it."""


@frozen
class PeerReads:
    """The peer reads on."""


Step: TypeAlias = (
    Run
    | Ask
    | AskBack
    | Cancel
    | Tell
    | Finish
    | Leave
    | Advance
    | PeerSays
    | PeerLine
    | PeerCloses
    | PeerHangsUp
    | PeerStopsReading
    | PeerReads
)


# What the peer says most.


def says(*messages: Mapping[str, Any]) -> PeerSays:
    """The peer sends these."""
    return PeerSays(messages)


def answer(method: str, result: Any = None, *, other_form: bool = False) -> dict[str, Any]:
    """The answer to the client's request of this method."""
    return {"id": IdOf(method, other_form), "result": {"of": method} if result is None else result}


def refusal(method: str, code: Any = -5, message: Any = "no", **more: Any) -> dict[str, Any]:
    """An error as the answer to the client's request of this method."""
    return {"id": IdOf(method), "error": {"code": code, "message": message, **more}}


def progress(method: str, value: Any, **more: Any) -> dict[str, Any]:
    """Progress of the client's request of this method."""
    return {"method": "notifications/progress", "params": {"progressToken": IdOf(method), "progress": value, **more}}


def request(request_id: Any, method: str, **params: Any) -> dict[str, Any]:
    """A request of the peer's; what its handler does is told by its method, see ``_stage.Handlers``."""
    return {"id": request_id, "method": method, **({"params": params} if params else {})}


def cancelled(request_id: Any) -> dict[str, Any]:
    """The peer does not want the answer to its request any more."""
    return {"method": "notifications/cancelled", "params": {"requestId": request_id}}


def resolved(value: Any, ids: Mapping[str, Any]) -> Any:
    """A value with the ids that :class:`IdOf` stands for; ``"none"`` for a request that never was on the wire."""
    if isinstance(value, IdOf):
        found = ids.get(value.method, "none")
        if not value.other_form:
            return found
        return int(found) if isinstance(found, str) and found.isdecimal() else str(found)
    if isinstance(value, Mapping):
        return {key: resolved(item, ids) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolved(item, ids) for item in value]
    return value


def line(message: Mapping[str, Any], ids: Mapping[str, Any]) -> bytes:
    """A message of the peer's as a line."""
    return json.dumps({"jsonrpc": "2.0", **resolved(message, ids)}).encode() + b"\n"
