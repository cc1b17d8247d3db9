"""What the management API and the command line show of a manager, as JSON values. Pure.

Both make their answers here, so that ``list --json`` and ``GET /api/mcp/servers`` cannot differ. The shapes are those
of the reference; this module imports no web framework.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from ..errors import OpenProgramMCPError
from ..paths import config_path

if TYPE_CHECKING:
    from ..adapter import AgentTool, AgentToolResult, RemoteTool
    from ..events import Record
    from ..manager import MCPManager

__all__ = [
    "call_result",
    "config_location",
    "event_page",
    "health",
    "log_page",
    "root_list",
    "server_detail",
    "server_list",
    "short_list",
    "tool_list",
]


_SKILLS_SECONDS: Final = 2.0


def server_list(manager: MCPManager) -> dict[str, Any]:
    """Every server's row, in the order of the file."""
    problem = manager.config_problem
    return {
        "version": manager.status_version,
        "config_error": None if problem is None else problem.message,
        "processes_owned": manager.processes.owned,
        "processes_leaked": manager.processes.leaked,
        "servers": [status.to_dict() for status in manager.status().values()],
    }


def short_list(manager: MCPManager) -> list[dict[str, Any]]:
    """Every server in short: whether it is connected, and with which tools."""
    return [
        {"name": row.name, "connected": row.ready, "tools": list(row.tools), "error": row.error}
        for row in manager.status().values()
    ]


def root_list(manager: MCPManager) -> dict[str, Any]:
    """The roots of the configuration."""
    # In a file written by hand a name may be anything.
    named = [(root["uri"], root.get("name")) for root in manager.document.roots]
    return {"roots": [{"uri": uri, "name": name if isinstance(name, str) else None} for uri, name in named]}


async def server_detail(manager: MCPManager, name: str) -> dict[str, Any]:
    """One server's row with its configuration, secrets masked, the schemas of its tools, and its skills.

    Raises:
        UnknownServer: No server of this name is configured.
    """
    row = manager.server(name).to_dict()
    try:
        config: dict[str, Any] | None = manager.config(name).to_response_dict()
    except OpenProgramMCPError:
        # An entry that could not be read has a row, which says why, but no configuration to show.
        config = None
    return {
        **row,
        "config": config,
        "tool_schemas": [
            _tool_schema(tool, remote, manager.action(tool.name)) for tool, remote in manager.tool_records(name)
        ],
        "skills": await _skills(manager, name) if row["ready"] else [],
    }


async def _skills(manager: MCPManager, name: str) -> list[dict[str, Any]]:
    """What a server lists; nothing where that takes long, or goes wrong: the rest is to be seen nonetheless."""
    with trio.move_on_after(_SKILLS_SECONDS), suppress(OpenProgramMCPError):
        return [skill.to_dict() for skill in await manager.skills(name)]
    return []


def tool_list(manager: MCPManager) -> dict[str, Any]:
    """Every tool that can be called, sorted by name."""
    snapshot = manager.registry.current
    return {
        "version": snapshot.version,
        "tools": [
            _tool_row(tool, manager.action(tool.name), manager.is_waiting(tool))
            for tool in sorted(snapshot.tools.values(), key=lambda tool: tool.name)
        ],
    }


def call_result(result: AgentToolResult, call_id: str) -> dict[str, Any]:
    """A call's answer."""
    return {
        "call_id": call_id,
        "content": list(result.content),
        "text": result.text,
        "is_error": result.is_error,
        "details": result.details,
    }


def health(manager: MCPManager) -> dict[str, Any]:
    """That the worker lives, and how many servers are in which state."""
    return {"status": "ok", "servers": dict(Counter(str(status.status) for status in manager.status().values()))}


def event_page(records: Iterable[Record], following: int, missed: int) -> dict[str, Any]:
    """Events for a client that polls, and the number to ask with next."""
    return {"events": [record.to_dict() for record in records], "next": following, "missed": missed}


def log_page(records: Iterable[Record]) -> dict[str, Any]:
    """Log lines of servers."""
    lines = []
    for record in records:
        line = record.to_dict()
        lines.append({key: line[key] for key in ("id", "time", "server", "level", "logger", "text")})
    return {"lines": lines}


def config_location() -> dict[str, Any]:
    """Where the configuration is, and whether it is there."""
    path = config_path()
    return {"path": str(path), "exists": path.exists()}


def _tool_row(tool: AgentTool, action: str, waiting: bool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server": tool.server,
        "wire_name": tool.wire_name,
        "description": tool.description,
        "input_schema": tool.parameters,
        "annotations": tool.annotations,
        "deferred": tool.defer,
        "waiting": waiting,
        "action": action,
    }


def _tool_schema(tool: AgentTool, remote: RemoteTool, action: str) -> dict[str, Any]:
    return {
        "name": tool.name,
        "wire_name": remote.name,
        "description": remote.description,
        "input_schema": remote.input_schema,
        "output_schema": remote.output_schema,
        "annotations": remote.annotations,
        "action": action,
    }
