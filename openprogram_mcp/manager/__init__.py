"""All servers together: the root nursery, the servers by name, and the entry points of the package.

The rooms inside: ``_manager`` (the manager and :func:`open_manager`), ``_offer`` (the table of tools and their names),
``_process_wide`` (one manager per process, for a host that owns its nursery).
"""

from __future__ import annotations

from ._manager import MCPManager, open_manager
from ._process_wide import load_mcp_servers, server_status, shutdown_mcp_servers

__all__ = ["MCPManager", "load_mcp_servers", "open_manager", "server_status", "shutdown_mcp_servers"]
