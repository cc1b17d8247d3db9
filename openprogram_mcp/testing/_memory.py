"""The fake server in memory: Trio's streams and clock in place of a process.

It plays the same scripts as the process does, by the same player. It differs where memory differs: its stdin holds any
amount, signals are sent by :meth:`MemoryServer.send_signal`, and what it spawns is a stand-in that holds its streams
open.
"""

from __future__ import annotations

import itertools
import signal as signals
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing
from attrs import define, field

from ._play.player import Player
from ._play.steps import Gone
from ._records import Record

__all__ = ["MemoryServer", "start_memory"]

_pids = itertools.count(1_000_001)  # no real process has one of these


@define(eq=False)
class _World:
    """A :class:`~._play.player.World` made of memory streams."""

    pid: int
    stdin: trio.testing.MemoryReceiveStream
    stdout: trio.testing.MemoryReceiveStream
    stderr: trio.testing.MemoryReceiveStream
    tell: Callable[[Record], None] | None
    ignores_broken_pipe: bool
    closed: set[str] = field(factory=set)
    held: set[str] = field(factory=set)

    @property
    def recording(self) -> bool:
        return self.tell is not None

    def now(self) -> float:
        return trio.current_time()

    def facts(self) -> dict[str, Any]:
        return {"pid": self.pid, "argv": [], "cwd": str(Path.cwd()), "env": {}}

    def write(self, data: bytes) -> None:
        if "stdout" in self.closed:
            return
        try:
            self.stdout.put_data(data)
        except trio.ClosedResourceError:
            if not self.ignores_broken_pipe:
                self.note("broken pipe", {})
                raise Gone(1) from None

    def complain(self, data: bytes) -> None:
        if "stderr" in self.closed:
            return
        try:
            self.stderr.put_data(data)
        except trio.ClosedResourceError:  # nobody listens: a server goes on without its stderr
            return

    def note(self, event: str, facts: dict[str, Any]) -> None:
        if self.tell is not None:
            self.tell(Record(self.now(), self.pid, event, {"pid": self.pid, **facts}))

    def close(self, stream: str) -> None:
        self.closed.add(stream)
        if stream == "stdin":
            self.stdin.close()
        elif stream not in self.held:
            (self.stdout if stream == "stdout" else self.stderr).put_eof()

    def spawn(self, options: dict[str, Any]) -> int:
        self.held.update(options["inherit"])
        return next(_pids)

    def count(self, path: str) -> int:
        with Path(path).open("a", encoding="ascii") as file:
            before = file.tell()
            file.write(".")
        return before


@define(eq=False)
class MemoryServer:
    """A fake server that runs in memory. Its attributes are named as those of :class:`trio.Process`."""

    stdin: trio.testing.MemorySendStream
    """What it reads."""
    stdout: trio.testing.MemoryReceiveStream
    """What it writes."""
    stderr: trio.testing.MemoryReceiveStream
    """What it complains about."""
    pid: int
    """A number that no process has."""
    returncode: int | None = None
    """Its exit code once it has ended, negative for a signal."""
    _ended: trio.Event = field(init=False, factory=trio.Event)
    _wakeup: trio.Event = field(init=False, factory=trio.Event)
    _signals: list[str] = field(init=False, factory=list)

    async def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        await self._ended.wait()
        assert self.returncode is not None  # noqa: S101 - set before the event
        return self.returncode

    def send_signal(self, name: str) -> None:
        """Send it a signal (``SIGTERM``). What its script says nothing about ends it."""
        self._signals.append(name)
        self._wakeup.set()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal("SIGTERM")

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal("SIGKILL")


def start_memory(script: dict[str, Any], nursery: trio.Nursery, tell: Callable[[Record], None] | None) -> MemoryServer:
    """Start a server in a nursery.

    Args:
        script: Its script.
        nursery: Where it runs.
        tell: Is given each record; ``None`` where none is wanted.
    """
    stdin_send, stdin_receive = trio.testing.memory_stream_one_way_pair()
    stdout_send, stdout_receive = trio.testing.memory_stream_one_way_pair()
    stderr_send, stderr_receive = trio.testing.memory_stream_one_way_pair()
    del stdout_send, stderr_send  # the world puts its bytes straight into the other ends
    pid = next(_pids)
    world = _World(pid, stdin_receive, stdout_receive, stderr_receive, tell, script["ignore_broken_pipe"])
    server = MemoryServer(stdin_send, stdout_receive, stderr_receive, pid)
    nursery.start_soon(_run, server, world, script, name=f"fake server {script['info']['name']}")
    return server


async def _run(server: MemoryServer, world: _World, script: dict[str, Any]) -> None:
    try:
        server.returncode = await _live(server, world, Player(script, world))
    finally:
        if server.returncode is None:
            server.returncode = -signals.SIGKILL  # its nursery was cancelled
        world.stdin.close()
        for name, stream in (("stdout", world.stdout), ("stderr", world.stderr)):
            if name not in world.held:
                stream.put_eof()
        server._ended.set()


async def _live(server: MemoryServer, world: _World, player: Player) -> int:
    """Until it ends: its exit code."""
    inbox: list[bytes] = []
    reads, reading = True, False

    async def read() -> None:
        try:
            inbox.append(bytes(await world.stdin.receive_some()))
        except trio.ClosedResourceError:  # closed by the script
            return
        server._wakeup.set()

    async with trio.open_nursery() as nursery:
        try:
            world.note("start", {"beside": False, **world.facts()})
            player.start()
            while True:
                while server._signals:
                    _deliver(server._signals.pop(0), player)
                if inbox:
                    reading = False
                    data = inbox.pop()
                    if data:
                        player.receive(data)
                    else:
                        reads = False
                        player.eof()
                player.tick()
                if reads and not reading and player.wants_input and "stdin" not in world.closed:
                    reading = True
                    nursery.start_soon(read)
                deadline = player.next_deadline()
                with trio.move_on_at(float("inf") if deadline is None else deadline):
                    await server._wakeup.wait()
                server._wakeup = trio.Event()
        except Gone as gone:
            nursery.cancel_scope.cancel()
            world.note("exit", {"signal": gone.signal} if gone.signal else {"code": gone.code})
            return -getattr(signals, gone.signal) if gone.signal else gone.code
    raise AssertionError("unreachable")  # only Gone and cancellation end the loop


def _deliver(name: str, player: Player) -> None:
    if name == "SIGKILL" or name not in player.hooks:
        raise Gone(signal=name)
    player.signal(name)
