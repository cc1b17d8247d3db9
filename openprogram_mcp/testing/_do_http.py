"""The steps that only a server over HTTP knows. They stand in :mod:`~openprogram_mcp.testing.do` with the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ._step import Step, raw, steps_of

__all__ = ["cut", "event", "forget", "head", "on_get", "respond", "stream", "tcp"]


def respond(
    status: int = 200,
    body: bytes | str = b"",
    *,
    json: Any = None,
    headers: Mapping[str, str] | None = None,
    content_type: str | None = None,
    reason: str | None = None,
) -> Step:
    """Give the whole response to the HTTP request: over HTTP only.

    Args:
        status: Its status.
        body: Its body; a text is encoded as UTF-8. ``$id`` in it becomes the JSON of the request's id.
        json: A JSON value in place of a body. Placeholders are filled in.
        headers: Further headers, in which placeholders are filled in; of the same name as one of ours, in its place.
        content_type: Its ``Content-Type``; ``application/json`` where ``json`` is given, else ``text/plain``.
        reason: The words behind the status, in place of the usual ones.
    """
    fields = {"status": status, "body": raw(body), "json": json, "headers": dict(headers or {}), "reason": reason}
    return Step("respond", {**fields, "content_type": content_type})


def head(
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    framing: Literal["chunked", "close", "none"] = "chunked",
) -> Step:
    """Begin the response to the HTTP request: over HTTP only. Its body is what :func:`write` writes.

    Args:
        status: Its status.
        headers: Its headers, ``Content-Type`` too, in which placeholders are filled in.
        framing: How its body ends: ``chunked`` says so, ``close`` closes the connection; with ``none`` it is as the
            headers say, a ``Content-Length`` that is not true for example.
    """
    return Step("head", {"status": status, "headers": dict(headers or {}), "framing": framing})


def stream(
    *,
    line_end: str = "\n",
    chunk: int | None = None,
    bom: bool = False,
    indent: bool = False,
    headers: Mapping[str, str] | None = None,
    framing: Literal["chunked", "close"] = "chunked",
) -> Step:
    """Begin the response as a stream of events: over HTTP only. Messages that follow, and the answer, are its events.

    Without it a response becomes a stream when something is sent before the answer.

    Args:
        line_end: ``"\\n"``, ``"\\r\\n"`` or ``"\\r"``.
        chunk: Write so many bytes at a time; ``1`` is byte by byte.
        bom: Begin with a byte order mark.
        indent: Write messages over several lines, so that an event has several ``data`` lines.
        headers: Further headers.
        framing: Whether the body ends in words, or with the connection.
    """
    fields = {"line_end": line_end, "chunk": chunk, "bom": bom, "indent": indent, "framing": framing}
    return Step("stream", {**fields, "headers": dict(headers or {})})


def event(
    data: Any = None,
    *,
    event: str | None = None,
    id: str | None = None,  # noqa: A002 - named as in the event
    retry: int | None = None,
    blank: bool = True,
) -> Step:
    """Send one event on the response, which becomes a stream of events: over HTTP only.

    Args:
        data: Its data: a text, whose lines become one ``data`` each, or a JSON value in which placeholders are filled
            in; none at all where ``None``.
        event: Its type; left out where ``None``.
        id: Its id; left out where ``None``.
        retry: Its ``retry``, milliseconds; left out where ``None``.
        blank: Whether the empty line is written that ends it.
    """
    return Step("event", {"data": data, "event": event, "id": id, "retry": retry, "blank": blank})


def tcp(data: bytes | str, *, chunk: int | None = None) -> Step:
    """Write bytes on the connection itself, past all framing of HTTP: over HTTP only.

    With it a script can be cut in the middle of a header: ``do.tcp("HTTP/1.1 200 OK\\r\\nCont"), do.cut()``.
    """
    return Step("tcp", {"data": raw(data), "chunk": chunk})


def cut(*, reset: bool = False) -> Step:
    """Close the connection on which the request came, after what was written so far: over HTTP only.

    The script goes on; what it sends afterwards a resumable stream keeps for whoever resumes it.

    Args:
        reset: With an RST in place of a FIN, as a machine does that has lost its memory.
    """
    return Step("cut", {"reset": reset})


def forget() -> Step:
    """Forget the session of this request, or all where it has none: later requests get 404. Over HTTP only."""
    return Step("forget")


def on_get(*steps: Step) -> Step:
    """Play steps whose messages go on the stream that the client opened by GET, not on this response: HTTP only.

    They wait there for a client that has not opened it yet.
    """
    return Step("on_get", {"steps": steps_of(steps)})
