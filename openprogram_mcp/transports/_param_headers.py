"""Arguments that a tool wants to see as headers as well, so that gateways can route by them.

Which ones, its input schema says, in ``x-mcp-header``. A tool whose annotations are against the rules is left out of
the list, and it alone.

MCP specification: basic/transports, Streamable HTTP, "Custom headers" (2026-07-28); server/tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

__all__ = ["ParamHeaders"]


@define(eq=False)
class ParamHeaders:
    """What the tools of one connection want to see as headers, as far as they were listed."""

    _maps: dict[str, Mapping[tuple[str, ...], str]] = field(factory=dict, init=False)
    _faults: dict[str, str] = field(factory=dict, init=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which tools were left out, and why."""
        return tuple(self._faults.values())

    def learn(self, result: dict[str, Any]) -> dict[str, Any]:
        """Take a page of the list of tools, and give it without those that must not be offered."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return result
        kept: list[Any] = []
        for tool in tools:
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(name, str):
                kept.append(tool)
                continue
            schema = tool.get("inputSchema")
            fault = find_invalid_x_mcp_header(schema)
            self._maps.pop(name, None)
            self._faults.pop(name, None)
            if fault is not None:
                self._faults[name] = f"tool {name[:80]!r} is left out: {fault[:200]}"
                continue
            kept.append(tool)
            wanted = x_mcp_header_map(schema)
            if wanted:
                self._maps[name] = wanted
        return result if len(kept) == len(tools) else {**result, "tools": kept}

    def of(self, tool: str, arguments: object) -> dict[str, bytes]:
        """The headers of one call."""
        wanted = self._maps.get(tool)
        if not wanted or not isinstance(arguments, Mapping):
            return {}
        return {name.lower(): value.encode() for name, value in mcp_param_headers(wanted, arguments).items()}
