"""A server over HTTP while it runs: which request gets what, and where messages go."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from .._play.answers import META
from .._play.steps import Gone
from .._play.values import fill
from .checks import NoSession, Refusal, check_accept, check_headers
from .exchange import Exchange
from .player import HttpPlayer
from .sessions import EventStream, Session

if TYPE_CHECKING:
    from .connection import Connection, Request

__all__ = ["World"]


class World:
    """Where one run of a server over HTTP is played.

    Args:
        server: The server, whose settings are looked at when they are needed, so that they may change meanwhile.
        script: Its script.
        pid: A number for this run, which no process has.
        clock: Trio's.
        note: Takes notes.
        stop: Ends the server: the argument says whether with an RST.
    """

    def __init__(
        self,
        server: Any,
        script: dict[str, Any],
        pid: int,
        clock: Callable[[], float],
        note: Callable[[str, dict[str, Any]], None],
        stop: Callable[[bool], None],
    ) -> None:
        self._server = server
        self.pid = pid
        self.now = clock
        self._note = note
        self._stop = stop
        self.recording = True
        self.exchanges: list[Exchange] = server.exchanges
        self.sessions: dict[str, Session] = {}
        self.streams: dict[str, EventStream] = {}
        self.early: list[Any] = []
        self.to_accept: list[Exchange] = []
        self.minted = 0
        self.changed: Callable[[], None] = lambda: None
        self.player = HttpPlayer(script, self)

    @property
    def answers(self) -> str:
        """How requests are answered."""
        mode: str = self._server.answers
        return mode

    # What the player asks of every world.

    def facts(self) -> dict[str, Any]:
        return {"pid": self.pid, "argv": [], "cwd": "", "env": {}}

    def write(self, data: bytes) -> None:
        raise NotImplementedError("over HTTP, bytes are written on a response")

    def complain(self, data: bytes) -> None:
        self.note("stderr", text=data.decode("utf-8", "backslashreplace"))

    def note(self, event: str, facts: dict[str, Any] | None = None, **more: Any) -> None:
        self._note(event, {**(facts or {}), **more})

    def close(self, stream: str) -> None:
        raise NotImplementedError(f"a server over HTTP has no {stream}")

    def spawn(self, options: dict[str, Any]) -> int:
        raise NotImplementedError("a server over HTTP runs in the process of the test and starts no other")

    def count(self, path: str) -> int:
        with open(path, "ab") as file:  # noqa: PTH123 - as the process does
            before = file.tell()
            file.write(b".")
        return before

    def enter(self, do: Callable[[], object]) -> None:
        """Do something with the player, and what follows from it."""
        try:
            do()
        except Gone as gone:
            self.note("exit", {"signal": gone.signal} if gone.signal else {"code": gone.code})
            self._stop(gone.signal is not None)
        accepted, self.to_accept = self.to_accept, []
        for exchange in accepted:
            if exchange.status is None and exchange.ended is None and not exchange.raw:
                exchange.respond(202)
        self.changed()

    # What connections tell.

    def accepted(self, connection: Connection) -> bool:
        """A connection was made."""
        self.note("connection", connection=connection.number)
        steps = self.player.hooks.get("connect")
        if steps is None:
            return True
        exchange = Exchange(0, connection, None, self, self.now())
        if not steps:
            return False
        self.enter(lambda: self._launch(steps, exchange))
        return exchange.tasks == 0

    def garbled(self, connection: Connection, data: bytes) -> None:
        """What came in is no HTTP."""
        self.note("garbled", connection=connection.number, text=data[:1000].decode("utf-8", "backslashreplace"))

    def begin(self, connection: Connection, request: Request) -> Exchange:
        """A request came in."""
        exchange = Exchange(len(self.exchanges) + 1, connection, request, self, self.now())
        self.exchanges.append(exchange)
        connection.exchange = exchange
        self.note("request", exchange=exchange.number, connection=connection.number, method=request.method)
        hooks = self.player.hooks
        steps = hooks.get(f"{request.method} {exchange.path}", hooks.get(request.method))
        exchange.session = self.sessions.get(request.header("mcp-session-id") or "")
        if steps is None:
            self.enter(lambda: self.serve(exchange))
        else:
            self.enter(lambda: self._launch(steps, exchange))
        return exchange

    def left(self, exchange: Exchange) -> None:
        """The client closed a connection before its response was whole."""
        session = exchange.session
        if session is not None and session.older and exchange.held:
            self.forget(session)
        player = self.player
        active = [task for task in player.active.values() if task.origin is not None]
        if exchange.modern:
            given_up = [task for task in active if task.origin is exchange]
        elif session is not None and session.older and exchange.held:
            given_up = [task for task in active if task.origin.session is session]
        else:  # before 2026-07-28 a lost stream withdraws nothing
            given_up = []
        for task in given_up:
            self.note("cancelled", id=task.names["id"], reason="disconnected", known=True)
            player.withdraw(task)
        self.enter(player.tick)

    def play(self, steps: list[dict[str, Any]]) -> None:
        """Play steps for no request."""
        self.player.launch(steps)
        self.player.tick()

    def _launch(self, steps: list[dict[str, Any]], exchange: Exchange) -> None:
        names = {**self.player.facts, **self.player.facts_of(exchange)}
        if exchange.request is not None:
            names["method"] = exchange.request.method
        self.player.launch(steps, names, origin=exchange)
        self.player.tick()

    # What a request gets where no script says otherwise.

    def serve(self, exchange: Exchange) -> None:
        """Do what the server does without a script."""
        request = exchange.request
        if request is None:
            return
        try:
            older = "older_" if self._server.transport == "sse" else ""
            serving = getattr(self, f"_serve_{older}{request.method.lower()}", None)
            if serving is None:
                raise Refusal(405, "Method Not Allowed", headers={"Allow": "GET, POST, DELETE"})
            serving(exchange)
        except Refusal as refusal:
            if isinstance(refusal, NoSession) and "no session" in self.player.hooks:
                self._launch(self.player.hooks["no session"], exchange)
                return
            self.note("refused", exchange=exchange.number, status=refusal.status, text=str(refusal))
            error = {"code": refusal.code, "message": str(refusal)}
            message = exchange.message or {}
            request_id = message.get("id") if refusal.code == -32020 else None
            exchange.respond_json(refusal.status, {"jsonrpc": "2.0", "id": request_id, "error": error}, refusal.headers)

    def _serve_post(self, exchange: Exchange) -> None:
        self._check_path(exchange, self._server.path)
        message = self._read(exchange)
        request = exchange.request
        if request is None:
            return
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        inner = meta.get(META + "protocolVersion") if isinstance(meta, dict) else None
        header = request.header("mcp-protocol-version")
        offer = self.player.offer
        exchange.modern = bool(offer.modern) and ((header or "") >= "2026" or inner is not None or not offer.legacy)
        if self._server.strict:
            check_accept(request, "application/json", "text/event-stream")
            if (request.header("content-type") or "").partition(";")[0].strip() != "application/json":
                raise Refusal(415, "Content-Type must be application/json")
            if exchange.modern and "id" in message and message.get("method") != "initialize":
                check_headers(request, message, inner)
        if not exchange.modern:
            self._check_session(exchange, message, header)
        self._admit(exchange, message)

    def _admit(self, exchange: Exchange, message: dict[str, Any]) -> None:
        older = exchange.session is not None and exchange.session.older
        if older or "id" not in message or "method" not in message:
            self.to_accept.append(exchange)
        self.player.take(message, exchange)

    def _serve_get(self, exchange: Exchange) -> None:
        self._check_path(exchange, self._server.path)
        request = exchange.request
        if request is None or not self.player.offer.legacy:
            raise Refusal(405, "Method Not Allowed", headers={"Allow": "POST"})
        if self._server.strict:
            check_accept(request, "text/event-stream")
        self._check_session(exchange, {"method": "GET"}, request.header("mcp-protocol-version"))
        after = request.header("last-event-id")
        exchange.held = True
        if after is not None:
            found = self.streams.get(after.rpartition("/")[0])
            if found is not None:
                exchange.stream = found
                exchange.open_stream()
                if found.resume(exchange, after):
                    return
            exchange.stream = None
        stream = exchange.session.stream if exchange.session else self._loose()
        exchange.stream = stream
        exchange.open_stream()
        stream.open(exchange, exchange.framing)

    def _serve_delete(self, exchange: Exchange) -> None:
        self._check_path(exchange, self._server.path)
        self._check_session(exchange, {"method": "DELETE"}, None)
        self.forget(exchange.session)
        exchange.respond(200)

    # The transport of 2024-11-05.

    def _serve_older_get(self, exchange: Exchange) -> None:
        self._check_path(exchange, self._server.path)
        session = self.keep(self.mint(older=True))
        exchange.session, exchange.stream, exchange.held = session, session.stream, True
        exchange.open_stream()
        endpoint = fill(self._server.endpoint, {"session": session.id})
        exchange.write_event(exchange.framing.event(endpoint, event="endpoint"))
        session.stream.open(exchange, exchange.framing)

    def _serve_older_post(self, exchange: Exchange) -> None:
        named = [self.sessions[value] for _, value in parse_qsl(exchange.query) if value in self.sessions]
        if not named and exchange.path == self._server.path:
            raise Refusal(405, "Method Not Allowed", headers={"Allow": "GET"})
        if not named:
            raise NoSession(404, "Could not find session", -32001)
        exchange.session = named[0]
        self._admit(exchange, self._read(exchange))

    # Sessions and streams.

    def mint(self, *, older: bool = False) -> Session:
        """A new session, which is not yet known."""
        self.minted += 1
        name = f"session-{self.pid}-{self.minted}"
        ids = self._server.resumable and not older
        stream = EventStream(name, ids=ids, retry=None if older else self._server.retry, waits=True)
        return Session(name, stream, older)

    def keep(self, session: Session) -> Session:
        """Know a session from now on."""
        self.sessions[session.id] = session
        self.streams[session.stream.name] = session.stream
        early, self.early = self.early, []
        for message in early:
            session.stream.send(message)
        self.note("session", session=session.id)
        return session

    def forget(self, session: Session | None) -> None:
        """Forget a session, or all."""
        for one in [session] if session is not None else list(self.sessions.values()):
            self.sessions.pop(one.id, None)
            self.streams.pop(one.stream.name, None)
            one.stream.close()

    def new_stream(self, exchange: Exchange) -> EventStream:
        """The stream that the response to a request becomes."""
        stream = EventStream(f"request-{exchange.number}", self._server.resumable, self._server.retry)
        if self._server.resumable:
            self.streams[stream.name] = stream
        return stream

    def push(self, message: Any, session: Session | None) -> None:
        """Send what belongs to no request: on the stream of a session, or of the latest there is."""
        if session is None and self.sessions:
            session = next(reversed(self.sessions.values()))
        if session is not None:
            session.stream.send(message)
        elif self._server.sessions:
            self.early.append(message)
        else:
            self._loose().send(message)

    def _loose(self) -> EventStream:
        """The stream of those who have no session."""
        ids = self._server.resumable
        return self.streams.setdefault("loose", EventStream("loose", ids, self._server.retry, waits=True))

    # What may be wrong with a request.

    def _check_path(self, exchange: Exchange, path: str) -> None:
        if exchange.path != path:
            raise Refusal(404, "Not Found")

    def _read(self, exchange: Exchange) -> dict[str, Any]:
        body = exchange.request.body if exchange.request else b""
        text = body.decode("utf-8", "backslashreplace")
        try:
            message = json.loads(body)
        except ValueError:
            self.note("garbled", exchange=exchange.number, text=text)
            raise Refusal(400, "Parse error", -32700) from None
        self.note("received", exchange=exchange.number, text=text)
        if not isinstance(message, dict):
            raise Refusal(400, "Not a single message", -32600)
        exchange.message = message
        return message

    def _check_session(self, exchange: Exchange, message: dict[str, Any], version: str | None) -> None:
        request = exchange.request
        if request is None:
            return
        if message.get("method") == "initialize":
            if self._server.sessions:
                exchange.given = self.mint()
            return
        known = [*self.player.offer.legacy, *self.player.offer.modern]
        if self._server.strict and version is not None and version not in known:
            raise Refusal(400, f"Bad Request: unsupported protocol version {version}")
        if not self._server.sessions:
            return
        name = request.header("mcp-session-id")
        if name is None:
            raise NoSession(400, "Bad Request: missing session id")
        if name not in self.sessions:
            raise NoSession(404, "Session not found", -32001)
        exchange.session = session = self.sessions[name]
        session.requests += 1
        limit = self._server.session_requests
        if limit is not None and session.requests > limit:
            self.forget(session)
            raise NoSession(404, "Session not found", -32001)
