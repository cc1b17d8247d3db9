"""A server's standard error as lines: cut, decoded, masked, and the last of them kept.

Bounded whatever comes: a line without an end is cut into pieces, a progress bar that overwrites itself counts as its
last state, and the ring forgets the oldest lines. Colours and other control sequences are taken out, so that a line can
be shown on any terminal. A line is cut only where that cuts no secret in two, which would show both halves.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["StderrLines"]

logger = logging.getLogger(__name__)

_PIECE_BYTES: Final = 4096
# So much of an unfinished line stays behind when it is cut: the longest secret that is sure not to be cut in two.
_KEPT_BYTES: Final = 1024
_RING_CHARACTERS: Final = 64 * 1024
_RING_LINES: Final = 200
_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, movements
    r"|\x1b[\]P_^X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


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
        self._characters = 0

    def feed(self, chunk: bytes) -> None:
        """Take bytes as they come."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        if b"\r" in self._partial:
            # What has been overwritten; a return at the end has overwritten nothing yet.
            self._partial = self._partial[self._partial.rstrip(b"\r").rfind(b"\r") + 1 :]
        while len(self._partial) >= _PIECE_BYTES + _KEPT_BYTES:
            place = self._cut(self._partial[: _PIECE_BYTES + _KEPT_BYTES])
            self._take(self._partial[:place])
            self._partial = self._partial[place:]

    def finish(self) -> None:
        """The end: what is left is a line too."""
        if self._partial:
            self._take(self._partial)
            self._partial = b""

    def last(self, count: int = 20) -> tuple[str, ...]:
        """The last lines, oldest first, masked."""
        lines = list(self._lines)[-count:]
        if text := self._text(self._partial):
            lines = [*lines, text][-count:]
        return tuple(lines)

    def _text(self, line: bytes) -> str:
        return self._masked(_last_state(line)).rstrip()

    def _masked(self, data: bytes) -> str:
        return self._mask(_CONTROL.sub("", data.decode("utf-8", "replace")))

    def _cut(self, data: bytes) -> int:
        """Where to cut, so that no character and no secret is cut in two."""
        whole = self._masked(data)
        for place in range(_PIECE_BYTES, _PIECE_BYTES - _KEPT_BYTES, -128):
            while data[place] & 0xC0 == 0x80 and place > _PIECE_BYTES - _KEPT_BYTES:
                place -= 1
            if self._masked(data[:place]) + self._masked(data[place:]) == whole:
                return place
        return _PIECE_BYTES

    def _take(self, line: bytes) -> None:
        text = self._text(line)
        for start in range(0, len(text), _PIECE_BYTES):
            piece = text[start : start + _PIECE_BYTES]
            self._lines.append(piece)
            self._characters += len(piece)
            while self._characters > _RING_CHARACTERS or len(self._lines) > _RING_LINES:
                self._characters -= len(self._lines.popleft())
            try:
                self._on_line(piece)
            except Exception:  # whoever listens: standard error must be drained whatever happens to its lines
                logger.exception("a line of standard error could not be told")


def _last_state(line: bytes) -> bytes:
    """What a terminal would still show of a line that overwrites itself: what stands after the last return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
