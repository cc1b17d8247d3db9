"""A manager for tests of what shows a manager: its answers are given, its calls are recorded, nothing runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import trio
from attrs import define, evolve, field

from openprogram_mcp.adapter import AgentTool, AgentToolResult, RemoteTool
from openprogram_mcp.config import ConfigDocument, MCPServerConfig
from openprogram_mcp.errors import ConfigError, StorageError, UnknownServer, UnknownTool
from openprogram_mcp.events import EventBus, StatusChanged
from openprogram_mcp.registry import ToolRegistry
from openprogram_mcp.skills import Skill
from openprogram_mcp.status import ProcessCount, ServerState, ServerStatus

if TYPE_CHECKING:
    from openprogram_mcp.manager import MCPManager

__all__ = ["FakeManager", "answer_text", "as_manager", "remote_tool"]

Answer = Callable[[dict[str, Any], Any], Awaitable[AgentToolResult]]


async def answer_text(arguments: dict[str, Any], _on_progress: Any) -> AgentToolResult:
    """The tool of a fake server: says its arguments."""
    return AgentToolResult(content=({"type": "text", "text": str(arguments)},), details={"is_error": False})


async def offer_little(_method: str, _arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What a fake server offers beside its tools: one of each."""
    return {
        "resources": [{"uri": "file:///a", "name": "a"}],
        "resourceTemplates": [{"uriTemplate": "file:///{name}", "name": "any"}],
        "prompts": [{"name": "greet"}],
        "contents": [{"uri": "file:///a", "text": "text"}],
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hello!"}}],
        "completion": {"values": ["one"]},
    }


@define
class FakeManager:
    """Servers and tools as they were put in."""

    rows: dict[str, ServerStatus] = field(factory=dict)
    remote: dict[str, list[RemoteTool]] = field(factory=dict)
    answer: Answer = answer_text
    events: EventBus = field(factory=EventBus)
    registry: ToolRegistry = field(factory=ToolRegistry)
    document: ConfigDocument = field(factory=lambda: ConfigDocument(path=Path("mcp_servers.json")))
    config_problem: ConfigError | StorageError | None = None
    status_version: int = 7
    processes: ProcessCount = field(factory=ProcessCount)
    counts: int = 0
    calls: list[tuple[str, dict[str, Any], float | None, str | None]] = field(factory=list)
    acts: list[tuple[str, str]] = field(factory=list)
    offer: Callable[[str, tuple[Any, ...]], Awaitable[dict[str, Any]]] = offer_little
    asked: list[tuple[Any, ...]] = field(factory=list)
    calling: trio.Event = field(factory=trio.Event)
    cancelled: trio.Event = field(factory=trio.Event)

    def put(self, name: str, *tools: RemoteTool, **fields: Any) -> None:
        """Add a connected server with these tools."""
        names = tuple(f"{name}__{tool.name}" for tool in tools)
        self.rows[name] = ServerStatus(
            name=name, type="local", **{"status": ServerState.CONNECTED, "tools": names, **fields}
        )
        self.remote[name] = list(tools)
        for tool in tools:
            self.registry.register_remote_tool(name, tool, self._invoke, name=f"{name}__{tool.name}")

    async def _invoke(self, *_given: Any) -> AgentToolResult:
        raise AssertionError("called past the manager")

    async def count_processes(self) -> ProcessCount:
        await trio.lowlevel.checkpoint()
        self.counts += 1
        return self.processes

    def status(self) -> dict[str, ServerStatus]:
        return dict(self.rows)

    def server(self, name: str) -> ServerStatus:
        if name not in self.rows:
            raise UnknownServer(f"No server is called {name!r}", server=name)
        return self.rows[name]

    def config(self, name: str) -> Any:
        raise UnknownServer(f"No server is called {name!r}", server=name)

    def tools(self) -> list[AgentTool]:
        return list(self.registry.snapshot().tools.values())

    def tool_records(self, name: str) -> list[tuple[AgentTool, RemoteTool]]:
        return [(self.registry[f"{name}__{tool.name}"], tool) for tool in self.remote[name]]

    def action(self, _tool: str) -> str:
        return "allow"

    def is_waiting(self, tool: AgentTool) -> bool:
        return tool.server is not None and not self.rows[tool.server].ready

    async def freshen_tools(self) -> None:
        await trio.lowlevel.checkpoint()

    async def call_tool(
        self, tool: str, arguments: dict[str, Any], *, timeout: float | None, on_progress: Any, call_id: str | None
    ) -> AgentToolResult:
        if self.registry.get(tool) is None:
            raise UnknownTool(f"No tool is called {tool!r}")
        self.calls.append((tool, arguments, timeout, call_id))
        self.calling.set()
        try:
            return await self.answer(arguments, on_progress)
        except trio.Cancelled:
            self.cancelled.set()
            raise

    async def resources(self, name: str) -> list[dict[str, Any]]:
        return list((await self._offer(name, "resources"))["resources"])

    async def resource_templates(self, name: str) -> list[dict[str, Any]]:
        return list((await self._offer(name, "resource_templates"))["resourceTemplates"])

    async def prompts(self, name: str) -> list[dict[str, Any]]:
        return list((await self._offer(name, "prompts"))["prompts"])

    async def skills(self, _name: str) -> list[Skill]:
        return []

    async def read_resource(self, name: str, uri: str) -> dict[str, Any]:
        return await self._offer(name, "read_resource", uri)

    async def get_prompt(self, name: str, prompt: str, arguments: dict[str, str]) -> dict[str, Any]:
        return await self._offer(name, "get_prompt", prompt, arguments)

    async def complete(self, name: str, ref: Any, argument: Any, *, context: Any) -> dict[str, Any]:
        return await self._offer(name, "complete", ref, argument, context)

    async def _offer(self, name: str, method: str, *arguments: Any) -> dict[str, Any]:
        self.server(name)
        self.asked.append((method, *arguments))
        self.calling.set()
        try:
            return await self.offer(method, arguments)
        except trio.Cancelled:
            self.cancelled.set()
            raise

    async def restart(self, name: str) -> ServerStatus:
        return await self._act("restart", name)

    async def connect(self, name: str) -> ServerStatus:
        return await self._act("connect", name)

    async def disconnect(self, name: str) -> ServerStatus:
        return await self._act("disconnect", name)

    async def enable(self, name: str) -> ServerStatus:
        return await self._act("enable", name)

    async def disable(self, name: str) -> ServerStatus:
        return await self._act("disable", name)

    async def add(self, config: MCPServerConfig, *, force: bool) -> ServerStatus:
        return await self._edit("add", config.name, config, force)

    async def update(self, name: str, config: Any, *, force: bool, revision: str | None) -> ServerStatus:
        return await self._edit("update", name, config, force, revision)

    async def remove(self, name: str, *, revision: str | None) -> None:
        await self._edit("remove", name, revision)

    async def test(self, config: MCPServerConfig) -> ServerStatus:
        return await self._edit("test", config.name, config)

    async def set_roots(self, roots: Any, *, revision: str | None) -> None:
        await trio.lowlevel.checkpoint()
        self.document = self.document.with_roots(roots)
        self.asked.append(("set_roots", revision))

    async def _edit(self, what: str, name: str, *arguments: Any) -> ServerStatus:
        self.asked.append((what, name, *arguments))
        self.calling.set()
        try:
            await self.offer(what, arguments)
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return self.rows.get(name, ServerStatus(name=name, type="local"))

    async def _act(self, act: str, name: str) -> ServerStatus:
        for _ in range(50):  # as with a real one, others get their turn meanwhile
            await trio.lowlevel.checkpoint()
        self.acts.append((act, name))
        self.rows[name] = evolve(self.server(name), generation=self.server(name).generation + 1)
        self.events.publish(StatusChanged(server=name, status=self.rows[name]))
        return self.rows[name]


def as_manager(fake: FakeManager) -> MCPManager:
    """The fake, for what asks for a manager."""
    return cast("MCPManager", fake)


def remote_tool(name: str, **fields: Any) -> RemoteTool:
    """A tool as a server lists it."""
    return RemoteTool(name=name, description=f"Does {name}", **fields)
