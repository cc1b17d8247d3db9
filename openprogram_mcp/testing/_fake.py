"""The fake server as its user sees it: what it says about itself, its script, how it is started, what it noted."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import signal as signals
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import trio
from attrs import define, field

from ._memory import MemoryServer, start_memory
from ._records import Call, Record, calls_of, is_alive, most_at_once
from .do import Step

if TYPE_CHECKING:
    from ..config import MCPServerConfig

__all__ = ["FakeServer"]

Era = Literal["both", "legacy", "modern"]

_LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_MODERN = ("2026-07-28",)
_VERSIONS: Mapping[str, tuple[str, ...]] = {"both": _LEGACY + _MODERN, "legacy": _LEGACY, "modern": _MODERN}
_CHILD = Path(__file__).with_name("_child.py")
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


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
class FakeServer:
    """A scripted MCP server that plays any exchange and any misbehaviour, as a real subprocess or in memory.

    Without a script it is a well-behaved server. Tools, resources and prompts are added by methods that return the
    server itself, and so are scripts for what is to go differently::

        fake = FakeServer().tool("add", do.reply("3")).on("tools/list", do.sleep(5), do.standard())
        config = fake.config()                   # {"command": [...]}: it starts in about 20 ms
        assert [call.tool for call in fake.calls()] == ["add"]

    The server may be changed at any time; a process that starts later plays what was last said.

    Args:
        name: Its name, as it introduces itself.
        version: Its version, as it introduces itself.
        era: ``legacy`` is initialised (2025-11-25 and older) and refuses ``server/discover`` with -32601; ``modern`` is
            discovered (2026-07-28) and refuses ``initialize`` with -32022; ``both`` does as it is asked.
        versions: The protocol versions that it speaks, in place of the era's own.
        capabilities: Its capabilities, in place of those that its tools, resources and prompts imply.
        instructions: Its instructions.
        page_size: Tools on one page of ``tools/list``; all of them where ``None``.
        shuffled: List the tools in another order each time.
        single_threaded: Handle one request at a time, and read nothing meanwhile.
        ignore_broken_pipe: Live on when nobody reads its stdout any more.
        folder: Where the script and the record are kept; a folder that is removed at exit where ``None``.
        recording: Whether it notes what happens to it.
    """

    name: str = "fake"
    version: str = "1.0.0"
    era: Era = "both"
    versions: Sequence[str] | None = None
    capabilities: Mapping[str, Any] | None = None
    instructions: str | None = None
    page_size: int | None = None
    shuffled: bool = False
    single_threaded: bool = False
    ignore_broken_pipe: bool = False
    folder: Path = field(factory=_Scratch.new, converter=Path)
    recording: bool = True
    info: Mapping[str, Any] = field(factory=dict)
    """More keys of its ``serverInfo``; placeholders such as ``$cwd`` become facts of its process."""

    _tools: dict[str, dict[str, Any]] = field(init=False, factory=dict)
    _resources: list[dict[str, Any]] = field(init=False, factory=list)
    _prompts: list[dict[str, Any]] = field(init=False, factory=list)
    _hooks: dict[str, list[dict[str, Any]]] = field(init=False, factory=dict)
    _wrapper: dict[str, Any] | None = field(init=False, default=None)
    _in_memory: list[Record] = field(init=False, factory=list)
    _noted: trio.Event = field(init=False, factory=trio.Event)
    _from_file: list[Record] = field(init=False, factory=list)
    _offset: int = field(init=False, default=0)
    _saved: bool = field(init=False, default=False)

    # What it offers.

    def tool(
        self,
        name: str,
        *steps: Step,
        description: str | None = None,
        input_schema: Any = _ANY_OBJECT,
        output_schema: Any = None,
        annotations: Mapping[str, Any] | None = None,
        read_only: bool | None = None,
        hidden: bool = False,
        **more: Any,
    ) -> Self:
        """Offer a tool, in place of one of the same name.

        Args:
            name: Its name.
            steps: What happens when it is called, and nothing else: steps that do not answer leave the call unanswered.
                Without steps it answers with its arguments.
            description: Its description.
            input_schema: Its ``inputSchema``, however wrong; left out where ``None``.
            output_schema: Its ``outputSchema``; left out where ``None``.
            annotations: Its annotations.
            read_only: Short for the annotation ``readOnlyHint``.
            hidden: Offer it only after :func:`do.show <openprogram_mcp.testing.do.show>`.
            more: Further keys of its entry in ``tools/list``.
        """
        listed: dict[str, Any] = {"name": name, "description": description, "inputSchema": input_schema}
        listed["outputSchema"] = output_schema
        hints = dict(annotations or {})
        if read_only is not None:
            hints["readOnlyHint"] = read_only
        listed["annotations"] = hints or None
        listed = {key: value for key, value in listed.items() if value is not None} | more
        played = [step.to_json() for step in steps]
        self._tools[name] = {"name": name, "listed": listed, "steps": played, "hidden": hidden}
        return self._changed()

    def resource(self, uri: str, text: str, *, name: str | None = None, mime_type: str = "text/plain") -> Self:
        """Offer a text resource."""
        contents = [{"uri": uri, "mimeType": mime_type, "text": text}]
        self._resources.append({"uri": uri, "name": name or uri, "mimeType": mime_type, "contents": contents})
        return self._changed()

    def prompt(self, name: str, text: str, *, arguments: Sequence[str] = ()) -> Self:
        """Offer a prompt that is one text of the user's."""
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        named = [{"name": argument, "required": True} for argument in arguments]
        self._prompts.append({"name": name, "arguments": named, "messages": messages})
        return self._changed()

    # What it does differently.

    def on(self, method: str, *steps: Step) -> Self:
        """Play steps whenever a message of this method comes in, and nothing else: without steps it is ignored."""
        self._hooks[method] = [step.to_json() for step in steps]
        return self._changed()

    def on_start(self, *steps: Step) -> Self:
        """Play steps before the first byte is read."""
        return self.on("start", *steps)

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
        script: dict[str, Any] = {
            "info": {"name": self.name, "version": self.version, **self.info},
            "versions": list(self.versions if self.versions is not None else _VERSIONS[self.era]),
            "capabilities": None if self.capabilities is None else dict(self.capabilities),
            "instructions": self.instructions,
            "page_size": self.page_size,
            "shuffled": self.shuffled,
            "single_threaded": self.single_threaded,
            "ignore_broken_pipe": self.ignore_broken_pipe,
            "tools": list(self._tools.values()),
            "resources": self._resources,
            "prompts": self._prompts,
            "on": self._hooks,
            "wrapper": self._wrapper,
            "record": str(self._record_path) if self.recording else None,
        }
        return script

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

    def records(self, event: str | None = None, *, method: str | None = None) -> list[Record]:
        """What it noted, over all its processes, oldest first; of one event or method only, where given."""
        self._read_file()
        records = self._from_file + self._in_memory
        if event is not None:
            records = [record for record in records if record.event == event]
        if method is not None:
            records = [record for record in records if record.method == method]
        return records

    def received(self, method: str | None = None) -> list[Any]:
        """The messages that came in, of one method only where given."""
        return [record.message for record in self.records("received", method=method)]

    def calls(self, tool: str | None = None) -> list[Call]:
        """The tool calls that came in, when each began and ended, in the order in which they began."""
        calls = calls_of(self.records())
        return calls if tool is None else [call for call in calls if call.tool == tool]

    def most_at_once(self, tool: str | None = None) -> int:
        """How many tool calls it handled at the same time, at most."""
        return most_at_once(self.calls(tool))

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

    async def wait_for(
        self, event: str, *, method: str | None = None, count: int = 1, within: float = 10.0
    ) -> list[Record]:
        """Wait until something was noted so many times.

        Args:
            event: Which event.
            method: Of which method only.
            count: How many times.
            within: Seconds of Trio's clock to wait at most.

        Returns:
            All records of that kind.

        Raises:
            trio.TooSlowError: It did not happen in time.
        """
        with trio.fail_after(within):
            while True:
                found = self.records(event, method=method)
                if len(found) >= count:
                    return found
                if self._saved:
                    # A file tells nobody that it has grown: this is the one place that has to look again and again.
                    await trio.sleep(0.005)
                else:
                    await self._noted.wait()

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

    def _note(self, record: Record) -> None:
        self._in_memory.append(record)
        noted, self._noted = self._noted, trio.Event()
        noted.set()

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
