"""Signals as the command line takes them: which ones end a command, and how one that did is told."""

from __future__ import annotations

import signal

__all__ = ["Interrupted", "obeyed_signals"]


class Interrupted(Exception):
    """A signal ended the command, as somebody asked; everything is put away."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def obeyed_signals() -> list[signal.Signals]:
    """The signals that end a command. One that was started under ``nohup`` outlives its terminal."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers
