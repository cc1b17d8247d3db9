"""One step of a script, as all kinds of them are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

__all__ = ["Step", "raw", "steps_of"]


@frozen
class Step:
    """One step of a script. Made by the functions of :mod:`~openprogram_mcp.testing.do`."""

    kind: str
    fields: Mapping[str, Any] = field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The step as the fake server's program reads it."""
        return {"do": self.kind, **self.fields}


def steps_of(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Steps as the fake server's program reads them."""
    return [step.to_json() for step in steps]


def raw(data: bytes | str) -> str:
    """Bytes as text with one character a byte: what JSON can carry."""
    return (data.encode() if isinstance(data, str) else data).decode("latin-1")
