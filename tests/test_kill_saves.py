"""A command that is killed hard in the middle of its edit leaves the old file or the new one, valid and 0600.

Killed at the entry of every system call that has to do with the state directory, by strace. Where there is no strace,
or it may not trace, at every call of the functions of ``os`` that a save uses.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from attrs import frozen

from openprogram_mcp.config import load_document
from openprogram_mcp.storage import PrivateFile

from ._worker_process import write_servers

KILLED = -9

EDITS = {
    "edit": ["edit", "x"],
    "rm": ["rm", "x"],
    "disable": ["disable", "z"],
    "add": ["add", "new", "--disabled", "--", "z"],
}

CHANGING = {"openat", "fchown", "write", "fsync", "close", "rename", "flock", "mkdir", "unlink", "rmdir"}

STEPPED = """
import functools, os, signal, sys
left = int(sys.argv[1])
def killing(function):
    @functools.wraps(function)
    def counted(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return counted
from openprogram_mcp import storage
from openprogram_mcp.cli import main
import openprogram_mcp.manager
for name in ("open", "close", "fsync", "replace", "fchown", "unlink"):
    setattr(os, name, killing(getattr(os, name)))
sys.exit(main(sys.argv[2:]))
"""


@frozen
class Point:
    """A moment of a command: before the ``number``-th call of this name, in whichever thread makes as many."""

    call: str
    number: int
    about: str


@cache
def can_trace() -> bool:
    """Whether strace is there, and may trace."""
    if shutil.which("strace") is None:
        return False
    return run(["strace", "-f", "-o", os.devnull, "true"]) == 0


EDITOR = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text().replace('first', 'second'))"


def run(argv: Sequence[str]) -> int:
    """How a program ends; what it says is nobody's."""
    environment = {**os.environ, "VISUAL": shlex.join([sys.executable, "-c", EDITOR])}
    return subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
    ).returncode


def fresh(state_dir: Path) -> None:
    """The configuration before the edit, and nothing beside it."""
    shutil.rmtree(state_dir, ignore_errors=True)
    secret = {"command": ["first"], "env": {"KEY": "hunter2"}, "enabled": False, "description": "y"}
    write_servers(state_dir, {"x": secret, "z": {"command": ["z"]}})


def points_of(state_dir: Path, command: Sequence[str], log: Path) -> list[Point]:
    """Every system call of a command that names the state directory, or a file in it."""
    assert run(["strace", "-f", "-y", "--seccomp-bpf", "-o", str(log), "-e", "trace=%file,%desc", *command]) == 0
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(\d+) +(\w+)\((.*)", line)
        if match:
            thread, call, arguments = match.groups()
            seen[thread, call] += 1
            if str(state_dir) in arguments:
                found.append(Point(call, seen[thread, call], arguments.split(" <unfinished")[0][-80:]))
    return found


def kill_at(point: Point, command: Sequence[str]) -> int:
    """Run a command, and kill it there; 0 where it did not come by."""
    inject = f"inject={point.call}:signal=SIGKILL:when={point.number}"
    traced = f"trace={point.call}"
    return run(["strace", "-f", "-o", os.devnull, "-e", traced, "-e", inject, *command])


def killed_everywhere(state_dir: Path, words: Sequence[str], log: Path, *, every: bool) -> Iterator[tuple[str, int]]:
    """Run an edit again and again, each time killed at another moment; where, and how it ended."""
    if can_trace():
        command = [sys.executable, "-m", "openprogram_mcp", *words]
        points = points_of(state_dir, command, log)
        # The save itself, from its temporary file to the lock that is given back.
        first = next(number for number, point in enumerate(points) if ".tmp" in point.about)
        changing = [point for point in points[first:] if point.call in CHANGING]
        for point in points if every else changing:
            fresh(state_dir)
            yield f"{point.call} {point.number} {point.about}", kill_at(point, command)
    else:
        number, code = 0, KILLED
        while code == KILLED:
            number += 1
            fresh(state_dir)
            code = run([sys.executable, "-c", STEPPED, str(number), *words])
            yield f"step {number}", code


def check(words: Sequence[str], state_dir: Path, tmp_path: Path, *, every: bool) -> None:
    path = state_dir / "mcp_servers.json"
    fresh(state_dir)
    old = path.read_bytes()
    assert run([sys.executable, "-m", "openprogram_mcp", *words]) == 0
    new = path.read_bytes()
    assert old != new
    fresh(state_dir)
    ends: Counter[tuple[int, str]] = Counter()
    for where, code in killed_everywhere(state_dir, words, tmp_path / "trace", every=every):
        data = path.read_bytes()
        assert data in (old, new), where
        # One that was not killed has come by another way than the first time; then it is done.
        assert code in (0, KILLED, 128 + 9), where
        assert code != 0 or data == new, where
        ends[code and KILLED, "new" if data == new else "old"] += 1
        document = load_document(path)
        assert (document.error, document.broken) == (None, {}), where
        modes = {one: stat.S_IMODE(one.stat().st_mode) for one in state_dir.iterdir() if one.is_file()}
        assert set(modes.values()) == {0o600}, where
        # No lock is left, and what a dead writer left beside the file goes with the next save.
        with PrivateFile(path).locked(seconds=0):
            PrivateFile(path).write(data + b"\n")
        assert list(state_dir.glob(".*.tmp")) == [], where
    assert ends[KILLED, "old"] >= 4
    assert ends[KILLED, "new"] >= 1
    assert ends[0, "new"] <= sum(ends.values()) // 3


def test_conf_04_an_edit_killed_at_any_call_of_its_save_leaves_the_old_file_or_the_new(
    state_dir: Path, tmp_path: Path
) -> None:
    check(EDITS["edit"], state_dir, tmp_path, every=False)


@pytest.mark.long
@pytest.mark.parametrize("name", EDITS)
def test_conf_04_a_command_killed_at_any_call_about_the_state_directory_leaves_the_old_file_or_the_new(
    name: str, state_dir: Path, tmp_path: Path
) -> None:
    check(EDITS[name], state_dir, tmp_path, every=True)
