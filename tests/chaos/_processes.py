"""What there is of processes, tasks, descriptors and memory, seen from the system and not from the client.

Linux only, as ``/proc`` is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections import defaultdict
from pathlib import Path

import trio
from attrs import frozen

from openprogram_mcp.transports._census import MARK
from tests._strike import descriptors

__all__ = ["Size", "is_server", "marks_of", "send_signal", "tasks"]

_CLOSE_WAIT = "08"


@frozen
class Size:
    """How large we are at one moment."""

    tasks: int
    descriptors: int
    objects: int
    resident_bytes: int

    @classmethod
    def now(cls, apart: trio.Nursery | None = None, connections: int = 0) -> Size:
        """Measured after a collection.

        Args:
            apart: What runs in it does not count.
            connections: So many connections do not count: an end of ours, and two of whoever stands between. Nor do
                those in a pool whose other end has gone, which are put away when the next request is made: the end of
                a life shows that none are left.
        """
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            tasks(apart),
            descriptors() - 3 * connections - _half_closed(),
            len(gc.get_objects()),
            pages * os.sysconf("SC_PAGE_SIZE"),
        )


def _half_closed() -> int:
    """How many sockets of ours are TCP connections that the other end has closed or reset."""
    living = set()
    for name, place in (("tcp", 9), ("tcp6", 9), ("udp", 9), ("unix", 6)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if name == "unix" or words[3] != _CLOSE_WAIT:
                    living.add(f"socket:[{words[place]}]")
    links = map(_link, Path("/proc/self/fd").iterdir())
    return sum(link.startswith("socket:") and link not in living for link in links)


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def tasks(apart: trio.Nursery | None = None) -> int:
    """How many Trio tasks there are, but for those in a nursery."""
    root = trio.lowlevel.current_root_task()
    found, waiting = 0, [root] if root is not None else []
    while waiting:
        task = waiting.pop()
        found += 1
        waiting.extend(
            child for nursery in task.child_nurseries if nursery is not apart for child in nursery.child_tasks
        )
    return found


def marks_of(instance: str) -> dict[str, list[int]]:
    """The living processes that an instance has started, by the mark that they carry."""
    found: dict[str, list[int]] = defaultdict(list)
    own = os.getpid()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == own:
            continue
        with contextlib.suppress(OSError):  # it has just ended
            for variable in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = variable.decode(errors="replace").partition("=")
                if name == MARK and (mark := value.rpartition(":")[2]).startswith(f"{instance}."):
                    found[mark].append(pid)
    return dict(found)


def is_server(pid: int, name: str) -> bool:
    """Whether a process is our child and runs this server; one that has ended and was not reaped counts."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    state, parent = stat[stat.rfind(b")") + 2 :].split()[:2]
    if int(parent) != os.getpid():
        return False
    return state == b"Z" or not words or f"_server.py\0{name}\0".encode() in words.replace(b" ", b"\0")


def send_signal(pid: int, number: signal.Signals) -> int | None:
    """Signal a child of ours that was not reaped; its pidfd, which the caller closes, or ``None`` if it has gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        os.close(pidfd)
        return None
    return pidfd
