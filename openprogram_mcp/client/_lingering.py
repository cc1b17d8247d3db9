"""The turn of a call that was given up while its server may still be at it.

Nobody tells when a server has obeyed a cancellation: MCP has no answer to it. So the turn of a call that had to run
alone is kept for a moment, that the next one does not run beside it. The caller is long gone; it waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
from attrs import define, field

__all__ = ["Lingering"]

_GRACE_SECONDS: Final = 0.5


@define(eq=False)
class Lingering:
    """The one turn that is kept, while there is one: who holds it runs alone.

    Args:
        release: Gives a turn back.
    """

    _release: Callable[[], None]
    _until: float | None = field(default=None, init=False)
    _kept: trio.Event | None = field(default=None, init=False)

    def keep(self, seconds: float) -> bool:
        """Keep the caller's turn for a moment.

        Args:
            seconds: How long at most: less than the next one is ready to wait.

        Returns:
            False where nobody would give it back.
        """
        if self._kept is None or self._until is not None:
            return False
        self._until = trio.current_time() + min(seconds, _GRACE_SECONDS)
        self._kept.set()
        return True

    async def run(self) -> None:
        """Give kept turns back when their time is up, for ever; at the end, at once."""
        try:
            while True:
                self._kept = trio.Event()
                await self._kept.wait()
                if self._until is not None:
                    await trio.sleep_until(self._until)
                self._let_go()
        finally:
            self._kept = None
            self._let_go()

    def _let_go(self) -> None:
        if self._until is not None:
            self._until = None
            self._release()
