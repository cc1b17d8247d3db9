"""A tool by its name: offered, hidden, on its way, or why there is none.

Names are looked up, never taken apart. Only where a name is unknown does its beginning tell whose it could be, so that
it can be waited for, or said why it is not there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Final

import trio
from attrs import define

from ..adapter import AgentTool, namespace_tool_name
from ..client import MCPClient
from ..config import ConfigDocument
from ..errors import NotConnected, TimedOut, UnknownTool
from ..status import ServerState
from ._offer import Offer
from ._roster import Roster

__all__ = ["Lookup"]

# A name that was cut, or was given a hash because of a collision, does not begin with its server's.
_HASHED: Final = re.compile(r"_[0-9a-f]{8,40}__")


@define(eq=False)
class Lookup:
    """The tools of one manager, by name.

    Args:
        offer: What the servers offer.
        roster: The servers.
        document: Gives the configuration in force.
    """

    _offer: Offer
    _roster: Roster
    _document: Callable[[], ConfigDocument]

    def known(self, name: str) -> AgentTool | None:
        """The tool of this name; one that is denied is not in the registry, but it is no unknown one either."""
        return self._offer.registry.get(name) or self._offer.known(name)

    async def find(self, name: str, timeout: float | None) -> AgentTool:
        """The tool of this name; waits while a server that could own it is starting.

        Args:
            name: Its full name.
            timeout: Seconds to wait at most; ``None`` for as long as a call to that server may take.

        Raises:
            UnknownTool: Nobody has it.
            NotConnected: Its server is down.
            TimedOut: Its server is still starting.
        """
        found = self.known(name)
        if found is not None:
            return found
        owners = self._possible_owners(name)
        # What a list that is too old does not have may be there by now.
        stale = [client for client in self._roster if client.catalogs.stale and self._may_be_of(name, client)]
        seconds = timeout
        if seconds is None:
            seconds = max((client.config.call_seconds for client in (*owners, *stale)), default=0)
        with trio.move_on_after(seconds):
            for client in stale:
                await client.catalogs.freshen(seconds)
            for client in owners:
                await client.settled()
        found = self.known(name)
        if found is not None:
            return found
        late = [client.name for client in owners if client.unsettled]
        if late:
            raise TimedOut(
                f"no tool is called {name!r} yet; waited {seconds:g} s for what is starting: {', '.join(late)}",
                budget="connect",
                seconds=seconds,
                remedy="Look at its status, and call again when it is connected.",
            )
        raise self._absent(name)

    def _absent(self, name: str) -> NotConnected | UnknownTool:
        for client in self._roster:
            if self._is_of(name, client.name) and client.state is not ServerState.CONNECTED:
                return client.not_connected()
        for broken, error in self._document().broken.items():
            if self._is_of(name, broken) and broken not in self._roster:
                return NotConnected(f"server {broken!r} is failed: {error.message}", remedy=error.remedy, server=broken)
        document = self._document()
        if not document.origin.entries and not len(list(self._roster)):
            return UnknownTool(
                f"no tool is called {name!r}: no servers are configured",
                remedy=f"Configure one in {document.path}, or try the demo: openprogram-mcp worker --demo-if-empty.",
            )
        near = difflib.get_close_matches(name, self._offer.registry.names(), 3)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "List the tools to see their names."
        return UnknownTool(f"no tool is called {name!r}", remedy=remedy)

    def _possible_owners(self, name: str) -> list[MCPClient]:
        """The servers on their way that a name could belong to."""
        return [client for client in self._roster if client.unsettled and self._may_be_of(name, client)]

    def _may_be_of(self, name: str, client: MCPClient) -> bool:
        return _HASHED.search(name) is not None or self._is_of(name, client.name)

    def _is_of(self, name: str, server: str) -> bool:
        return name.startswith(namespace_tool_name(server, "", style=self._offer.style))
