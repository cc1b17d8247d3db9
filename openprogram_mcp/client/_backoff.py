"""When a lost server is tried again. Pure: no clock and no task; it is told what happens and says how long to wait.

The wait grows from try to try up to a limit, with jitter, so that many servers of one host do not come back in step.
The count begins again after a connection that was stable for a while, not with the connection itself: a server that
comes up and falls over again is in a crash loop, is tried more and more slowly, and is given up after a number of
tries.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from attrs import define, field

from ..config import Reconnect

__all__ = ["Backoff"]

# So many ends in a row that were the server's own doing, and it is in a crash loop that waiting does not mend.
_CRASHES: Final = 8
_GROWTH: Final = 2.0
# A wait is between this part of its length and the whole of it.
_JITTER: Final = 0.5


@define
class Backoff:
    """The tries of one server.

    ``tries`` is how many were made since the count began.

    Args:
        reconnect: The configuration: waits and limits, in seconds; ``False`` for no tries at all.
        uniform: Draws a number between two; for tests.
    """

    reconnect: Reconnect | bool
    _uniform: Callable[[float, float], float] = random.uniform
    tries: int = field(default=0, init=False)
    _crashes: int = field(default=0, init=False)

    def begin_again(self) -> None:
        """Somebody has changed something, or has asked for a try: what was before counts no more."""
        self.tries = 0
        self._crashes = 0

    def was_up(self, seconds: float) -> None:
        """A connection has ended that was up for so long."""
        if isinstance(self.reconnect, Reconnect) and seconds >= self.reconnect.stable_seconds:
            self.begin_again()

    def next_wait(self, *, crashed: bool) -> float | None:
        """How long to wait before the next try, in seconds; ``None`` when there is to be none.

        Args:
            crashed: The server ended by itself, so that it may be in a crash loop; else it could not be reached.
        """
        reconnect = self.reconnect
        if not isinstance(reconnect, Reconnect):
            return None
        self._crashes = self._crashes + 1 if crashed else 0
        if self._crashes >= _CRASHES:
            return None
        if reconnect.max_attempts is not None and self.tries >= reconnect.max_attempts:
            return None
        # Bounded in the exponent too: the tries are not, and a float is.
        wait = min(reconnect.initial_seconds * _GROWTH ** min(self.tries, 64), reconnect.max_seconds)
        self.tries += 1
        return self._uniform(wait * _JITTER, wait)
