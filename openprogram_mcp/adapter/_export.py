"""Tools in the shapes that the model APIs take.

Owns: each API's own limits. A tool over one of them costs every request of the session, whichever tool the model means
to call. What has to go is told in words. Parts of the dicts are shared with the tool: change copies.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ._json import to_json
from ._tools import AgentTool

__all__ = ["anthropic_tool", "openai_tool"]

_OPENAI_DESCRIPTION: Final = 1024
"""The longest description of a function that OpenAI's API takes, in characters."""

_MAX_DESCRIPTION: Final = 20_000
"""The longest description that is shown to any model: a server must not fill its context before the first call."""

_ANTHROPIC_KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What Anthropic's API takes as the name of an argument."""


def openai_tool(tool: AgentTool) -> dict[str, Any]:
    """The tool as one entry of ``tools`` of OpenAI's Chat Completions API, and of those that imitate it.

    A description over 1,024 characters is cut there, and stands in full in the schema, where the API sets no limit.
    """
    schema = tool.for_models.schema
    description = _description(tool, tool.for_models.rules)
    if len(description) > _OPENAI_DESCRIPTION:
        schema = {**schema, "description": description}
        description = _shortened(tool, _OPENAI_DESCRIPTION)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": description, "parameters": schema},
    }


def anthropic_tool(tool: AgentTool) -> dict[str, Any]:
    """The tool as one entry of ``tools`` of Anthropic's Messages API.

    An argument whose name that API refuses (``$filter``) is described in words; a model can still give it.
    """
    schema = tool.for_models.schema
    rules = list(tool.for_models.rules)
    refused = [name for name in schema["properties"] if not _ANTHROPIC_KEY.fullmatch(name)]
    if refused:
        schema = dict(schema)
        needed = schema.get("required", [])
        for name in refused:
            must = "must" if name in needed else "may"
            rules.append(f"An argument {to_json(name)} {must} be given too: {to_json(schema['properties'][name])}")
        schema["properties"] = {name: part for name, part in schema["properties"].items() if name not in refused}
        schema["required"] = [name for name in needed if name not in refused]
        for word in ("additionalProperties", "unevaluatedProperties", "propertyNames"):
            schema.pop(word, None)
    return {"name": tool.name, "description": _description(tool, rules), "input_schema": schema}


def _description(tool: AgentTool, rules: tuple[str, ...] | list[str]) -> str:
    said = tool.description or tool.label
    if len(said) > _MAX_DESCRIPTION:
        said = f"{said[:_MAX_DESCRIPTION]}…"
    return "\n\n".join(part for part in (said, *rules) if part)


def _shortened(tool: AgentTool, limit: int) -> str:
    """The description within the limit: what precedes the rules is cut, since a call that breaks a rule fails."""
    rules = "".join(f"\n\n{rule}" for rule in tool.for_models.rules)
    if len(rules) > limit // 2:
        rules = f"{rules[: limit // 2 - 1]}…"
    return f"{tool.description[: limit - len(rules) - 1]}…{rules}"
