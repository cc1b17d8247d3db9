"""Calls without a pause, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from openprogram_mcp.errors import OpenProgramMCPError, ServerGone

__all__ = ["Load"]


@define(eq=False)
class Load:
    """Callers that call one after the other, and what became of each call, by its number.

    Args:
        call: Makes the call of a number; gives its text.
    """

    call: Callable[[int], Awaitable[str]]
    outcomes: dict[int, str] = field(factory=dict)
    _stopped: bool = field(default=False, init=False)
    _callers: int = field(default=0, init=False)
    _more: trio.Event = field(factory=trio.Event, init=False)

    def start(self, nursery: trio.Nursery, callers: int) -> None:
        """Begin."""
        self._callers = callers
        for number in range(callers):
            nursery.start_soon(self._caller, number)

    async def reaches(self, count: int) -> None:
        """Wait until so many calls have had their outcome."""
        while len(self.outcomes) < count:
            await self._more.wait()

    async def more(self, count: int) -> None:
        """Wait for so many more."""
        await self.reaches(len(self.outcomes) + count)

    async def stop(self) -> None:
        """End, and wait for the calls that are under way."""
        self._stopped = True
        await self.more(self._callers)

    def other_than(self, expected: Callable[[int], str]) -> dict[int, str]:
        """The outcomes that are not what was expected of their numbers."""
        return {number: outcome for number, outcome in self.outcomes.items() if outcome != expected(number)}

    async def _caller(self, number: int) -> None:
        while not self._stopped:
            try:
                outcome = await self.call(number)
            except ServerGone as gone:
                outcome = f"gone, may have run: {gone.may_have_run}"
            except OpenProgramMCPError as error:
                outcome = f"{type(error).__name__}: {error}"
            self.outcomes[number] = outcome
            number += self._callers
            more, self._more = self._more, trio.Event()
            more.set()
