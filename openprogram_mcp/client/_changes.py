"""Keeping a connection's list of tools as the server has it, while the server changes it.

Owns when the list is read anew: after the server has said that it has changed, one reading after the other, and slower
the more it changes. A reading that fails leaves the old list where it is, and is repeated.

MCP specification: server/tools, "List Changed Notification"; basic/patterns/subscriptions (2026-07-28).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio
from attrs import define, field

from ._connection import Connection, is_closed, is_refusal

__all__ = ["Changes"]

_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 30.0


@define(eq=False)
class Changes:
    """The changes of the lists of one server.

    Args:
        taken: Told when a connection's tools were read anew.
        log: Told, by level and text, what went wrong.
        seconds: Gives the limit of one reading.
    """

    _taken: Callable[[Connection], None]
    _log: Callable[[str, str], None]
    _seconds: Callable[[], float]
    _told: trio.Event = field(factory=trio.Event, init=False)

    def told(self) -> None:
        """The server has said that its tools have changed."""
        self._told.set()

    async def follow(self, connection: Connection) -> None:
        """Read the tools anew whenever the server says that they have changed, for ever."""
        pause = 0.0
        while True:
            with trio.move_on_after(pause) as quiet:
                await self._told.wait()
            if quiet.cancelled_caught:
                # Nothing came for as long as the last pause was: the next change is read at once again.
                pause = 0.0
                await self._told.wait()
            else:
                await trio.sleep_until(quiet.deadline)
            # Replaced before the reading: a change that comes meanwhile leads to another one.
            self._told = trio.Event()
            if not await self.read(connection):
                self._told.set()
            pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)

    async def read(self, connection: Connection) -> bool:
        """Read the tools anew; says whether that went well."""
        try:
            with trio.move_on_after(self._seconds()) as limit:
                await connection.read_tools()
        except Exception as error:
            if not is_refusal(error):
                raise
            if not is_closed(error):
                self._log("warning", "its tools could not be read anew; the old list stays")
            return False
        if limit.cancelled_caught:
            self._log("warning", "reading its tools anew took too long; the old list stays")
            return False
        self._taken(connection)
        return True
