"""The command line: ``openprogram-mcp``, or ``python -m openprogram_mcp``.

Each command turns its arguments into questions to a running worker, over HTTP, or, where none runs, into work for a
manager of its own that lives as long as the command. What a command needs is imported when it runs: help, and every
command that only talks to a worker, import neither Trio nor the MCP SDK.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ._signals import obeyed_signals

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments, without the program's name; ``None`` takes the process's own.

    Returns:
        The exit code: 0, 1 for a failure, 2 for wrong usage or arguments that do not fit, 128 and more for a signal.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    early: list[int] = []
    # A worker that is told to stop while it is still importing has to end cleanly too. So the first thing done is to
    # note such signals; the worker looks at the list once it can act on them.
    noted = _note_signals(early) if "worker" in arguments else None
    from ._main import run
    from ._parser import command_of

    if noted is not None and command_of(arguments) != "worker":
        # A server may be called so; then they end the command.
        _give_back(noted)
        noted = None
        if early:
            return 128 + early[0]

    try:
        return run(arguments, early)
    finally:
        if noted is not None:
            _give_back(noted)


def _note_signals(early: list[int]) -> dict[signal.Signals, Any] | None:
    def note(number: int, _frame: FrameType | None) -> None:
        early.append(number)

    try:
        return {number: signal.signal(number, note) for number in obeyed_signals()}
    except ValueError:
        # Not the main thread: the signals are somebody else's.
        return None


def _give_back(noted: dict[signal.Signals, Any]) -> None:
    for number, handler in noted.items():
        signal.signal(number, handler)
