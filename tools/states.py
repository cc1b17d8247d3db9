"""Draw the states of a server into docs/reference/states.md, from the table that the client obeys.

.venv/bin/python tools/states.py
"""

from __future__ import annotations

import re
from pathlib import Path

from openprogram_mcp.status import TRANSITIONS, ServerState

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "states.md"
_DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n.*?```", re.DOTALL)


def diagram() -> str:
    """The table as a Mermaid diagram, in the order in which the states are defined."""
    moves = [
        f"    {old} --> {new}\n"
        for old in ServerState
        for new in ServerState
        if new in TRANSITIONS.get(old, frozenset())
    ]
    return f"```mermaid\nstateDiagram-v2\n{''.join(moves)}```"


def main() -> None:
    """Write the page anew, with the diagram as it is now."""
    text = PAGE.read_text(encoding="utf-8")
    drawn, found = _DIAGRAM.subn(lambda _match: diagram(), text)
    if found != 1:
        raise SystemExit(f"{PAGE} has {found} diagrams of the states instead of one")
    PAGE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
