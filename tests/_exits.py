"""The exit matrix: hosts as real processes, servers of every manner, and an independent count of what is left.

What is left is counted by a variable that only the configuration of these servers sets, which their descendants
inherit, and by the process numbers that the servers have noted themselves; never by what the hosts say.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from attrs import define, field

from openprogram_mcp.testing import FakeServer, do
from tests import servers
from tests._worker_process import until, write_servers

__all__ = ["KINDS", "Cell", "Host", "cell", "npx_entry"]

_TOKEN = "EXIT_MATRIX"
_ROOT = Path(__file__).parents[1]
_STOP_SECONDS = 0.3


def _fake() -> FakeServer:
    return FakeServer(era="legacy").tool("echo")


def _stubborn() -> FakeServer:
    """Ignores EOF, and lives on when its host is killed."""
    fake = _fake().on_eof()
    fake.ignore_broken_pipe = True
    return fake


def _loud(fake: FakeServer) -> FakeServer:
    """Writes more to its standard error than the pipe holds, again and again."""
    return fake.on_start(do.beside(do.repeat(do.stderr("x" * 262_144 + "\n"), do.sleep(0.2))))


@define
class Kind:
    """A manner of server: the fake that plays it, how it is started, and how many processes it is at least."""

    make: Callable[[], FakeServer]
    command: Callable[[FakeServer, Path], list[str]] = lambda fake, _folder: fake.command
    processes: int = 1
    survives: bool = True
    """Whether something of it is left when its host is killed hard."""


def _npx_like(fake: FakeServer, folder: Path) -> list[str]:
    fake.install(folder, "npx")
    return ["npx", "-y", "some-server"]


def npx_entry(fake: FakeServer) -> list[str]:
    """The command line with which the real npx (``npm exec``) starts a fake.

    Raises:
        ServersUnavailable: There is no Node.
    """
    return [*servers.node()[1], "exec", "-c", shlex.join(fake.command)]


KINDS: Mapping[str, Kind] = {
    "polite": Kind(_fake, survives=False),
    "ignores EOF": Kind(_stubborn),
    "ignores SIGTERM": Kind(lambda: _stubborn().on_signal("SIGTERM")),
    "sh -c": Kind(
        lambda: _stubborn().on_signal("SIGTERM"),
        lambda fake, _folder: ["sh", "-c", f"{shlex.join(fake.command)}; true"],
        processes=2,
    ),
    "npx-like": Kind(lambda: _stubborn().wrapped(), _npx_like, processes=2),
    "npx": Kind(_stubborn, lambda fake, _folder: npx_entry(fake), processes=2),
    "setsid": Kind(lambda: _fake().on_start(do.spawn(new_session=True, ignore=["SIGTERM"])), processes=2),
    "double fork": Kind(
        lambda: _fake().on_start(
            do.spawn(do.spawn(new_session=True, ignore=["SIGTERM", "SIGHUP"]), do.exit(0), new_session=True)
        ),
        processes=2,
    ),
    "full stderr": Kind(lambda: _loud(_stubborn())),
    # Its start never comes to an end.
    "starting": Kind(lambda: _stubborn().on("initialize").on("server/discover")),
}


@define
class Host:
    """A running host."""

    process: subprocess.Popen[bytes]
    log_path: Path
    terminal: int | None = None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()

    def press_ctrl_c(self) -> None:
        assert self.terminal is not None
        os.write(self.terminal, b"\x03")

    def end(self, seconds: float = 30) -> int:
        """Wait for its end; its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the host does not end; it said:\n{self.log[-3000:]}") from None


@define
class Cell:
    """Servers of some kinds, and hosts for them, one after the other, in one state directory."""

    folder: Path
    kinds: tuple[str, ...]
    token: str = field(factory=lambda: uuid4().hex)
    fakes: dict[str, FakeServer] = field(factory=dict)
    entries: dict[str, Any] = field(factory=dict)
    _hosts: int = 0

    def __attrs_post_init__(self) -> None:
        self.folder.mkdir()
        path = f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        for name in self.kinds:
            fake = self.fakes[name] = KINDS[name].make()
            self.entries[name] = {
                "command": KINDS[name].command(fake, self.folder),
                "env": {_TOKEN: self.token, "PATH": path},
                "stop_timeout_seconds": _STOP_SECONDS,
            }
        write_servers(self.state_dir, self.entries)

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    def alive(self) -> list[int]:
        """The processes of these servers: by the variable that they inherit, and by what they have noted."""
        found = {pid for fake in self.fakes.values() for pid in fake.alive()}
        wanted = f"{_TOKEN}={self.token}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:
                continue
        return sorted(found)

    def described(self) -> str:
        """What is alive, for a test that fails."""
        lines = []
        for pid in self.alive():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            lines.append(f"{pid}: {[name for name, fake in self.fakes.items() if pid in fake.pids()]} {line}")
        return "\n".join(lines)

    def all_born(self) -> bool:
        """Whether every server has all its processes."""
        needed = sum(KINDS[name].processes for name in self.kinds)
        return all(fake.starts for fake in self.fakes.values()) and len(self.alive()) >= needed

    def assert_nothing_left(self, when: str) -> None:
        assert not self.alive(), f"left {when}:\n{self.described()}"

    @contextmanager
    def host(self, kind: str, *options: str, in_terminal: bool = False, wait: str | None = "up") -> Iterator[Host]:
        """A host of these servers.

        Args:
            kind: ``script`` or ``worker``.
            options: More arguments of it.
            in_terminal: Whether it is the foreground process of a terminal.
            wait: ``up``: all servers have had their verdict; ``born``: all have been started; ``None``: not at all.
        """
        self._hosts += 1
        log_path = self.folder / f"host-{self._hosts}.log"
        entries = self.folder / "entries.json"
        entries.write_text(json.dumps(self.entries))
        argv = [sys.executable, "-m", "tests._exit_host", kind, *([] if kind == "worker" else [str(entries)]), *options]
        env = {**os.environ, "OPENPROGRAM_MCP_STATE_DIR": str(self.state_dir)}
        terminal: int | None = None
        with log_path.open("wb") as log:
            if in_terminal:
                terminal, slave = pty.openpty()
                # Its own session, whose terminal is the first one that it opens; that is in our hands through a shell.
                argv = ["setsid", "--ctty", *argv]
                process = subprocess.Popen(argv, stdin=slave, stdout=log, stderr=log, env=env, cwd=_ROOT)
                os.close(slave)
            else:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=env,
                    cwd=_ROOT,
                    start_new_session=True,
                )
        host = Host(process, log_path, terminal)
        try:
            if wait is not None:
                self._wait_until_ready(host, "all servers have been started" if kind == "worker" else "up\n", wait)
            yield host
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
            if terminal is not None:
                os.close(terminal)

    def _wait_until_ready(self, host: Host, said: str, wait: str) -> None:
        def ready() -> bool:
            return host.process.poll() is not None or (self.all_born() and (wait == "born" or said in host.log))

        until(ready, f"a host that is ready, with {self.kinds}")
        assert host.process.poll() is None, host.log

    def clear(self) -> None:
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@contextmanager
def cell(folder: Path, kinds: tuple[str, ...]) -> Iterator[Cell]:
    """Servers for the time of the block; nothing of them survives it, whatever the test has found."""
    made = Cell(folder / f"cell-{time.monotonic_ns()}", kinds)
    try:
        yield made
    finally:
        made.clear()
