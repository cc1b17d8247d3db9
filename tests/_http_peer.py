"""The client's end of a fake server over HTTP, by bytes."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from openprogram_mcp.testing import FakeHttpServer
from tests._peer import MODERN_META

__all__ = ["HttpPeer", "Response", "connected"]

_BOTH = "application/json, text/event-stream"


@define
class Response:
    """A response, as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[Any]:
        """The data of the events that its body is."""
        events = self.body.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n\n")
        found = []
        for event in events:
            lines = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
            if any(lines):
                found.append(json.loads("\n".join(lines)))
        return found


@define
class HttpPeer:
    """One connection to the server."""

    fake: FakeHttpServer
    stream: trio.abc.Stream
    buffer: bytearray = field(factory=bytearray)
    ids: int = 0
    session: str | None = None

    async def send(
        self, method: str, body: bytes = b"", headers: dict[str, str] | None = None, path: str | None = None
    ) -> None:
        """Send one request."""
        own = {"Host": "localhost", "Accept": _BOTH, "Content-Length": str(len(body))}
        if body:
            own["Content-Type"] = "application/json"
        if self.session is not None:
            own["Mcp-Session-Id"] = self.session
        lines = [f"{name}: {value}" for name, value in {**own, **(headers or {})}.items()]
        head = "\r\n".join([f"{method} {path or self.fake.path} HTTP/1.1", *lines, "", ""])
        await self.stream.send_all(head.encode("latin-1") + body)

    async def post(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> int:
        """Send a JSON-RPC request by POST; its id."""
        self.ids += 1
        message = {"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params or {}}
        await self.send("POST", json.dumps({**message, **more}).encode())
        return self.ids

    async def modern(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> int:
        """Send a JSON-RPC request of 2026-07-28."""
        self.ids += 1
        params = {**(params or {}), "_meta": MODERN_META}
        message = {"jsonrpc": "2.0", "id": self.ids, "method": method, "params": params}
        wanted = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
        if "name" in params:
            wanted["Mcp-Name"] = params["name"]
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.send("POST", json.dumps(message).encode(), {**wanted, **given})
        return self.ids

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> Response:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        await self.send("POST", json.dumps(message).encode())
        return await self.response()

    async def initialize(self) -> Response:
        """Begin a session."""
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "0"}}
        await self.post("initialize", params)
        response = await self.response()
        self.session = response.headers.get("mcp-session-id")
        return response

    async def some(self) -> bytes:
        """More bytes; empty at the end."""
        try:
            return bytes(await self.stream.receive_some())
        except trio.BrokenResourceError:
            return b""

    async def until(self, mark: bytes) -> bytes:
        """All up to a mark, and the mark; what there is, where the connection ends before it."""
        while mark not in self.buffer:
            data = await self.some()
            if not data:
                found, self.buffer = bytes(self.buffer), bytearray()
                return found
            self.buffer += data
        end = self.buffer.index(mark) + len(mark)
        found = bytes(self.buffer[:end])
        del self.buffer[:end]
        return found

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = await self.some()
            if not data:
                break
            self.buffer += data
        found = bytes(self.buffer[:count])
        del self.buffer[:count]
        return found

    async def rest(self) -> bytes:
        """All up to the end of the connection."""
        while data := await self.some():
            self.buffer += data
        found, self.buffer = bytes(self.buffer), bytearray()
        return found

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response, names in small letters."""
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split(" ")[1]), {name.lower(): value for name, value in headers.items()}

    async def chunk(self) -> bytes:
        """The next chunk of a body; empty at its end."""
        size = int(await self.until(b"\r\n"), 16)
        data = await self.exactly(size)
        await self.exactly(2)
        return data

    async def response(self) -> Response:
        """The next response, whole."""
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while data := await self.chunk():
                body += data
        elif "content-length" in headers:
            body = await self.exactly(int(headers["content-length"]))
        else:
            body = await self.rest()
        return Response(status, headers, body)


@asynccontextmanager
async def connected(
    fake: FakeHttpServer, host: str | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpPeer]:
    """A connection to a server that runs."""
    stream: trio.abc.Stream = await trio.open_tcp_stream(host or fake.host, fake.port)
    if tls is not None:
        stream = trio.SSLStream(stream, tls, server_hostname=host or fake.host, https_compatible=True)
    async with stream:
        with trio.fail_after(20):
            yield HttpPeer(fake, stream)
