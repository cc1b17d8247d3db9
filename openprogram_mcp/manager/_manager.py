"""The manager: the servers by name, each in a task of its own, and the configuration that they follow.

Owns one :class:`~openprogram_mcp.client.MCPClient` a server and the table of what they offer. Starts nothing that
outlives :func:`open_manager`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import trio
from attrs import evolve

from ..adapter import (
    AgentTool,
    AgentToolResult,
    OnUpdate,
    RemoteTool,
    check_arguments,
    error_result,
    namespace_tool_name,
)
from ..client import Call, MCPClient, OnProgress, StartGate
from ..config import ConfigDocument, MCPServerConfig, load_document, save_document
from ..errors import (
    InvalidArguments,
    NotConnected,
    ReadOnly,
    ServerExists,
    ServerFailed,
    UnknownServer,
    UnknownTool,
)
from ..events import ConfigChanged, EventBus, StartupComplete, StatusChanged, ToolsChanged
from ..paths import get_state_dir
from ..registry import ToolRegistry
from ..status import ServerState, ServerStatus
from ._offer import Offer

__all__ = ["MCPManager", "open_manager"]

# All servers end side by side; each bounds itself, and this bounds them all.
_SHUTDOWN_SECONDS: Final = 60.0
_WAIT_FOR_TOOL_SECONDS: Final = 30.0
_UNSETTLED: Final = frozenset({ServerState.PENDING, ServerState.STARTING})


class MCPManager:
    """The servers of one agent. Made by :func:`open_manager`.

    ``events`` is the bus of all that happens; ``registry`` holds the tools; ``started`` is set when every enabled
    server has had its first verdict.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        document: ConfigDocument,
        *,
        saved: bool,
        registry: ToolRegistry | None = None,
        environ: Mapping[str, str] | None = None,
        read_only: bool = False,
        raise_internal: bool = False,
    ) -> None:
        self.events = EventBus()
        self.registry = registry if registry is not None else ToolRegistry()
        self.started = trio.Event()
        self.document = document
        self.read_only = read_only
        self._nursery = nursery
        self._saved = saved
        self._environ = os.environ if environ is None else environ
        self._raise_internal = raise_internal
        self._gate = StartGate(document.start_limit)
        self._offer = Offer(self.registry, self._run, document.tool_names)
        self._clients: dict[str, MCPClient] = {}
        self._ended: dict[str, trio.Event] = {}
        self._offered: dict[str, Mapping[str, RemoteTool]] = {}
        self._version = 0
        self._edits = trio.Lock()
        self._closing = False

    # What there is.

    @property
    def status_version(self) -> int:
        """Rises with every change of any server's status."""
        return self._version

    def status(self) -> dict[str, ServerStatus]:
        """Every configured server's status, in the order of the file."""
        return {name: self.server(name) for name in self._order()}

    def server(self, name: str) -> ServerStatus:
        """One server's status.

        Raises:
            UnknownServer: None is configured by this name.
        """
        client = self._clients.get(name)
        if client is not None:
            names = tuple(tool.name for tool in self._offer.tools_of(name))
            error = self.document.broken.get(name)
            return evolve(client.status(), tools=names, config_error=None if error is None else error.message)
        error = self.document.broken.get(name)
        if error is None:
            raise self._unknown(name)
        return ServerStatus(
            name=name,
            type="local",
            status=ServerState.FAILED,
            error=error.message,
            error_kind="fatal",
            phase="config",
            remedy=error.remedy or "Correct the entry in the configuration file.",
        )

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
        """One server's tools, each as it is offered and as the server listed it.

        Raises:
            UnknownServer: None is configured by this name.
        """
        self.server(name)
        pairs = ((tool, self._offer.remote(tool)) for tool in self._offer.tools_of(name))
        return [(tool, remote) for tool, remote in pairs if remote is not None]

    async def wait_settled(self, name: str) -> ServerStatus:
        """Wait until a server is neither pending nor starting.

        Raises:
            UnknownServer: None is configured by this name.
        """
        client = self._clients.get(name)
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
            UnknownTool: No server offers it.
            InvalidArguments: Nothing was sent.
            NotConnected: Its server is down.
            TimedOut: A budget ran out.
            ServerGone: The connection was lost; ``may_have_run`` says whether it may have had its effect.
        """
        given = dict(arguments or {})
        found = await self._find(tool, _WAIT_FOR_TOOL_SECONDS if timeout is None else timeout)
        remote = self._offer.remote(found)
        client = self._clients.get(found.server or "")
        if remote is None or client is None:
            return await found.execute(given, call_id=call_id, on_update=on_progress)
        check_arguments(found.parameters, given)
        return await client.call_tool(Call(remote, given, call_id or _call_id(), found.name, timeout, on_progress))

    async def _run(
        self,
        client: MCPClient,
        tool: AgentTool,
        remote: RemoteTool,
        arguments: dict[str, Any],
        call_id: str | None,
        on_update: OnUpdate | None,
    ) -> AgentToolResult:
        """A model's call: what it got wrong comes back to it as a result."""
        try:
            check_arguments(tool.parameters, arguments)
        except InvalidArguments as error:
            return error_result(f"The arguments do not fit: {error.message}", server=client.name, tool=remote.name)
        return await client.call_tool(Call(remote, arguments, call_id or _call_id(), tool.name, None, on_update))

    async def _find(self, name: str, seconds: float) -> AgentTool:
        found = self.registry.get(name)
        if found is not None:
            return found
        with trio.move_on_after(seconds):
            for client in self._possible_owners(name):
                await client.settled()
        found = self.registry.get(name)
        if found is not None:
            return found
        for client in self._clients.values():
            if name.startswith(self._prefix(client.name)) and client.state is not ServerState.CONNECTED:
                status = client.status()
                why = str(status.status) if status.error is None else f"{status.status}: {status.error}"
                raise NotConnected(f"server {client.name!r} is {why}", remedy=status.remedy, server=client.name)
        near = difflib.get_close_matches(name, self.registry.names(), 3)
        remedy = f"Did you mean {' or '.join(near)}?" if near else "List the tools to see their names."
        raise UnknownTool(f"no tool is called {name!r}", remedy=remedy)

    def _possible_owners(self, name: str) -> Iterable[MCPClient]:
        """The servers on their way that a name could belong to. A long one may have been cut, so it could be any's."""
        for client in list(self._clients.values()):
            if client.state in _UNSETTLED and (len(name) >= 64 or name.startswith(self._prefix(client.name))):
                yield client

    def _prefix(self, server: str) -> str:
        return namespace_tool_name(server, "", style=self.document.tool_names)

    # Changes.

    async def connect(self, name: str) -> ServerStatus:
        """Bring a server up that is down, and wait for the verdict."""
        self._editable_client(name).connect()
        return await self.wait_settled(name)

    async def disconnect(self, name: str) -> ServerStatus:
        """Take a server down until somebody connects it; not saved."""
        self._editable_client(name).disconnect()
        return await self.wait_settled(name)

    async def restart(self, name: str) -> ServerStatus:
        """End a server's connection, bring it up anew, and wait for the verdict."""
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
            ServerExists: A server of this name is configured.
            ServerFailed: It did not come up; nothing was saved.
        """
        self._refuse_if_read_only()
        async with self._edits:
            name = config.name
            if name in self._clients or name in self.document.broken:
                raise ServerExists(f"a server is called {name!r} already", remedy="Choose another name.", server=name)
            document = self.document.with_server(config)
            self._begin(document.servers[name])
            kept = False
            try:
                status = await self.wait_settled(name)
                if status.status is ServerState.FAILED and not force:
                    raise ServerFailed(
                        status.error or "it did not come up",
                        phase=status.phase or "internal",
                        exit_code=status.exit_code,
                        stderr=status.stderr,
                        remedy=status.remedy,
                        server=name,
                    )
                await self._save(document, name)
                kept = True
            finally:
                if not kept:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + _SHUTDOWN_SECONDS):
                        await self._end(name)
            return self.server(name)

    async def remove(self, name: str) -> None:
        """Remove a server: from the file, then its process.

        Raises:
            UnknownServer: None is configured by this name.
        """
        self._refuse_if_read_only()
        async with self._edits:
            self.server(name)
            await self._save(self.document.without_server(name), name)
            await self._end(name)

    async def _switch(self, name: str, *, enabled: bool) -> ServerStatus:
        client = self._editable_client(name)
        async with self._edits:
            config = evolve(client.config, enabled=enabled)
            await self._save(self.document.with_server(config), name)
            client.configure(config)
        return await self.wait_settled(name)

    async def _save(self, document: ConfigDocument, *changed: str) -> None:
        if self._saved:
            document = await trio.to_thread.run_sync(save_document, document)
            self.events.publish(ConfigChanged(revision=document.revision, changed=changed))
        self.document = document

    def _editable_client(self, name: str) -> MCPClient:
        self._refuse_if_read_only()
        return self._client(name)

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise ReadOnly("this worker is read-only", remedy="Start it without --read-only.")

    def _client(self, name: str) -> MCPClient:
        client = self._clients.get(name)
        if client is None:
            raise self._unknown(name)
        return client

    def _unknown(self, name: str) -> UnknownServer:
        near = difflib.get_close_matches(name, self._order(), 1)
        remedy = f"Did you mean {near[0]!r}?" if near else "List the servers to see their names."
        return UnknownServer(f"no server is called {name!r}", remedy=remedy, server=name)

    def _order(self) -> list[str]:
        """The names of all servers in the order of the file; what the file does not have comes last."""
        known = {**self._clients, **self.document.broken}
        in_file = [name for name in self.document.origin.entries if name in known]
        return [*in_file, *(name for name in known if name not in in_file)]

    # Their lives.

    def begin(self) -> None:
        """Start every server. Called once, by :func:`open_manager`."""
        for config in self.document.servers.values():
            self._begin(config)
        self._nursery.start_soon(self._tell_when_started, list(self._clients))

    def _begin(self, config: MCPServerConfig) -> None:
        client = MCPClient(
            config,
            bus=self.events,
            gate=self._gate,
            environ=self._environ,
            prepare=self._prepare,
            on_change=self._changed,
            raise_internal=self._raise_internal,
        )
        self._clients[config.name] = client
        self._ended[config.name] = trio.Event()
        self._nursery.start_soon(self._live, client)

    async def _live(self, client: MCPClient) -> None:
        try:
            await client.run()
        finally:
            self._ended[client.name].set()

    async def _end(self, name: str) -> None:
        client = self._clients.get(name)
        if client is None:
            return
        client.leave()
        await self._ended[name].wait()
        if self._clients.get(name) is client:
            del self._clients[name]
            self._changed(client)

    async def _prepare(self, client: MCPClient) -> MCPServerConfig | None:
        """The configuration that a start is to be made by: what the file says at this moment, expanded.

        Servers may wait for their turn to start, and the file may change meanwhile: one that was deleted or disabled is
        not started.
        """
        if self._saved:
            document = await trio.to_thread.run_sync(load_document, self.document.path)
            if document.error is None and document.revision != self.document.revision:
                self._follow(document)
        if client.leaving or not client.config.enabled:
            return None
        return client.config.expand(self._environ, base=self.document.path.parent)

    def _follow(self, document: ConfigDocument) -> None:
        """Obey what was deleted from the file, switched off in it, or changed for a server that is not up yet."""
        self.document = document
        for name, client in list(self._clients.items()):
            config = document.servers.get(name)
            if config is None and name not in document.broken:
                self._nursery.start_soon(self._end, name)
                client.leave()
            elif config is not None and (client.state in _UNSETTLED or not config.enabled):
                client.configure(config)

    def _changed(self, client: MCPClient) -> None:
        """A server has changed: tell the registry, where its tools have, and everybody else."""
        self._version += 1
        here = self._clients.get(client.name) is client
        tools = client.tools if here else {}
        if self._offered.get(client.name, {}) is not tools:
            self._offered[client.name] = tools
            changes = self._offer.update(self._clients[name] for name in self._order() if name in self._clients)
            version = self.registry.version
            for server, (added, removed, changed) in changes.items():
                self.events.publish(
                    ToolsChanged(
                        server=server,
                        added=tuple(added),
                        removed=tuple(removed),
                        changed=tuple(changed),
                        version=version,
                    )
                )
        if here:
            self.events.publish(StatusChanged(server=client.name, status=self.server(client.name)))

    async def _tell_when_started(self, names: list[str]) -> None:
        for name in names:
            client = self._clients.get(name)
            if client is not None:
                await client.settled()
        rows = [self.server(name) for name in names if name in self._clients]
        self.events.publish(
            StartupComplete(
                ready=tuple(row.name for row in rows if row.ready),
                failed=tuple((row.name, row.error or "") for row in rows if row.status is ServerState.FAILED),
                cancelled=tuple(name for name in names if name not in self._clients),
                needs_auth=tuple(row.name for row in rows if row.status is ServerState.NEEDS_AUTH),
            )
        )
        self.started.set()

    async def close(self) -> None:
        """Take every server down, side by side, and bounded. Called once, by :func:`open_manager`."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _SHUTDOWN_SECONDS):
            async with trio.open_nursery() as nursery:
                for name in list(self._clients):
                    nursery.start_soon(self._end, name)


_call_numbers = count(1)
_instance = uuid4().hex[:8]


def _call_id() -> str:
    """A name for a call that no other one has, of this process or of another."""
    return f"{_instance}-{next(_call_numbers)}"


@asynccontextmanager
async def open_manager(
    configs: Iterable[MCPServerConfig] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    state_dir: str | Path | None = None,
    registry: ToolRegistry | None = None,
    environ: Mapping[str, str] | None = None,
    read_only: bool = False,
    raise_internal: bool = False,
) -> AsyncIterator[MCPManager]:
    """Open the root nursery and start the servers; at the end, stop them all and leave nothing behind.

    Does not wait for the servers: ``await manager.started.wait()`` does, and a call of a tool waits for its own server.
    What the body raises comes out as it was raised.

    Args:
        configs: The servers, as objects or as they stand in the file, by name; without it, those of the saved
            configuration. What is given here is never saved.
        state_dir: The state directory, instead of the usual one.
        registry: Where the tools are offered; a new one without it.
        environ: The variables for ``${VAR}`` and for the servers' processes, instead of our own.
        read_only: Refuse every change.
        raise_internal: Let a fault of this package out instead of making it a server's status; for tests.

    Yields:
        The manager.

    Raises:
        ConfigError: An entry of ``configs`` is not valid. One of the file is told in its status instead.
    """
    path = (Path(state_dir) if state_dir is not None else get_state_dir()) / "mcp_servers.json"
    document = await trio.to_thread.run_sync(load_document, path) if configs is None else _in_memory(configs, path)
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            manager = MCPManager(
                nursery,
                document,
                saved=configs is None,
                registry=registry,
                environ=environ,
                read_only=read_only,
                raise_internal=raise_internal,
            )
            manager.begin()
            try:
                yield manager
            except BaseException as error:  # noqa: BLE001 - see below
                # Raised again below, outside of the nursery, which would wrap it into a group.
                raised = error
            await manager.close()
            nursery.cancel_scope.cancel()
    except BaseException as fault:
        if raised is not None:
            raise BaseExceptionGroup("the body and the servers failed", [raised, fault]) from None
        raise
    if raised is not None:
        raise raised


def _in_memory(configs: Iterable[MCPServerConfig] | Mapping[str, Mapping[str, Any]], path: Path) -> ConfigDocument:
    document = ConfigDocument(path=path)
    entries = (
        [MCPServerConfig.from_dict(name, dict(data)) for name, data in configs.items()]
        if isinstance(configs, Mapping)
        else configs
    )
    for config in entries:
        document = document.with_server(config)
    return document
