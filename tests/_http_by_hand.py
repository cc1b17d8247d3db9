"""The server's end of HTTP connections, which the test moves by hand: it gets whole requests, and writes every byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from openprogram_mcp.config import MCPServerConfig
from openprogram_mcp.transports._http_base import HttpDispatcher
from openprogram_mcp.transports._http_client import configured_credentials, open_client, own_headers
from openprogram_mcp.transports.http import StreamableDispatcher
from tests._by_hand import Pending, refuse

__all__ = ["HandServer", "Online", "Request", "listening", "online"]

MODERN = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


@define(eq=False)
class Request:
    """A request that has come, and the connection to answer it on."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    _stream: trio.SocketStream
    _done: trio.Event

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def respond(
        self, status: int = 200, body: bytes = b"", kind: str | None = "application/json", **headers: str
    ) -> None:
        """A whole response; header names with ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if kind is not None:
            named["content-type"] = kind
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        await self.write(f"HTTP/1.1 {status} x\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
        self._done.set()

    async def answer(self, result: Any, **headers: str) -> None:
        """The result, as JSON."""
        body = json.dumps({"jsonrpc": "2.0", "id": self.message["id"], "result": result}).encode()
        await self.respond(200, body, **headers)

    async def refuse(self, status: int, code: int, message: str = "no", id_: Any = None) -> None:
        """An error of JSON-RPC with a status."""
        error = {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}}
        await self.respond(status, json.dumps(error).encode())

    async def stream(self, data: bytes = b"", **headers: str) -> None:
        """The beginning of a stream of events."""
        named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        await self.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{named}transfer-encoding: chunked\r\n\r\n".encode()
        )
        if data:
            await self.chunk(data)

    async def chunk(self, data: bytes) -> None:
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, message: Mapping[str, Any] | None, *, id_: str | None = None) -> None:
        """One message in a stream; none for an event that only carries an id."""
        data = "" if message is None else json.dumps({"jsonrpc": "2.0", **message})
        await self.chunk((f"id: {id_}\n" if id_ else "").encode() + f"data: {data}\n\n".encode())

    async def end(self) -> None:
        """The orderly end of a stream."""
        await self.write(b"0\r\n\r\n")
        self._done.set()

    async def cut(self) -> None:
        """Close the connection, whatever was still to come."""
        await self._stream.aclose()
        self._done.set()

    async def closed_by_client(self) -> None:
        """Wait until the client has closed the connection."""
        with trio.fail_after(10):
            try:
                while await self._stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass


@define(eq=False)
class HandServer:
    """A server whose requests wait for the test, in the order in which they came."""

    port: int
    _requests: trio.MemoryReceiveChannel[Request]
    connections: int = 0
    held: list[Request] = field(factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def request(self, method: str | None = None) -> Request:
        """The next request; of a method, where one is named."""
        for request in self.held:
            if method in (None, request.method):
                self.held.remove(request)
                return request
        with trio.fail_after(10):
            while True:
                request = await self._requests.receive()
                if method in (None, request.method):
                    return request
                self.held.append(request)

    async def initialize(self, online: Online, *, session: str | None = "s1", get: int | None = 405) -> None:
        """Play the handshake of the legacy era."""
        pending = online.start_call("initialize", {"protocolVersion": "2025-11-25"})
        headers = {} if session is None else {"mcp_session_id": session}
        await (await self.request("POST")).answer({"protocolVersion": "2025-11-25", "capabilities": {}}, **headers)
        await pending.result()
        online.nursery.start_soon(online.dispatcher.notify, "notifications/initialized", None)
        await (await self.request("POST")).respond(202, kind=None)
        if get is not None:
            await (await self.request("GET")).respond(get, kind=None)


@asynccontextmanager
async def listening() -> AsyncIterator[HandServer]:
    """A server that takes connections."""
    give, take = trio.open_memory_channel[Request](1000)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = HandServer(listeners[0].socket.getsockname()[1], take)

        async def serve(stream: trio.SocketStream) -> None:
            server.connections += 1
            heard = bytearray()
            try:
                while await _read(stream, heard, give):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def _read(stream: trio.SocketStream, heard: bytearray, give: trio.MemorySendChannel[Request]) -> bool:
    while b"\r\n\r\n" not in heard:
        chunk = await stream.receive_some()
        if not chunk:
            return False
        heard += chunk
    head, _, rest = bytes(heard).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    heard[:] = rest
    size = int(headers.get("content-length", "0"))
    while len(heard) < size:
        heard += await stream.receive_some()
    body = bytes(heard[:size])
    del heard[:size]
    done = trio.Event()
    await give.send(Request(method, target, headers, body, stream, done))
    await done.wait()
    return True


@define(eq=False)
class Online:
    """A running dispatcher, and what it has told."""

    dispatcher: HttpDispatcher
    nursery: trio.Nursery
    running: trio.CancelScope = field(factory=trio.CancelScope)
    ended: trio.Event = field(factory=trio.Event)
    heard: list[tuple[str, Any]] = field(factory=list)

    async def call(self, method: str = "m", params: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        return await self.dispatcher.send_raw_request(method, params, options)  # type: ignore[arg-type]  # any options

    def start_call(self, method: str = "m", params: Mapping[str, Any] | None = None, **options: Any) -> Pending:
        pending = Pending()
        self.nursery.start_soon(pending.wait_for, self.call, method, params, options)
        return pending


@asynccontextmanager
async def online(
    url: str, kind: type[HttpDispatcher] = StreamableDispatcher, on_request: Any = refuse, **config: Any
) -> AsyncIterator[Online]:
    """A dispatcher that runs, for a server at this address."""
    given = MCPServerConfig.from_dict("far", {"url": url, **config})
    client = await open_client(given)
    dispatcher = kind(
        client,
        url,
        headers=own_headers(given),
        credentials=configured_credentials(given),
        max_frame_bytes=given.max_frame_bytes,
    )
    async with trio.open_nursery() as nursery:
        it = Online(dispatcher, nursery)

        async def run(task_status: Any) -> None:
            async def on_notify(_context: Any, method: str, params: Any) -> None:
                it.heard.append((method, params))

            try:
                with it.running:
                    await dispatcher.run(on_request, on_notify, task_status=task_status)
            finally:
                it.ended.set()

        await nursery.start(run)
        try:
            yield it
        finally:
            nursery.cancel_scope.cancel()
    await client.aclose()
