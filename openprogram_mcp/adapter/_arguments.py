"""The check of arguments against a tool's own schema, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArguments

__all__ = ["check_arguments"]


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise InvalidArguments, with the path of the fault, for arguments that do not fit the schema."""
    for name in schema.get("required", ()):
        if name not in arguments:
            raise InvalidArguments(f"{name}: this argument is missing", path=name)
