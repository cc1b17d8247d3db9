"""The tutorial, followed to its end: every command in it is typed, and prints what stands there.

Two terminals, as the tutorial has them: in the first runs the worker, in the second run the commands, one by one
and on a pseudo-terminal. ``…`` stands for anything, a line of it for any lines; times, the numbers of processes and
ports, and the reader's home are not compared. What the worker logs may come in another order.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from queue import Empty, Queue
from struct import pack
from termios import TIOCSWINSZ

import pytest

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial" / "first-steps.md"

_STEP = re.compile(
    r"^<!-- (first terminal|second terminal|file: \S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_WHAT_DIFFERS = (
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"process \d+", "process N"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\(\d+\.\d s\)", "(N s)"),
)
_DONE = "command-ended"
_SECONDS = 60

pytestmark = pytest.mark.real


def _normal(text: str) -> str:
    for pattern, name in _WHAT_DIFFERS:
        text = re.sub(pattern, name, text)
    lines = text.replace("\r\n", "\n").split("\n")
    # What stands before a carriage return was overwritten: progress, drawn and taken away again.
    return "\n".join(line.rpartition("\r")[2].rstrip() for line in lines).strip("\n")


def _pattern(expected: str) -> str:
    lines = _normal(expected).split("\n")
    return "".join(r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines)


def _matches(expected: str, printed: str) -> bool:
    return re.fullmatch(_pattern(expected), _normal(printed) + "\n") is not None


class Reader:
    """Somebody who follows the tutorial: a home, a clone of the project, two terminals.

    Args:
        home: An empty folder.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "openprogram_mcp"
        self._make_environment(self.project / ".venv")
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENPROGRAM")},
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
        }
        self.worker: subprocess.Popen[str] | None = None
        self._log: Queue[str] = Queue()

    def do(self, place: str, text: str) -> None:
        """Do one step, and compare."""
        if place.startswith("file: "):
            (self.project / place.removeprefix("file: ")).write_text(text)
        elif place == "second terminal":
            self._type(text)
        elif text.startswith("^C\n"):
            self._stop(text.removeprefix("^C\n"))
        else:
            self._start(text.removeprefix("$ make run\n"))

    def leave(self) -> None:
        """Close both terminals."""
        if self.worker is not None:
            self.worker.send_signal(signal.SIGINT)
            assert self.worker.wait(_SECONDS) == 0

    @staticmethod
    def _make_environment(folder: Path) -> None:
        """What ``make run`` would have made, out of the environment that the tests run in."""
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
        (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
        if (Path(sys.prefix) / "pyvenv.cfg").exists():
            shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
        program = folder / "bin" / "openprogram-mcp"
        program.write_text(f'#!/bin/sh\nexec {folder}/bin/python -m openprogram_mcp "$@"\n')
        program.chmod(0o755)

    def _as_written(self, text: str) -> str:
        return text.replace(str(self.home), "/home/you")

    def _start(self, expected: str) -> None:
        argv = [str(self.project / ".venv/bin/openprogram-mcp"), "worker", "--demo-if-empty"]
        self.worker = subprocess.Popen(
            argv, cwd=self.project, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, args=(self.worker,), daemon=True).start()
        self._await_lines(expected)

    def _stop(self, expected: str) -> None:
        assert self.worker is not None
        self.worker.send_signal(signal.SIGINT)
        self._await_lines(expected)
        assert self.worker.wait(_SECONDS) == 0
        self.worker = None

    def _read(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            self._log.put(self._as_written(line))

    def _await_lines(self, expected: str) -> None:
        missing = [line for line in expected.split("\n") if line.strip()]
        seen: list[str] = []
        while missing:
            try:
                line = self._log.get(timeout=_SECONDS)
            except Empty:
                pytest.fail("the worker did not say:\n" + "\n".join(missing) + "\nbut:\n" + "".join(seen))
            seen.append(line)
            missing = [wanted for wanted in missing if not _matches(wanted, line)]

    def _type(self, text: str) -> None:
        parts = re.split(r"^\$ ((?:.*)(?:\n> ?.*)*)\n?", text, flags=re.MULTILINE)[1:]
        typed = [re.sub(r"\n> ?", "\n", command) for command in parts[::2]]
        script = "".join(f"{command}\necho; echo {_DONE}\n" for command in typed)
        printed = self._as_written(self._run(script)).split(f"\n{_DONE}\n")
        for command, wanted, got in zip(typed, parts[1::2], printed, strict=False):
            assert _matches(wanted, got) or not (wanted.strip() or got.strip()), f"{command}\nprinted:\n{got}"
        assert len(printed) == len(typed) + 1

    def _run(self, script: str) -> str:
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, pack("HHHH", 40, 240, 0, 0))
        shell = subprocess.Popen(
            ["/bin/sh", "-c", script], cwd=self.project, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        printed = b""
        try:
            while more := os.read(ours, 65536):
                printed += more
        except OSError:  # the other end is closed: the shell has ended
            pass
        finally:
            os.close(ours)
        shell.wait(_SECONDS)
        return _ESCAPE.sub("", printed.decode()).replace("\r\n", "\n")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path / "you")
    yield reader
    reader.leave()


def test_the_tutorial_can_be_followed_to_its_end(reader: Reader) -> None:
    steps = _STEP.findall(TUTORIAL.read_text(encoding="utf-8"))
    assert len(steps) > 10
    for place, text in steps:
        reader.do(place, text)
