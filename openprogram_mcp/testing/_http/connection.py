"""One TCP connection: requests are read from it, and bytes written to it in the order in which they were queued."""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol

import trio
from attrs import define, field, frozen

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ["Connection", "Garbled", "Parser", "Request"]


class Garbled(Exception):
    """What came in is no HTTP/1.1 request."""


@frozen
class Request:
    """One HTTP request, as it came in."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name; the first, where there are several."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@define
class Parser:
    """Makes requests of bytes, without I/O."""

    buffer: bytearray = field(factory=bytearray)

    def feed(self, data: bytes) -> list[Request]:
        """The requests that are whole now.

        Raises:
            Garbled: It is no HTTP/1.1.
        """
        self.buffer += data
        found = []
        while (request := self._next()) is not None:
            found.append(request)
        return found

    def _next(self) -> Request | None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise Garbled(first)
        headers = []
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Garbled(line)
            headers.append((name, value.strip(" \t")))
        request = Request(parts[0], parts[1], headers, b"")
        if (request.header("transfer-encoding") or "").lower() == "chunked":
            body, rest = self._chunks(end + 4)
        else:
            rest = end + 4 + int(request.header("content-length") or 0)
            body = bytes(self.buffer[end + 4 : rest]) if len(self.buffer) >= rest else None
        if body is None:
            return None
        del self.buffer[:rest]
        return Request(request.method, request.target, headers, body)

    def _chunks(self, at: int) -> tuple[bytes | None, int]:
        body = bytearray()
        while True:
            end = self.buffer.find(b"\r\n", at)
            if end < 0:
                return None, 0
            size = int(bytes(self.buffer[at:end]).split(b";")[0], 16)
            at = end + 2 + size + 2
            if len(self.buffer) < at:
                return None, 0
            if not size:
                return bytes(body), at
            body += self.buffer[end + 2 : at - 2]


class Server(Protocol):
    """What a connection tells the server."""

    def begin(self, connection: Connection, request: Request) -> Exchange:
        """A request came in."""
        ...

    def accepted(self, connection: Connection) -> bool:
        """A connection was made; whether it may be read from at once."""
        ...

    def garbled(self, connection: Connection, data: bytes) -> None:
        """What came in is no HTTP."""
        ...


@define(eq=False)
class Connection:
    """One connection.

    Args:
        number: Its number, over the life of the server.
        stream: Its bytes.
        server: Who is told what comes in.
    """

    number: int
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    server: Server
    exchange: Exchange | None = None
    closed: bool = False
    _requests: deque[Request] = field(init=False, factory=deque)
    _items: deque[bytes | None] = field(init=False, factory=deque)
    _queued: trio.Event = field(init=False, factory=trio.Event)
    _readable: trio.Event = field(init=False, factory=trio.Event)
    _reset: bool = field(init=False, default=False)
    _scope: trio.CancelScope = field(init=False, factory=trio.CancelScope)

    # What exchanges call: nothing here waits.

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        if not self.closed:
            self._put(data)

    def cut(self, *, reset: bool = False) -> None:
        """Close the connection once what is queued has been written."""
        if not self.closed:
            self.closed = True
            self._reset = reset
            self._put(None)

    def done(self) -> None:
        """An exchange has been answered in full: the next may begin."""
        self.exchange = None
        self._next_exchange()

    def read_now(self) -> None:
        """What is played at the start of a connection has ended."""
        self._readable.set()

    def drop(self, *, reset: bool = False) -> None:
        """Close the connection now, whatever is queued."""
        self.closed = True
        self._reset = reset
        self._scope.cancel()

    def _put(self, item: bytes | None) -> None:
        self._items.append(item)
        self._queued.set()

    def _next_exchange(self) -> None:
        while self._requests and self.exchange is None and not self.closed:
            request = self._requests.popleft()
            self.server.begin(self, request)

    # How it lives.

    async def run(self) -> None:
        """Until either end closes it."""
        raw = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, nursery.cancel_scope)
                    await self._write()
                    nursery.cancel_scope.cancel()
        finally:
            self.closed = True
            if self._reset:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.socket.close()
            if self.exchange is not None:
                self.exchange.gone()

    async def _write(self) -> None:
        while True:
            while self._items:
                item = self._items.popleft()
                if item is None:
                    return
                try:
                    await self.stream.send_all(item)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
            self._queued = trio.Event()
            await self._queued.wait()

    async def _read(self, scope: trio.CancelScope) -> None:
        if not self.server.accepted(self):
            await self._readable.wait()
        parser = Parser()
        while True:
            try:
                data = bytes(await self.stream.receive_some())
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                scope.cancel()
                return
            try:
                self._requests.extend(parser.feed(data))
            except (Garbled, ValueError):
                self.server.garbled(self, data)
                scope.cancel()
                return
            self._next_exchange()
