"""The client's end of a fake server, by bytes: the same for one that is a process and for one in memory."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from openprogram_mcp.testing import FakeServer

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@define
class Peer:
    """The client's end: writes lines, reads lines, knows when the server has ended."""

    server: Any
    buffer: bytearray = field(factory=bytearray)
    ids: int = 0

    async def write(self, data: bytes) -> None:
        await self.server.stdin.send_all(data)

    async def send(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, **more}
        if params is not None:
            message["params"] = params
        await self.write(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: dict[str, Any] | None = None, *, modern: bool = False) -> int:
        self.ids += 1
        if modern:
            params = {**(params or {}), "_meta": MODERN_META}
        await self.send(method, params, id=self.ids)
        return self.ids

    async def call(self, tool: str, *, modern: bool = False, token: Any = None, **arguments: Any) -> int:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return await self.ask("tools/call", params, modern=modern)

    async def line(self) -> bytes:
        """The next line without its end, or what there is at EOF."""
        while b"\n" not in self.buffer:
            data = await self.server.stdout.receive_some()
            if not data:
                rest, self.buffer = bytes(self.buffer), bytearray()
                return rest
            self.buffer += data
        at = self.buffer.index(b"\n")
        line = bytes(self.buffer[:at])
        del self.buffer[: at + 1]
        return line

    async def message(self) -> Any:
        return json.loads(await self.line())

    async def messages(self, count: int) -> list[Any]:
        return [await self.message() for _ in range(count)]

    async def result(self) -> Any:
        return (await self.message())["result"]

    async def text(self) -> str:
        text: str = (await self.result())["content"][0]["text"]
        return text

    async def complaints(self) -> bytes:
        """All of stderr."""
        found = bytearray()
        async for data in self.server.stderr:
            found += data
        return bytes(found)

    async def send_signal(self, name: str) -> None:
        if isinstance(self.server, trio.Process):
            self.server.send_signal(getattr(signal, name))
        else:
            self.server.send_signal(name)

    async def ended(self) -> int:
        with trio.fail_after(10):
            code: int = await self.server.wait()
            return code


@asynccontextmanager
async def as_process(fake: FakeServer) -> AsyncIterator[Peer]:
    pipe = subprocess.PIPE
    process = await trio.lowlevel.open_process(fake.command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        with trio.fail_after(20):
            yield Peer(process)
    finally:
        fake.kill_all()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


@asynccontextmanager
async def in_memory(fake: FakeServer) -> AsyncIterator[Peer]:
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            yield Peer(fake.start_memory(nursery))
        nursery.cancel_scope.cancel()


Start = Callable[[FakeServer], AbstractAsyncContextManager[Peer]]
