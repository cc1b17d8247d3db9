"""Copying a schema word by word, so that what comes out is valid by the metaschema of JSON Schema 2020-12.

Owns: what each word may hold; the older drafts' ways of saying the same; references, which all come to lead into one
``$defs``. What is malformed is left out, which allows more, never less.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from attrs import define, field

from ._json import clean_text, to_json
from ._refs import LIST_WORDS, REF_WORDS, Refs, Target, base_of

__all__ = ["Keywords"]

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_MAX_DEPTH: Final = 64
_MAX_PARTS: Final = 20_000
"""So many schemas inside one are copied, a few microseconds each: a hostile server costs a tenth of a second."""
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.-]")

_LEFT_OUT: Final = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$recursiveAnchor",
        "$schema",
        "$vocabulary",
        "additionalItems",
        "definitions",
        "dependencies",
        "id",
    }
)
"""Words that have done their work once references are resolved, or that are turned into newer ones."""

_SCHEMA_OR_BOOL: Final = frozenset({"additionalProperties", "unevaluatedItems", "unevaluatedProperties"})
_SCHEMAS: Final = frozenset({"contains", "contentSchema", "else", "if", "not", "propertyNames", "then"})
_MAPS: Final = frozenset({"dependentSchemas", "patternProperties", "properties"})


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


_CHECKS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(
        (
            "maxContains",
            "maxItems",
            "maxLength",
            "maxProperties",
            "minContains",
            "minItems",
            "minLength",
            "minProperties",
        ),
        _is_count,
    ),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(
        ("contentEncoding", "contentMediaType", "description", "format", "pattern", "title"),
        lambda value: isinstance(value, str),
    ),
    "examples": lambda value: isinstance(value, list),
}
"""What plain words may hold. A word that stands nowhere here is no word of JSON Schema, and is kept."""


@define
class Keywords:
    """Copies the parts of one schema.

    Args:
        refs: The references of the whole schema.
        root_is_whole: The copy's root says all that the schema's root says, so that a reference to it may stay.
    """

    refs: Refs
    root_is_whole: bool
    _warnings: dict[str, None] = field(factory=dict, init=False)
    _names: dict[int, str] = field(factory=dict, init=False)
    _taken: set[str] = field(factory=set, init=False)
    _targets: list[Target] = field(factory=list, init=False)
    _parts: int = field(default=0, init=False)

    @property
    def exhausted(self) -> bool:
        """Whether the schema is so large, or multiplies so much, that no more of it is copied."""
        return self._parts >= _MAX_PARTS

    @property
    def warnings(self) -> list[str]:
        """What was wrong with the schema, each said once."""
        return list(self._warnings)

    def warn_dangling(self, ref: Any) -> None:
        """Say that a reference leads nowhere."""
        self._warn(f"its schema refers to {to_json(ref)[:120]}, which is not in it: anything is allowed there")

    def definitions(self) -> dict[str, Any]:
        """What the references of the copy lead to. Called last: making one may bring others."""
        definitions: dict[str, Any] = {}
        for target in self._targets:  # grows while it is walked
            assert not isinstance(target.schema, bool)  # noqa: S101 - those are put in place by _reference
            definitions[self._names[id(target.schema)]] = self.convert(target.schema, target.base)
        return definitions

    def convert(self, schema: dict[str, Any], base: str, depth: int = 0) -> dict[str, Any]:
        """A copy of a schema.

        Args:
            schema: The schema.
            base: The address that its references are relative to, its own ``$id`` included.
            depth: How deep it stands; too deep a nest is cut off, since nobody reads it and recursion has an end.
        """
        self._parts += 1
        if depth > _MAX_DEPTH or self.exhausted:
            self._warn("its schema is too deep or too large for models: in parts of it, anything is allowed")
            return {}
        copy: dict[str, Any] = {}
        for word, value in schema.items():
            self._word(copy, word, value, base, depth + 1)
        self._older_drafts(copy, schema, base, depth + 1)
        kind = copy.get("type")
        if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in copy:
            copy["items"] = {}  # OpenAI: "array schema missing items"
        for word in REF_WORDS:
            if word in schema:
                self._reference(copy, schema[word], base, depth + 1)
        return copy

    def _word(self, copy: dict[str, Any], word: str, value: Any, base: str, depth: int) -> None:
        if word in _LEFT_OUT or word in REF_WORDS:
            return
        check = _CHECKS.get(word)
        if check is not None:
            if check(value):
                copy[word] = clean_text(value) if isinstance(value, str) else value
            elif not (word.startswith("exclusive") and isinstance(value, bool)):
                self._malformed(word, value)
        elif word == "type":
            self._type(copy, value)
        elif word in _SCHEMA_OR_BOOL and isinstance(value, bool):
            copy[word] = value
        elif word in _SCHEMAS or word in _SCHEMA_OR_BOOL or (word == "items" and not isinstance(value, list)):
            if isinstance(value, dict | bool):
                copy[word] = self._child(value, base, depth)
            else:
                self._malformed(word, value)
        elif word in LIST_WORDS or word == "items":
            self._list(copy, "prefixItems" if word == "items" else word, value, base, depth)
        elif word in _MAPS:
            self._map(copy, word, value, base, depth)
        elif word == "required":
            names = _names(value)
            if names:
                copy[word] = _merged(copy.get(word), names)
            elif not isinstance(value, bool) and value != []:
                self._malformed(word, value)
        elif word == "dependentRequired":
            if isinstance(value, dict):
                copy[word] = {name: _names(names) for name, names in value.items()}
        elif word == "enum":
            if isinstance(value, list) and value:
                copy[word] = _unique(value)
        else:
            copy[word] = value

    def _type(self, copy: dict[str, Any], value: Any) -> None:
        if isinstance(value, str) and value in _TYPES:
            copy["type"] = value
            return
        known = [kind for kind in value if isinstance(kind, str) and kind in _TYPES] if isinstance(value, list) else []
        if known and len(known) == len(value):
            copy["type"] = list(dict.fromkeys(known))
        else:
            self._malformed("type", value)

    def _list(self, copy: dict[str, Any], word: str, value: Any, base: str, depth: int) -> None:
        if isinstance(value, list) and all(isinstance(child, dict | bool) for child in value):
            if value:
                copy[word] = [self._child(child, base, depth) for child in value]
        else:
            self._malformed(word, value)

    def _map(self, copy: dict[str, Any], word: str, value: Any, base: str, depth: int) -> None:
        if not isinstance(value, dict):
            if value != []:  # an empty map, as PHP writes it
                self._malformed(word, value)
            value = {}
        children: dict[str, Any] = {}
        needed: list[str] = []
        for name, child in value.items():
            if isinstance(child, dict | bool):
                children[name] = self._child(child, base, depth)
                if word == "properties" and isinstance(child, dict) and child.get("required") is True:
                    needed.append(name)  # draft 3's way to say it, which is still a common mistake
            else:
                self._malformed(word, child)
                children[name] = {}
        copy[word] = children
        if needed:
            copy["required"] = _merged(copy.get("required"), needed)

    def _child(self, child: Any, base: str, depth: int) -> dict[str, Any]:
        # Some APIs take no true and false for schemas, so they are written out.
        if child is True:
            return {}
        if child is False:
            return {"not": {}}
        return self.convert(child, base_of(child, base), depth)

    def _older_drafts(self, copy: dict[str, Any], schema: dict[str, Any], base: str, depth: int) -> None:
        for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if schema.get(exclusive) is True and plain in copy:  # draft 4
                copy[exclusive] = copy.pop(plain)
        rest = schema.get("additionalItems")
        if isinstance(schema.get("items"), list) and isinstance(rest, dict | bool):  # up to 2019-09
            copy["items"] = self._child(rest, base, depth)
        dependencies = schema.get("dependencies")
        if isinstance(dependencies, dict):  # up to draft 7
            for name, needs in dependencies.items():
                if isinstance(needs, list):
                    copy.setdefault("dependentRequired", {}).setdefault(name, _names(needs))
                elif isinstance(needs, dict | bool):
                    copy.setdefault("dependentSchemas", {}).setdefault(name, self._child(needs, base, depth))

    def _reference(self, copy: dict[str, Any], ref: Any, base: str, depth: int) -> None:
        target = self._end_of(ref, base)
        if target is None:
            return
        if target.schema is self.refs.root and self.root_is_whole:
            link: dict[str, Any] = {"$ref": "#"}
        elif isinstance(target.schema, bool):
            link = self._child(target.schema, base, depth)
        else:
            link = {"$ref": f"#/$defs/{self._name(target)}"}
        for word, value in link.items():
            if word in copy:
                copy.setdefault("allOf", []).append(link)
                return
            copy[word] = value

    def _end_of(self, ref: Any, base: str) -> Target | None:
        """Where a chain of references ends, links without a word of their own left out."""
        seen: set[int] = set()
        while True:
            target = self.refs.resolve(ref, base)
            if target is None:
                self.warn_dangling(ref)
                return None
            schema = target.schema
            if not (isinstance(schema, dict) and len(schema) == 1 and "$ref" in schema):
                return target
            if id(schema) in seen:
                self._warn(f"its schema refers to {to_json(ref)[:120]} in a circle: anything is allowed there")
                return None
            seen.add(id(schema))
            ref, base = schema["$ref"], target.base

    def _name(self, target: Target) -> str:
        known = self._names.get(id(target.schema))
        if known is not None:
            return known
        plain = _UNSAFE_NAME.sub("_", target.name)[:60] or "_"
        name, number = plain, 1
        while name in self._taken:
            number += 1
            name = f"{plain}_{number}"
        self._taken.add(name)
        self._names[id(target.schema)] = name
        self._targets.append(target)
        return name

    def _malformed(self, word: str, value: Any) -> None:
        self._warn(f"its schema has a malformed {word}, {to_json(value)[:60]}, which is left out for models")

    def _warn(self, text: str) -> None:
        self._warnings[text] = None


def _names(value: Any) -> list[str]:
    return list(dict.fromkeys(name for name in value if isinstance(name, str))) if isinstance(value, list) else []


def _merged(first: list[str] | None, second: list[str]) -> list[str]:
    return list(dict.fromkeys([*(first or ()), *second]))


def _unique(values: list[Any]) -> list[Any]:
    """The values without repetition; 1 and true are two values in JSON."""
    return list({to_json(value): value for value in values}.values())
