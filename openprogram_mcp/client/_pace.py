"""How fast one follows somebody who says again and again that something has changed.

The first change is followed at once. What comes soon after it is gathered and followed together, after a pause that
grows while it goes on; once nothing has come for as long as the last pause was, the next change is followed at once
again. So a burst costs little, and a storm, or a server that answers every question with another change, no more than
one reading in the longest pause.
"""

from __future__ import annotations

from typing import Final

import trio
from attrs import define, field

__all__ = ["Pace"]

_FIRST_PAUSE_SECONDS: Final = 0.1


@define(eq=False)
class Pace:
    """The pace of one who follows changes. For one task at a time.

    ``pause`` is what lies between this following and the next one, in seconds; 0 while it is quiet.

    Args:
        longest: What the pause grows to, in seconds.
    """

    longest: float = 30.0
    pause: float = field(default=0.0, init=False)
    _told: trio.Event = field(factory=trio.Event, init=False)

    def tell(self) -> None:
        """Something has changed."""
        self._told.set()

    def reset(self) -> None:
        """What was told before does not count any more."""
        self.pause = 0.0
        self._told = trio.Event()

    async def next(self) -> None:
        """Wait until it is time to follow a change. What is told from here on leads to another following."""
        with trio.move_on_after(self.pause) as quiet:
            await self._told.wait()
        if quiet.cancelled_caught:
            self.pause = 0.0
            await self._told.wait()
        else:
            await trio.sleep_until(quiet.deadline)
        self._told = trio.Event()
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE_SECONDS), self.longest)
