"""Runs a command so that Ctrl-C reaches it alone: ``foreground.py COMMAND ARGS…``; the exit status is the command's.

For ``make run``. On Ctrl-C the terminal signals the whole foreground group, and make, which belongs to it, ends as
interrupted (status 130) even when the program it ran has ended cleanly with 0. Here the command is given a group of its
own, in the terminal's foreground, and make keeps its peace. Without a terminal the command takes this process's place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def has_terminal() -> bool:
    """Whether standard input is a terminal and this process's group is in its foreground."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def main(argv: list[str]) -> int:
    """Run the command; return its exit status."""
    if not has_terminal():
        os.execv(argv[0], argv)  # noqa: S606 - the Makefile's own command
    early: list[int] = []
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: early.append(received))
    process = subprocess.Popen(argv, process_group=0)
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: process.send_signal(received))
    for received in early:
        process.send_signal(received)
    own_group = os.getpgrp()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else taking the terminal back would stop this process
    with contextlib.suppress(OSError):  # the command may have ended already
        os.tcsetpgrp(0, process.pid)
    try:
        status = process.wait()
    finally:
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.tcsetpgrp(0, own_group)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
