"""A tool's arguments as they are typed: ``key=value``, ``key:=json``, ``--args JSON`` and ``--args -``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError

__all__ = ["read_arguments"]


def read_arguments(pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    """The arguments of a call.

    Args:
        pairs: ``key=value`` and ``key:=json``.
        whole: All of them as a JSON object, ``-`` for standard input, or ``None``.

    Raises:
        UsageError: One of them cannot be read, or is given twice.
    """
    arguments = {} if whole is None else _object(sys.stdin.read() if whole == "-" else whole)
    for pair in pairs:
        key, value = _pair(pair)
        if key in arguments:
            raise UsageError(f"The argument {key!r} is given twice", path=key)
        arguments[key] = value
    return arguments


def _pair(pair: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not equals or key in ("", ":"):
        raise UsageError(
            f"{pair!r} is no argument: expected key=value or key:=json", remedy="Or give all of them with --args JSON"
        )
    if not key.endswith(":"):
        return key, value
    key = key[:-1]
    try:
        return key, json.loads(value, parse_constant=_no_constant)
    except ValueError as error:
        raise UsageError(
            f"{key}: {value!r} is not JSON ({error})", remedy=f"For text write {key}={value}", path=key
        ) from None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise UsageError(f"--args is not JSON: {error}", path="--args") from None
    if not isinstance(value, dict):
        raise UsageError(f"--args: expected a JSON object, got {json.dumps(value)[:60]}", path="--args")
    return value


def _no_constant(name: str) -> Any:
    # Python reads NaN and Infinity, which are no JSON and which no server could be sent.
    raise ValueError(f"{name} is not JSON")
