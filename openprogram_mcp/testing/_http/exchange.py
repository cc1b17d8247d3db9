"""One HTTP request and what is written in response to it."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field

from .._play.values import dumps
from .sessions import EventStream, Framing, Session

if TYPE_CHECKING:
    from .connection import Connection, Request
    from .world import World

__all__ = ["Ended", "Exchange"]

Ended = Literal["answered", "client", "server"]

EVENTS = "text/event-stream"
ERROR_STATUS = {-32700: 400, -32600: 400, -32602: 400, -32020: 400, -32021: 400, -32022: 400, -32601: 404}
"""The statuses that 2026-07-28 gives to errors that are answered before a stream has begun."""


@define(eq=False)
class Exchange:
    """One request and its response.

    Args:
        number: Its number, over the life of the server.
        connection: On which it came.
        request: The request; ``None`` for what is played when a connection is made.
        world: The server.
        time: When its request was whole, on Trio's clock.
    """

    number: int
    connection: Connection
    request: Request | None
    world: World
    time: float
    message: dict[str, Any] | None = None
    """The JSON-RPC message in it."""
    modern: bool = False
    session: Session | None = None
    given: Session | None = None
    """The session that its answer will give, if it is a good one."""
    held: bool = False
    """Whether it stays open when nothing is played on it any more."""
    raw: bool = False
    """Whether a script has written past all framing, so that nothing is added by itself."""
    tasks: int = 0
    framing: Framing = field(factory=Framing)
    stream: EventStream | None = None
    status: int | None = None
    answered: float | None = None
    ended: float | None = None
    ended_by: Ended | None = None
    _ending: str = "none"
    _type: str = ""

    @property
    def path(self) -> str:
        """The path that was asked for, without its query."""
        return self.request.target.partition("?")[0] if self.request else ""

    @property
    def query(self) -> str:
        """The query that was asked for, without its question mark."""
        return self.request.target.partition("?")[2] if self.request else ""

    # Writing, byte by byte.

    def begin(self, status: int, headers: dict[str, str], framing: str, reason: str | None = None) -> None:
        """Write the status line and the headers."""
        if self.status is not None or self.ended is not None:
            self._lost("a second response")
            return
        self.status, self.answered = status, self.world.now()
        self._ending = framing
        lowered = {name.lower(): value for name, value in headers.items()}
        self._type = lowered.get("content-type", "")
        if framing == "chunked" and "transfer-encoding" not in lowered:
            headers = {**headers, "Transfer-Encoding": "chunked"}
        elif framing == "close" and "connection" not in lowered:
            headers = {**headers, "Connection": "close"}
        if reason is None:
            reason = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Whatever"
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
        self.world.note("response", exchange=self.number, status=status)
        self.connection.write("".join(line + "\r\n" for line in [*lines, ""]).encode("latin-1", "replace"))

    def respond(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        content_type: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Write a whole response."""
        own: dict[str, str] = {}
        if body or content_type is not None:
            own["Content-Type"] = content_type or "text/plain; charset=utf-8"
        if status >= 200 and status not in (204, 304):
            own["Content-Length"] = str(len(body))
        given = {name.lower() for name in headers or {}}
        own = {name: value for name, value in own.items() if name.lower() not in given}
        self.begin(status, {**own, **(headers or {})}, "none", reason)
        if self.ended is None:
            self.connection.write(body)
            self.end()

    def respond_json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """Write a JSON value as the whole response."""
        body = dumps(value).encode("utf-8", "surrogatepass")
        self.respond(status, body, headers, content_type="application/json")

    def write(self, data: bytes) -> None:
        """Write a part of the body. Where the response has not begun, it becomes a stream of events."""
        if self.status is None:
            self.open_stream()
        if self.ended is not None:
            self._lost(data.decode("utf-8", "backslashreplace"))
            return
        for piece in self._pieces(data):
            if self._ending == "chunked":
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            self.connection.write(piece)

    def end(self) -> None:
        """The response is whole."""
        if self.ended is not None:
            return
        self._end("answered")
        if self._ending == "chunked":
            self.connection.write(b"0\r\n\r\n")
        elif self._ending == "close" or (self.request and (self.request.header("connection") or "") == "close"):
            self.connection.cut()
        self.connection.done()

    def cut(self, *, reset: bool) -> None:
        """Close the connection after what was written so far."""
        if self.ended is None:
            self._end("server")
        self.connection.cut(reset=reset)

    def gone(self) -> None:
        """The connection is closed, and this response was not whole."""
        if self.ended is None:
            self._end("client")
            self.world.left(self)

    def _end(self, by: Ended) -> None:
        self.ended, self.ended_by = self.world.now(), by
        self.world.note("ended", exchange=self.number, by=by)
        for stream in (self.stream, self.session.stream if self.session else None):
            if stream is not None:
                stream.leave(self)

    def _pieces(self, data: bytes) -> list[bytes]:
        size = self.framing.chunk
        return [data[at : at + size] for at in range(0, len(data), size)] if size else [data] if data else []

    def _lost(self, what: Any) -> None:
        self.world.note("lost", exchange=self.number, what=what)

    # Messages.

    def open_stream(self, headers: dict[str, str] | None = None, framing: str = "chunked") -> None:
        """Make the response a stream of events, where it is none."""
        if self.status is None and self.ended is None:
            own = {"Content-Type": EVENTS, "Cache-Control": "no-cache, no-transform"}
            self.begin(200, {**own, **self._session_header(), **(headers or {})}, framing)
            if self.framing.bom:
                self.connection_body(b"\xef\xbb\xbf")
        if self.stream is None:
            self.stream = self.world.new_stream(self)
            if self.ended is None:
                self.stream.open(self, self.framing)

    def connection_body(self, data: bytes) -> None:
        """Write to the body of a response that has begun."""
        if self.ended is None:
            self.write(data)

    def write_event(self, text: str, *, blank: bool = True) -> None:
        """Write one event, whose lines are given."""
        self.write(self.framing.encode(text + (self.framing.line_end if blank else "")))

    def write_message(self, message: Any, event_id: str | None = None) -> None:
        """Write a message as an event."""
        self.write_event(self.framing.event(message, event="message", id=event_id))

    def deliver(self, message: dict[str, Any]) -> None:
        """Send a message that belongs to this request: as its answer, or on the stream that the response is."""
        if self.session is not None and self.session.older:
            self.session.stream.send(message, self._lost)
            return
        is_answer = "method" not in message and self._is_request and message.get("id") == (self.message or {})["id"]
        mode = self.world.answers
        if is_answer and self.status is None and self.ended is None and mode != "sse":
            status = ERROR_STATUS.get(message["error"]["code"], 200) if self._is_refusal(message) else 200
            self.respond_json(status, message, self._session_header() if "result" in message else None)
        elif self._type.startswith("application/json"):
            self.write(dumps(message).encode("utf-8", "surrogatepass"))
        elif self.stream is None and not (self._is_request and (is_answer or mode != "json")):
            self.world.push(message, self.session)
        elif self.ended is not None and self.stream is None:
            self._lost(message)
        else:
            self.open_stream()
            if self.stream is not None:
                self.stream.send(message, self._lost)

    def settle(self, outcome: str) -> None:
        """Nothing is played on it any more."""
        if self.held:
            return
        if self.stream is not None:
            self.stream.close()
        elif self.status is not None:
            self.end()
        elif outcome == "cancelled" and self.ended is None:
            self.open_stream()
            self.end()

    @property
    def _is_request(self) -> bool:
        return self.message is not None and "id" in self.message and "method" in self.message

    def _is_refusal(self, message: dict[str, Any]) -> bool:
        error = message.get("error")
        return self.modern and isinstance(error, dict) and isinstance(error.get("code"), int)

    def _session_header(self) -> dict[str, str]:
        if self.given is None:
            return {}
        self.session = self.world.keep(self.given)
        self.given = None
        return {"Mcp-Session-Id": self.session.id}
