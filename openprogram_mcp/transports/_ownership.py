"""Whose a process is, by a mark in its environment that it hands on to all its descendants.

A process group loses those that leave it (``setsid``, a double fork, ``nohup``); the environment is inherited all the
same. So every server process is marked with the instance of this program that has started it and a number of its own,
and what carries the mark is found and ended with it: at the stop of the server, and, when the host was killed hard, by
the next one that starts. Which instances live is told by a lock that each holds on a file, not by process ids, which
are used again.

Only where the system shows the environment of processes (Linux); elsewhere the group is all there is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

import trio
from attrs import define, field

__all__ = ["MARK", "Instance", "end_marked", "marked", "marked_environment", "sweep"]

MARK: Final = "OPENPROGRAM_MCP_OWNER"
"""The variable: ``outer:instance.number``, the outer ones where a host runs as a server of another host."""

# One look that finds nothing proves nothing: a process that forks again may be between two places.
_EMPTY_LOOKS: Final = 3
_LOOK_PAUSE_SECONDS: Final = 0.005


@define(eq=False)
class Instance:
    """One run of this program, as the owner of processes. Its lock is held until :meth:`close`."""

    id: str
    _file: IO[bytes] | None = None
    _started: int = field(default=0, init=False)

    @classmethod
    def claim(cls, folder: Path | None) -> Instance:
        """A new instance.

        Args:
            folder: Where the locks of instances are, so that the next start can tell that this one is gone; ``None``
                for an instance of which nobody else is to know. Without leave to write there, it is the same.
        """
        identity = uuid4().hex
        if folder is None or sys.platform == "win32":
            return cls(identity)
        import fcntl

        # The last one to end removes the folder, perhaps just now.
        for _ in range(10):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = (folder / f"{identity}.lock").open("xb")
            except FileNotFoundError:
                continue
            except OSError:
                break  # a home that cannot be written to: what is left behind is left behind
            fcntl.flock(file, fcntl.LOCK_EX)
            return cls(identity, file)
        return cls(identity)

    def next_mark(self) -> str:
        """The mark of one more server process."""
        self._started += 1
        return f"{self.id}.{self._started}"

    def close(self) -> None:
        """Give the lock up. Closing twice is harmless."""
        if self._file is not None:
            with suppress(OSError):  # somebody has cleaned up before us, or others live
                Path(self._file.name).unlink()
                Path(self._file.name).parent.rmdir()
            self._file.close()
            self._file = None


def marked_environment(env: Mapping[str, str], mark: str, own: Mapping[str, str]) -> dict[str, str]:
    """An environment with a mark, behind the marks that we carry ourselves."""
    outer = own.get(MARK)
    return {**env, MARK: f"{outer}:{mark}" if outer else mark}


def marked(mark: str) -> list[int]:
    """The living processes that carry a mark, or any mark that begins with it where it ends with a dot."""
    wanted = mark.encode()
    return [] if sys.platform != "linux" else [pid for pid in _pids() if _carries(pid, wanted)]


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]  # noqa: PTH208 - names


def _carries(pid: int, mark: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has ended, or it is somebody else's
    start = environment.find(MARK.encode() + b"=")
    if start < 0 or (start and environment[start - 1] != 0):
        return False
    value = environment[start + len(MARK) + 1 :].partition(b"\0")[0]
    parts = value.split(b":")
    return any(part.startswith(mark) for part in parts) if mark.endswith(b".") else mark in parts


def _kill(pid: int, mark: bytes) -> None:
    """Kill a process that carries a mark, and no other that may have got its number meanwhile."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # From here on the descriptor means one process for ever; that it is the right one is seen from its environment.
        if _carries(pid, mark):
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def _look_and_kill(mark: str) -> int:
    found = marked(mark)
    for pid in found:
        _kill(pid, mark.encode())
    return len(found)


async def end_marked(mark: str, *, seconds: float) -> int:
    """End every process that carries a mark, until several looks in a row find none.

    Args:
        mark: The mark of one server process; or an instance's id with a dot behind it, for all that it has started.
        seconds: How long to try.

    Returns:
        How many were seen at the last look: 0 unless some cannot be ended.
    """
    if sys.platform != "linux":
        return 0
    seen, empty = 0, 0
    with trio.move_on_after(seconds):
        while empty < _EMPTY_LOOKS:
            seen = await trio.to_thread.run_sync(_look_and_kill, mark, limiter=trio.CapacityLimiter(1))
            empty = 0 if seen else empty + 1
            if seen:
                await trio.sleep(_LOOK_PAUSE_SECONDS)
    return seen


async def sweep(folder: Path, *, seconds: float = 5.0) -> list[str]:
    """End what dead instances have left behind.

    Args:
        folder: Where the locks of instances are.
        seconds: How long to try for each.

    Returns:
        The instances that were found dead.
    """
    swept = []
    for path, file in await trio.to_thread.run_sync(_take_dead, folder):
        with file:
            if not await end_marked(f"{path.stem}.", seconds=seconds):
                path.unlink(missing_ok=True)
                swept.append(path.stem)
    return swept


def _take_dead(folder: Path) -> list[tuple[Path, IO[bytes]]]:
    """The locks that nobody holds, held by us now, so that two who sweep at once do not do it twice."""
    if sys.platform == "win32" or not folder.is_dir():
        return []
    import fcntl

    taken: list[tuple[Path, IO[bytes]]] = []
    for path in sorted(folder.glob("*.lock")):
        try:
            file = path.open("rb")
        except OSError:
            continue  # its owner has just closed it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()  # it lives
        else:
            taken.append((path, file))
    return taken
