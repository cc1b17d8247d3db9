"""All servers together: the root nursery, the servers by name, and the entry points of the package.

The rooms inside: ``_open`` (the root nursery), ``_manager`` (what people and programs see of it), ``_roster`` (the
servers' lives), ``_offer`` (the table of tools and their names), ``_lookup`` (a tool by its name), ``_edits`` (what is
changed while they live), ``_file`` (the configuration they follow), ``_process_wide`` (one manager per process, for a
host that owns its nursery).
"""

from __future__ import annotations

from ._manager import MCPManager
from ._open import open_manager
from ._process_wide import load_mcp_servers, server_status, shutdown_mcp_servers

__all__ = ["MCPManager", "load_mcp_servers", "open_manager", "server_status", "shutdown_mcp_servers"]
