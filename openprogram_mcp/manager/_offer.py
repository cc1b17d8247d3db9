"""What the servers offer, under the names a model calls it by: one table for all of them.

Names depend on the set of servers and tools alone, so the whole table is made anew whenever one server's tools change;
tools that have not changed stay the same objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from attrs import define, field

from ..adapter import (
    AgentTool,
    AgentToolResult,
    NameStyle,
    OnUpdate,
    RemoteTool,
    assign_names,
    clash_warnings,
    mount_tool,
)
from ..client import MCPClient
from ..permissions import Permissions
from ..registry import ToolRegistry

__all__ = ["Changes", "Offer", "Run"]

Run = Callable[
    [MCPClient, AgentTool, RemoteTool, dict[str, Any], str | None, OnUpdate | None], Awaitable[AgentToolResult]
]
"""Makes a call: the server, the tool as offered and as listed, arguments, the call's id, who is told of progress."""

Changes = tuple[list[str], list[str], list[str]]
"""Names added, removed and changed."""


@define(eq=False)
class Offer:
    """The tools of all servers.

    What the permissions deny is not offered, and so hidden from models; it is known all the same, and keeps its name.

    Args:
        registry: Where they are offered.
        run: Makes a call.
        style: How names are made.
    """

    registry: ToolRegistry
    _run: Run
    style: NameStyle = "plain"
    _mounted: dict[tuple[str, str], tuple[RemoteTool, AgentTool]] = field(factory=dict, init=False)
    _by_name: dict[str, AgentTool] = field(factory=dict, init=False)
    _by_server: dict[str, list[AgentTool]] = field(factory=dict, init=False)
    _clashes: dict[str, tuple[str, ...]] = field(factory=dict, init=False)
    _from: tuple[Permissions, dict[str, Mapping[str, RemoteTool]]] | None = field(default=None, init=False)

    def known(self, name: str) -> AgentTool | None:
        """The tool of this name, offered or not."""
        return self._by_name.get(name)

    def known_of(self, server: str) -> list[AgentTool]:
        """All tools of one server, by name, those that are not offered too."""
        return self._by_server.get(server, [])

    def offered_of(self, server: str) -> list[AgentTool]:
        """The tools of one server that are offered, by name."""
        return [tool for tool in self.known_of(server) if self.registry.get(tool.name) is tool]

    def clashes_of(self, server: str) -> tuple[str, ...]:
        """A sentence for each tool of one server that could not have its plain name."""
        return self._clashes.get(server, ())

    def remote(self, tool: AgentTool) -> RemoteTool | None:
        """A tool as its server listed it."""
        found = self._mounted.get((tool.server or "", tool.wire_name or ""))
        return None if found is None else found[0]

    def update(self, clients: Iterable[MCPClient], permissions: Permissions) -> Mapping[str, Changes]:
        """Offer what the servers offer now, in one step.

        Args:
            clients: The servers, in the order of the configuration.
            permissions: What is allowed.

        Returns:
            For each server whose tools have changed, the names added, removed and changed.
        """
        clients = list(clients)
        made_from = permissions, {client.name: client.tools for client in clients}
        if self._from is not None and _same(self._from, made_from):
            return {}
        self._from = made_from
        names = assign_names(((client.name, tool) for client in clients for tool in client.tools), style=self.style)
        self._clashes = {}
        for (server, _tool), warning in clash_warnings(names, style=self.style).items():
            self._clashes[server] = (*self._clashes.get(server, ()), warning)
        before, self._mounted, self._by_name, self._by_server = self._mounted, {}, {}, {}
        offered: list[AgentTool] = []
        for client in clients:
            own = []
            for wire_name, remote in client.tools.items():
                key = (client.name, wire_name)
                known = before.get(key)
                if known is not None and known[0] is remote and known[1].name == names[key]:
                    tool = known[1]
                else:
                    tool = self._mount(client, remote, names[key])
                self._mounted[key] = (remote, tool)
                self._by_name[tool.name] = tool
                own.append(tool)
            own.sort(key=lambda tool: tool.name)
            self._by_server[client.name] = own
            offered.extend(tool for tool in own if permissions.action(tool.name, client.name) != "deny")
        owners = {tool.name: tool.server or "" for _, tool in (*before.values(), *self._mounted.values())}
        changes: dict[str, Changes] = {}
        for kind, changed in enumerate(self.registry.replace_remote(offered)):
            for name in changed:
                changes.setdefault(owners[name], ([], [], []))[kind].append(name)
        return changes

    def _mount(self, client: MCPClient, remote: RemoteTool, name: str) -> AgentTool:
        async def invoke(arguments: dict[str, Any], call_id: str | None, on_update: OnUpdate | None) -> AgentToolResult:
            return await self._run(client, tool, remote, arguments, call_id, on_update)

        tool = mount_tool(client.name, remote, invoke, name=name, style=self.style)
        return tool


def _same(
    one: tuple[Permissions, dict[str, Mapping[str, RemoteTool]]],
    other: tuple[Permissions, dict[str, Mapping[str, RemoteTool]]],
) -> bool:
    """Whether nothing has changed: the same servers in the same order, each with the very same tools."""
    (permissions, tools), (others, other_tools) = one, other
    return (
        permissions == others
        and list(tools) == list(other_tools)
        and all(tools[name] is other_tools[name] for name in tools)
    )
