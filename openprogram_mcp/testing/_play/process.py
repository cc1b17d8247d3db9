"""The fake server as a process: stdin, stdout, stderr, signals and the clock of the operating system.

One thread, one ``select``. Writes block, as those of a simple server do: while nobody reads its stdout, it reads
nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from .player import Player
from .steps import Gone
from .values import dumps

TYPE_CHECKING = False  # importing typing would cost a fifth of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


class Process:
    """A :class:`~.player.World` made of file descriptors."""

    def __init__(self, script: dict[str, Any], path: str) -> None:
        self._path = path
        self._record: str | None = script.get("record")
        self.recording = self._record is not None
        self._ignores_broken_pipe: bool = script.get("ignore_broken_pipe", False)
        self._log = -1
        if self._record is not None:
            self._log = os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.closed: set[int] = set()
        self.blocked = False
        self.arrived: list[int] = []
        self.deliver: Callable[[int], None] = self.arrived.append

    def now(self) -> float:
        return time.monotonic()

    def facts(self) -> dict[str, Any]:
        try:
            cwd = os.getcwd()  # noqa: PTH109 - importing pathlib costs a third of the start
        except OSError:
            cwd = ""
        return {"pid": os.getpid(), "argv": sys.argv[2:], "cwd": cwd, "env": dict(os.environ)}

    def write(self, data: bytes) -> None:
        try:
            self._write(1, data)
        except BrokenPipeError:
            if not self._ignores_broken_pipe:
                self.note("broken pipe", {})
                raise Gone(1) from None

    def complain(self, data: bytes) -> None:
        try:
            self._write(2, data)
        except BrokenPipeError:  # nobody listens: a server goes on without its stderr
            return

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        before, self.blocked = self.blocked, True
        try:
            while self.arrived:
                self.deliver(self.arrived.pop(0))
            while view:
                view = view[os.write(fd, view) :]
        finally:
            self.blocked = before

    def on_signal(self, number: int, _frame: object) -> None:
        """Python's handler of every signal that is scripted."""
        if self.blocked:  # in the middle of a write that perhaps nobody reads: now or never
            self.deliver(number)
        else:
            self.arrived.append(number)

    def note(self, event: str, facts: dict[str, Any]) -> None:
        if self._log >= 0:
            entry = {"time": time.monotonic(), "pid": os.getpid(), "event": event, **facts}
            os.write(self._log, (dumps(entry) + "\n").encode("utf-8", "backslashreplace"))

    def close(self, stream: str) -> None:
        fd = _STREAMS[stream]
        self.closed.add(fd)
        # The number stays taken, so that nothing opened later is taken for it.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, fd)
        os.close(null)

    def spawn(self, options: dict[str, Any]) -> int:
        return _spawn([self._path, "--beside", dumps(options)], options)

    def count(self, path: str) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            before = os.fstat(fd).st_size
            os.write(fd, b".")
            return before
        finally:
            os.close(fd)


def _spawn(arguments: list[str], options: dict[str, Any]) -> int:
    argv = [sys.executable, "-S", "-E", sys.argv[0], *arguments]
    actions: list[Any] = []
    for stream, fd in _STREAMS.items():
        if stream not in options.get("inherit", ()):
            actions.append((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0))
    return os.posix_spawn(
        sys.executable,
        argv,
        os.environ,
        file_actions=actions,
        setsid=bool(options.get("new_session")),
        setsigmask=(),
        setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    )


def _leave(gone: Gone, world: Process) -> NoReturn:
    if gone.signal is not None:
        world.note("exit", {"signal": gone.signal})
        number = getattr(signal, gone.signal)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        while True:  # SIGSTOP and SIGCONT come back; what does not end us waits here for what does
            signal.pause()
    world.note("exit", {"code": gone.code})
    os._exit(gone.code)


def _wrap(script: dict[str, Any], path: str) -> NoReturn:
    """Be what ``npx`` or ``sh -c`` is: start the server on the same streams, and leave it behind on SIGTERM."""
    world = Process(script, path)
    inherit = ["stdin", "stdout", "stderr"]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    inner = _spawn([path, "--inner", *sys.argv[2:]], {"inherit": inherit, **script["wrapper"]})
    world.note("spawn", {"spawned": inner})
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> NoReturn:
    """Play the script whose file is named on the command line."""
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib costs a third of the start
        script: dict[str, Any] = json.load(file)
    beside = sys.argv[2:3] == ["--beside"]
    if beside:
        options = json.loads(sys.argv[3])
        del sys.argv[2:4]
        hooks = {"start": options["steps"], **{name: [] for name in options["ignore"]}}
        script = {**script, "on": hooks}
    elif sys.argv[2:3] == ["--inner"]:
        del sys.argv[2]
    elif script.get("wrapper") is not None:
        _wrap(script, path)
    world = Process(script, path)
    player = Player(script, world)
    try:
        _run(player, world, beside=beside)
    except Gone as gone:
        _leave(gone, world)


def _run(player: Player, world: Process, *, beside: bool) -> NoReturn:
    wakeup, wake = os.pipe()
    for fd in (wakeup, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def deliver(number: int) -> None:
        player.signal(signal.Signals(number).name, at_once=world.blocked)

    world.deliver = deliver
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own prints a traceback
    for name in player.hooks:
        if name.startswith("SIG"):
            signal.signal(getattr(signal, name), world.on_signal)

    player.note("start", beside=beside, **player.facts)  # signals are in hand by now
    player.start()
    reads = not beside
    while True:
        while world.arrived:
            deliver(world.arrived.pop(0))
        player.tick()
        deadline = player.next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        listening = reads and 0 not in world.closed and player.wants_input
        ready, _, _ = select.select([wakeup, 0] if listening else [wakeup], [], [], timeout)
        if wakeup in ready:
            os.read(wakeup, 512)
        elif 0 in ready:
            data = os.read(0, 65536)
            if data:
                player.receive(data)
            else:
                reads = False
                player.eof()
