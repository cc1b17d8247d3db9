"""Frames on their way out: straight into the pipe when it is idle, joined with the others when it is not.

A frame is never torn: once its first byte has left, it is written to its end before any other. A frame that has not
begun can be withdrawn. Posting never waits; whoever sends requests waits for room first, and what else is posted to a
peer that does not read is dropped at some point, so that the memory held is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import trio
from attrs import define

from ._link import Link
from .wire import Slot

__all__ = ["Fate", "FateState", "Frame", "Outbox"]

_LIMIT_BYTES: Final = 1024 * 1024
_FLOOD_BYTES: Final = 4 * 1024 * 1024
# Small frames are joined up to about this size, so that many of them take one step and one write.
_JOINED_BYTES: Final = 64 * 1024


class FateState(StrEnum):
    """How far a request has come: ``written`` begins with the first byte that leaves us."""

    QUEUED = "queued"
    WRITTEN = "written"
    ANSWERED = "answered"


@define
class Fate:
    """What became of one request, for whoever asked for it.

    Args:
        state: How far it has come. An answer that comes after it was given up counts, too.
        expired: The limit that ran out, ``idle`` or ``hard``.
        last_progress: What was heard of it last, when a limit ran out: how many seconds before, how far, of how much,
            and a word about it.
        silence: For how many seconds the server had said nothing at all by then.
        on_late_answer: Called, synchronously, when the answer comes after it was given up.
    """

    state: FateState = FateState.QUEUED
    expired: str | None = None
    last_progress: tuple[float, float, float | None, str | None] | None = None
    silence: float | None = None
    on_late_answer: Callable[[], None] | None = None


@define(eq=False)
class Frame:
    """One message in bytes.

    Args:
        data: The line; what is left of it, once it has begun.
        slot: The request that it is, told when some of it has left.
        fate: The same for whoever asked for the request.
        withdrawn: Nobody wants it any more; what has begun is written to its end all the same.
        begun: Its first byte has left.
    """

    data: memoryview
    slot: Slot | None = None
    fate: Fate | None = None
    withdrawn: bool = False
    begun: bool = False

    def written(self, now: float) -> None:
        """Some of it has left at this moment."""
        self.begun = True
        if self.fate is not None:
            self.fate.state = FateState.WRITTEN
        if self.slot is not None:
            self.slot.issued = True
            # The server's time begins when it has the request.
            self.slot.restart(now)


class Outbox:
    """The frames of one connection.

    Args:
        link: Where they go.
        now: The clock of the requests' limits.
    """

    def __init__(self, link: Link, now: Callable[[], float] = trio.current_time) -> None:
        self._link = link
        self._now = now
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._wanted = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self.broken = trio.Event()
        """Set when the peer has closed its input: what was not written never will be."""
        self.dropped = 0
        """How many messages were not sent because the peer does not read."""

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

    def post(self, frame: Frame, *, alone: bool = True) -> None:
        """Send a frame without waiting.

        Args:
            frame: It goes at once if the pipe is idle and takes it, else in its turn.
            alone: Nothing else is likely to follow in this moment; else it is better joined with what does.
        """
        if self.broken.is_set():
            return
        if frame.slot is None and self._bytes >= _FLOOD_BYTES:
            self.dropped += 1
            return
        if alone and self._link.direct and not self._frames:
            try:
                sent = self._link.try_send(frame.data)
            except trio.BrokenResourceError:
                self._break()
                return
            if sent:
                frame.written(self._now())
                if sent == len(frame.data):
                    return
                frame.data = frame.data[sent:]
        self._frames.append(frame)
        self._bytes += len(frame.data)
        if len(self._frames) == 1:
            self._wanted.unpark()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Write what was not written at once, until the peer closes its input."""
        try:
            while not self.broken.is_set():
                while self._frames:
                    if not self._send_some():
                        await self._link.wait_sendable()
                if not self._link.direct:
                    await self._link.wait_sendable()
                if not self._frames:
                    await self._wanted.park()
        except trio.BrokenResourceError:
            self._break()

    def _send_some(self) -> bool:
        """Send the next frames, small ones together, as far as the pipe takes them; false when it takes nothing."""
        frames = self._frames
        while frames and frames[0].withdrawn and not frames[0].begun:
            self._bytes -= len(frames.popleft().data)
        joined: list[Frame] = []
        size = 0
        for frame in frames:
            if (joined and size + len(frame.data) > _JOINED_BYTES) or (frame.withdrawn and not frame.begun):
                break
            joined.append(frame)
            size += len(frame.data)
        # None is left where all were withdrawn; that makes room as well.
        data = joined[0].data if len(joined) == 1 else b"".join(frame.data for frame in joined)
        sent = self._link.try_send(data) if joined else 0
        self._bytes -= sent
        left, now = sent, self._now()
        for frame in joined:
            if not left:
                break
            frame.written(now)
            taken = min(left, len(frame.data))
            left -= taken
            if taken < len(frame.data):
                frame.data = frame.data[taken:]
            else:
                frames.popleft()
        if self._room and not self.full:
            self._room.unpark_all()
        return sent > 0 or not joined

    def withdraw_requests(self) -> None:
        """Write no request any more that has not begun: who is told now that it has not left us can rely on that."""
        for frame in self._frames:
            frame.withdrawn = frame.withdrawn or frame.slot is not None

    def _break(self) -> None:
        """The peer closed its input. What it still says is heard; what it was to be told is lost."""
        self.broken.set()
        self._frames.clear()
        self._bytes = 0
        self._wanted.unpark_all()
        self._room.unpark_all()
