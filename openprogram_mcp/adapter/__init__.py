"""MCP's wire types on one side, an agent's tools on the other.

Owns: the names a model sees, schemas, the content of results, and the shapes that model APIs take. Pure: it works on
plain JSON values, does no I/O, and never imports the SDK. Does not own: calls, connections, and which tools are
offered.
"""

from __future__ import annotations

from ._arguments import check_arguments
from ._content import MAX_CHARS, AgentToolResult, convert_call_result, error_result, protocol_error_result
from ._export import anthropic_tool, openai_tool
from ._limits import limit_texts
from ._model import ModelSchema, model_schema, model_view
from ._names import MAX_NAME, NameStyle, assign_names, clash_warnings, namespace_tool_name
from ._schema import InvalidSchema, normalize_input_schema
from ._tools import AgentTool, Invoke, OnUpdate, RemoteTool, mount_tool, parse_tools

__all__ = [
    "MAX_CHARS",
    "MAX_NAME",
    "AgentTool",
    "AgentToolResult",
    "InvalidSchema",
    "Invoke",
    "ModelSchema",
    "NameStyle",
    "OnUpdate",
    "RemoteTool",
    "anthropic_tool",
    "assign_names",
    "check_arguments",
    "clash_warnings",
    "convert_call_result",
    "error_result",
    "limit_texts",
    "model_schema",
    "model_view",
    "mount_tool",
    "namespace_tool_name",
    "normalize_input_schema",
    "openai_tool",
    "parse_tools",
    "protocol_error_result",
]
