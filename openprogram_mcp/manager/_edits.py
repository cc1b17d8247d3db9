"""What is changed while servers live: by people through the manager, and by hand in the file.

Owns the edits of a configuration, those of one server one at a time, and what is followed when the file was changed by
somebody else. Make before break: what is added or changed is started first and saved once it is up; what does not come
up changes nothing. Whether two have changed the same at once is told by the revision of the file, and by the entry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from attrs import evolve

from ..client import MCPClient
from ..config import ConfigDocument, MCPServerConfig
from ..errors import ConfigError, RevisionConflict, ServerExists, ServerFailed, StorageError
from ..events import ConfigChanged, EventBus
from ..permissions import Permissions
from ..status import ServerState, ServerStatus
from ._file import ConfigFile
from ._roster import Roster
from ._sign_ins import SignIns
from ._watching import watch_file

__all__ = ["Edits"]

# One that is put away bounds itself, and this bounds the wait for it.
_PUT_AWAY_SECONDS: Final = 60.0

# One in these states has nothing that an edit by hand would have to spare.
_BEFORE_A_START: Final = frozenset({ServerState.PENDING, ServerState.DISCONNECTED})


class Edits:
    """The changes of one manager's configuration. ``permissions`` are those in force.

    Args:
        document: The configuration at first.
        saved: Whether it stands in a file.
        roster: The servers that follow it.
        bus: Told what was saved.
        environ: The variables that it may refer to.
        sign_ins: Forgets those of servers that are removed.
        wants: Whether a server of this name, which somebody has put into the file, is to live here.
        guests: Servers that live here and do not stand in the file, by name. One that is edited is saved with that.
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
        wants: Callable[[str], bool],
        guests: Collection[str] = (),
    ) -> None:
        self._wants = wants
        self._guests = set(guests)
        self.permissions = Permissions(document.permissions, document.permission_default)
        self._file = ConfigFile(document, saved, self.follow)
        self._roster = roster
        self._bus = bus
        self._environ = environ
        self._sign_ins = sign_ins
        self._locks: dict[str, trio.Lock] = {}
        # Being added, and not in the file yet.
        self._unsaved: set[str] = set()
        self._wrong = self._wrong_now()

    @property
    def document(self) -> ConfigDocument:
        """The configuration in force."""
        return self._file.document

    @property
    def problem(self) -> ConfigError | StorageError | None:
        """Why what the file says now is not in force; ``None`` where it is."""
        return self._file.problem

    async def watch(self) -> None:
        """Follow what others make of the file, until cancelled."""
        if self._file.saved:
            await watch_file(self.document.path, self.reread)

    async def add(self, config: MCPServerConfig, *, force: bool) -> None:
        """Start a server, and save it once it is up.

        Raises:
            ConfigError: It was made in code, and it does not fit.
            ServerExists: A server of this name is configured.
            ServerFailed: It did not come up; nothing was saved.
        """
        name = config.name
        async with self._alone_with(name):
            await self._file.reread()
            self._refuse_taken(name, self.document)
            if name in self._roster:
                raise _taken(name)

            new = self.document.with_server(config).servers[name]

            def added(document: ConfigDocument) -> ConfigDocument:
                self._refuse_taken(name, document)
                return document.with_server(new)

            await self._begin(new, added, force=force)

    async def update(
        self,
        name: str,
        change: Callable[[MCPServerConfig | None], MCPServerConfig],
        *,
        force: bool,
        revision: str | None,
    ) -> None:
        """Change a server's configuration, and save it once the new one is up.

        Args:
            name: The server.
            change: Makes the new configuration of the old one; of ``None``, where what stands in the file is none.
            force: Save it though it does not come up.
            revision: Only if the file is at this revision.

        Raises:
            UnknownServer: None is configured by this name.
            ConfigError: It was made in code, and it does not fit; or a variable it refers to is not set.
            RevisionConflict: The file, or this entry, was changed meanwhile; nothing was changed here.
            ServerFailed: It did not come up; nothing was changed.
        """
        async with self._alone_with(name):
            await self._file.reread()
            self._expect(revision, name)
            client, before = self._roster.get(name), self.document.servers.get(name)
            if client is None and not self._stands(name):
                raise self._roster.unknown(name)
            old = client.config if client is not None and name in self._guests else before
            new = self.document.with_server(change(old)).servers[name]

            def changed(document: ConfigDocument) -> ConfigDocument:
                self._expect(revision, name)
                if document.servers.get(name) != before:
                    raise RevisionConflict(
                        f"the entry of server {name!r} was changed by somebody else meanwhile",
                        remedy="Nothing was changed here. Look at what it says now, and edit that.",
                        server=name,
                    )
                return document.with_server(new)

            if client is None:
                # What stands in the file is no server, and this makes one of it; or it does not live here so far.
                await self._begin(new, changed, force=force)
                return

            async def save() -> None:
                await self._save(changed, name)
                self._guests.discard(name)

            await client.edit(new, self.expanded(new), save, force=force)

    async def _begin(
        self, config: MCPServerConfig, change: Callable[[ConfigDocument], ConfigDocument], *, force: bool
    ) -> None:
        """Let a server live, and save it once it is up; or let nothing be left of it."""
        name = config.name
        client = self._roster.begin(config)
        self._unsaved.add(name)
        kept = False
        try:
            status = await client.settled()
            if status.status is ServerState.FAILED and not force:
                raise _not_up(status)
            await self._save(change, name)
            kept = True
        finally:
            if not kept:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _PUT_AWAY_SECONDS):
                    client.leave()
                    await client.ended.wait()
            self._unsaved.discard(name)
            if not kept:
                # Somebody else may have put one of this name into the file meanwhile.
                self.left(name)

    def _stands(self, name: str) -> bool:
        """Whether the file has an entry of this name, usable or not, wherever it lives."""
        return name in self.document.servers or name in self.document.broken

    @staticmethod
    def _refuse_taken(name: str, document: ConfigDocument) -> None:
        if name in document.servers or name in document.broken:
            raise _taken(name)

    async def set_roots(self, roots: Sequence[Mapping[str, Any]], *, revision: str | None = None) -> None:
        """Save other roots.

        Raises:
            ConfigError: One of them does not fit.
            RevisionConflict: The file was changed meanwhile; nothing was changed here.
        """

        def changed(document: ConfigDocument) -> ConfigDocument:
            self._expect(revision, None)
            return document.with_roots(roots)

        await self._save(changed)

    def _expect(self, revision: str | None, name: str | None) -> None:
        if revision is not None and revision != self.document.revision:
            raise RevisionConflict(
                "the configuration was changed since it was read",
                remedy="Nothing was changed here. Read it again, and edit what it says now.",
                server=name,
            )

    @asynccontextmanager
    async def _alone_with(self, name: str) -> AsyncIterator[None]:
        """Nobody else edits the server of this name meanwhile."""
        lock = self._locks.setdefault(name, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(name, None)

    async def remove(self, name: str, *, revision: str | None = None) -> None:
        """Take a server from the file, then its process away.

        Raises:
            UnknownServer: None is configured by this name.
            RevisionConflict: The file was changed meanwhile; nothing was changed here.
        """
        async with self._alone_with(name):
            await self._file.reread()
            client = self._roster.get(name)
            if client is None and not self._stands(name):
                raise self._roster.unknown(name)

            def removed(document: ConfigDocument) -> ConfigDocument:
                self._expect(revision, name)
                return document.without_server(name)

            gone = self.document.servers.get(name) if client is None else client.config
            if name in self._guests:
                self._expect(revision, name)
                self._guests.discard(name)
            else:
                await self._save(removed, name)
            if client is not None:
                client.leave()
                await client.ended.wait()
            if gone is not None:
                await self._sign_ins.forget_removed(gone)

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

        async with self._alone_with(name):
            if name in self._guests:
                client.configure(evolve(client.config, enabled=enabled))
                return
            document = await self._save(switched, name)
            client.configure(document.servers[name])

    async def _save(self, change: Callable[[ConfigDocument], ConfigDocument], *changed: str) -> ConfigDocument:
        document = await self._file.edit(change)
        self._obey(document)
        # Somebody else may have saved another entry while this one was being saved: it is in the file with ours.
        others = self._follow_all(document, besides=changed)
        if self._file.saved:
            self._bus.publish(ConfigChanged(revision=document.revision, changed=(*changed, *others)))
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
        return self.expanded(client.config)

    def expanded(self, config: MCPServerConfig) -> MCPServerConfig:
        """A configuration with the values of its variables.

        Raises:
            ConfigError: One of them is not set.
        """
        return config.expand(self._environ, base=self.document.path.parent)

    def catch_up(self, client: MCPClient) -> None:
        """Somebody starts a server: it is started by what the file says, though that was not followed before."""
        config = self.document.servers.get(client.name)
        if config is not None and config != client.config:
            client.configure(config)

    async def reread(self) -> None:
        """See whether somebody else has changed the file, and follow that."""
        await self._file.reread()

    def follow(self, document: ConfigDocument) -> None:
        """Obey what somebody else has made of the file, by difference."""
        self._obey(document)
        changed = self._follow_all(document)
        self._bus.publish(ConfigChanged(revision=document.revision, changed=tuple(changed)))

    def _wrong_now(self) -> dict[str, str]:
        return {name: error.message for name, error in self.document.broken.items()}

    def _follow_all(self, document: ConfigDocument, besides: Collection[str] = ()) -> list[str]:
        """Let all servers but these be what the document says; those that were not."""
        changed = []
        for client in self._roster:
            config = document.servers.get(client.name)
            if client.name in self._unsaved or client.name in besides:
                continue  # whether it may stand there is told when it is saved
            if client.name in self._guests:
                if config is None:
                    continue
                # Somebody has put it there: it is no guest any more.
                self._guests.discard(client.name)
            if config is None:
                if client.name not in document.broken:
                    client.leave()
                    changed.append(client.name)
            elif config != client.config and not client.leaving:
                self._follow(client, config)
                changed.append(client.name)
        for name, config in document.servers.items():
            if self._wants(name) and name not in {*besides, *self._unsaved} and name not in self._roster:
                self._roster.begin(config)
                changed.append(name)
        before, self._wrong = self._wrong, self._wrong_now()
        for name in {*before, *self._wrong}:
            if before.get(name) != self._wrong.get(name) and name not in changed:
                # What its row says of its entry has changed, and nothing else.
                self._roster.tell_anew(name)
                changed.append(name)
        return changed

    def left(self, name: str) -> None:
        """A server has left. If it was put back into the file while it did, it lives anew."""
        config = self.document.servers.get(name)
        if config is not None and self._wants(name) and name not in self._roster and name not in self._unsaved:
            self._roster.begin(config)

    def _follow(self, client: MCPClient, config: MCPServerConfig) -> None:
        if not config.enabled or client.state in _BEFORE_A_START:
            # Nothing runs that would have to be spared, or nothing is to run: the next start is made by this.
            client.configure(config)
            return
        try:
            client.follow(config, self.expanded(config))
        except ConfigError as error:
            client.refuse_edit(error.message)

    def _obey(self, document: ConfigDocument) -> None:
        """Let the permissions of the file hold from now on."""
        permissions = Permissions(document.permissions, document.permission_default)
        if permissions != self.permissions:
            self.permissions = permissions
            self._roster.offer_anew()


def _taken(name: str) -> ServerExists:
    return ServerExists(f"a server is called {name!r} already", remedy="Choose another name.", server=name)


def _not_up(status: ServerStatus) -> ServerFailed:
    return ServerFailed(
        status.error or "it did not come up",
        phase=status.phase or "internal",
        exit_code=status.exit_code,
        stderr=status.stderr,
        remedy=status.remedy,
        server=status.name,
    )
