"""Clients whose servers live in memory: no process, no thread, and time is Trio's, so that the autojump clock works.

What is replaced is the process alone (``ServerProcess``) and the thread in which modules are imported; the connection
over it, its session and its dispatcher are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, field

from openprogram_mcp.client import _local
from openprogram_mcp.status import ExitWay
from openprogram_mcp.testing import FakeServer
from openprogram_mcp.testing._memory import MemoryServer
from openprogram_mcp.transports._link import StreamLink
from openprogram_mcp.transports._stderr import StderrLines

__all__ = ["MemoryProcess", "MemoryWorld"]


@define(eq=False)
class MemoryProcess:
    """A server in memory with the face of a ``ServerProcess``."""

    server: MemoryServer
    stderr: StderrLines
    started_at: float = field(factory=trio.current_time)
    exited: trio.Event = field(factory=trio.Event)
    exit_code: int | None = None
    exit_way: ExitWay | None = None
    tree: None = None

    @property
    def pid(self) -> int:
        """A number that no process has."""
        return self.server.pid

    def link(self) -> StreamLink:
        """Its standard input and output."""
        return StreamLink(self.server.stdout, self.server.stdin)

    async def stderr_ended(self, seconds: float) -> None:
        """Nothing is waited for: its standard error is not read."""
        del seconds
        await trio.lowlevel.checkpoint()

    async def watch(self) -> None:
        """Wait for its exit."""
        try:
            self.exit_code = await self.server.wait()
        finally:
            # Where all is cancelled because a test has failed, nobody may wait for this for ever.
            self.exited.set()

    async def stop(self, seconds: float) -> None:
        """End it: by closing its input, by SIGTERM, by SIGKILL."""
        with trio.CancelScope() as scope:
            scope.shield = True
            own = self.exited.is_set()
            await self.server.stdin.aclose()
            way: ExitWay = "eof"
            for signal, next_way in (("SIGTERM", "term"), ("SIGKILL", "kill")):
                with trio.move_on_after(seconds):
                    await self.server.wait()
                if self.server.returncode is None:
                    self.server.send_signal(signal)
                    way = "term" if next_way == "term" else "kill"
            await self.exited.wait()
            self.exit_way = "own" if own else way


@define(eq=False)
class MemoryWorld:
    """Where the servers live that are started: a nursery that no client can cancel.

    Args:
        nursery: Theirs.
        server: Gives the server that is started next, or raises what the start of a process raises.
    """

    nursery: trio.Nursery
    server: Callable[[], FakeServer]
    started: list[MemoryProcess] = field(factory=list)

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every client start its servers here, and nothing run in a thread."""
        monkeypatch.setattr(_local, "start_process", self._start)
        monkeypatch.setattr(trio.to_thread, "run_sync", _at_once)

    def living(self) -> list[MemoryProcess]:
        """Those that have not ended."""
        return [process for process in self.started if process.server.returncode is None]

    async def _start(
        self,
        _nursery: trio.Nursery,
        _server: str,
        _launch: Any,
        *,
        mask: Callable[[str], str],
        on_stderr: Callable[[str], None],
        tree: Any = None,
    ) -> MemoryProcess:
        del tree
        await trio.lowlevel.checkpoint()
        process = MemoryProcess(self.server().start_memory(self.nursery), StderrLines(mask, on_stderr))
        self.started.append(process)
        self.nursery.start_soon(process.watch)
        return process


async def _at_once(function: Callable[..., Any], *args: Any, **_options: Any) -> Any:
    """What would run in a thread, of which the clock knows nothing."""
    await trio.lowlevel.checkpoint()
    return function(*args)
