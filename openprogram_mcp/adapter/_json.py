"""JSON texts, for values that came out of JSON. Owns the one way this package writes a value for a model to read."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["clean_text", "to_json", "written_json"]

_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> str:
    """The value as compact JSON, never failing on what a JSON decoder can have produced.

    What JSON does not have (an object of Python's, from a careless caller) is written as its ``str``.
    """
    return written_json(value)[0]


def written_json(value: Any) -> tuple[str, bool]:
    """The value as compact JSON, and whether that says exactly what the value says."""
    try:
        return _encode(value).decode(), True
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, RecursionError):
        # Lone surrogates are JSON, but not for msgspec.
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str, skipkeys=True)
        except (ValueError, RecursionError):
            return f'"{type(value).__name__} that cannot be written as JSON"', False
        return clean_text(text), False


def clean_text(text: str) -> str:
    """The text without lone surrogates, which JSON allows and UTF-8 does not: one would break every later request."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
