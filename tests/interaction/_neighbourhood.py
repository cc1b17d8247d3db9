"""The configuration of the tests with real servers: six that other people wrote, our demo, and three that do not work.

Everything that is started carries a mark in its environment, by which what is left behind would be found.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from tests import servers

GOOD = ("everything", "filesystem", "memory", "thinking", "time", "git", "demo")
BAD = ("missing", "dying", "hanging")

MARK = "OPENPROGRAM_MCP_TEST_MARK"

_DYING = "import sys; print('licence file not found', file=sys.stderr); sys.exit(3)"
_HANGING = "import sys, time; print('waiting for the database', file=sys.stderr, flush=True); time.sleep(600)"


class Call(NamedTuple):
    """A tool call with an answer that no other call has."""

    tool: str
    arguments: dict[str, Any]
    fits: Callable[[str], bool]
    """Whether a text is this call's answer."""


class Neighbourhood:
    """Ten servers, and what is to be asked of them.

    Args:
        folder: For the files that the servers work on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid4().hex
        self.files = folder / "files"
        self.files.mkdir()
        for number in range(10):
            (self.files / f"{number}.txt").write_text(f"content of file {number}\n")
        self.repository = folder / "repository"
        self.commits = list(_make_repository(self.repository))

    def servers(self, **hanging: Any) -> dict[str, dict[str, Any]]:
        """The configuration, by name; ``hanging`` is added to that of the server that never answers."""
        commands = {
            "everything": servers.argv("everything"),
            "filesystem": servers.argv("filesystem", self.files),
            "memory": servers.argv("memory"),
            "thinking": servers.argv("sequential-thinking"),
            "time": servers.argv("time"),
            "git": servers.argv("git"),
            "demo": [sys.executable, "-m", "openprogram_mcp.demo"],
            "missing": ["no-such-mcp-server"],
            "dying": [sys.executable, "-c", _DYING],
            "hanging": [sys.executable, "-c", _HANGING],
        }
        configured: dict[str, dict[str, Any]] = {}
        for name, command in commands.items():
            # What others do to this machine's two cores is not under test: no limit but the one that is asked for.
            configured[name] = {"command": command, "env": {MARK: self.mark}, "timeout_seconds": 300}
        configured["memory"]["env"]["MEMORY_FILE_PATH"] = str(self.folder / "memory.jsonl")
        for name in BAD:
            # That what failed is tried again has tests of its own; here the verdict is looked at when it stands.
            configured[name]["reconnect"] = False
        configured["hanging"].update(hanging)
        return configured

    def calls(self, count: int) -> list[Call]:
        """So many calls of all good servers by turns, each with an answer of its own."""
        kinds = (self._echo, self._read, self._remember, self._think, self._convert, self._show, self._add, self._sum)
        return [kinds[number % len(kinds)](number) for number in range(count)]

    def left_behind(self) -> list[str]:
        """The command lines of processes that still carry the mark."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes():
                        found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:  # it has ended meanwhile
                    pass
        return found

    @staticmethod
    def _echo(number: int) -> Call:
        return Call("everything__echo", {"message": f"word {number}"}, lambda text: text == f"Echo: word {number}")

    @staticmethod
    def _sum(number: int) -> Call:
        return Call("everything__get-sum", {"a": number, "b": 1000}, lambda text: f" is {number + 1000}." in text)

    def _read(self, number: int) -> Call:
        path = self.files / f"{number % 10}.txt"
        return Call("filesystem__read_text_file", {"path": str(path)}, lambda text: text == path.read_text())

    @staticmethod
    def _remember(number: int) -> Call:
        entity = {"name": f"entity {number}", "entityType": "number", "observations": [f"it is {number}"]}
        return Call("memory__create_entities", {"entities": [entity]}, lambda text: f'"entity {number}"' in text)

    @staticmethod
    def _think(number: int) -> Call:
        thought = {"thought": "…", "nextThoughtNeeded": True, "thoughtNumber": number + 1, "totalThoughts": 10_000}
        return Call("thinking__sequentialthinking", thought, lambda text: f'"thoughtNumber": {number + 1},' in text)

    @staticmethod
    def _convert(number: int) -> Call:
        moment = f"{number // 60:02}:{number % 60:02}"
        zones = {"source_timezone": "UTC", "target_timezone": "UTC"}
        return Call("time__convert_time", {**zones, "time": moment}, lambda text: text.count(f"T{moment}:00") == 2)

    def _show(self, number: int) -> Call:
        index = number % len(self.commits)
        arguments = {"repo_path": str(self.repository), "revision": self.commits[index]}
        return Call("git__git_show", arguments, lambda text: f"commit number {index}\n" in text)

    @staticmethod
    def _add(number: int) -> Call:
        return Call("demo__add", {"a": number, "b": 0.5}, lambda text: f"{number}.5" in text)


def _make_repository(path: Path) -> Iterator[str]:
    """A repository with a few commits; yields their ids."""

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
        argv = ["git", "-C", str(path), *identity, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    path.mkdir()
    git("init", "--quiet")
    for number in range(5):
        git("commit", "--quiet", "--allow-empty", "--message", f"commit number {number}")
        yield git("rev-parse", "HEAD")
