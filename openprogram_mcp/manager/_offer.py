"""What the servers offer, under the names a model calls it by: one table for all of them.

Names depend on the set of servers and tools alone, so the whole table is made anew whenever one server's tools change;
tools that have not changed stay the same objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from attrs import define, field

from ..adapter import AgentTool, AgentToolResult, NameStyle, OnUpdate, RemoteTool, assign_names, mount_tool
from ..client import MCPClient
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

    Args:
        registry: Where they are offered.
        run: Makes a call.
        style: How names are made.
    """

    registry: ToolRegistry
    _run: Run
    style: NameStyle = "plain"
    _mounted: dict[tuple[str, str], tuple[RemoteTool, AgentTool]] = field(factory=dict, init=False)
    _names: dict[str, list[AgentTool]] = field(factory=dict, init=False)
    _offered: dict[str, Mapping[str, RemoteTool]] = field(factory=dict, init=False)

    def tools_of(self, server: str) -> list[AgentTool]:
        """The tools of one server, by name."""
        return self._names.get(server, [])

    def remote(self, tool: AgentTool) -> RemoteTool | None:
        """A tool as its server listed it."""
        found = self._mounted.get((tool.server or "", tool.wire_name or ""))
        return None if found is None else found[0]

    def update(self, clients: Iterable[MCPClient]) -> Mapping[str, Changes]:
        """Offer what the servers offer now, in one step.

        Args:
            clients: The servers, in the order of the configuration.

        Returns:
            For each server whose tools have changed, the names added, removed and changed.
        """
        clients = list(clients)
        before_that, self._offered = self._offered, {client.name: client.tools for client in clients}
        if list(before_that) == list(self._offered) and all(
            tools is before_that[name] for name, tools in self._offered.items()
        ):
            return {}
        names = assign_names(((client.name, tool) for client in clients for tool in client.tools), style=self.style)
        before, self._mounted, self._names = self._mounted, {}, {}
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
                own.append(tool)
            own.sort(key=lambda tool: tool.name)
            self._names[client.name] = own
            offered.extend(own)
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
