"""The servers of a manager by name: the tasks that they live in, and what they offer together.

Owns one :class:`~openprogram_mcp.client.MCPClient` a server and the order in which they stand. Does not own the
configuration: it is told which servers there are, and asks what else the file says.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import trio
from attrs import evolve

from ..adapter import assign_names
from ..client import MCPClient, StartGate
from ..config import ConfigDocument, MCPServerConfig
from ..errors import NotConnected, UnknownServer
from ..events import EventBus, StatusChanged, ToolsChanged
from ..permissions import Permissions
from ..status import ServerState, ServerStatus
from ..transports._ownership import Instance
from ._offer import Offer
from ._sign_ins import SignIns

__all__ = ["Roster"]

_MAX_WARNINGS: Final = 50


class Roster:
    """The servers of one manager.

    ``version`` rises with every change of any server's status.

    Args:
        bus: Where their events go.
        offer: What they offer, under the names a model calls it by.
        document: Gives the configuration in force.
        permissions: Gives the permissions in force.
        prepare: See :class:`~openprogram_mcp.client.MCPClient`.
        left: Told, by its name, that a server has left while the others go on.
        owner: Whose their processes are.
        sign_ins: Signs in to them.
        environ: Our environment, for their processes.
        start_limit: How many may be busy starting at once.
        raise_internal: Let a fault of ours out; for tests.
    """

    def __init__(
        self,
        bus: EventBus,
        offer: Offer,
        *,
        document: Callable[[], ConfigDocument],
        permissions: Callable[[], Permissions],
        prepare: Callable[[MCPClient], Awaitable[MCPServerConfig | None]],
        left: Callable[[str], None],
        owner: Instance,
        sign_ins: SignIns,
        environ: Mapping[str, str],
        start_limit: int,
        raise_internal: bool = False,
    ) -> None:
        self.version = 0
        self._bus = bus
        self._offer = offer
        self._document = document
        self._permissions = permissions
        self._prepare = prepare
        self._left = left
        self._owner = owner
        self._sign_ins = sign_ins
        self._environ = environ
        self._gate = StartGate(start_limit)
        self._raise_internal = raise_internal
        self._clients: dict[str, MCPClient] = {}
        self._newcomers, self._arrivals = trio.open_memory_channel[MCPClient](math.inf)
        self._closed = False

    def __iter__(self) -> Iterator[MCPClient]:
        return iter(list(self._clients.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._clients

    def get(self, name: str) -> MCPClient | None:
        """The server of this name."""
        return self._clients.get(name)

    def order(self) -> list[str]:
        """The names of all servers, usable or not, in the order of the file; what it does not have comes last."""
        document = self._document()
        known = {**self._clients, **document.broken}
        in_file = [name for name in document.origin.entries if name in known]
        return [*in_file, *(name for name in known if name not in in_file)]

    def row(self, name: str) -> ServerStatus | None:
        """One server's status; ``None`` where there is none of this name."""
        client, error = self._clients.get(name), self._document().broken.get(name)
        if client is not None:
            names = tuple(tool.name for tool in self._offer.offered_of(name))
            status = client.status()
            return evolve(
                status,
                tools=names,
                auth=self._sign_ins.status(client.config),
                authorization_url=self._sign_ins.authorization_url(name),
                config_error=client.config_error if error is None else error.message,
                warnings=(*self._offer.clashes_of(name), *status.warnings)[:_MAX_WARNINGS],
            )
        if error is None:
            return None
        return ServerStatus(
            name=name,
            type="local",
            status=ServerState.FAILED,
            error=error.message,
            error_kind="fatal",
            phase="config",
            remedy=error.remedy or "Correct the entry in the configuration file.",
        )

    def unknown(self, name: str) -> UnknownServer:
        """That there is none of this name, with the one that was probably meant."""
        near = difflib.get_close_matches(name, self.order(), 1)
        remedy = f"Did you mean {near[0]!r}?" if near else "List the servers to see their names."
        return UnknownServer(f"no server is called {name!r}", remedy=remedy, server=name)

    # Their lives.

    async def run(self) -> None:
        """The lives of all servers, each in a task of its own, until :meth:`close` and the last one's end."""
        try:
            async with trio.open_nursery() as nursery:
                with self._arrivals:
                    async for client in self._arrivals:
                        nursery.start_soon(self._live, client)
        finally:
            self.close()
            for client in self:
                # Those that came too late to live.
                client.end()

    def begin(self, config: MCPServerConfig) -> MCPClient:
        """Let a server live.

        Raises:
            NotConnected: All servers are being stopped.
        """
        if self._closed:
            raise NotConnected("all servers are being stopped", server=config.name)
        client = self._clients[config.name] = self._client(config, self._bus, self._prepare, self._changed)
        self._newcomers.send_nowait(client)
        return client

    def _client(
        self,
        config: MCPServerConfig,
        bus: EventBus,
        prepare: Callable[[MCPClient], Awaitable[MCPServerConfig | None]],
        on_change: Callable[[MCPClient], None],
    ) -> MCPClient:
        return MCPClient(
            config,
            bus=bus,
            gate=self._gate,
            owner=self._owner,
            signing=self._sign_ins,
            environ=self._environ,
            prepare=prepare,
            permit=lambda tool: self._permissions().check(tool, config.name),
            on_change=on_change,
            raise_internal=self._raise_internal,
        )

    async def try_out(self, config: MCPServerConfig, expanded: MCPServerConfig) -> ServerStatus:
        """Let a server live until its verdict, beside all others and unheard by them.

        Args:
            config: Its configuration; it is started though it is switched off there.
            expanded: The same with the values of variables.
        """

        async def prepare(_client: MCPClient) -> MCPServerConfig:
            return expanded

        client = self._client(evolve(config, enabled=True), EventBus(), prepare, lambda _client: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            status = await client.settled()
            names = assign_names(((client.name, tool) for tool in client.tools), style=self._offer.style)
            client.leave()
        return evolve(status, tools=tuple(sorted(names.values())))

    def close(self) -> None:
        """Let all servers end, side by side, and nobody else begin."""
        self._closed = True
        self._newcomers.close()
        for client in self:
            client.leave()

    async def _live(self, client: MCPClient) -> None:
        await client.run()
        # One that left before the others is forgotten; at the end of all, their last status stays.
        if not self._closed:
            del self._clients[client.name]
            self._changed(client)
            self._left(client.name)

    def _changed(self, client: MCPClient) -> None:
        """A server has changed: tell the registry, where its tools have, and everybody else."""
        self.version += 1
        self._offer_anew(client.name)
        if self._clients.get(client.name) is client:
            self._tell(client.name)

    def offer_anew(self) -> None:
        """Offer what the servers have and the permissions allow, and tell what has changed."""
        self._offer_anew(None)

    def _offer_anew(self, cause: str | None) -> None:
        """The same; the row of the server that is the cause is told by who knows more of it."""
        clients = [self._clients[name] for name in self.order() if name in self._clients]
        affected = []
        for server, (added, removed, changed) in self._offer.update(clients, self._permissions()).items():
            self._bus.publish(
                ToolsChanged(
                    server=server,
                    added=tuple(added),
                    removed=tuple(removed),
                    changed=tuple(changed),
                    version=self._offer.registry.version,
                )
            )
            if server != cause and server in self._clients:
                affected.append(server)
        # One server's tools may change the names of another's, and with them its row.
        for server in affected:
            self.tell_anew(server)

    def tell_anew(self, name: str) -> None:
        """What there is to say of a server has changed, though nothing of itself has."""
        self.version += 1
        self._tell(name)

    def _tell(self, name: str) -> None:
        row = self.row(name)
        if row is not None:
            self._bus.publish(StatusChanged(server=name, status=row))

    # The age of what they offer.

    def used(self) -> None:
        """Somebody uses the tools: what is too old to be used is read anew, soon."""
        for client in self:
            client.catalogs.used()

    async def freshen(self, seconds: float) -> None:
        """Somebody uses the tools: read anew first what is too old to be used, side by side.

        Args:
            seconds: How long to wait at most.
        """
        stale = [client for client in self if client.catalogs.stale]
        if stale:
            async with trio.open_nursery() as nursery:
                for client in stale:
                    nursery.start_soon(client.catalogs.freshen, seconds)
