"""What is changed while servers live: by people through the manager, and by hand in the file.

Owns the edits, one at a time, and what is followed when the file was changed by somebody else. A server that is added
is started first and saved once it is up; what does not come up changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio
from attrs import evolve

from ..client import MCPClient
from ..config import ConfigDocument, MCPServerConfig
from ..errors import ServerExists, ServerFailed
from ..events import ConfigChanged, EventBus
from ..permissions import Permissions
from ..status import ServerState
from ._file import ConfigFile
from ._roster import Roster
from ._sign_ins import SignIns

__all__ = ["Edits"]

# One that is put away bounds itself, and this bounds the wait for it.
_PUT_AWAY_SECONDS: Final = 60.0

# The next start of one in these states is made by what the file says then; one that starts or runs is left as it is.
_BEFORE_A_START: Final = frozenset(
    {ServerState.PENDING, ServerState.RECONNECTING, ServerState.FAILED, ServerState.DISCONNECTED}
)


class Edits:
    """The changes of one manager's configuration. ``permissions`` are those in force.

    Args:
        document: The configuration at first.
        saved: Whether it stands in a file.
        roster: The servers that follow it.
        bus: Told what was saved.
        environ: The variables that it may refer to.
        sign_ins: Forgets those of servers that are removed.
    """

    def __init__(
        self,
        document: ConfigDocument,
        roster: Roster,
        bus: EventBus,
        environ: Mapping[str, str],
        sign_ins: SignIns,
        *,
        saved: bool,
    ) -> None:
        self.permissions = Permissions(document.permissions, document.permission_default)
        self._file = ConfigFile(document, saved, self.follow)
        self._roster = roster
        self._bus = bus
        self._environ = environ
        self._sign_ins = sign_ins
        self._one_at_a_time = trio.Lock()
        # Being added, and not in the file yet.
        self._unsaved: set[str] = set()

    @property
    def document(self) -> ConfigDocument:
        """The configuration in force."""
        return self._file.document

    async def add(self, config: MCPServerConfig, *, force: bool) -> None:
        """Start a server, and save it once it is up.

        Raises:
            ConfigError: It was made in code, and it does not fit.
            ServerExists: A server of this name is configured.
            ServerFailed: It did not come up; nothing was saved.
        """
        name = config.name
        async with self._one_at_a_time:
            await self._file.reread()
            if name in self._roster or name in {**self.document.servers, **self.document.broken}:
                raise ServerExists(f"a server is called {name!r} already", remedy="Choose another name.", server=name)
            client = self._roster.begin(self.document.with_server(config).servers[name])
            self._unsaved.add(name)
            kept = False
            try:
                status = await client.settled()
                if status.status is ServerState.FAILED and not force:
                    raise ServerFailed(
                        status.error or "it did not come up",
                        phase=status.phase or "internal",
                        exit_code=status.exit_code,
                        stderr=status.stderr,
                        remedy=status.remedy,
                        server=name,
                    )
                await self._save(lambda document: document.with_server(client.config), name)
                kept = True
            finally:
                if not kept:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + _PUT_AWAY_SECONDS):
                        client.leave()
                        await client.ended.wait()
                self._unsaved.discard(name)

    async def remove(self, name: str) -> None:
        """Take a server from the file, then its process away.

        Raises:
            UnknownServer: None is configured by this name.
        """
        async with self._one_at_a_time:
            client = self._roster.get(name)
            if client is None and name not in self.document.broken:
                raise self._roster.unknown(name)
            await self._save(lambda document: document.without_server(name), name)
            if client is not None:
                client.leave()
                await client.ended.wait()
                await self._sign_ins.forget_removed(client.config)

    async def switch(self, client: MCPClient, *, enabled: bool) -> None:
        """Enable or disable a server, and save that.

        Raises:
            UnknownServer: It is not in the file any more.
        """
        name = client.name

        def switched(document: ConfigDocument) -> ConfigDocument:
            if name not in document.servers:
                raise document.broken.get(name) or self._roster.unknown(name)
            return document.with_server(evolve(document.servers[name], enabled=enabled))

        async with self._one_at_a_time:
            document = await self._save(switched, name)
            client.configure(document.servers[name])

    async def _save(self, change: Callable[[ConfigDocument], ConfigDocument], *changed: str) -> ConfigDocument:
        document = await self._file.edit(change)
        self._obey(document)
        if self._file.saved:
            self._bus.publish(ConfigChanged(revision=document.revision, changed=changed))
        return document

    # What others have changed.

    async def prepare(self, client: MCPClient) -> MCPServerConfig | None:
        """The configuration that a start is to be made by: what the file says at this moment, expanded.

        Servers may wait for their turn to start, and the file may change meanwhile: one that was deleted or disabled is
        not started.
        """
        await self._file.reread()
        if client.leaving or not client.config.enabled:
            return None
        return client.config.expand(self._environ, base=self.document.path.parent)

    def follow(self, document: ConfigDocument) -> None:
        """Obey what was deleted from the file, switched off in it, or changed for a server that waits for its start."""
        self._obey(document)
        for client in self._roster:
            config = document.servers.get(client.name)
            if config is None:
                if client.name not in document.broken and client.name not in self._unsaved:
                    client.leave()
            elif config != client.config and (client.state in _BEFORE_A_START or not config.enabled):
                client.configure(config)

    def _obey(self, document: ConfigDocument) -> None:
        """Let the permissions of the file hold from now on."""
        permissions = Permissions(document.permissions, document.permission_default)
        if permissions != self.permissions:
            self.permissions = permissions
            self._roster.offer_anew()
