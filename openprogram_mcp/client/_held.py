"""One connection of a client, from its start to its end, and what is known of it.

While it is the one in force, the client is told what happens on it. Before that, while it is being tried beside the one
in force, and after it, while it drains, what happens is noted and changes nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import trio
from attrs import define, field

from ..config import MCPServerConfig
from ..errors import AuthRequired
from ..status import Phase
from ..transports._process import ServerProcess
from ._connection import Connection, Ending
from ._signing import ServerSigning

__all__ = ["Held", "Owner"]


class Owner(Protocol):
    """Whose connection it is: told of the one in force alone, but for what the server says."""

    def phase_reached(self, phase: Phase) -> None:
        """It has come so far."""

    def connection_lost(self) -> None:
        """It is lost."""

    def mask(self, text: str) -> str:
        """A text without the server's secrets."""
        ...

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something."""

    async def list_changed(self, kind: str) -> None:
        """One of the server's lists has changed."""

    async def resource_updated(self, uri: str) -> None:
        """A resource has changed."""

    async def unheard(self) -> None:
        """What the server said by itself may not have been heard."""


@define(eq=False)
class Held:
    """A connection, or the attempt at one. Watches it: see :class:`._connection.Watcher`.

    Args:
        owner: Whose it is.
        signing: Signs in to the server.
        generation: Its number.
        in_force: Whether it is the one that counts.
        connection: The connection, once it is up.
        process_of_server: The process, once there is one.
        loss: How it was lost, where it was.
        ending: What is known of its end.
        failure: A fault of ours that came to light on it when it was up.
        ended: Set when nothing of it is left.
    """

    owner: Owner
    signing: ServerSigning
    generation: int
    in_force: bool = True
    connection: Connection | None = None
    process_of_server: ServerProcess | None = None
    loss: Ending | None = None
    ending: Ending | None = None
    failure: Exception | None = None
    ended: trio.Event = field(factory=trio.Event)

    def retire(self) -> None:
        """End it, if it has come up."""
        if self.connection is not None:
            self.connection.retire()

    # What the attempt asks.

    async def signer(self, config: MCPServerConfig) -> Any:
        """What signs the requests to the server."""
        return await self.signing.signer(config, tried=not self.in_force)

    async def locked_out(self, config: MCPServerConfig, failure: AuthRequired, *, look: bool) -> AuthRequired:
        """The server does not let us in."""
        return await self.signing.locked_out(config, failure, look=look, tried=not self.in_force)

    # What the attempt and the connection tell.

    def phase(self, phase: Phase) -> None:
        """It has come so far."""
        if self.in_force:
            self.owner.phase_reached(phase)

    def up(self, connection: Connection) -> None:
        """It is up."""
        self.connection = connection

    def process(self, process: ServerProcess) -> None:
        """A process was started."""
        self.process_of_server = process

    def lost(self, ending: Ending) -> None:
        """It was up, and is lost."""
        self.loss = ending
        if self.in_force:
            self.owner.connection_lost()

    def mask(self, text: str) -> str:
        """A text without the server's secrets."""
        return self.owner.mask(text)

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something."""
        self.owner.log(level, logger, text)

    async def list_changed(self, kind: str) -> None:
        """One of the server's lists has changed."""
        if self.in_force:
            await self.owner.list_changed(kind)

    async def resource_updated(self, uri: str) -> None:
        """A resource has changed."""
        if self.in_force:
            await self.owner.resource_updated(uri)

    async def unheard(self) -> None:
        """What the server said by itself may not have been heard."""
        if self.in_force:
            await self.owner.unheard()
