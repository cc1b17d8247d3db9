"""A server's standard error as lines: cut, decoded, masked, and the last of them kept.

Bounded whatever comes: a line without an end is cut into pieces, a progress bar that overwrites itself counts as its
last state, and the ring forgets the oldest lines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["StderrLines"]

_PIECE_BYTES: Final = 4096
_RING_BYTES: Final = 64 * 1024
_RING_LINES: Final = 200


class StderrLines:
    """Takes bytes, gives lines.

    Args:
        mask: Hides secrets in a line.
        on_line: Told each line, masked.
    """

    def __init__(self, mask: Callable[[str], str], on_line: Callable[[str], None]) -> None:
        self._mask = mask
        self._on_line = on_line
        self._partial = b""
        self._lines: deque[str] = deque()
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take bytes as they come."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        if b"\r" in self._partial:
            # A progress bar: what a terminal would still show of it is what stands after the last return.
            self._partial = self._partial[self._partial.rstrip(b"\r").rfind(b"\r") + 1 :]
        while len(self._partial) > _PIECE_BYTES:
            self._take(self._partial[:_PIECE_BYTES])
            self._partial = self._partial[_PIECE_BYTES:]

    def finish(self) -> None:
        """The end: what is left is a line too."""
        if self._partial:
            self._take(self._partial)
            self._partial = b""

    def last(self, count: int = 20) -> tuple[str, ...]:
        """The last lines, oldest first, masked."""
        lines = list(self._lines)[-count:]
        if self._partial.strip():
            lines = [*lines, self._decoded(self._partial)][-count:]
        return tuple(lines)

    def _decoded(self, line: bytes) -> str:
        text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
        return self._mask(text.rstrip())

    def _take(self, line: bytes) -> None:
        for start in range(0, max(len(line), 1), _PIECE_BYTES):
            text = self._decoded(line[start : start + _PIECE_BYTES])
            if not text:
                continue
            self._lines.append(text)
            self._bytes += len(text)
            while self._bytes > _RING_BYTES or len(self._lines) > _RING_LINES:
                self._bytes -= len(self._lines.popleft())
            self._on_line(text)
