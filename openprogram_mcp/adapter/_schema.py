"""The input schema of a tool, as a server gave it, made usable as the registry's own `parameters`.

Owns: what is an object schema and what is not. Keeps every keyword. Does not own: the copy for model APIs (`_model.py`)
and the check of arguments (`_arguments.py`).
"""

from __future__ import annotations

from typing import Any

__all__ = ["InvalidSchema", "normalize_input_schema"]


class InvalidSchema(ValueError):
    """What a tool gives as its input schema is not a schema of an object. The tool is dropped, never its server."""


def normalize_input_schema(schema: Any) -> dict[str, Any]:
    """A tool's input schema with ``type`` and ``properties``, every other keyword kept.

    A missing schema and ``true`` accept any object. The choice words (``anyOf`` and the like), ``$ref`` and ``$defs``
    stay as they are. (Specification: server/tools, "Tool"; 2026-07-28 allows every keyword of JSON Schema 2020-12.)

    Args:
        schema: What stands in ``inputSchema``; ``None`` where nothing does.

    Returns:
        A new dict; its inner parts are those of ``schema``.

    Raises:
        InvalidSchema: It is not a schema, or not one of an object.
    """
    if schema is None or schema is True:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        raise InvalidSchema(f"its input schema is {_called(schema)}, not an object")
    kind = schema.get("type")
    if kind != "object" and kind is not None and not (isinstance(kind, list) and "object" in kind):
        raise InvalidSchema(f'its input schema describes {_called(kind)}, not an object (type "object")')
    normal = dict(schema)
    normal["type"] = "object"
    if not isinstance(normal.get("properties"), dict):
        # PHP writes an empty map as [].
        normal["properties"] = {}
    if "required" in normal and not _is_names(normal["required"]):
        del normal["required"]
    return normal


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _called(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value[:40]}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "a list"
    return "a number" if isinstance(value, int | float) else type(value).__name__
