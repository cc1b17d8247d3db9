"""The manager: what there is, the calls of tools, and the changes that people make.

A façade over three rooms: the servers' lives (``_roster``), their tools under the names a model calls them by
(``_offer``), and the configuration they follow (``_file``). Starts nothing itself: :func:`open_manager` runs it.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Any, Final
from uuid import uuid4

import trio
from attrs import evolve

from ..adapter import (
    AgentTool,
    AgentToolResult,
    OnUpdate,
    RemoteTool,
    error_result,
    namespace_tool_name,
)
from ..client import Call, MCPClient, OnProgress
from ..config import ConfigDocument, MCPServerConfig
from ..errors import (
    InvalidArguments,
    NotConnected,
    OpenProgramMCPError,
    ReadOnly,
    ServerExists,
    ServerFailed,
    TimedOut,
    UnknownServer,
    UnknownTool,
)
from ..events import ConfigChanged, EventBus, StartupComplete
from ..permissions import Action, Permissions
from ..registry import ToolRegistry
from ..status import ServerState, ServerStatus
from ..transports._ownership import Instance
from ._file import ConfigFile
from ._offer import Offer
from ._roster import Roster

__all__ = ["MCPManager"]

_PUT_AWAY_SECONDS: Final = 60.0
_NEEDS_SIGN_IN: Final = frozenset({ServerState.NEEDS_AUTH, ServerState.NEEDS_CLIENT_REGISTRATION})
# A name that was cut, or was given a hash because of a collision, does not begin with its server's.
_HASHED: Final = re.compile(r"_[0-9a-f]{8,40}__")


class MCPManager:
    """The servers of one agent. Made by :func:`open_manager`.

    ``events`` is the bus of all that happens; ``registry`` holds the tools; ``started`` is set when every enabled
    server has had its first verdict, or there will be none any more.
    """

    def __init__(
        self,
        document: ConfigDocument,
        *,
        saved: bool,
        only: Collection[str] | None = None,
        owner: Instance,
        registry: ToolRegistry | None = None,
        environ: Mapping[str, str] | None = None,
        read_only: bool = False,
        raise_internal: bool = False,
    ) -> None:
        self.events = EventBus()
        self.registry = registry if registry is not None else ToolRegistry()
        self.started = trio.Event()
        self.read_only = read_only
        self._environ = os.environ if environ is None else environ
        self._file = ConfigFile(document, saved, self._follow)
        self._permissions = Permissions(document.permissions, document.permission_default)
        self._offer = Offer(self.registry, self._run_for_model, document.tool_names)
        self._roster = Roster(
            self.events,
            self._offer,
            document=lambda: self.document,
            permissions=lambda: self._permissions,
            prepare=self._prepare,
            owner=owner,
            environ=self._environ,
            start_limit=document.start_limit,
            raise_internal=raise_internal,
        )
        self._edits = trio.Lock()
        # Being added, and not in the file yet.
        self._unsaved: set[str] = set()
        living = [config for config in document.servers.values() if only is None or config.name in only]
        self._at_first = [config.name for config in living if config.enabled]
        for config in living:
            self._roster.begin(config)

    # What there is.

    @property
    def document(self) -> ConfigDocument:
        """The configuration in force."""
        return self._file.document

    @property
    def status_version(self) -> int:
        """Rises with every change of any server's status."""
        return self._roster.version

    def status(self) -> dict[str, ServerStatus]:
        """Every configured server's status, in the order of the file."""
        return {name: self.server(name) for name in self._roster.order()}

    def server(self, name: str) -> ServerStatus:
        """One server's status.

        Raises:
            UnknownServer: None is configured by this name.
        """
        row = self._roster.row(name)
        if row is None:
            raise self._unknown(name)
        return row

    def config(self, name: str) -> MCPServerConfig:
        """One server's configuration, as it is stored.

        Raises:
            UnknownServer: None can be used by this name.
        """
        return self._client(name).config

    def tools(self) -> list[AgentTool]:
        """Every tool, in the order in which a model is offered them."""
        return list(self.registry.snapshot().tools.values())

    def tool_records(self, name: str) -> list[tuple[AgentTool, RemoteTool]]:
        """One server's tools, each under its full name and as the server listed it; those that are denied too.

        Raises:
            UnknownServer: None is configured by this name.
        """
        self.server(name)
        pairs = ((tool, self._offer.remote(tool)) for tool in self._offer.known_of(name))
        return [(tool, remote) for tool, remote in pairs if remote is not None]

    def action(self, tool: str) -> Action:
        """What the permissions say about a tool, by its full name: ``allow``, ``ask`` or ``deny``."""
        found = self._known(tool)
        return self._permissions.action(tool, "" if found is None else found.server or "")

    async def wait_settled(self, name: str) -> ServerStatus:
        """Wait until a server is neither pending nor starting.

        Raises:
            UnknownServer: None is configured by this name, or it was removed meanwhile.
        """
        client = self._roster.get(name)
        if client is not None:
            await client.settled()
        return self.server(name)

    # Calls.

    async def call_tool(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
        call_id: str | None = None,
    ) -> AgentToolResult:
        """Call a tool by its full name.

        Where no tool of this name is offered yet, but a server that could own it is starting, this waits for it.

        Args:
            tool: The full name, as :meth:`tools` gives it.
            arguments: They are checked against the tool's schema, then sent as they are.
            timeout: Seconds without an answer or progress after which the call is given up, instead of the
                configured limit.
            on_progress: Awaited with (progress, total, message), in this task.
            call_id: Names the call in events; made up without it.

        Returns:
            The result. What the server answers with an error is a result too, with ``is_error``.

        Raises:
            Denied: The permissions do not allow it.
            UnknownTool: No server offers it.
            InvalidArguments: Nothing was sent.
            NotConnected: Its server is down.
            TimedOut: A budget ran out.
            ServerGone: The connection was lost; ``may_have_run`` says whether it may have had its effect.
        """
        given = dict(arguments or {})
        found = await self._find(tool, timeout)
        remote, client = self._offer.remote(found), self._roster.get(found.server or "")
        if remote is None or client is None:
            self._permissions.check(found.name, found.server or "")
            return await _call_local(found, given, timeout, on_progress, call_id)
        return await client.call_tool(Call(remote, given, call_id or _call_id(), found.name, timeout, on_progress))

    async def _run_for_model(
        self,
        client: MCPClient,
        tool: AgentTool,
        remote: RemoteTool,
        arguments: dict[str, Any],
        call_id: str | None,
        on_update: OnUpdate | None,
    ) -> AgentToolResult:
        """A model's call: whatever goes wrong with it comes back to the model as a result."""
        try:
            return await client.call_tool(Call(remote, arguments, call_id or _call_id(), tool.name, None, on_update))
        except InvalidArguments as error:
            return error_result(f"The arguments do not fit: {error.message}", server=client.name, tool=remote.name)
        except OpenProgramMCPError as error:
            said = f"{error.message}. {error.remedy or ''}".strip()
            return error_result(said, server=client.name, tool=remote.name, code=error.code, **error.extra())

    async def _find(self, name: str, timeout: float | None) -> AgentTool:
        found = self._known(name)
        if found is not None:
            return found
        owners = self._possible_owners(name)
        seconds = timeout
        if seconds is None:
            seconds = max((client.config.call_seconds for client in owners), default=0)
        with trio.move_on_after(seconds):
            for client in owners:
                await client.settled()
        found = self._known(name)
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
        for client in self._roster:
            if self._is_of(name, client.name) and client.state is not ServerState.CONNECTED:
                raise client.not_connected()
        for broken, error in self.document.broken.items():
            if self._is_of(name, broken) and broken not in self._roster:
                raise NotConnected(f"server {broken!r} is failed: {error.message}", remedy=error.remedy, server=broken)
        near = difflib.get_close_matches(name, self.registry.names(), 3)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "List the tools to see their names."
        raise UnknownTool(f"no tool is called {name!r}", remedy=remedy)

    def _known(self, name: str) -> AgentTool | None:
        """The tool of this name; one that is denied is not in the registry, but it is no unknown one either."""
        return self.registry.get(name) or self._offer.known(name)

    def _possible_owners(self, name: str) -> list[MCPClient]:
        """The servers on their way that a name could belong to."""
        anybody = _HASHED.search(name) is not None
        return [client for client in self._roster if client.unsettled and (anybody or self._is_of(name, client.name))]

    def _is_of(self, name: str, server: str) -> bool:
        return name.startswith(namespace_tool_name(server, "", style=self._offer.style))

    # Changes.

    async def connect(self, name: str) -> ServerStatus:
        """Bring a server up that is down, and wait for the verdict.

        Raises:
            UnknownServer: None can be used by this name.
            NotConnected: It is disabled.
        """
        self._editable_client(name).connect()
        return await self.wait_settled(name)

    async def disconnect(self, name: str) -> ServerStatus:
        """Take a server down until somebody connects it; not saved."""
        self._editable_client(name).disconnect()
        return await self.wait_settled(name)

    async def restart(self, name: str) -> ServerStatus:
        """End a server's connection, bring it up anew, and wait for the verdict.

        Raises:
            UnknownServer: None can be used by this name.
            NotConnected: It is disabled.
        """
        self._editable_client(name).restart()
        return await self.wait_settled(name)

    async def enable(self, name: str) -> ServerStatus:
        """Enable a server, save that, bring it up, and wait for the verdict."""
        return await self._switch(name, enabled=True)

    async def disable(self, name: str) -> ServerStatus:
        """Take a server down for good, and save that."""
        return await self._switch(name, enabled=False)

    async def add(self, config: MCPServerConfig, *, force: bool = False) -> ServerStatus:
        """Add a server: it is started, and saved once it is up.

        Args:
            config: The server; with ``enabled=False`` it is saved without being started.
            force: Save it though it does not come up.

        Raises:
            ConfigError: It was made in code, and it does not fit.
            ServerExists: A server of this name is configured.
            ServerFailed: It did not come up; nothing was saved.
        """
        self._refuse_if_read_only()
        name = config.name
        async with self._edits:
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
        return self.server(name)

    async def remove(self, name: str) -> None:
        """Remove a server: from the file, then its process.

        Raises:
            UnknownServer: None is configured by this name.
        """
        self._refuse_if_read_only()
        async with self._edits:
            client = self._roster.get(name)
            if client is None and name not in self.document.broken:
                raise self._unknown(name)
            await self._save(lambda document: document.without_server(name), name)
            if client is not None:
                client.leave()
                await client.ended.wait()

    async def _switch(self, name: str, *, enabled: bool) -> ServerStatus:
        client = self._editable_client(name)
        async with self._edits:

            def switched(document: ConfigDocument) -> ConfigDocument:
                if name not in document.servers:
                    raise document.broken.get(name) or self._unknown(name)
                return document.with_server(evolve(document.servers[name], enabled=enabled))

            document = await self._save(switched, name)
            client.configure(document.servers[name])
        return await self.wait_settled(name)

    async def _save(self, change: Callable[[ConfigDocument], ConfigDocument], *changed: str) -> ConfigDocument:
        document = await self._file.edit(change)
        self._obey(document)
        if self._file.saved:
            self.events.publish(ConfigChanged(revision=document.revision, changed=changed))
        return document

    def _editable_client(self, name: str) -> MCPClient:
        self._refuse_if_read_only()
        return self._client(name)

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise ReadOnly("this worker is read-only", remedy="Start it without --read-only.")

    def _client(self, name: str) -> MCPClient:
        client = self._roster.get(name)
        if client is None:
            raise self._unknown(name)
        return client

    def _unknown(self, name: str) -> UnknownServer:
        near = difflib.get_close_matches(name, self._roster.order(), 1)
        remedy = f"Did you mean {near[0]!r}?" if near else "List the servers to see their names."
        return UnknownServer(f"no server is called {name!r}", remedy=remedy, server=name)

    # Its life, for open_manager alone.

    async def run(self) -> None:
        """The lives of the servers, until :meth:`close`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_when_started)
            await self._roster.run()

    def close(self) -> None:
        """Let every server end, side by side. :meth:`run` returns when they have."""
        self._roster.close()

    async def _tell_when_started(self) -> None:
        try:
            for name in self._at_first:
                client = self._roster.get(name)
                if client is not None:
                    await client.settled()
            self.events.publish(self._first_verdicts())
        finally:
            self.started.set()

    def _first_verdicts(self) -> StartupComplete:
        rows = [row for name, row in self.status().items() if name in self._at_first or name in self.document.broken]
        gone = [name for name in self._at_first if name not in self._roster]
        down = [row.name for row in rows if row.status in (ServerState.DISCONNECTED, ServerState.DISABLED)]
        return StartupComplete(
            ready=tuple(row.name for row in rows if row.ready),
            failed=tuple((row.name, row.error or "") for row in rows if row.status is ServerState.FAILED),
            cancelled=(*gone, *down),
            needs_auth=tuple(row.name for row in rows if row.status in _NEEDS_SIGN_IN),
        )

    async def _prepare(self, client: MCPClient) -> MCPServerConfig | None:
        """The configuration that a start is to be made by: what the file says at this moment, expanded.

        Servers may wait for their turn to start, and the file may change meanwhile: one that was deleted or disabled is
        not started.
        """
        await self._file.reread()
        if client.leaving or not client.config.enabled:
            return None
        return client.config.expand(self._environ, base=self.document.path.parent)

    def _obey(self, document: ConfigDocument) -> None:
        """Let the permissions of the file hold from now on."""
        permissions = Permissions(document.permissions, document.permission_default)
        if permissions != self._permissions:
            self._permissions = permissions
            self._roster.offer_anew()

    def _follow(self, document: ConfigDocument) -> None:
        """Obey what was deleted from the file, switched off in it, or changed for a server whose turn has not come."""
        self._obey(document)
        for client in self._roster:
            config = document.servers.get(client.name)
            if config is None:
                if client.name not in document.broken and client.name not in self._unsaved:
                    client.leave()
            elif client.state is ServerState.PENDING or not config.enabled:
                client.configure(config)


async def _call_local(
    tool: AgentTool,
    arguments: dict[str, Any],
    timeout: float | None,
    on_progress: OnProgress | None,
    call_id: str | None,
) -> AgentToolResult:
    """A function of the host's own: no server and no queue."""
    seconds = math.inf if timeout is None else timeout
    with trio.move_on_after(seconds):
        return await tool.execute(arguments, call_id=call_id, on_update=on_progress)
    raise TimedOut(f"{tool.name} did not come to an end within {seconds:g} s", budget="call", seconds=seconds)


_call_numbers = count(1)
_instance = uuid4().hex[:8]


def _call_id() -> str:
    """A name for a call that no other one has, of this process or of another."""
    return f"{_instance}-{next(_call_numbers)}"
