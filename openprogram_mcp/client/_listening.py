"""Listening for changes, for as long as a connection lives: a stream that ends before its time is opened anew.

2026-07-28 alone has such streams; before, a server tells what has changed without being asked to listen to. What has
changed while nobody listened was not told, so whoever depends on it is told that it may have.

MCP specification: basic/patterns/subscriptions.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from attrs import define, field

from ._connection import is_closed, is_refusal, leaves, protocol

__all__ = ["Listening"]

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 60.0
# A stream that was open for so long was no failure.
_STABLE_SECONDS: Final = 30.0
_JITTER: Final = 0.5


@define(eq=False)
class Listening:
    """One stream of changes, opened anew when it ends.

    ``settled`` is set once the server has agreed to tell changes, or has not.

    Args:
        listen: Opens the stream and returns at its end; awaits what it is given when the server has agreed.
        missed: Told that something may have changed unheard.
        log: Told, by level and text, what went wrong.
        late: Whether what is listened for was looked at already, so that even the first agreement may have missed
            something.
        uniform: Draws a number between two; for tests.
    """

    _listen: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
    _missed: Callable[[], Awaitable[None]]
    _log: Callable[[str, str], None]
    late: bool = False
    _uniform: Callable[[float, float], float] = field(default=random.uniform, alias="uniform")
    settled: trio.Event = field(factory=trio.Event, init=False)
    agreed: bool = field(default=False, init=False)
    _pause: float = field(default=0.0, init=False)
    _told: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Listen until the connection ends, or the server turns out not to know how."""
        try:
            while await self._once():
                self.settled.set()
                # Whatever ends the stream so soon: it may have been open for a while, and may be so again.
                self.late = True
                self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
                await trio.sleep(self._uniform(self._pause * _JITTER, self._pause))
        finally:
            self.agreed = False
            self.settled.set()

    async def _once(self) -> bool:
        """One stream, from its opening to its end; says whether it makes sense to open another."""
        opened_at: float | None = None

        async def agreed() -> None:
            nonlocal opened_at
            opened_at = trio.current_time()
            if self.late:
                await self._missed()
            self.agreed = True
            self.settled.set()

        again = True
        try:
            await self._listen(agreed)
        except Exception as error:
            if not is_refusal(error):
                raise
            if is_closed(error):
                return False
            again = not _never(error)
        self.agreed = False
        if opened_at is None:
            self._tell_once("the server does not tell changes of its lists")
        elif trio.current_time() - opened_at >= _STABLE_SECONDS:
            self._pause = 0.0
        return again

    def _tell_once(self, text: str) -> None:
        if not self._told:
            self._told = True
            self._log("debug", text)


def _never(error: BaseException) -> bool:
    """Whether a refusal means that the server does not know how, and will not learn it."""
    sdk = protocol()
    return any(
        isinstance(leaf, sdk.ListenNotSupportedError) or getattr(leaf, "code", None) == sdk.METHOD_NOT_FOUND
        for leaf in leaves(error)
    )
