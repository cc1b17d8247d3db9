"""Placeholders in scripted values: ``"$args.city"`` becomes the argument, ``"id ${id}"`` a text with it in.

A text that is exactly ``$name`` or ``$name.path`` becomes the value itself, whatever its type; ``${name.path}`` inside
a text becomes its text. What is not known stays as it is written.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False  # importing typing would cost a fifth of the start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WHOLE = re.compile(r"\$([A-Za-z_]\w*(?:\.[\w-]+)*)")
_WITHIN = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[\w-]+)*)\}")
_MISSING = object()


def dumps(value: Any) -> str:
    """One line of JSON, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _look_up(path: str, names: Mapping[str, Any]) -> Any:
    value: Any = names
    for part in path.split("."):
        if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return _MISSING
    return value


def fill(value: Any, names: Mapping[str, Any]) -> Any:
    """A copy of a scripted JSON value with its placeholders filled in."""
    if isinstance(value, str):
        if "$" not in value:
            return value
        whole = _WHOLE.fullmatch(value)
        if whole:
            found = _look_up(whole[1], names)
            return value if found is _MISSING else found
        return _WITHIN.sub(lambda match: _as_text(match, names), value)
    if isinstance(value, list):
        return [fill(item, names) for item in value]
    if isinstance(value, dict):
        return {fill(key, names): fill(item, names) for key, item in value.items()}
    return value


def _as_text(match: re.Match[str], names: Mapping[str, Any]) -> str:
    found = _look_up(match[1], names)
    if found is _MISSING:
        return match[0]
    return found if isinstance(found, str) else dumps(found)


def fill_bytes(data: bytes, names: Mapping[str, Any]) -> bytes:
    """Bytes with ``$id`` and ``$token`` replaced by the JSON of the request's id and progress token."""
    for name in ("id", "token"):
        mark = b"$" + name.encode()
        if mark in data:
            data = data.replace(mark, dumps(names.get(name)).encode())
    return data
