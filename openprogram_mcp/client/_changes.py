"""Keeping one list of a server as the server has it, while the server changes it.

Owns when the list is read anew: after the server has said that it has changed, or when it was used and had grown old;
one reading after the other, and slower the more it changes. A reading that fails leaves the old list where it is, and
is repeated.

MCP specification: server/tools, "List Changed Notification"; basic/patterns/subscriptions and server/utilities/caching
(2026-07-28).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio
from attrs import define, field

from ._connection import Connection, is_closed, is_refusal
from ._pace import Pace

__all__ = ["Changes"]

# A list that is read with pauses of this length changes all the time, and people are told so.
_NOISY_SECONDS: Final = 3.0


async def _read_tools(connection: Connection) -> None:
    await connection.read_tools()


@define(eq=False)
class Changes:
    """The changes of one list of one server.

    Args:
        taken: Told when the list was read anew.
        log: Told, by level and text, what went wrong.
        seconds: Gives the limit of one reading.
        read: Reads it.
        what: What it is a list of.
        noted: Told when there is another warning, or one less.
    """

    _taken: Callable[[Connection], None]
    _log: Callable[[str, str], None]
    _seconds: Callable[[], float]
    _read: Callable[[Connection], Awaitable[None]] = _read_tools
    _what: str = "tools"
    _noted: Callable[[], None] = field(default=lambda: None, alias="noted")
    _pace: Pace = field(factory=Pace, init=False)
    _one: trio.Lock = field(factory=trio.Lock, init=False)
    _begun: int = field(default=0, init=False)
    _since: int = field(default=0, init=False)
    _done: tuple[Connection | None, int] = field(default=(None, 0), init=False)
    _failing: bool = field(default=False, init=False)
    _noisy_until: float = field(default=0.0, init=False)

    def told(self) -> None:
        """The server has said that the list has changed, or it is too old for somebody who wants to use it."""
        self._since = self._begun
        self._pace.tell()

    def wanted(self) -> None:
        """The list of a new connection is wanted; whoever has read it from there already has done it."""
        self._since = -1
        self._pace.tell()

    @property
    def failing(self) -> bool:
        """Whether the last reading failed."""
        return self._failing

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the list, in sentences."""
        found = []
        if self._failing:
            found.append(f"its list of {self._what} could not be read anew; what is offered may be out of date")
        if trio.current_time() < self._noisy_until:
            found.append(f"its list of {self._what} changes all the time; it is read anew now and then only")
        return tuple(found)

    async def follow(self, connection: Connection) -> None:
        """Read the list anew whenever the server says that it has changed, for ever."""
        try:
            while True:
                await self._pace.next()
                if not await self.read(connection, self._since):
                    self.told()
                elif self._pace.pause > _NOISY_SECONDS:
                    self._is_noisy()
        finally:
            # The next connection begins with a list that was just read, and with no history.
            self._pace.reset()
            self._failing, self._noisy_until = False, 0.0

    async def read(self, connection: Connection, since: int | None = None) -> bool:
        """Read the list anew; says whether that went well."""
        try:
            with trio.move_on_after(self._seconds()) as limit:
                await self.read_or_raise(connection, since)
        except Exception as error:
            if not is_refusal(error):
                raise
            if not is_closed(error):
                self._log("warning", f"its {self._what} could not be read anew; the old list stays")
                self._fails(True)
            return False
        if limit.cancelled_caught:
            self._log("warning", f"reading its {self._what} anew took too long; the old list stays")
            self._fails(True)
            return False
        return True

    async def read_or_raise(
        self, connection: Connection, since: int | None = None, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Read the list anew, or share a reading that has begun since this was asked. The caller bounds it.

        Args:
            connection: Where from.
            since: The number of the reading after which one may be shared; ``None`` for those from now on.
            unless: Whether it need not be read, asked when the readings before this one have ended.

        Raises:
            MCPError: The server refused, or the connection ended.
        """
        asked = self._begun if since is None else since
        async with self._one:
            read_from, number = self._done
            if (read_from is connection and number > asked) or unless():
                return
            self._begun += 1
            number = self._begun
            await self._read(connection)
            self._done = connection, number
        self._fails(False)
        self._taken(connection)

    def _fails(self, failing: bool) -> None:
        if failing is not self._failing:
            self._failing = failing
            self._noted()

    def _is_noisy(self) -> None:
        known = trio.current_time() < self._noisy_until
        # Until it has been quiet for as long as makes the pause short again.
        self._noisy_until = trio.current_time() + 2 * self._pace.pause
        if not known:
            self._noted()
