"""Tools in the shapes that the model APIs take."""

from __future__ import annotations

from typing import Any

from ._tools import AgentTool

__all__ = ["anthropic_tool", "openai_tool"]


def openai_tool(tool: AgentTool) -> dict[str, Any]:
    """The tool as one entry of ``tools`` of OpenAI's Chat Completions API, and of those that imitate it."""
    schema, rules = tool.model_view
    return {
        "type": "function",
        "function": {"name": tool.name, "description": _description(tool, rules), "parameters": schema},
    }


def anthropic_tool(tool: AgentTool) -> dict[str, Any]:
    """The tool as one entry of ``tools`` of Anthropic's Messages API."""
    schema, rules = tool.model_view
    return {"name": tool.name, "description": _description(tool, rules), "input_schema": schema}


def _description(tool: AgentTool, rules: list[str]) -> str:
    return "\n\n".join(part for part in (tool.description or tool.label, *rules) if part)
