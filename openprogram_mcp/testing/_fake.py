"""The fake server as its user sees it where it is a process or in memory: how it is started, and what became of it."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import signal as signals
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import trio
from attrs import define, field

from ._memory import MemoryServer, start_memory
from ._records import Record, is_alive
from ._scripted import Scripted
from ._step import Step

if TYPE_CHECKING:
    from ..config import MCPServerConfig

__all__ = ["FakeServer"]

_CHILD = Path(__file__).with_name("_child.py")


class _Scratch:
    """One folder per process for what the fakes write, removed at exit."""

    root: Path | None = None
    count = 0

    @classmethod
    def new(cls) -> Path:
        """A folder that nobody has yet."""
        if cls.root is None:
            cls.root = Path(tempfile.mkdtemp(prefix="fake-mcp-"))
            atexit.register(_remove, cls.root, os.getpid())
        cls.count += 1
        folder = cls.root / str(cls.count)
        folder.mkdir()
        return folder


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork inherits the handler, not the folder
        shutil.rmtree(root, ignore_errors=True)


@define(kw_only=True, eq=False)
class FakeServer(Scripted):
    """A scripted MCP server that plays any exchange and any misbehaviour, as a real subprocess or in memory.

    Without a script it is a well-behaved server. Tools, resources and prompts are added by methods that return the
    server itself, and so are scripts for what is to go differently::

        fake = FakeServer().tool("add", do.reply("3")).on("tools/list", do.sleep(5), do.standard())
        config = fake.config()                   # {"command": [...]}: it starts in about 20 ms
        assert [call.tool for call in fake.calls()] == ["add"]

    The server may be changed at any time; a process that starts later plays what was last said.

    Args:
        name: Its name; this and what else :class:`FakeHttpServer` has too stands in the class that both extend.
        ignore_broken_pipe: Live on when nobody reads its stdout any more.
        folder: Where the script and the record are kept; a folder that is removed at exit where ``None``.
    """

    ignore_broken_pipe: bool = False
    folder: Path = field(factory=_Scratch.new, converter=Path)

    _wrapper: dict[str, Any] | None = field(init=False, default=None)
    _from_file: list[Record] = field(init=False, factory=list)
    _offset: int = field(init=False, default=0)
    _saved: bool = field(init=False, default=False)

    # What it does differently.

    def on_eof(self, *steps: Step) -> Self:
        """Play steps when stdin ends, in place of exiting with 0; without steps the server lives on."""
        return self.on("eof", *steps)

    def on_signal(self, name: str, *steps: Step) -> Self:
        """Play steps when a signal (``SIGTERM``) comes, in place of dying of it; without steps it is ignored."""
        getattr(signals, name)
        return self.on(name, *steps)

    def wrapped(self, *, new_session: bool = False) -> Self:
        """Start the server as ``npx`` and ``sh -c`` do: as a child, on the same streams, of a process that only waits.

        The wrapper leaves at SIGTERM and does not pass it on. With ``new_session`` the server leaves its process group
        too, as a container does. Subprocesses only.
        """
        self._wrapper = {"new_session": new_session}
        return self._changed()

    # How it is started.

    @property
    def script(self) -> dict[str, Any]:
        """The whole server as JSON, as its program reads it."""
        return {
            **super().script,
            "ignore_broken_pipe": self.ignore_broken_pipe,
            "wrapper": self._wrapper,
            "record": str(self._record_path) if self.recording else None,
        }

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""
        self._save()
        return [sys.executable, "-S", "-E", str(_CHILD), str(self._script_path)]

    def config(self, **more: Any) -> dict[str, Any]:
        """Its entry in ``mcp_servers.json``, and further fields of it."""
        return {"command": self.command, **more}

    def server_config(self, name: str = "fake", **more: Any) -> MCPServerConfig:
        """The same as an :class:`~openprogram_mcp.MCPServerConfig`."""
        from ..config import MCPServerConfig

        return MCPServerConfig.from_dict(name, self.config(**more))

    def install(self, folder: Path, name: str) -> Path:
        """Write a program of this name into a folder, for commands that are searched on the ``PATH``."""
        program = Path(folder) / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self.command)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    def start_memory(self, nursery: trio.Nursery) -> MemoryServer:
        """Start it in memory: no process, no thread, and time is Trio's, so that the autojump clock works.

        Args:
            nursery: Where it runs. Cancelling the nursery ends it.
        """
        script = json.loads(json.dumps(self.script))
        return start_memory(script, nursery, self._note if self.recording else None)

    def open_memory(self, nursery: trio.Nursery) -> tuple[trio.abc.SendStream, trio.abc.ReceiveStream]:
        """Start it in memory; the streams that are its stdin and stdout."""
        server = self.start_memory(nursery)
        return server.stdin, server.stdout

    # What happened to it.

    @property
    def starts(self) -> int:
        """How often it was started."""
        return sum(not record.facts.get("beside") for record in self.records("start"))

    @property
    def pid(self) -> int:
        """The pid of the server that started last; its own, where it has a wrapper."""
        return [record.pid for record in self.records("start") if not record.facts.get("beside")][-1]

    def pids(self) -> list[int]:
        """The pids of all processes that it ever was: servers, wrappers and what they started."""
        found: dict[int, None] = {}
        for record in self.records():
            found[record.pid] = None
            if record.event == "spawn":
                found[record.facts["spawned"]] = None
        return list(found)

    def alive(self) -> list[int]:
        """The pids of those that still run."""
        return [pid for pid in self.pids() if is_alive(pid, str(self._script_path))]

    def send_signal(self, name: str) -> None:
        """Send a signal to the server that started last."""
        os.kill(self.pid, getattr(signals, name))

    def kill_all(self) -> list[int]:
        """Kill whatever still runs; the pids of those. For the end of a test, which may assert that there were none."""
        left = self.alive()
        for pid in left:
            try:
                os.kill(pid, signals.SIGKILL)
            except ProcessLookupError:  # it ended just now
                continue
        return left

    @property
    def _script_path(self) -> Path:
        return self.folder / "script.json"

    @property
    def _record_path(self) -> Path:
        return self.folder / "record.jsonl"

    def _changed(self) -> Self:
        if self._saved:
            self._save()
        return self

    def _save(self) -> None:
        self._saved = True
        # In place of the old file, so that a process that starts now reads one or the other.
        new = self.folder / "script.json.new"
        new.write_text(json.dumps(self.script), encoding="utf-8")
        new.replace(self._script_path)

    def _all_records(self) -> list[Record]:
        self._read_file()
        return self._from_file + self._in_memory

    async def _next_record(self) -> None:
        if self._saved:
            # A file tells nobody that it has grown: this is the one place that has to look again and again.
            await trio.sleep(0.005)
        else:
            await super()._next_record()

    def _read_file(self) -> None:
        try:
            with self._record_path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n"):
            if line:
                self._from_file.append(Record.from_json(json.loads(line)))
