"""``python -m bench``: every client on every row, in turns, as medians, ratios, JSON and a table."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .rows import ROWS, Row, quick, to_dict

_STDIO_SERVER = [sys.executable, str(Path(__file__).with_name("fast_server.py"))]
_HTTP_SERVER = [sys.executable, "-m", "bench.fast_http_server"]

CLIENTS: dict[str, list[str]] = {
    "openprogram_mcp": ["bench.client_ours"],
    "SDK, asyncio": ["bench.client_sdk", "asyncio"],
    "SDK, Trio": ["bench.client_sdk", "trio"],
}
_BASE = "SDK, asyncio"

Figures = dict[str, dict[str, list[dict[str, float]]]]
"""Row and client: what each run has measured."""


def _measure(client: list[str], row: Row) -> dict[str, float]:
    module, *rest = client
    with ExitStack() as stack:
        servers: list[Any] = [_STDIO_SERVER] * row.servers
        if row.transport == "http":
            servers = [stack.enter_context(_http_server()) for _ in range(row.servers)]
        command = [sys.executable, "-m", module, json.dumps(to_dict(row)), json.dumps(servers), *rest]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        raise SystemExit(f"{module} failed on {row.name!r}:\n{run.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(run.stdout.strip().splitlines()[-1])
    return figures


@contextmanager
def _http_server() -> Iterator[str]:
    """A server of its own, by its address; it ends with its standard input."""
    with subprocess.Popen(_HTTP_SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()


def _run(rows: list[Row], rounds: int) -> Figures:
    """Every client once a round, so that all of them see the same weather."""
    figures: Figures = {row.name: {client: [] for client in CLIENTS} for row in rows}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=len(rows) * rounds * len(CLIENTS))
        for number in range(rounds):
            for row in rows:
                # The order changes from round to round, so that none is always the first.
                clients = list(CLIENTS.items())
                for client, module in clients[number % len(clients) :] + clients[: number % len(clients)]:
                    progress.update(task, description=f"{row.transport}: {row.title}: {client}")
                    figures[row.name][client].append(_measure(module, row))
                    progress.advance(task)
    return figures


def _ratio(row: Row, figures: Figures, client: str) -> float:
    """The median of the ratios to the base, round by round."""
    pairs = zip(figures[row.name][client], figures[row.name][_BASE], strict=True)
    return median(ours[row.figure] / theirs[row.figure] for ours, theirs in pairs)


def _reached(row: Row, ratio: float) -> bool:
    return ratio >= row.reach if row.figure == "rate" else ratio <= row.reach


def _table(rows: list[Row], figures: Figures) -> Table:
    table = Table(title="calls; medians, and ratios to the SDK's client on asyncio")
    for heading in ("what", "figure", *CLIENTS, "ratio", "reach"):
        table.add_column(heading, justify="left" if heading in ("what", "figure") else "right")
    for row in rows:
        unit = "calls/s" if row.figure == "rate" else "median us"
        cells = [f"{median(run[row.figure] for run in figures[row.name][client]):,.0f}" for client in CLIENTS]
        ratio = _ratio(row, figures, "openprogram_mcp")
        mark = "reached" if _reached(row, ratio) else "missed"
        sign = "≥" if row.figure == "rate" else "≤"
        table.add_row(f"{row.transport}: {row.title}", unit, *cells, f"{ratio:.2f}", f"{sign} {row.reach:g} {mark}")
    return table


def _report(rows: list[Row], figures: Figures, rounds: int) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: version(name) for name in ("mcp", "trio", "msgspec", "anyio")},
        "rounds": rounds,
        "rows": [
            {
                **to_dict(row),
                "ratio": _ratio(row, figures, "openprogram_mcp"),
                "runs": figures[row.name],
            }
            for row in rows
        ],
    }


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sixth of the calls, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", choices=[row.name for row in ROWS], default=None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run's figures")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.rows or row.name in options.rows]
    rounds = options.rounds
    if options.quick:
        rows, rounds = [quick(row) for row in rows], 2
    figures = _run(rows, rounds)
    Console(width=max(110, Console().width)).print(_table(rows, figures))
    if options.json:
        options.json.write_text(json.dumps(_report(rows, figures, rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
