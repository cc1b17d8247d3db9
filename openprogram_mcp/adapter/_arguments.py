"""The check of arguments against a tool's own schema, before anything is sent.

Owns: saying no to what the server would certainly refuse, with the name of the argument at fault. It is a courtesy and
never the last word: what cannot be judged here for certain is left to the server (a reference that leads nowhere, a
schema that is not one, a pattern that only another language's engine understands). It never fetches anything, and never
runs for long, whatever a server wrote into its schema. No value of an argument stands in an error: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import InvalidArguments

__all__ = ["check_arguments"]

Validate = Callable[[Any], InvalidArguments | None]
"""Judges arguments: ``None`` where nothing speaks against them."""

_MAX_KEPT: Final = 1024
"""So many schemas keep their compiled form. Those of lists that were read anew since are among them for a while."""

_compiled: dict[int, tuple[Mapping[str, Any], _Compiled]] = {}
"""By identity of the schema, which is held so that its identity stays its own."""


def check_arguments(schema: Mapping[str, Any], arguments: Any) -> None:
    """Check arguments against a tool's input schema (JSON Schema 2020-12, unless ``$schema`` names another draft).

    A schema must not be changed once it has been used here.

    Args:
        schema: The tool's ``parameters``.
        arguments: What the call is to be made with; or any JSON value, for a schema that is not of arguments.

    Raises:
        InvalidArguments: They do not fit; ``path`` names the argument, dotted.
    """
    known = _compiled.get(id(schema))
    if known is None or known[0] is not schema:
        while len(_compiled) >= _MAX_KEPT:
            del _compiled[next(iter(_compiled))]
        known = _compiled[id(schema)] = (schema, _Compiled(schema))
    fault = known[1].fault(arguments)
    if fault is not None:
        raise fault


class _Compiled:
    """One schema, ready to judge.

    Most arguments are accepted here, in a microsecond or two. Only what is not accepted outright goes to the full
    validator, which is imported for the first of them.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._accept = _acceptor(schema, 0)
        self._validate: Validate | None = None

    def fault(self, arguments: Any) -> InvalidArguments | None:
        if self._accept is not None and self._accept(arguments):
            return None
        if self._validate is None:
            from ._validator import compile_validator

            self._validate = compile_validator(self._schema)
        is_other = isinstance(arguments, Mapping) and not isinstance(arguments, dict)
        fault = self._validate(dict(arguments) if is_other else arguments)
        if fault is not None:
            without = _without_empty_headers(self._schema, arguments, 0)
            if without is not arguments:
                return self._validate(without)
        return fault


def _without_empty_headers(schema: Any, arguments: Any, depth: int) -> Any:
    """Arguments without each ``null`` for an optional parameter that is a header too; the same ones without any.

    Such a parameter may be null whatever its type: then there is no header, and what to make of it is the server's to
    say (specification, basic/transports: "Custom headers from tool parameters").
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(arguments, Mapping) or depth > _MAX_DEPTH:
        return arguments
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    kept: dict[Any, Any] = {}
    changed = False
    for name, value in arguments.items():
        part = properties.get(name)
        is_header = isinstance(part, Mapping) and isinstance(part.get("x-mcp-header"), str)
        if value is None and is_header and name not in required:
            changed = True
            continue
        kept[name] = _without_empty_headers(part, value, depth + 1)
        changed = changed or kept[name] is not value
    return kept if changed else arguments


Accept = Callable[[Any], bool]
"""Whether a value is certainly valid. ``False`` says nothing."""

_TYPES: Final[dict[str, frozenset[type]]] = {
    "array": frozenset({list}),
    "boolean": frozenset({bool}),
    "integer": frozenset({int}),
    "null": frozenset({type(None)}),
    "number": frozenset({int, float}),
    "object": frozenset({dict}),
    "string": frozenset({str}),
}

_SILENT: Final = frozenset(
    {
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "examples",
        "format",
        "readOnly",
        "title",
        "writeOnly",
    }
)
"""Words that say nothing about validity."""

_MAX_DEPTH: Final = 16


def _acceptor(schema: Any, depth: int) -> Accept | None:
    """What accepts the plain values of a schema that has only the common words; ``None`` for any other schema."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    words = schema.keys() - _SILENT
    if words == {"anyOf"}:
        return _any_of(schema["anyOf"], depth)
    kind = schema.get("type")
    types = _TYPES.get(kind) if isinstance(kind, str) else None
    if types is None:
        return None
    words -= {"type"}
    if not words:
        return lambda value: type(value) in types
    if kind == "object" and words <= {"additionalProperties", "properties", "required"}:
        return _object(schema, depth)
    if kind == "array" and words == {"items"}:
        item = _acceptor(schema["items"], depth + 1)
        return None if item is None else lambda value: type(value) is list and all(map(item, value))
    if kind == "string" and words == {"enum"} and isinstance(schema["enum"], list):
        choices = frozenset(choice for choice in schema["enum"] if type(choice) is str)
        return lambda value: type(value) is str and value in choices
    if kind in ("integer", "number") and words <= {"maximum", "minimum"}:
        low, high = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
        if type(low) in (int, float) and type(high) in (int, float):
            return lambda value: type(value) in types and low <= value <= high
    return None


def _any_of(branches: Any, depth: int) -> Accept | None:
    if not isinstance(branches, list):
        return None
    accepting = [accept for accept in (_acceptor(branch, depth + 1) for branch in branches) if accept is not None]
    return (lambda value: any(accept(value) for accept in accepting)) if accepting else None


def _object(schema: dict[str, Any], depth: int) -> Accept | None:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    if not all(isinstance(name, str) for name in required):
        return None
    known = {name: accept for name, part in properties.items() if (accept := _acceptor(part, depth + 1)) is not None}

    def accept_object(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        for name, part in value.items():
            accept = known.get(name)
            if accept is None or not accept(part):
                return False
        return True

    return accept_object
