"""A look at the processes of this machine: which of them carry a mark, and which descend from those that do.

A mark is in the environment that a process was started with, so that a child which was given another environment has
none; it is found as the descendant of one that has, while its parents live. Who has been seen once is known by process
id and time of start, which no two processes share. Reads ``/proc``; elsewhere than on Linux nothing is seen.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from attrs import field, frozen

__all__ = ["MARK", "Look", "Processes", "kill", "left_behind", "look", "marked"]

MARK: Final = "OPENPROGRAM_MCP_OWNER"
"""The variable: ``outer:instance.number``, the outer ones where a host runs as a server of another host."""

_CHUNK: Final = 65536

Processes: TypeAlias = dict[int, int]
"""Processes: the id, and the time of start in ticks of the system's clock."""


@frozen
class Look:
    """What was seen, by mark.

    Args:
        found: All processes.
        strays: Those of them that do not carry the mark themselves.
    """

    found: dict[str, Processes] = field(factory=dict)
    strays: dict[str, Processes] = field(factory=dict)


def look(wanted: str, strays: Mapping[str, Processes]) -> Look:
    """Look at all processes once. Takes some milliseconds: for a thread.

    Args:
        wanted: A mark; or an instance's id with a dot behind it, for all its marks.
        strays: Those without a mark that were seen before.
    """
    seen = Look()
    children: dict[int, list[int]] = {}
    starts: Processes = {}
    pids = _pids()
    # The marks first: an exec in between takes one away, and never gives one.
    marks = {pid: mark for pid in pids if (mark := _mark_of(pid, wanted.encode())) is not None}
    if not marks and not any(strays.values()):
        return seen
    for pid in pids:
        stat = _stat(pid)
        if stat is None:
            marks.pop(pid, None)
            continue
        # Once more, now that its start is known: else it might be another process, which has got the number meanwhile.
        if pid in marks and _mark_of(pid, wanted.encode()) != marks[pid]:
            del marks[pid]
        parent, starts[pid] = stat
        children.setdefault(parent, []).append(pid)
    for mark, known in strays.items():
        marks.update({pid: mark for pid, start in known.items() if starts.get(pid) == start and pid not in marks})
    carrying = {pid for pid, mark in marks.items() if pid not in strays.get(mark, ())}
    rest = list(marks)
    while rest:
        pid = rest.pop()
        mark = marks[pid]
        seen.found.setdefault(mark, {})[pid] = starts[pid]
        if pid not in carrying:
            seen.strays.setdefault(mark, {})[pid] = starts[pid]
        for child in children.get(pid, ()):
            if child not in marks:
                marks[child] = mark
                rest.append(child)
    return seen


def marked(mark: str) -> list[int]:
    """The living processes that carry a mark, or any mark that begins with it where it ends with a dot."""
    return [pid for pid in _pids() if _mark_of(pid, mark.encode()) is not None]


def left_behind(folder: Path) -> int:
    """How many processes there are of hosts that were killed hard.

    Args:
        folder: Where the locks of instances are.
    """
    if sys.platform != "linux" or not folder.is_dir():
        return 0
    import fcntl

    found: Processes = {}
    for path in folder.glob("*.lock"):
        try:
            with path.open("rb") as file:
                # Given back at once, since who cleans up takes it too.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            continue  # it lives, or has just ended
        for processes in look(f"{path.stem}.", {}).found.values():
            found.update(processes)
    return len(found)


def kill(pid: int, start: int) -> None:
    """Kill a process, and no other that may have got its number meanwhile."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # From here on the descriptor means one process for ever; that it is the right one is seen from its start.
        stat = _stat(pid)
        if stat is not None and stat[1] == start:
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def _pids() -> list[int]:
    if sys.platform != "linux":
        return []
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]  # noqa: PTH208 - names


def _mark_of(pid: int, wanted: bytes) -> str | None:
    environment = _read(f"/proc/{pid}/environ")
    start = environment.find(MARK.encode() + b"=")
    if start < 0 or (start and environment[start - 1] != 0):
        return None
    value = environment[start + len(MARK) + 1 :].partition(b"\0")[0]
    any_number = wanted.endswith(b".")
    for part in value.split(b":"):
        if part == wanted or (any_number and part.startswith(wanted)):
            return part.decode("utf-8", "replace")
    return None


def _stat(pid: int) -> tuple[int, int] | None:
    """Its parent and its time of start; ``None`` where it has ended, zombies too."""
    text = _read(f"/proc/{pid}/stat")
    if not text:
        return None
    # The name may hold blanks and brackets; the fields begin after the last bracket: state, parent, … start.
    fields = text[text.rfind(b")") + 2 :].split()
    return None if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))


def _read(path: str) -> bytes:
    """A file of ``/proc``, whole; empty where its process has ended, or is somebody else's.

    Through the system's own calls, which take a third of the time: this is done for every process of the machine.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        whole = chunk = os.read(fd, _CHUNK)
        while len(chunk) == _CHUNK:
            chunk = os.read(fd, _CHUNK)
            whole += chunk
    except OSError:
        return b""
    finally:
        os.close(fd)
    return whole
