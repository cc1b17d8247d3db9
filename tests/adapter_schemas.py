"""What the tests of schemas share: two plain ones, and what model APIs are known to refuse."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from openprogram_mcp.adapter import (
    AgentTool,
    AgentToolResult,
    anthropic_tool,
    openai_tool,
)
from openprogram_mcp.adapter._refs import children

Schema = dict[str, Any]

A: Schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
B: Schema = {"type": "object", "properties": {"b": {"type": "integer"}, "c": {}}, "required": ["b"]}


async def never(arguments: dict[str, Any], call_id: str | None, on_update: Any) -> AgentToolResult:
    """Stands for the call of a tool that is only shown."""
    raise AssertionError("nothing is called here")


def exported(schema: Any, description: str = "What it does.") -> AgentTool:
    """A tool with this schema, to be shown to a model."""
    return AgentTool(name="s__t", description=description, parameters=schema, invoke=never)


def accepted(schema: Any) -> Schema:
    """The schema as both APIs get it, checked by the rules that their refusals have shown."""
    openai = openai_tool(exported(schema))["function"]
    assert len(openai["description"]) <= 1024
    for part in (openai["parameters"], anthropic_tool(exported(schema))["input_schema"]):
        assert part["type"] == "object"
        assert isinstance(part["properties"], dict)
        assert not part.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "if", "$schema"}
        Draft202012Validator.check_schema(part)
        _walk(part, part)
        json.dumps(part, ensure_ascii=False).encode()
    for name in anthropic_tool(exported(schema))["input_schema"]["properties"]:
        assert re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)
    parameters: Schema = openai["parameters"]
    return parameters


def _walk(root: Schema, schema: Schema) -> None:
    kind = schema.get("type")
    if kind == "array" or (isinstance(kind, list) and "array" in kind):
        assert "items" in schema
    ref = schema.get("$ref")
    if ref is not None:
        assert ref == "#" or ref.removeprefix("#/$defs/") in root["$defs"]
    for child in children(schema):
        _walk(root, child)


def rules(schema: Any) -> str:
    """What a model reads about a tool with this schema."""
    description: str = anthropic_tool(exported(schema))["description"]
    return description
