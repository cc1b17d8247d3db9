"""What is printed: JSON, plain lines in a pipe, tables on a terminal; and what must not reach a terminal."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

__all__ = ["Output", "one_line", "printable"]

# Everything that moves a cursor, rings, or begins an escape sequence; line breaks and tabs stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text of somebody else's, made safe for a terminal: control characters are shown and do nothing."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str, limit: int = 400) -> str:
    """The same, in one line, and not endless."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class Output:
    """Where a command's results go.

    Args:
        json: Print JSON, errors included, on stdout.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        for stream in (sys.stdout, sys.stderr):
            # A tool's answer may hold what the terminal's encoding, or any, cannot. In JSON this gives \\udc80, which
            # is JSON's own way to write it.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        if json and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")

    @property
    def terminal(self) -> bool:
        """Whether tables and colours are wanted on stdout."""
        return not self.json and sys.stdout.isatty()

    @property
    def live(self) -> bool:
        """Whether progress may be drawn on stderr."""
        return not self.json and sys.stderr.isatty()

    def value(self, value: Any) -> None:
        """Print a JSON value, readable on a terminal and in one line in a pipe."""
        indent = 2 if sys.stdout.isatty() else None
        print(json.dumps(value, ensure_ascii=False, indent=indent))  # noqa: T201 - printing is what this class is for

    def line(self, value: Any) -> None:
        """Print a JSON value in one line, wherever it goes."""
        print(json.dumps(value, ensure_ascii=False))  # noqa: T201 - printing is what this class is for

    def text(self, text: str) -> None:
        """Print text of somebody else's: as it is in a pipe, harmless on a terminal."""
        self._write(sys.stdout, text)

    def error_text(self, text: str) -> None:
        """The same, on stderr."""
        self._write(sys.stderr, text)

    def row(self, *cells: object) -> None:
        """Print one plain line of cells, separated by tabs."""
        line = "\t".join("" if cell is None else one_line(str(cell)) for cell in cells)
        print(line.rstrip("\t"))  # noqa: T201 - printing is what this class is for

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table on a terminal; a cell is text or a pair of text and style."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
        for column in columns:
            table.add_column(column, header_style="bold", overflow="fold")
        for row in rows:
            cells = [cell if isinstance(cell, tuple) else (cell, "") for cell in row]
            table.add_row(*(Text("" if text is None else one_line(str(text)), style=style) for text, style in cells))
        self.rich(table)

    def rich(self, renderable: Any) -> None:
        """Print something of rich's."""
        from rich.console import Console

        Console(highlight=False, soft_wrap=False).print(renderable)

    def problem(self, problem: Mapping[str, Any]) -> None:
        """Tell an error: as JSON on stdout, or in one or two lines on stderr."""
        if self.json:
            self.value({"error": dict(problem)})
            return
        lines = [f"openprogram-mcp: {one_line(str(problem.get('detail')), 2000)}"]
        lines.extend(f"  {one_line(line)}" for line in list(problem.get("stderr") or [])[-5:])
        if problem.get("remedy"):
            lines.append(one_line(str(problem["remedy"]), 2000))
        print("\n".join(lines), file=sys.stderr)  # noqa: T201 - printing is what this class is for

    def flush(self) -> None:
        """Have everything written, so that a reader who left is noticed here and not at exit."""
        sys.stdout.flush()

    def _write(self, stream: TextIO, text: str) -> None:
        print(printable(text) if stream.isatty() else text, file=stream)
