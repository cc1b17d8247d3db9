"""``mcp_worker.json``: how the command line finds the worker that runs, and how a second worker is kept out.

Two things with one duty each. A lock, held as long as the worker lives, says that there is one; it cannot be left
behind. The file says where and with which token; it can be, and then its process is gone and it is ignored. Reading the
file imports next to nothing, because every command does it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import Any

from attrs import field, frozen

from .. import paths
from ..errors import AlreadyRunning

__all__ = ["WorkerInfo", "find_worker", "hold_worker_lock", "publish_worker"]

_FORMAT = 1
_WAIT_FOR_FILE_SECONDS = 2.0


@frozen(kw_only=True)
class WorkerInfo:
    """A running worker. ``started_at`` is RFC 3339 in UTC; ``instance`` tells two runs apart."""

    pid: int
    started_at: str
    url: str
    token: str = field(repr=False)
    instance: str

    @classmethod
    def of_this_process(cls, *, url: str, token: str) -> WorkerInfo:
        """This process as a worker that has just begun to listen."""
        started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return cls(pid=os.getpid(), started_at=started, url=url, token=token, instance=token_hex(8))

    def to_dict(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "version": _FORMAT,
            "pid": self.pid,
            "started_at": self.started_at,
            "url": self.url,
            "token": self.token,
            "instance": self.instance,
        }


def find_worker() -> WorkerInfo | None:
    """The worker of the state directory, or ``None`` when there is none whose process lives."""
    info = _read(paths.worker_path())
    return info if info is not None and _lives(info.pid) else None


@contextmanager
def hold_worker_lock() -> Iterator[None]:
    """Be the one worker of the state directory for the time of the block.

    Raises:
        AlreadyRunning: Another worker is; the message names its process.
        StorageError: The state directory cannot be used.
    """
    from filelock import FileLock, Timeout

    from ..errors import StorageError

    path = paths.get_state_dir() / "mcp_worker.lock"
    # Not thread-local: it is taken and given back in whichever thread the host uses.
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False)
    try:
        paths.ensure_state_dir()
        lock.acquire()
    except Timeout:
        raise _already_running() from None
    except OSError as error:
        raise StorageError(
            f"Cannot lock {path}: {error.strerror}", remedy="Check who owns the state directory"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def publish_worker(info: WorkerInfo) -> Iterator[None]:
    """Have ``mcp_worker.json`` in the state directory for the time of the block."""
    from ..storage import PrivateFile

    path = paths.worker_path()
    PrivateFile(path).write(json.dumps(info.to_dict(), indent=1).encode() + b"\n")
    try:
        yield
    finally:
        # One that somebody else wrote in the meantime is theirs.
        found = _read(path)
        if found is not None and found.instance == info.instance:
            PrivateFile(path).remove()


def _already_running() -> AlreadyRunning:
    # The other one may be between taking the lock and writing the file.
    deadline = monotonic() + _WAIT_FOR_FILE_SECONDS
    while (info := find_worker()) is None and monotonic() < deadline:
        sleep(0.05)
    who = f"process {info.pid}, at {info.url}," if info is not None else "one that is just starting"
    return AlreadyRunning(
        f"Another worker ({who.rstrip(',')}) already uses {paths.get_state_dir()}",
        remedy="Stop it, use another --state-dir, or run beside it with --secondary",
    )


def _read(path: Path) -> WorkerInfo | None:
    try:
        data = json.loads(path.read_bytes())
        if data["version"] != _FORMAT:
            return None
        info = WorkerInfo(
            pid=data["pid"],
            started_at=data["started_at"],
            url=data["url"],
            token=data["token"],
            instance=data["instance"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        # Missing, or not ours: then there is no worker to be found.
        return None
    good = isinstance(info.pid, int) and info.pid > 0 and isinstance(info.url, str) and isinstance(info.token, str)
    return info if good else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
