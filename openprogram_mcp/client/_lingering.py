"""The turns of calls that were given up while their server may still be at them.

Nobody tells when a server has obeyed a cancellation: MCP has no answer to it. So a call that must run alone does not
begin until the late answer of what was given up before it, or until a moment has passed. The callers are long gone;
they wait for nothing.
"""

from __future__ import annotations

from typing import Any, Final

import trio
from attrs import define, field

from ._turns import Turns

__all__ = ["Lingering"]

_GRACE_SECONDS: Final = 0.5


@define(eq=False)
class _Kept:
    connection: Any
    alone: bool
    until: float


@define(eq=False)
class Lingering:
    """The turns that are kept.

    ``busy_until`` says until when the server may be at something that was given up, by Trio's clock.

    Args:
        turns: Where they are given back.
    """

    _turns: Turns[Any]
    busy_until: float = field(default=0.0, init=False)
    _kept: set[_Kept] = field(factory=set, init=False)
    _more: trio.Event | None = field(default=None, init=False)

    def keep(self, connection: Any, fate: Any, seconds: float, longest: float, *, alone: bool) -> None:
        """Give a caller's turn back later: one that runs alone as a whole, any other only to those that run alone.

        Args:
            connection: The connection that the turn is on.
            fate: Of the request that was given up; its late answer ends this early.
            seconds: How long at most: less than the next one is ready to wait.
            longest: For how many seconds the server may be at it.
            alone: Whether the turn is one that runs alone.
        """
        now = trio.current_time()
        self.busy_until = max(self.busy_until, now + longest)
        if self._more is None:
            # Nobody would give it back.
            self._turns.release(connection)
            return
        if not alone:
            self._turns.linger(connection)
        kept = _Kept(connection, alone, now + min(seconds, _GRACE_SECONDS))
        self._kept.add(kept)
        fate.on_late_answer = lambda: self._let_go(kept)
        self._more.set()

    async def run(self) -> None:
        """Give kept turns back when their time is up, for ever; at the end, at once."""
        try:
            while True:
                self._more = trio.Event()
                with trio.move_on_at(min((kept.until for kept in self._kept), default=float("inf"))):
                    await self._more.wait()
                now = trio.current_time()
                for kept in [kept for kept in self._kept if kept.until <= now]:
                    self._let_go(kept)
        finally:
            self._more = None
            for kept in list(self._kept):
                self._let_go(kept)

    def _let_go(self, kept: _Kept) -> None:
        # Its late answer may come when its time was up already.
        if kept in self._kept:
            self._kept.remove(kept)
            if kept.alone:
                self._turns.release(kept.connection)
            else:
                self._turns.unlinger()
