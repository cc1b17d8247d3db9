"""Server-sent events, to the letter: bytes in, events out, without any I/O.

Lines end at LF, CR or CRLF; a byte order mark at the start is skipped; several ``data`` lines are joined by LF; an
event that no blank line ends is none. Linear in the number of bytes, however they are split. An event over the limit is
not kept: its bytes are dropped as they come, and it is told as :class:`~.wire.Noise`.

Specification: HTML Living Standard, "Server-sent events", parsing and interpreting an event stream.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field, frozen

from . import wire
from .wire import Noise

__all__ = ["Event", "EventBuffer"]

_BOM: Final = b"\xef\xbb\xbf"
_HINT_BYTES: Final = 1024
# In the place of a line that was dropped: all that matters is that it was not blank.
_SOMETHING: Final = b"."
# Whatever a server says, nobody waits longer than this to be told.
_LONGEST_RETRY_SECONDS: Final = 3600.0


@frozen
class Event:
    """One event.

    Args:
        type: Its type; ``message`` where it names none.
        data: What it carries, in UTF-8 unless the server errs.
    """

    type: str
    data: bytes


@define(eq=False)
class EventBuffer:
    """Cuts a stream of bytes into events.

    ``last_id`` is what a new connection gives as ``Last-Event-ID``, and ``retry`` how long it is to wait, in seconds;
    ``None`` as long as the server has named none.

    Args:
        limit: The largest event that is accepted, in bytes.
        last_id: The last event id of the stream that this one continues.
    """

    limit: int
    last_id: str | None = None
    retry: float | None = None
    _start: bytes | None = field(default=b"", init=False)
    _line: bytearray = field(factory=bytearray, init=False)
    _after_cr: bool = field(default=False, init=False)
    _type: str = field(default="", init=False)
    _data: list[bytes] = field(factory=list, init=False)
    _id: str | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)
    _dropped: bool = field(default=False, init=False)

    def feed(self, chunk: bytes) -> list[Event | Noise]:
        """Take bytes and give the events that they complete."""
        if self._start is not None:
            chunk = self._start + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._start = chunk
                return []
            self._start = None
            chunk = chunk.removeprefix(_BOM)
        if self._after_cr and chunk:
            self._after_cr = False
            # The CR has ended the line already; this is the rest of that end.
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        found: list[Event | Noise] = []
        for piece in chunk.splitlines(keepends=True):  # of bytes: at LF, CR and CRLF, and nowhere else
            if piece[-1:] not in b"\r\n":
                self._hold(piece)
                continue
            line = piece.rstrip(b"\r\n")
            if self._line:
                self._hold(line)
                line, self._line = bytes(self._line), bytearray()
            elif self._dropped:
                self._size += len(line)
            event = self._take(line)
            if event is not None:
                found.append(event)
        return found

    def _hold(self, piece: bytes) -> None:
        if self._dropped:
            self._size += len(piece)
            self._line[:] = _SOMETHING
            return
        self._line += piece
        if self._size + len(self._line) > self.limit:
            self._drop(bytes(self._line))
            self._line[:] = _SOMETHING

    def _drop(self, line: bytes) -> None:
        self._size += len(line)
        if not self._dropped:
            self._dropped = True
            self._data = [b"\n".join((*self._data, line.removeprefix(b"data:")))[:_HINT_BYTES]]

    def _take(self, line: bytes) -> Event | Noise | None:
        if not line:
            return self._dispatch()
        if self._dropped:
            return None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            if self._size + len(value) > self.limit:
                self._drop(b"data:" + value)
            else:
                self._size += len(value) + 1  # with the LF that will join it to the next
                self._data.append(value)
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            self.retry = min(int(value[:9]) / 1000, _LONGEST_RETRY_SECONDS)
        return None

    def _dispatch(self) -> Event | Noise | None:
        """The end of an event. One without data only tells the id that it carries."""
        data, self._data = self._data, []
        kind, self._type = self._type, ""
        size, self._size = self._size, 0
        dropped, self._dropped = self._dropped, False
        if self._id is not None:
            self.last_id = self._id
        if dropped:
            return wire.oversized(size, data[0])
        return Event(kind or "message", b"\n".join(data)) if data else None
