"""What one server says, told at a bounded pace: one that floods its log must not push out what others say.

A burst is told whole. After that as much as keeps up with the pace; what is left out is counted, and the count is told.
"""

from __future__ import annotations

from typing import Final

import trio
from attrs import define, field

from ..events import EventBus, ServerLog

__all__ = ["Said"]

_BURST: Final = 200
_LINES_PER_SECOND: Final = 20.0


@define(eq=False)
class Said:
    """The log of one server.

    Args:
        server: Its name.
        bus: Where it is told.
    """

    _server: str
    _bus: EventBus
    _room: float = field(default=float(_BURST), init=False)
    _since: float | None = field(default=None, init=False)
    _left_out: int = field(default=0, init=False)

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something; the text is masked."""
        now = trio.current_time()
        if self._since is not None:
            self._room = min(float(_BURST), self._room + (now - self._since) * _LINES_PER_SECOND)
        self._since = now
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        if self._left_out:
            said = f"{self._left_out} lines of its log were left out here: it says more than can be kept"
            self._bus.publish(ServerLog(server=self._server, level="warning", logger=None, text=said))
            self._left_out = 0
        self._bus.publish(ServerLog(server=self._server, level=level, logger=logger, text=text))
