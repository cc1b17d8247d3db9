"""References inside one schema: where ``$ref`` leads, without ever leaving the schema.

Owns: JSON pointers, anchors and ``$id``s of one document (JSON Schema 2020-12, sections 8.2 and 9; the older
``id``-less drafts read the same way). Does not own: fetching. A reference to anything outside the document leads
nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urljoin

from attrs import define, field, frozen

__all__ = ["REF_WORDS", "Refs", "Target", "children"]

REF_WORDS: Final = ("$ref", "$dynamicRef", "$recursiveRef")

SCHEMA_WORDS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Words whose value is a schema."""

LIST_WORDS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Words whose value is a list of schemas; so is ``items``, in the older drafts."""

MAP_WORDS: Final = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
"""Words whose value is a map of schemas."""

_MAX_DEPTH: Final = 200


@frozen(eq=False)
class Target:
    """What a reference leads to: a schema, the address that its own references are relative to, and a name for it."""

    schema: dict[str, Any] | bool
    base: str
    name: str


@define
class Refs:
    """The references of one schema."""

    root: dict[str, Any]
    _base: str = field(init=False)
    _ids: dict[str, dict[str, Any]] | None = field(default=None, init=False)
    _anchors: dict[tuple[str, str], dict[str, Any]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._base = base_of(self.root, "")

    @property
    def base(self) -> str:
        """The address of the whole schema; empty where it has none."""
        return self._base

    def resolve(self, ref: Any, base: str) -> Target | None:
        """Follow one reference.

        Args:
            ref: What stands in ``$ref``.
            base: The address that the reference stands under.

        Returns:
            What it leads to, or ``None`` for a reference to nothing, or to something outside.
        """
        if not isinstance(ref, str):
            return None
        address, _, fragment = ref.partition("#")
        if address:
            base = joined(base, address)
            if self._ids is None:
                self._index()
        resource = self.root if base == self._base else self._by_id(base)
        if resource is None:
            return None
        fragment = unquote(fragment)
        if not fragment:
            return Target(resource, base, "Root")
        if fragment.startswith("/"):
            return _pointed(resource, base, fragment)
        if self._ids is None:
            self._index()
        anchored = self._anchors.get((base, fragment))
        return None if anchored is None else Target(anchored, base, fragment)

    def _by_id(self, address: str) -> dict[str, Any] | None:
        if self._ids is None:
            self._index()
        return (self._ids or {}).get(address)

    def _index(self) -> None:
        self._ids = {}
        todo: list[tuple[dict[str, Any], str, int]] = [(self.root, "", 0)]
        while todo:
            schema, base, depth = todo.pop()
            base = base_of(schema, base)
            if isinstance(schema.get("$id"), str) or schema is self.root:
                self._ids.setdefault(base, schema)
            for word in ("$anchor", "$dynamicAnchor"):
                anchor = schema.get(word)
                if isinstance(anchor, str):
                    self._anchors.setdefault((base, anchor), schema)
            if depth < _MAX_DEPTH:
                todo.extend((child, base, depth + 1) for child in children(schema))


def base_of(schema: dict[str, Any], base: str) -> str:
    """The address of a schema that stands under an address: its own ``$id``, if it has one."""
    own = schema.get("$id")
    return joined(base, own.removesuffix("#")) if isinstance(own, str) and not own.startswith("#") else base


def joined(base: str, address: str) -> str:
    """An address relative to another. What cannot be read as one stays as it is, and so leads nowhere."""
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def children(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas right under a schema, those that are objects."""
    for word, value in schema.items():
        if isinstance(value, dict):
            if word in SCHEMA_WORDS:
                yield value
            elif word in MAP_WORDS:
                yield from (child for child in value.values() if isinstance(child, dict))
        elif isinstance(value, list) and (word in LIST_WORDS or word == "items"):
            yield from (child for child in value if isinstance(child, dict))


def _pointed(resource: Any, base: str, pointer: str) -> Target | None:
    place = resource
    name = ""
    for part in pointer[1:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            if name not in place:
                return None
            place = place[name]
        elif isinstance(place, list):
            if not (name.isascii() and name.isdigit()) or len(name) > 9 or int(name) >= len(place):
                return None
            place = place[int(name)]
        else:
            return None
        if isinstance(place, dict):
            base = base_of(place, base)
    return Target(place, base, name) if isinstance(place, dict | bool) else None
