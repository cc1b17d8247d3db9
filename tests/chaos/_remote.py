"""A remote server of the chaos run: a process that somebody starts again whenever it ends, and a network before it.

The process is the harness' own and none of the client's, as a remote server is. All that reaches it goes through a man
in the middle, in the harness' process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from attrs import define, field

from tests._middleman import Fault, Middleman, Plan

from ._processes import send_signal

__all__ = ["FAULTS", "Remote"]

_ROOT: Final = Path(__file__).parent.parent.parent
_RUN: Final = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.chaos import _http_server; _http_server.main()"
)
_LONGEST_ABSENCE_SECONDS: Final = 0.4

# What goes up comes as it was sent, or not at all: else a server might do twice what was asked once.
_UP: Final[Mapping[Fault, float]] = {
    "delay": 0.03,
    "split": 0.02,
    "truncate": 0.01,
    "cut": 0.01,
    "reset": 0.01,
    "swallow": 0.004,
}
_DOWN: Final[Mapping[Fault, float]] = {**_UP, "double": 0.02, "swap": 0.02}

# What a server is told to do, and how often; those in capitals come from outside, the last three from the network.
FAULTS: Final = {
    "exit": 4,
    "garbage": 5,
    "stale": 4,
    "dup": 5,
    "split": 4,
    "torn": 4,
    "cutoff": 6,
    "failed": 5,
    "slow": 4,
    "tiny": 2,
    "late": 5,
    "mute": 4,
    "storm": 6,
    "flood": 3,
    "forget": 8,
    "wait": 5,
    "away": 6,
    "page": 4,
    "streams": 6,
    "KILL": 8,
    "TERM": 4,
    "FREEZE": 4,
    "START": 4,
    "CUT": 6,
    "RESET": 4,
    "SHUT": 5,
}

_KINDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("legacy resumable", {}),
    ("modern", {"serialize": "none"}),
    ("legacy", {"serialize": "none", "type": "http"}),
    ("modern", {"serialize": "all", "era": "2026-07-28"}),
)


@define(eq=False)
class Remote:
    """One remote server.

    Args:
        name: Its name.
        folder: Where its record and its orders are.
        number: Which of the kinds it is of.
    """

    name: str
    folder: Path
    number: int
    middleman: Middleman = field(init=False)
    process: trio.Process | None = field(init=False, default=None)
    _place: socket.socket = field(factory=socket.socket, init=False)

    @property
    def settings(self) -> dict[str, Any]:
        """What is its own in its configuration."""
        return {**_KINDS[self.number % len(_KINDS)][1], "url": f"http://127.0.0.1:{self.middleman.port}/mcp"}

    @asynccontextmanager
    async def running(self, seed: str) -> AsyncIterator[None]:
        """Run the server and what stands before it."""
        with self._place:
            # Nobody else gets the port while the server is away.
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", 0))
            self.middleman = Middleman(self._place.getsockname()[1])
            async with trio.open_nursery() as nursery, self.middleman.standing():
                nursery.start_soon(self._keep_running, Random(f"{seed} {self.name}"))  # noqa: S311 - no secret
                yield
                nursery.cancel_scope.cancel()

    async def _keep_running(self, random: Random) -> None:
        words = _KINDS[self.number % len(_KINDS)][0].split()
        port = str(self._place.getsockname()[1])
        command = [sys.executable, "-S", "-E", "-c", _RUN, self.name, str(self.folder), words[0], port, *words[1:]]
        while True:
            process = await trio.lowlevel.open_process(command)
            try:
                self.process = process
                await process.wait()
            finally:
                self.process = None
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            await trio.sleep(random.random() * _LONGEST_ABSENCE_SECONDS)

    # Its network.

    def burn(self, seed: int) -> None:
        """Let the network be bad from now on."""
        self.middleman.plan = Plan(seed, _UP, _DOWN)

    def calm(self) -> None:
        """Let the network be good from now on. What has been swallowed would else be waited for for ever."""
        self.middleman.plan = Plan()
        self.middleman.reopen()
        self.middleman.cut()

    def take_faults(self) -> Counter[str]:
        """What the network has done since the last time, by kind."""
        counts = Counter(f"net:{done.fault}" for done in self.middleman.done if done.fault != "pass")
        self.middleman.done.clear()
        return counts

    async def shut(self, seconds: float) -> None:
        """Nobody is there for so long."""
        self.middleman.shut()
        try:
            await trio.sleep(seconds)
        finally:
            self.middleman.reopen()

    def signal(self, number: signal.Signals) -> int | None:
        """Signal its process; its pidfd, which the caller closes, or ``None`` if there is none."""
        process = self.process
        if process is None or process.returncode is not None:
            return None
        return send_signal(process.pid, number)

    def make_orders(self) -> None:
        """Make the pipe that its orders come by."""
        orders = self.folder / f"{self.name}.orders"
        if not orders.exists():
            os.mkfifo(orders, 0o600)
