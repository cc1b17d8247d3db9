"""The remote server of the chaos run: what ``_server`` is, over Streamable HTTP of both eras.

One process, one port, no threads. A request is answered with JSON or with a stream of events, by turns. Sessions are
known until they are forgotten; a broken stream is taken up again where it broke, if the server is ``resumable``. The
record is the same, with one line more: ``orphan``, when the connection of a call that runs on has been closed. In the
modern era that is its cancellation.

Usage: ``_http_server.py NAME FOLDER ERA PORT [resumable]``, with the folder of the tests on ``sys.path``.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import sys
import time

from ._server import GARBAGE, LOST_SECONDS, META, Server

TYPE_CHECKING = False  # what typing calls so, without importing it
if TYPE_CHECKING:
    from typing import Any

_SEND_SECONDS = 2.0
_PAGE = b"<html><body>Please wait.</body></html>"
_STATUS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class Connection:
    """One connection, and what it waits for."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = bytearray()
        self.exchange: Exchange | None = None
        self.ended = False
        self.closed = False

    def read(self, at_most: int) -> None:
        """Take what has come, all of it or so many bytes."""
        try:
            while not self.ended:
                data = os.read(self.sock.fileno(), at_most or 65536)  # its own recv would wait
                self.rest += data
                self.ended = not data
                if at_most:
                    return
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        try:
            self.sock.sendall(data)
        except OSError:
            self.closed = True

    def respond(self, status: int, headers: str = "", body: bytes = b"") -> None:
        head = f"HTTP/1.1 {status} {_STATUS[status]}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))


class Exchange:
    """A request, or a stream that the server speaks on by itself, until it has come to its end."""

    def __init__(
        self, connection: Connection, request: Any, session: Session | None, number: int, *, sse: bool
    ) -> None:
        self.connection: Connection | None = connection
        self.request = request
        self.session = session
        self.number = number
        self.sse = sse
        self.events: list[bytes] = []
        self.done = False


class Session:
    """A legacy session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.streams: dict[int, Exchange] = {}
        self.listening: Exchange | None = None


class HttpServer(Server):
    """One process."""

    def __init__(self, name: str, folder: str, era: str, port: int, resumable: bool) -> None:
        super().__init__(name, folder, era, stubborn=False)
        self.resumable = resumable
        self.port = port
        self.connections: dict[int, Connection] = {}
        self.sessions: dict[str, Session] = {}
        self.streams = 0
        # Until when, or how often, all are refused.
        self.asks_to_wait_until = 0.0
        self.away_until = 0.0
        self.away_status = 502
        self.pages = 0

    def serve(self) -> None:
        self.note("start", tools=self.tools)
        if self.fails_at:
            self.note("fault", what=f"start:{self.fails_at}")
        if self.fails_at in ("exit", "stderr", "garbled"):
            os._exit(3)
        if self.fails_at == "slow":
            time.sleep(0.3)
        elif self.fails_at:
            # Whoever looks after it sees in a while that it is of no use.
            self.later(1.0, lambda: os._exit(3))
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        while True:
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            until = self.timers[0][0] if self.timers else now + LOST_SECONDS
            wanted: list[Any] = [self.orders_fd, listener]
            if self.reads_again <= now:
                wanted += self.connections
            else:
                until = min(until, self.reads_again)
            ready = select.select(wanted, [], [], max(0.0, until - now))[0]
            if self.orders_fd in ready:
                for order in os.read(self.orders_fd, 4096).decode().split():
                    self.obey(order)
            if listener in ready:
                sock = listener.accept()[0]
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(_SEND_SECONDS)
                self.connections[sock.fileno()] = Connection(sock)
            self.receive([self.connections[fd] for fd in ready if fd in self.connections])

    def receive(self, ready: list[Connection]) -> None:
        """Read all that has come before anything of it is done: who has hung up is known to have by then."""
        at_most = 3 if time.monotonic() < self.tiny_until else 0
        for connection in ready:
            connection.read(at_most)
        # What was sent after somebody had hung up may have been read, and the hanging up not yet.
        waiting = [connection for connection in self.connections.values() if connection.exchange is not None]
        for connection in waiting:
            connection.read(at_most)
        for connection in sorted({*ready, *waiting}, key=lambda connection: not connection.ended):
            while not connection.closed and connection.exchange is None and self.take_request(connection):
                pass
            if connection.closed or connection.ended:
                self.closed(connection)
        for connection in list(self.connections.values()):
            if connection.closed:
                self.closed(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is closed, or nobody reads what is sent on it."""
        connection.closed = True
        if self.connections.pop(connection.sock.fileno(), None) is None:
            return
        connection.sock.close()
        exchange, connection.exchange = connection.exchange, None
        if exchange is None or exchange.connection is not connection:
            return
        exchange.connection = None
        call = self.calls.get(exchange)
        if exchange in self.listeners:
            self.listeners.remove(exchange)
        elif call is not None and self.modern and not call.deaf:
            self.note("cancelled", id=call.name)
            del self.calls[exchange]
        elif call is not None:
            self.note("orphan", id=call.name)

    # What it is asked.

    def take_request(self, connection: Connection) -> bool:
        end = connection.rest.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = bytes(connection.rest[:end]).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", 0))
        if len(connection.rest) < end + 4 + size:
            return False
        body = bytes(connection.rest[end + 4 : end + 4 + size])
        del connection.rest[: end + 4 + size]
        if not self.refuse(connection):
            self.handle(connection, first.split()[0], headers, body)
        return True

    def refuse(self, connection: Connection) -> bool:
        """Answer a request with what is no answer, where it is such a time. Nothing of it is done."""
        now = time.monotonic()
        if self.fails_at == "hang":
            return True
        if now < self.asks_to_wait_until:
            connection.respond(503, "Retry-After: 1\r\n")
        elif now < self.away_until:
            connection.respond(self.away_status, "Content-Type: text/html\r\n", _PAGE)
        elif self.pages > 0:
            self.pages -= 1
            connection.respond(500 if self.pages % 2 else 200, "Content-Type: text/html\r\n", _PAGE)
        else:
            return False
        return True

    def handle(self, connection: Connection, verb: str, headers: dict[str, str], body: bytes) -> None:
        session = self.sessions.get(headers.get("mcp-session-id", ""))
        if verb == "POST":
            message = json.loads(body)
            if session is None and not self.modern and message.get("method") not in ("initialize", "server/discover"):
                connection.respond(404 if "mcp-session-id" in headers else 400)
                return
            self.take_over_http(connection, message, session)
        elif self.modern or verb not in ("GET", "DELETE"):
            connection.respond(405)
        elif session is None:
            connection.respond(404)
        elif verb == "DELETE":
            self.forget(session)
            connection.respond(200)
        elif headers.get("last-event-id"):
            self.resume(connection, session, headers["last-event-id"])
        else:
            session.listening = self.stream(connection, None, session)

    def take_over_http(self, connection: Connection, message: dict[str, Any], session: Session | None) -> None:
        method, params, request = message.get("method"), message.get("params") or {}, message.get("id")
        if request is None or method is None:
            if method == "notifications/cancelled" and session is not None:
                self.cancel(session, params.get("requestId"))
            connection.respond(202)
        elif self.fails_at == "init" or (self.fails_at == "list" and method == "tools/list"):
            os._exit(4)
        elif method == "subscriptions/listen" and self.modern:
            stream = self.stream(connection, request, None)
            wanted = params.get("notifications") or {}
            acknowledged = {"notifications": wanted, "_meta": {META + "subscriptionId": request}}
            self.say(stream, "notifications/subscriptions/acknowledged", acknowledged)
            self.listeners.append(stream)
        elif method == "tools/call":
            streamed = bool((params.get("arguments") or {}).get("progress")) or self.number % 2 == 0
            exchange = (
                self.stream(connection, request, session) if streamed else self.single(connection, request, session)
            )
            self.begin(exchange, params)
        else:
            exchange = self.single(connection, request, session)
            self.answer(exchange, self.result(method, params), method)

    def is_orphan(self, request: Any) -> bool:
        return request.connection is not None and request.connection.ended

    def cancel(self, session: Session, request: Any) -> None:
        for exchange, call in list(self.calls.items()):
            if exchange.session is session and exchange.request == request and not call.deaf:
                self.note("cancelled", id=call.name)
                del self.calls[exchange]
                self.finish(exchange)

    def forget(self, session: Session) -> None:
        """It is not known any more. Its calls run on, and nobody gets their answers."""
        self.sessions.pop(session.name, None)
        for exchange in [*session.streams.values(), session.listening]:
            if exchange is not None:
                self.finish(exchange)

    # What it says.

    def single(self, connection: Connection, request: Any, session: Session | None) -> Exchange:
        connection.exchange = Exchange(connection, request, session, 0, sse=False)
        return connection.exchange

    def stream(self, connection: Connection, request: Any, session: Session | None) -> Exchange:
        self.streams += 1
        exchange = Exchange(connection, request, session, self.streams, sse=True)
        connection.exchange = exchange
        if session is not None and self.resumable:
            session.streams[exchange.number] = exchange
        self.open_stream(connection)
        self.event(exchange, b"")
        return exchange

    @staticmethod
    def open_stream(connection: Connection) -> None:
        connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def resume(self, connection: Connection, session: Session, last_id: str) -> None:
        number, _, seen = last_id.partition(".")
        exchange = session.streams.get(int(number))
        if exchange is None:
            connection.respond(400)
            return
        self.open_stream(connection)
        for data in exchange.events[int(seen) :]:
            connection.chunk(data)
        if exchange.done:
            connection.send(b"0\r\n\r\n")
            return
        exchange.connection = connection
        connection.exchange = exchange

    def event(self, exchange: Exchange, payload: bytes) -> None:
        data = b"data: " + payload + b"\n\n"
        if exchange.number and exchange.session is not None and self.resumable:
            data = b"retry: 50\nid: %d.%d\n" % (exchange.number, len(exchange.events) + 1) + data
            exchange.events.append(data)
        elif not payload:
            data = b": it begins\n\n"
        if exchange.connection is not None:
            exchange.connection.chunk(data)

    def finish(self, exchange: Exchange) -> None:
        """Nothing more comes of it."""
        if exchange.done:
            return
        exchange.done = True
        connection, exchange.connection = exchange.connection, None
        if connection is None:
            return
        connection.exchange = None
        if exchange.sse:
            connection.send(b"0\r\n\r\n")
        else:
            connection.respond(202)

    def say(self, exchange: Exchange, method: str, params: dict[str, Any]) -> None:
        self.event(exchange, json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def notify(self, method: str, params: dict[str, Any]) -> None:
        for session in self.sessions.values():
            if session.listening is not None:
                self.say(session.listening, method, params)

    def tell_change(self) -> None:
        self.notify("notifications/tools/list_changed", {})
        for listener in self.listeners:
            meta = {"_meta": {META + "subscriptionId": listener.request}}
            self.say(listener, "notifications/tools/list_changed", meta)

    def progress(self, request: Any) -> None:
        call = self.calls.get(request)
        if call is not None and call.token is not None and request.sse:
            params = {"progressToken": call.token, "progress": 1, "message": call.name}
            self.say(request, "notifications/progress", params)

    def answer(self, request: Any, result: dict[str, Any] | None, method: str) -> None:
        exchange: Exchange = request
        if exchange.done:
            return
        data = json.dumps(self.message(exchange.request, result, method)).encode()
        how, self.next_write = (self.next_write, None) if method == "tools/call" else (None, self.next_write)
        if how is not None and how.startswith("garbage"):
            data = GARBAGE[int(how[7:])].rstrip()
        if how == "failed":
            # It has done its work, and what stands before it says that it has not.
            self.abort(exchange, 500)
        elif how in ("torn", "cutoff"):
            self.tear(exchange, data, ends=how == "torn")
        elif exchange.sse:
            lines = data.replace(b"\r", b"").split(b"\n")
            payload = b"\ndata: ".join(lines)
            if how == "stale" and self.last_answer:
                self.event(exchange, self.last_answer)
            for _ in range(2 if how == "dup" else 1):
                self.event(exchange, payload)
            self.finish(exchange)
            self.last_answer = payload
        else:
            self.respond(exchange, data, split=how == "split", session=method == "initialize")

    def respond(self, exchange: Exchange, data: bytes, *, split: bool, session: bool) -> None:
        connection, exchange.connection, exchange.done = exchange.connection, None, True
        if connection is None:
            return
        connection.exchange = None
        headers = "Content-Type: application/json\r\n"
        if session and not self.modern:
            self.number += 1
            new = Session(f"{os.getpid()}-{self.number}")
            self.sessions[new.name] = new
            headers += f"Mcp-Session-Id: {new.name}\r\n"
        if not split:
            connection.respond(200, headers, data)
            return
        connection.send(f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode())
        connection.send(data[: len(data) // 2])
        time.sleep(0.03)
        connection.send(data[len(data) // 2 :])

    def abort(self, exchange: Exchange, status: int) -> None:
        connection = exchange.connection
        if exchange.sse or connection is None:
            self.finish(exchange)
            return
        exchange.connection, exchange.done, connection.exchange = None, True, None
        connection.respond(status)

    def tear(self, exchange: Exchange, data: bytes, *, ends: bool) -> None:
        """Half of an answer, and then the end of its connection, or of all."""
        connection, half = exchange.connection, data[: len(data) // 2]
        if connection is not None and exchange.sse:
            connection.chunk(b"data: " + half)
        elif connection is not None:
            connection.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
            )
            connection.send(half)
        if ends:
            os._exit(5)
        exchange.done = True
        if connection is not None:
            exchange.connection = connection.exchange = None
            self.closed(connection)

    # How it misbehaves, where that is not as over stdio.

    def do_garbage(self, how: int) -> None:
        self.next_write = f"garbage{how % len(GARBAGE)}"

    def do_stale(self, how: int) -> None:
        self.next_write = "stale"

    def do_cutoff(self, how: int) -> None:
        self.next_write = "cutoff"

    def do_failed(self, how: int) -> None:
        self.next_write = "failed"

    def do_forget(self, how: int) -> None:
        for session in list(self.sessions.values()):
            self.forget(session)

    def do_wait(self, how: int) -> None:
        self.asks_to_wait_until = time.monotonic() + 0.05 + how % 500 / 1000

    def do_away(self, how: int) -> None:
        self.away_until = time.monotonic() + 0.05 + how % 500 / 1000
        self.away_status = (502, 503, 504)[how % 3]

    def do_page(self, how: int) -> None:
        self.pages = 1 + how % 3

    def do_streams(self, how: int) -> None:
        """End what it speaks on by itself."""
        for listener in self.listeners:
            self.finish(listener)
        self.listeners = []
        for session in self.sessions.values():
            stream = session.listening
            if stream is not None and stream.connection is not None:
                stream.connection.exchange = None
                stream.connection.send(b"0\r\n\r\n")
                stream.connection = None
            if not self.resumable:
                session.listening = None


def main() -> None:
    """Serve until something ends it."""
    name, folder, era, port = sys.argv[1:5]
    HttpServer(name, folder, era, int(port), "resumable" in sys.argv[5:]).serve()
