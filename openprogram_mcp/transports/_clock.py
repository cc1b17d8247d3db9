"""The time of the calls on one connection: Trio's, less the time for which it was made to stand still.

While a human is asked, the limits of a call do not run. Legacy stdio tells nobody which call a question belongs to, so
that all calls on the connection wait. Moments of this clock are of use to nobody but whoever reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

__all__ = ["CallClock"]


class CallClock:
    """A clock that can stand still.

    Args:
        on_change: Called, synchronously, when it stops and when it goes on.
    """

    __slots__ = ("_lag", "_on_change", "_reasons", "_stopped_at")

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lag = 0.0
        self._reasons = 0
        self._stopped_at = 0.0

    def now(self) -> float:
        """This moment."""
        if self._reasons:
            return self._stopped_at
        return trio.current_time() - self._lag

    def when(self, moment: float) -> float:
        """A moment as Trio's clock has it, as far as can be said now: never, while this one stands still."""
        return math.inf if self._reasons else moment + self._lag

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let it stand still; as often as anybody has a reason, at the same time or one within the other."""
        if not self._reasons:
            self._stopped_at = self.now()
        self._reasons += 1
        self._on_change()
        try:
            yield
        finally:
            self._reasons -= 1
            if not self._reasons:
                self._lag = trio.current_time() - self._stopped_at
            self._on_change()
