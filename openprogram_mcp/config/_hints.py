"""What in a configuration is allowed and yet looks like a mistake. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ._convert import json_fields

if TYPE_CHECKING:
    from ._server import MCPServerConfig

__all__ = ["hints"]


def hints(config: MCPServerConfig) -> Iterator[str]:
    """One sentence for each thing that looks like a mistake, beginning with the name of its field."""
    names = [one.name for one in json_fields(type(config))]
    for key in config.unknown:
        if "timeout" in key.lower():
            yield f"{key}: is not a field of this program; timeout_seconds and its like are, in seconds"
        elif close := difflib.get_close_matches(key, names, n=1, cutoff=0.8):
            yield f"{key}: is not a field of this program; is {close[0]} meant?"
    for name in names:
        value = getattr(config, name)
        if name.endswith("_seconds") and value is not None and value >= 1000 and value % 500 == 0:
            yield f"{name}: {value:g} seconds are {value / 3600:.1f} hours; the unit is the second, not the millisecond"
