"""How many servers may be busy starting at once.

Real servers are bound by the processor while they start: all at once, the first is ready when the last one is. A
server that waits for something else, however, should keep nobody waiting. So a slot belongs to a server that works, and
is given back as soon as its processes sleep.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

__all__ = ["Slot", "StartGate"]

_SAMPLE_SECONDS: Final = 0.05
_QUIET_SAMPLES: Final = 2
_BLIND_SECONDS: Final = 0.5


@define(eq=False)
class Slot:
    """A place among those that start. Given back once, whoever does it first."""

    _limiter: trio.CapacityLimiter
    _held: bool = field(default=True, init=False)

    def give_back(self) -> None:
        """Let the next one start. Doing it twice is harmless."""
        if self._held:
            self._held = False
            self._limiter.release_on_behalf_of(self)

    async def give_back_when_quiet(self, pid: int) -> None:
        """Give the slot back when a process and its descendants do not work any more."""
        if sys.platform != "linux":
            # Nothing here tells cheaply what another process does.
            await trio.sleep(_BLIND_SECONDS)
            self.give_back()
            return
        quiet, before = 0, -1
        while self._held and quiet < _QUIET_SAMPLES:
            await trio.sleep(_SAMPLE_SECONDS)
            working, ticks = _activity(pid)
            quiet = 0 if working or ticks != before else quiet + 1
            before = ticks
        self.give_back()


class StartGate:
    """The slots of one manager.

    Args:
        limit: How many there are.
    """

    def __init__(self, limit: int) -> None:
        self._limiter = trio.CapacityLimiter(limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait for a slot, and give it back at the end if nobody has done so before."""
        slot = Slot(self._limiter)
        await self._limiter.acquire_on_behalf_of(slot)
        try:
            yield slot
        finally:
            slot.give_back()


def _activity(pid: int) -> tuple[bool, int]:
    """Whether any process of a family runs or waits for the disk, and the processor time of them all, in ticks."""
    working, ticks = False, 0
    family = [pid]
    for member in family:
        try:
            stat = Path(f"/proc/{member}/stat").read_bytes()
            children = Path(f"/proc/{member}/task/{member}/children").read_bytes()
        except OSError:
            continue  # it has ended, or the system does not tell
        fields = stat[stat.rfind(b")") + 2 :].split()
        working = working or fields[0] in (b"R", b"D")
        ticks += int(fields[11]) + int(fields[12])
        family.extend(int(child) for child in children.split())
    return working, ticks
