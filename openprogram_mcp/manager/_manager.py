"""The manager: what there is, the calls of tools, and the changes that people make.

A façade over the rooms behind it: the servers' lives (``_roster``), their tools under the names a model calls them by
(``_offer``, ``_lookup``), and the changes of their configuration (``_edits``). Starts nothing itself:
:func:`open_manager` runs it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final
from uuid import uuid4

import trio

from ..adapter import (
    AgentTool,
    AgentToolResult,
    OnUpdate,
    RemoteTool,
    error_result,
)
from ..client import Call, MCPClient, OnProgress
from ..config import ConfigDocument, MCPServerConfig
from ..errors import (
    ConfigError,
    InvalidArguments,
    OpenProgramMCPError,
    ReadOnly,
    StorageError,
)
from ..events import EventBus, ServerLog, StartupComplete
from ..permissions import Action
from ..registry import ToolRegistry
from ..status import ProcessCount, ServerState, ServerStatus
from ..transports._ownership import Instance
from ._auth_commands import AuthCommands
from ._edits import Edits
from ._host_calls import call_local
from ._lookup import Lookup
from ._offer import Offer
from ._roster import Roster
from ._sign_ins import SignIns
from ._skills import SkillCommands

__all__ = ["MCPManager"]

logger = logging.getLogger(__name__)

_NEEDS_SIGN_IN: Final = frozenset({ServerState.NEEDS_AUTH, ServerState.NEEDS_CLIENT_REGISTRATION})


class MCPManager(AuthCommands, SkillCommands):
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
        guests: Collection[MCPServerConfig] = (),
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
        environ = os.environ if environ is None else environ
        self._owner = owner
        owner.on_leak = self._tell_leak
        self._offer = Offer(self.registry, self._run_for_model, document.tool_names)
        self._sign_ins = SignIns(
            document.path.with_name("mcp_tokens"),
            instance=owner.id,
            bus=self.events,
            environ=environ,
            base=document.path.parent,
            saved=saved,
            client=lambda name: self._roster.get(name),
        )
        self._roster = Roster(
            self.events,
            self._offer,
            document=lambda: self.document,
            permissions=lambda: self._edits.permissions,
            prepare=lambda client: self._edits.prepare(client),
            left=lambda name: self._edits.left(name),
            owner=owner,
            sign_ins=self._sign_ins,
            environ=environ,
            start_limit=document.start_limit,
            raise_internal=raise_internal,
        )
        self.registry.when_used(self._roster.used)
        self._edits = Edits(
            document,
            self._roster,
            self.events,
            environ,
            self._sign_ins,
            saved=saved,
            wants=lambda name: only is None or name in only,
            guests=[config.name for config in guests],
        )
        self._lookup = Lookup(self._offer, self._roster, lambda: self.document)
        living = [config for config in document.servers.values() if only is None or config.name in only]
        living += guests
        self._at_first = [config.name for config in living if config.enabled]
        for config in living:
            self._roster.begin(config)

    # What there is.

    @property
    def document(self) -> ConfigDocument:
        """The configuration in force."""
        return self._edits.document

    @property
    def config_problem(self) -> ConfigError | StorageError | None:
        """Why what the configuration file says now is not in force; ``None`` where it is."""
        return self._edits.problem

    @property
    def status_version(self) -> int:
        """Rises with every change of any server's status."""
        return self._roster.version

    def status(self) -> dict[str, ServerStatus]:
        """Every configured server's status, in the order of the file."""
        return {name: self.server(name) for name in self._roster.order()}

    @property
    def processes(self) -> ProcessCount:
        """The processes of all servers, as they were last counted."""
        return ProcessCount(owned=self._owner.owned, leaked=self._owner.leaked)

    async def count_processes(self) -> ProcessCount:
        """Count the processes of all servers, for ``processes`` here and of each server's status.

        Takes some milliseconds, in a thread; a count that is half a second old is not made anew. A process that is
        found though its server was stopped is a leak: it is ended now, an event tells of it, and ``leaked`` keeps it.
        """
        await self._owner.count_processes()
        return self.processes

    def server(self, name: str) -> ServerStatus:
        """One server's status.

        Raises:
            UnknownServer: None is configured by this name.
        """
        row = self._roster.row(name)
        if row is None:
            raise self._roster.unknown(name)
        return row

    def config(self, name: str) -> MCPServerConfig:
        """One server's configuration, as it is stored; what is in force may differ, as ``config_error`` says then.

        Raises:
            UnknownServer: None can be used by this name.
            ConfigError: What is stored cannot be understood.
        """
        client = self._client(name)
        if name in self.document.broken:
            raise self.document.broken[name]
        return self.document.servers.get(name, client.config)

    def tools(self) -> list[AgentTool]:
        """Every tool, in the order in which a model is offered them."""
        return list(self.registry.snapshot().tools.values())

    def is_waiting(self, tool: AgentTool) -> bool:
        """Whether a tool is offered while its server is away for a moment, so that a call of it waits."""
        client = None if tool.server is None else self._roster.get(tool.server)
        return client is not None and client.state is not ServerState.CONNECTED

    async def freshen_tools(self, seconds: float = 1.0) -> None:
        """Read the lists of tools anew that are too old to be used: those whose server has said so (``ttlMs``).

        What takes longer, or fails, is tried again while the old list stays.

        Args:
            seconds: How long to wait at most.
        """
        await self._roster.freshen(seconds)

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
        found = self._lookup.known(tool)
        return self._edits.permissions.action(tool, "" if found is None else found.server or "")

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
        found = await self._lookup.find(tool, timeout)
        remote, client = self._offer.remote(found), self._roster.get(found.server or "")
        if remote is None or client is None:
            self._edits.permissions.check(found.name, found.server or "")
            return await call_local(found, given, timeout, on_progress, call_id)
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

    # What servers offer beside their tools, as MCP gives it. Each waits for a server that is on its way, within its
    # limit for a call, and raises, beside UnknownServer: NotConnected (it is down), ServerFailed (it refused, or does
    # not offer this), ServerGone (the connection was lost), TimedOut.

    async def resources(self, name: str) -> list[dict[str, Any]]:
        """The resources of a server, by URI; none where it offers none. Read anew where they may have changed.

        The items are shared with other callers: not to be changed. Raises as :meth:`read_resource` does.
        """
        return await self._client(name).catalogs.listed("resources")

    async def resource_templates(self, name: str) -> list[dict[str, Any]]:
        """The templates of a server's resources, as :meth:`resources`."""
        return await self._client(name).catalogs.listed("resource_templates")

    async def prompts(self, name: str) -> list[dict[str, Any]]:
        """The prompts of a server, by name, as :meth:`resources`."""
        return await self._client(name).catalogs.listed("prompts")

    async def read_resource(self, name: str, uri: str) -> dict[str, Any]:
        """The contents of a resource (specification: server/resources, "Reading Resources").

        Args:
            name: The server.
            uri: The resource's URI.

        Returns:
            The result as the server sent it, with its ``contents``; texts beyond ``max_result_chars`` are cut.

        Raises:
            UnknownServer: None can be used by this name.
            NotConnected: The server is down.
            ServerFailed: It refused, does not offer resources, or its answer cannot be used.
            ServerGone: The connection was lost.
            TimedOut: It did not answer within the limit of a call.
        """
        return await self._client(name).catalogs.read_resource(uri)

    async def get_prompt(self, name: str, prompt: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A prompt, filled in (specification: server/prompts, "Getting a Prompt").

        Args:
            name: The server.
            prompt: The prompt's name.
            arguments: Its arguments, all of them texts.

        Returns:
            The result as the server sent it, with its ``messages``. Raises as :meth:`read_resource` does.
        """
        return await self._client(name).catalogs.get_prompt(prompt, arguments or {})

    async def complete(
        self,
        name: str,
        ref: Mapping[str, Any],
        argument: Mapping[str, str],
        *,
        context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What an argument of a prompt or of a resource's template may be (specification: server/utilities/completion).

        Args:
            name: The server.
            ref: What it is an argument of: ``{"type": "ref/prompt", "name"}`` or ``{"type": "ref/resource", "uri"}``.
            argument: ``{"name", "value"}``: the argument, and what it begins with.
            context: ``{"arguments": {…}}``: the arguments that are known already.

        Returns:
            The result as the server sent it, with its ``completion``. Raises as :meth:`read_resource` does.
        """
        params: dict[str, Any] = {"ref": dict(ref), "argument": dict(argument)}
        if context:
            params["context"] = dict(context)
        return await self._client(name).catalogs.complete(params)

    async def subscribe_resource(self, name: str, uri: str) -> None:
        """Let the events tell (``ResourceUpdated``) when a resource changes, also after a reconnection.

        Raises as :meth:`read_resource` does; ``ServerFailed`` too where the server does not offer this.
        """
        await self._client(name).catalogs.subscribe(uri)

    async def unsubscribe_resource(self, name: str, uri: str) -> None:
        """Let the events tell it no more. Raises as :meth:`read_resource` does."""
        await self._client(name).catalogs.unsubscribe(uri)

    # Changes.

    async def connect(self, name: str) -> ServerStatus:
        """Bring a server up that is down, and wait for the verdict.

        Raises:
            UnknownServer: None can be used by this name.
            NotConnected: It is disabled.
        """
        client = self._editable_client(name)
        self._edits.catch_up(client)
        client.connect()
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
        client = self._editable_client(name)
        self._edits.catch_up(client)
        client.restart()
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
        await self._edits.add(config, force=force)
        return self.server(config.name)

    async def update(
        self,
        name: str,
        config: MCPServerConfig | Mapping[str, Any],
        *,
        force: bool = False,
        revision: str | None = None,
    ) -> ServerStatus:
        """Change a server's configuration, make before break.

        The new connection is started beside the old one. Once it is up, the configuration is saved and calls move over;
        those that run come to their end on the old one. What does not come up changes neither the file nor the server.
        A change that needs no new connection makes none. One that needs a sign-in counts as up, and
        ``enabled: false`` is saved unstarted.

        Args:
            name: The server.
            config: Its new configuration; or only what changes, as PATCH has it: what is left out is kept, ``null``
                puts the default back.
            force: Save and follow it though it does not come up.
            revision: Only if the configuration is at this revision (``document.revision``).

        Raises:
            UnknownServer: None is configured by this name.
            ConfigError: It does not fit, or a variable it refers to is not set.
            ServerFailed: It did not come up.
            RevisionConflict: Somebody else has changed it, or told it something else, meanwhile.
            StorageError: It could not be saved.
            ReadOnly: This manager refuses every change.
        """
        self._refuse_if_read_only()

        def change(before: MCPServerConfig | None) -> MCPServerConfig:
            if isinstance(config, MCPServerConfig):
                if config.name != name:
                    raise ConfigError(
                        f"servers.{name}.name: a server cannot be renamed by an edit",
                        path=f"servers.{name}.name",
                        server=name,
                    )
                return config
            return MCPServerConfig.from_dict(name, dict(config)) if before is None else before.merge_patch(config)

        await self._edits.update(name, change, force=force, revision=revision)
        return self.server(name)

    async def test(self, config: MCPServerConfig) -> ServerStatus:
        """Try a configuration: start it, see how it does, and stop it. Nothing is saved, no tool is offered.

        Raises:
            ConfigError: A variable it refers to is not set.
        """
        return await self._roster.try_out(config, self._edits.expanded(config))

    async def remove(self, name: str, *, revision: str | None = None) -> None:
        """Remove a server: from the file, then its process.

        Args:
            name: The server.
            revision: Only if the configuration is at this revision.

        Raises:
            UnknownServer: None is configured by this name.
            RevisionConflict: The configuration was changed since.
        """
        self._refuse_if_read_only()
        await self._edits.remove(name, revision=revision)

    async def set_roots(self, roots: Sequence[Mapping[str, Any]], *, revision: str | None = None) -> None:
        """Set the roots of the configuration (``document.roots``), and save that.

        They are stored; no server is told of them yet.

        Args:
            roots: Each with its ``uri``, a ``file://`` one, and a ``name`` where it has one.
            revision: Only if the configuration is at this revision.

        Raises:
            ConfigError: One of them does not fit.
            RevisionConflict: The configuration was changed since.
            StorageError: It could not be saved.
            ReadOnly: This manager refuses every change.
        """
        self._refuse_if_read_only()
        await self._edits.set_roots(roots, revision=revision)

    async def _switch(self, name: str, *, enabled: bool) -> ServerStatus:
        await self._edits.switch(self._editable_client(name), enabled=enabled)
        return await self.wait_settled(name)

    def _editable_client(self, name: str) -> MCPClient:
        self._refuse_if_read_only()
        return self._client(name)

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise ReadOnly("this worker is read-only", remedy="Start it without --read-only.")

    def _client(self, name: str) -> MCPClient:
        client = self._roster.get(name)
        if client is None:
            raise self._roster.unknown(name)
        return client

    # Its life, for open_manager alone.

    async def look_at_sign_ins(self) -> None:
        """Read what is kept of sign-ins, so that the first status tells of it. For open_manager."""
        await self._sign_ins.look(client.config for client in self._roster)

    async def run(self) -> None:
        """The lives of the servers, until :meth:`close`."""
        async with trio.open_nursery() as beside:
            beside.start_soon(self._sign_ins.run)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_when_started)
                async with trio.open_nursery() as watching:
                    watching.start_soon(self._edits.watch)
                    await self._roster.run()
                    watching.cancel_scope.cancel()
            beside.cancel_scope.cancel()

    def close(self) -> None:
        """Let every server end, side by side. :meth:`run` returns when they have."""
        self._roster.close()

    def _tell_leak(self, server: str, number: int) -> None:
        text = f"{number} of its processes lived on after it had been stopped; they are ended now"
        logger.error("%s: %s", server or "a server", text)
        self.events.publish(ServerLog(server=server, level="error", logger="processes", text=text))

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


_call_numbers = count(1)
_instance = uuid4().hex[:8]


def _call_id() -> str:
    """A name for a call that no other one has, of this process or of another."""
    return f"{_instance}-{next(_call_numbers)}"
