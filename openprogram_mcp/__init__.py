"""The MCP client layer of an agent, written with Trio's structured concurrency.

The layers. A file imports only from floors below its own, never sideways except inside its folder; a test holds the
imports to it::

    L0  errors, paths, _values
    L1  storage, masking, status, adapter, skills
    L2  config, events
    L3  permissions, transports/
    L4  auth/, session, registry
    L5  client/
    L6  manager
    L8  web/
    L10 cli/
    --  testing/ (imports L0 to L3), demo/ (imports nothing of ours)

Importing this package imports none of it: public names are looked up when they are first used, so that a command that
only prints its help, or only talks to a running worker, pays for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter import AgentTool, AgentToolResult
    from .config import MCPServerConfig, load_configs, save_configs
    from .errors import OpenProgramMCPError
    from .manager import MCPManager, load_mcp_servers, open_manager, server_status, shutdown_mcp_servers
    from .registry import ToolRegistry
    from .status import ServerState, ServerStatus

__version__ = "0.1.0"

__all__ = [
    "AgentTool",
    "AgentToolResult",
    "MCPManager",
    "MCPServerConfig",
    "OpenProgramMCPError",
    "ServerState",
    "ServerStatus",
    "ToolRegistry",
    "load_configs",
    "load_mcp_servers",
    "open_manager",
    "save_configs",
    "server_status",
    "shutdown_mcp_servers",
]

_HOMES = {
    "AgentTool": "adapter",
    "AgentToolResult": "adapter",
    "MCPManager": "manager",
    "MCPServerConfig": "config",
    "OpenProgramMCPError": "errors",
    "ServerState": "status",
    "ServerStatus": "status",
    "ToolRegistry": "registry",
    "load_configs": "config",
    "load_mcp_servers": "manager",
    "open_manager": "manager",
    "save_configs": "config",
    "server_status": "manager",
    "shutdown_mcp_servers": "manager",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
