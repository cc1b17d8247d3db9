"""A man in the middle: a TCP proxy that does to the bytes between client and server what a seeded plan says.

What happens to the n-th piece of bytes of the n-th connection depends on the seed alone; how the bytes fall into pieces
is the machine's affair. What was done is kept, so that a failure can be understood.
"""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

import trio
from attrs import Factory, define, field, frozen

__all__ = ["Done", "Fault", "Middleman", "Plan"]

Fault = Literal["pass", "delay", "split", "truncate", "cut", "reset", "swallow", "double", "swap"]
"""What may happen to a piece: it goes on; later; byte by byte at its beginning; half of it, and the connection is cut;
the connection is cut before it, or reset; it and all behind it is lost while the connection stays; it goes on twice; it
goes on behind the next one."""

Way = Literal["up", "down"]

_NOTHING: Mapping[Fault, float] = {}


@frozen
class Plan:
    """How likely each fault is, for each piece that goes up to the server or down to the client.

    ``double`` and ``swap`` make other bytes of them, so that going up they can make a server do something twice or
    something else: whoever counts what ran leaves them out there.
    """

    seed: int = 0
    up: Mapping[Fault, float] = _NOTHING
    down: Mapping[Fault, float] = _NOTHING
    delay: float = 0.05
    """The longest delay, seconds."""

    def choose(self, connection: int, way: Way, piece: int) -> tuple[Fault, float]:
        """What happens to a piece, and a number from 0 to 1 for whoever needs one."""
        dice = random.Random(f"{self.seed}/{connection}/{way}/{piece}")  # noqa: S311 - a plan, not a secret
        throw, detail = dice.random(), dice.random()
        for fault, share in (self.up if way == "up" else self.down).items():
            if throw < share:
                return fault, detail
            throw -= share
        return "pass", detail


@frozen
class Done:
    """What was done to one piece."""

    connection: int
    way: Way
    piece: int
    size: int
    fault: Fault


@define(eq=False)
class Middleman:
    """Stands in front of a server.

    Args:
        port_behind: The server's port.
        host: The server's host.
        plan: What to do. May be changed while it runs; ``Plan()`` does nothing.
    """

    port_behind: int
    host: str = "127.0.0.1"
    plan: Plan = Factory(Plan)
    port: int = field(init=False, default=0)
    done: list[Done] = field(init=False, factory=list)
    connections: int = field(init=False, default=0)
    _scopes: dict[trio.CancelScope, list[bool]] = field(init=False, factory=dict)
    _door: trio.CancelScope = field(init=False, factory=trio.CancelScope)
    _may_open: trio.Event = field(init=False, factory=trio.Event)

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[Middleman]:
        """Run it for the time of an ``async with``."""
        with socket.socket() as place:
            # Nobody else gets the port while nobody listens on it.
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(("127.0.0.1", 0))
            self.port = place.getsockname()[1]
            self._may_open.set()
            async with trio.open_nursery() as nursery:
                await nursery.start(self._receive)
                yield self
                nursery.cancel_scope.cancel()

    async def _receive(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as visitors:
            told = False
            while True:
                await self._may_open.wait()
                listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
                if not told:
                    task_status.started()
                    told = True
                with trio.CancelScope() as self._door:
                    await trio.serve_listeners(self._serve, listeners, handler_nursery=visitors)

    def shut(self) -> None:
        """Refuse new connections, until :meth:`reopen`."""
        if self._may_open.is_set():
            self._may_open = trio.Event()
            self._door.cancel()

    def reopen(self) -> None:
        """Take new connections again."""
        self._may_open.set()

    @property
    def open(self) -> int:
        """How many connections there are at this moment."""
        return len(self._scopes)

    def cut(self, *, reset: bool = False) -> None:
        """Cut every connection now."""
        for scope, with_reset in self._scopes.items():
            with_reset[0] = reset
            scope.cancel()

    def counts(self) -> Counter[Fault]:
        """How often each fault was done."""
        return Counter(done.fault for done in self.done)

    async def _serve(self, client: trio.SocketStream) -> None:
        self.connections += 1
        number = self.connections
        reset = [False]
        with trio.CancelScope() as scope:
            self._scopes[scope] = reset
            server: trio.SocketStream | None = None
            try:
                try:
                    server = await trio.open_tcp_stream(self.host, self.port_behind)
                except OSError:
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, number, client, server, "up", nursery.cancel_scope, reset)
                    nursery.start_soon(self._carry, number, server, client, "down", nursery.cancel_scope, reset)
            finally:
                del self._scopes[scope]
                for stream in (client, server):
                    if stream is None:
                        continue
                    if reset[0]:
                        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    stream.socket.close()

    async def _carry(
        self,
        number: int,
        source: trio.SocketStream,
        target: trio.SocketStream,
        way: Way,
        scope: trio.CancelScope,
        reset: list[bool],
    ) -> None:
        """Carry bytes one way until either end closes, which closes both."""
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        held, lost, piece = b"", False, 0
        try:
            while data := bytes(await source.receive_some()):
                if lost:
                    continue
                piece += 1
                fault, detail = self.plan.choose(number, way, piece)
                self.done.append(Done(number, way, piece, len(data), fault))
                data, held = data + held, b""
                if fault == "delay":
                    await trio.sleep(detail * self.plan.delay)
                elif fault == "truncate":
                    await target.send_all(data[: len(data) // 2])
                elif fault == "double":
                    data += data
                elif fault == "swap":
                    held, data = data, b""
                elif fault == "swallow":
                    lost = True
                if fault in ("truncate", "cut", "reset"):
                    reset[0] = fault == "reset"
                    break
                if fault == "split":
                    for at in range(min(64, len(data))):
                        await target.send_all(data[at : at + 1])
                    data = data[64:]
                if not lost:
                    await target.send_all(data)
            else:
                await target.send_all(held)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reset[0] = True
        scope.cancel()
