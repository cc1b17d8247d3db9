"""What a program that was forked onto a terminal of its own says there."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["said_until_its_end"]


def said_until_its_end(
    pid: int, terminal: int, heard: Callable[[bytes], None] = lambda _said: None
) -> tuple[int, bytes]:
    """Read a terminal until nobody is left on it; the exit code of the program, and all that was said.

    Args:
        pid: The program.
        terminal: Our end of the terminal; it is closed.
        heard: Told all that was said so far, whenever that is more.
    """
    said = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # how a terminal tells that nobody is left
            break
        if not data:
            break
        said += data
        heard(said)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said
