"""When a request may be sent, and when a broken stream is taken up again."""

from __future__ import annotations

import random
from typing import Final

import trio
from attrs import define, field

__all__ = ["Pauses", "Resumption"]

_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 60.0
# Whatever a server says, its streams are not opened more often than this.
_LEAST_SECONDS: Final = 0.01
# What is longer than this is taken for a mistake.
_LONGEST_WAIT_SECONDS: Final = 24 * 3600.0
# So many tries in a row that did not get through, and a stream is given up.
_FAILURES: Final = 5
# A stream that lasted so long was worth having, though nothing came on it.
_WORTHWHILE_SECONDS: Final = 5.0


@define(eq=False)
class Pauses:
    """When a server that has too much to do wants to be asked again: one answer for all requests."""

    status: int = field(default=0, init=False)
    _until: float = field(default=float("-inf"), init=False)
    _growing: float = field(default=_FIRST_SECONDS, init=False)

    def ask(self, status: int, seconds: float | None) -> None:
        """The server wants to be left alone for so long; where it does not say, for a while that grows.

        Args:
            status: The status that said so.
            seconds: For how long.
        """
        self.status = status
        now = trio.current_time()
        if seconds is None:
            if self._until > now:
                return  # others have been told the same
            seconds = self._growing * random.uniform(0.5, 1.0)  # noqa: S311 - nothing is secret about it
            self._growing = min(2 * self._growing, _LONGEST_SECONDS)
        self._until = max(self._until, now + min(seconds, _LONGEST_WAIT_SECONDS))

    async def over(self, limit: float) -> float | None:
        """Wait until requests may be sent. No checkpoint where they may.

        Args:
            limit: Until when that makes sense, by Trio's clock.

        Returns:
            For how many seconds the server still wants to be left alone, where that is past the limit; else ``None``.
        """
        while self._until > float("-inf"):
            until = self._until
            if until >= limit:
                return until - trio.current_time()
            await trio.sleep_until(until)
            if self._until == until:  # nobody has put it off meanwhile
                self._until = float("-inf")
        return None


@define(eq=False)
class Resumption:
    """How long to wait before a broken stream is taken up again.

    The wait grows, and does not begin again with a stream on which nothing came.
    """

    _wait: float = field(default=0.0, init=False)
    _failures: int = field(default=0, init=False)

    def wait(self, retry: float | None) -> float:
        """How long now, in seconds; at least as long as the server has said."""
        least = _FIRST_SECONDS if retry is None else max(retry, _LEAST_SECONDS)
        return max(least, self._wait)

    def failed(self) -> None:
        """It did not get through."""
        self._failures += 1
        self._grow()

    def ended(self, *, heard: bool) -> None:
        """A stream has ended; whether something came on it."""
        self._failures = 0
        if heard:
            self._wait = 0.0
        else:
            self._grow()

    def useless(self, *, lasted: float) -> None:
        """A stream has ended on which nothing came, after so many seconds. Too many of them are no use."""
        failures = self._failures + 1 if lasted < _WORTHWHILE_SECONDS else 0
        self.ended(heard=False)
        self._failures = failures

    @property
    def hopeless(self) -> bool:
        """Whether it is to be given up."""
        return self._failures >= _FAILURES

    def _grow(self) -> None:
        self._wait = min(max(2 * self._wait, _FIRST_SECONDS), _LONGEST_SECONDS)
