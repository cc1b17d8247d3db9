"""A dispatcher, and the server's end of its connection, which the test moves by hand, message by message."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio
import trio.testing
from attrs import define, field
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from openprogram_mcp.transports._link import Link, PipeLink, StreamLink
from openprogram_mcp.transports.stdio import StdioDispatcher

Kind = Literal["memory", "pipes"]


@define(eq=False)
class Hand:
    """The server's end. Reading waits for no longer than 10 s of Trio's clock."""

    stdin: trio.abc.ReceiveStream
    stdout: trio.abc.SendStream
    _heard: bytearray = field(factory=bytearray, init=False)

    async def message(self) -> Any:
        """The next message that the client has sent."""
        with trio.fail_after(10):
            while b"\n" not in self._heard:
                chunk = await self.stdin.receive_some()
                if not chunk:
                    raise EOFError
                self._heard += chunk
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard[:] = rest
        return json.loads(line)

    async def messages(self, count: int) -> list[Any]:
        return [await self.message() for _ in range(count)]

    async def read_some(self) -> None:
        """Take some bytes from the connection, for later."""
        self._heard += await self.stdin.receive_some()

    async def silence(self) -> None:
        """The client has nothing more to say for now."""

        async def listen() -> None:
            while chunk := await self.stdin.receive_some():
                self._heard += chunk

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert bytes(self._heard) == b""

    async def write(self, data: bytes) -> None:
        await self.stdout.send_all(data)

    async def send(self, *messages: Mapping[str, Any]) -> None:
        """Messages, all in one write."""
        await self.write(b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages))

    async def answer(self, request: Mapping[str, Any], result: Any) -> None:
        await self.send({"id": request["id"], "result": result})

    async def close(self) -> None:
        """Close what the client reads."""
        await self.stdout.aclose()


@define(eq=False)
class Connected:
    """A running dispatcher, and what it has told."""

    dispatcher: StdioDispatcher
    hand: Hand
    nursery: trio.Nursery
    running: trio.CancelScope = field(factory=trio.CancelScope)
    """The scope that the dispatcher runs in."""
    ended: trio.Event = field(factory=trio.Event)
    """Set when the dispatcher has ended."""

    async def call(self, method: str = "m", params: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        return await self.dispatcher.send_raw_request(method, params, options)  # type: ignore[arg-type]  # any options

    def start_call(self, method: str = "m", params: Mapping[str, Any] | None = None, **options: Any) -> Pending:
        pending = Pending()
        self.nursery.start_soon(pending.wait_for, self.call, method, params, options)
        return pending


@define(eq=False)
class Pending:
    """A call in a task of its own."""

    scope: trio.CancelScope = field(factory=trio.CancelScope)
    done: trio.Event = field(factory=trio.Event)
    value: Any = None
    error: BaseException | None = None

    async def wait_for(
        self, call: Callable[..., Any], method: str, params: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> None:
        try:
            with self.scope:
                self.value = await call(method, params, **options)
        except Exception as error:  # noqa: BLE001 - what it was is for the test to say
            self.error = error
        finally:
            self.done.set()

    async def result(self) -> Any:
        with trio.fail_after(1000):
            await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.value


async def refuse(_context: Any, method: str, _params: Any) -> dict[str, Any]:
    raise MCPError(code=METHOD_NOT_FOUND, message=f"Method not found: {method}")


async def ignore(_context: Any, _method: str, _params: Any) -> None:
    return


@asynccontextmanager
async def linked(kind: Kind = "memory") -> AsyncIterator[tuple[Link, Hand]]:
    """A link, and the hand at its other end."""
    if kind == "memory":
        to_server, server_in = trio.testing.memory_stream_one_way_pair()
        server_out, from_server = trio.testing.memory_stream_one_way_pair()
        yield StreamLink(from_server, to_server), Hand(server_in, server_out)
        return
    read, write_theirs = os.pipe()
    read_theirs, write = os.pipe()
    stdin, stdout = trio.lowlevel.FdStream(read_theirs), trio.lowlevel.FdStream(write_theirs)
    try:
        yield PipeLink(read, write), Hand(stdin, stdout)
    finally:
        os.close(read)
        os.close(write)
        with trio.CancelScope(shield=True):
            await stdin.aclose()
            await stdout.aclose()


@asynccontextmanager
async def connected(
    kind: Kind = "memory",
    *,
    on_request: Any = refuse,
    on_notify: Any = ignore,
    intercept: Any = None,
    **options: Any,
) -> AsyncIterator[Connected]:
    """A running dispatcher, ended at exit. It fails rather than wait for ever."""
    mocked = isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
    with trio.fail_after(1_000_000 if mocked else 20):
        async with linked(kind) as (link, hand), trio.open_nursery() as nursery:
            dispatcher = StdioDispatcher(link, **options)
            connection = Connected(dispatcher, hand, nursery)

            async def run(task_status: trio.TaskStatus[None]) -> None:
                try:
                    with connection.running:
                        await dispatcher.run(on_request, on_notify, intercept, task_status=task_status)
                finally:
                    connection.ended.set()

            await nursery.start(run)
            yield connection
            nursery.cancel_scope.cancel()
