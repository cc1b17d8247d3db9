"""A management API over a fake manager, and a raw HTTP client: the test says what is sent, and when it is closed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import define, field, frozen

from openprogram_mcp.web.server import Address, serve

from ._fake_manager import FakeManager, as_manager

__all__ = ["TOKEN", "Reply", "Site", "serving"]

TOKEN = "the-owners-token"


@frozen
class Reply:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@define
class Site:
    """A served API and how to talk to it."""

    manager: FakeManager
    address: Address
    stop: trio.Event = field(factory=trio.Event)

    def head(
        self, method: str, path: str, headers: dict[str, str | None] | None = None, body: bytes | None = None
    ) -> bytes:
        """A request's bytes; a header of ``None`` is left out."""
        wanted: dict[str, str | None] = {
            "Host": f"127.0.0.1:{self.address.port}",
            "Authorization": f"Bearer {TOKEN}",
            "Connection": "close",
            **({} if body is None else {"Content-Length": str(len(body)), "Content-Type": "application/json"}),
            **(headers or {}),
        }
        lines = [
            f"{method} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in wanted.items() if value is not None),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.address.port)

    async def ask(
        self, method: str, path: str, headers: dict[str, str | None] | None = None, body: Any = None
    ) -> Reply:
        """One request and its whole response."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        async with await self.connect() as stream:
            await stream.send_all(self.head(method, path, headers, content))
            return parse(b"".join([chunk async for chunk in stream]))

    async def get(self, path: str, **headers: str | None) -> Reply:
        return await self.ask("GET", path, headers)

    async def post(self, path: str, body: Any = None, **headers: str | None) -> Reply:
        return await self.ask("POST", path, headers, body)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: dict[str, str | None] | None = None, body: Any = None
    ) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """A stream of events; leaving it closes the connection."""
        content = None if body is None else json.dumps(body).encode()
        async with await self.connect() as stream:
            await stream.send_all(self.head(method, path, {"Accept": "text/event-stream", **(headers or {})}, content))
            yield events_of(stream)


async def events_of(stream: trio.SocketStream) -> AsyncIterator[dict[str, str]]:
    """The events of a response as they come; a comment is an event of the type ``:``."""
    buffer = b""
    while b"\r\n\r\n" not in buffer:
        buffer += await stream.receive_some()
    head, _, buffer = buffer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    assert b"text/event-stream" in head
    text = b""
    while True:
        while b"\r\n" in buffer:
            size, _, rest = buffer.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                break
            if length == 0:
                return
            text, buffer = text + rest[:length], rest[length + 2 :]
            while b"\n\n" in text:
                one, _, text = text.partition(b"\n\n")
                lines = [line.partition(": ") for line in one.decode().split("\n")]
                yield {name or ":": value for name, _, value in lines}
        data = await stream.receive_some()
        if not data:
            return
        buffer += data


def parse(data: bytes) -> Reply:
    """A whole response."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    if headers.get("transfer-encoding") == "chunked":
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
        body = whole
    return Reply(int(first.split()[1]), headers, body)


@asynccontextmanager
async def serving(manager: FakeManager | None = None, *, seconds: float = 20, **options: Any) -> AsyncIterator[Site]:
    """An API served for the time of the block, ``seconds`` at most, and then told to stop."""
    fake = FakeManager() if manager is None else manager
    stop = trio.Event()
    given = {"host": "127.0.0.1", "port": 0, "token": TOKEN, "grace_seconds": 0.2, **options}
    with trio.fail_after(seconds):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(partial(serve, as_manager(fake), shutdown=stop, **given))
            try:
                yield Site(fake, address, stop)
            finally:
                stop.set()
