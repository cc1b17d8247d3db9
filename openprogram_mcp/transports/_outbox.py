"""Frames on their way out: straight into the pipe when it is idle, in order behind the others when it is not.

A frame is never torn: once its first byte has left, it is written to its end before any other. A frame that has not
begun can be withdrawn. Posting never waits; whoever sends much waits for room first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import trio
from attrs import define

from ._link import Link

__all__ = ["Fate", "FateState", "Frame", "Outbox"]

_LIMIT_BYTES: Final = 1024 * 1024


class FateState(StrEnum):
    """How far a request has come: ``written`` begins with the first byte that leaves us."""

    QUEUED = "queued"
    WRITTEN = "written"
    ANSWERED = "answered"


@define
class Fate:
    """What became of one request, for whoever asked for it.

    ``expired`` names the limit that ran out, ``idle`` or ``hard``.
    """

    state: FateState = FateState.QUEUED
    expired: str | None = None


def _ignore() -> None:
    return


@define(eq=False)
class Frame:
    """One message in bytes.

    Args:
        data: The line.
        fate: Told when the first byte has left.
        on_written: Told whenever the peer has taken some of it.
        on_lost: Told when the peer will never take it.
        withdrawn: Nobody wants it any more; only what has not begun is left out.
    """

    data: memoryview
    fate: Fate | None = None
    on_written: Callable[[], None] = _ignore
    on_lost: Callable[[], None] = _ignore
    withdrawn: bool = False

    def claim(self) -> bool:
        """Its first byte is about to leave: from now on it counts as written, unless it was withdrawn before."""
        if self.withdrawn and (self.fate is None or self.fate.state is FateState.QUEUED):
            return False
        self.written()
        return True

    def written(self) -> None:
        """Some of it has left."""
        if self.fate is not None:
            self.fate.state = FateState.WRITTEN
        self.on_written()


class Outbox:
    """The frames of one connection.

    Args:
        link: Where they go.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._wanted = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()

    @property
    def full(self) -> bool:
        """Whether the peer is so far behind that no more requests should be added."""
        return self._bytes >= _LIMIT_BYTES

    async def wait_for_room(self) -> None:
        """Wait until something has changed: there is room, or :meth:`wake_waiting` was called."""
        await self._room.park()

    def wake_waiting(self) -> None:
        """Wake whoever waits for room, to look again."""
        self._room.unpark_all()

    def post(self, frame: Frame) -> None:
        """Send a frame without waiting: now if the pipe is idle and takes it, else in its turn."""
        if not self._frames:
            try:
                sent = self._link.try_send(frame.data)
            except trio.BrokenResourceError:
                frame.on_lost()
                return
            if sent:
                frame.written()
                if sent == len(frame.data):
                    return
                frame.data = frame.data[sent:]
        self._frames.append(frame)
        self._bytes += len(frame.data)
        self._wanted.unpark()

    async def run(self) -> None:
        """Write what could not be written at once, for ever."""
        while True:
            while not self._frames:
                await self._wanted.park()
            frame = self._frames[0]
            try:
                await self._write(frame)
            except trio.BrokenResourceError:
                # The peer closed its input. What it still says is heard; what it was to be told is lost.
                frame.on_lost()
            self._frames.popleft()
            self._bytes -= len(frame.data)
            if not self.full:
                self._room.unpark_all()

    async def _write(self, frame: Frame) -> None:
        offset = 0
        while offset < len(frame.data):
            sent = await self._link.send_some(frame.data[offset:], frame.claim)
            if not sent:
                return
            frame.written()
            offset += sent
