"""A worker as a process of its own, and commands that talk to it, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

__all__ = ["Command", "WorkerProcess", "command", "until", "worker", "write_servers"]

_SECONDS = 30.0


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait for something that another process does, and give its value."""
    deadline = time.monotonic() + _SECONDS
    while not (value := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"this did not happen: {what}")
        time.sleep(0.01)
    return value


def write_servers(state_dir: Path, servers: Mapping[str, Any], **settings: Any) -> None:
    """Write the configuration."""
    state_dir.mkdir(mode=0o700, exist_ok=True)
    path = state_dir / "mcp_servers.json"
    path.write_text(json.dumps({"servers": dict(servers), **settings}))
    path.chmod(0o600)


@define
class Command:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(*argv: str, stdin: str = "", cwd: Path | None = None) -> Command:
    """Run a command to its end."""
    ran = subprocess.run(
        [sys.executable, "-m", "openprogram_mcp", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )
    return Command(ran.returncode, ran.stdout, ran.stderr)


@define
class WorkerProcess:
    """A running worker."""

    process: subprocess.Popen[bytes]
    state_dir: Path
    log_path: Path
    children: set[int] = field(factory=set)

    @property
    def file(self) -> Path:
        return self.state_dir / "mcp_worker.json"

    @property
    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def wait_ready(self) -> None:
        """Wait until every server has had its verdict, and requests are answered."""
        said = ("all servers have been started", "serves at")
        until(lambda: all(text in self.log for text in said) or self.process.poll() is not None, "a ready worker")
        self.note_children()

    def note_children(self) -> None:
        """Remember who must be gone at the end."""
        self.children |= descendants(self.process.pid)

    def end(self, *signals: int) -> int:
        """Send signals, wait for the end, and give the exit code."""
        self.note_children()
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(_SECONDS)

    def left(self) -> set[int]:
        """The children that still live."""
        return {pid for pid in self.children if _lives(pid)}


@contextmanager
def worker(state_dir: Path, *options: str, ready: bool = True) -> Iterator[WorkerProcess]:
    """A worker for the time of the block; killed at its end where it still runs."""
    log_path = state_dir.with_name(f"worker-{time.monotonic_ns()}.log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "openprogram_mcp", "worker", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = WorkerProcess(process, state_dir, log_path)
    try:
        if ready:
            running.wait_ready()
        yield running
    finally:
        running.note_children()
        if process.poll() is None:
            process.kill()
            process.wait()
        for pid in running.left():
            os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
