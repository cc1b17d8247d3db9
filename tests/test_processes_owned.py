"""The processes of servers are counted, and what outlives its server is told: 0, or it is a defect."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from openprogram_mcp import MCPManager, open_manager
from openprogram_mcp.cli import _checks, _servers, main
from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.events import ServerLog
from openprogram_mcp.status import ProcessCount, ServerStatus
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.transports import _census, _ownership, _process
from openprogram_mcp.transports._census import Look, left_behind, marked
from openprogram_mcp.transports._launch import Launch
from openprogram_mcp.transports._ownership import Instance, marked_environment
from openprogram_mcp.web.client import WorkerClient
from openprogram_mcp.web.worker_file import WorkerInfo

from ._living import events_of
from ._worker_process import command, until, worker, write_servers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: /proc shows the processes"),
    pytest.mark.skipif(shutil.which("setsid") is None, reason="needs the program setsid"),
]


def _fake() -> FakeServer:
    return FakeServer(era="legacy").tool("echo")


class Unmarked:
    """A process that a server has started with an empty environment, so that it carries no mark.

    Its parent is the server, or a process between them that ends when it is told to.
    """

    def __init__(self, folder: Path, *, between: bool = False) -> None:
        self.word = f"unmarked-{uuid4().hex}"
        self.go = folder / self.word
        sleeper = f"exec -a {self.word} sleep 600"
        clean = f"env -i PATH={shlex.quote(os.defpath)} setsid"
        if between:
            waiting = f"while [ ! -e {self.go} ]; do sleep 0.02; done"
            inner = shlex.join(["bash", "-c", f"bash -c {shlex.quote(sleeper)} & {waiting}"])
        else:
            inner = shlex.join(["bash", "-c", sleeper])
        self._start = f"{clean} {inner} </dev/null >/dev/null 2>&1 &"

    def entry(self, fake: FakeServer) -> dict[str, Any]:
        """The entry of a server that starts it and is a fake otherwise."""
        return fake.config(command=["sh", "-c", f"{self._start} exec {shlex.join(fake.command)}"])

    def pids(self) -> list[int]:
        """The processes that have its name in their command line."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if self.word.encode() in line and b"setsid" not in line:
                found.append(int(entry.name))
        return found

    def alone(self) -> bool:
        """Whether the sleeper lives, and nobody between it and the server."""
        return [self._name(pid) for pid in self.pids()] == [self.word]

    def born(self) -> bool:
        return self.word in [self._name(pid) for pid in self.pids()]

    @staticmethod
    def _name(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
        except OSError:
            return ""


@pytest.fixture
def unmarked(tmp_path: Path) -> Iterator[Callable[..., Unmarked]]:
    made: list[Unmarked] = []

    def make(*, between: bool = False) -> Unmarked:
        made.append(Unmarked(tmp_path, between=between))
        return made[-1]

    yield make
    for one in made:
        for pid in one.pids():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def _sleeping(*marks: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes with marks that nobody has started as servers."""
    argv = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"]
    started = [subprocess.Popen(argv, env=marked_environment({"PATH": os.defpath}, mark, {})) for mark in marks]
    try:
        # In the middle of its exec a process shows no environment.
        until(lambda: all(process.pid in marked(mark) for process, mark in zip(started, marks, strict=True)), "marks")
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


async def _ready(manager: MCPManager) -> None:
    with trio.fail_after(20):
        await manager.started.wait()


async def _until(true: Callable[[], Any], what: str) -> None:
    await trio.to_thread.run_sync(until, true, what)


async def _counted(manager: MCPManager) -> ProcessCount:
    """Counted anew, whatever was counted just before."""
    await manager._owner.count_processes(max_age=0)
    return manager.processes


async def test_the_processes_of_each_server_are_counted_with_all_that_they_have_started() -> None:
    alone = _fake()
    family = _fake().on_start(do.spawn(), do.spawn(new_session=True))
    servers = {"alone": alone.config(), "family": family.config(), "off": _fake().config(enabled=False)}
    async with open_manager(servers, raise_internal=True) as manager:
        await _ready(manager)
        await _until(lambda: len(family.alive()) == 3, "children")
        assert await _counted(manager) == ProcessCount(owned=4, leaked=0)
        assert {name: row.processes for name, row in manager.status().items()} == {"alone": 1, "family": 3, "off": 0}
        await manager.disconnect("family")
        assert manager.server("family").processes == 0
        assert await _counted(manager) == ProcessCount(owned=1, leaked=0)
    assert manager.processes == ProcessCount(owned=0, leaked=0)


async def test_a_server_counts_as_one_until_somebody_has_looked() -> None:
    async with open_manager({"f": _fake().config()}, raise_internal=True) as manager:
        await _ready(manager)
        assert manager.server("f").processes == 1
        assert manager.processes == ProcessCount(owned=1)


async def test_those_who_count_at_once_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def look(wanted: str, strays: Any) -> Look:
        looks.append(wanted)
        return _census.look(wanted, strays)

    async with open_manager({"f": _fake().config()}, raise_internal=True) as manager:
        await _ready(manager)
        monkeypatch.setattr(_ownership, "look", look)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(manager.count_processes)
        assert len(looks) == 1
        await manager.count_processes()
        assert len(looks) == 1
        await _counted(manager)
        assert len(looks) == 2


async def test_a_child_without_the_mark_is_counted_and_ends_with_its_server(
    unmarked: Callable[..., Unmarked],
) -> None:
    child = unmarked()
    async with open_manager({"f": child.entry(_fake())}, raise_internal=True) as manager:
        await _ready(manager)
        await _until(child.born, "a child without a mark")
        assert (await _counted(manager)).owned == 2
        await manager.disconnect("f")
        assert child.pids() == []
        assert manager.processes == ProcessCount(0, 0)


async def test_a_child_without_the_mark_ends_with_its_server_though_nobody_has_ever_counted(
    unmarked: Callable[..., Unmarked],
) -> None:
    child = unmarked(between=True)
    async with open_manager({"f": child.entry(_fake())}, raise_internal=True) as manager:
        await _ready(manager)
        await _until(child.born, "a child without a mark")
    assert child.pids() == []


async def test_who_was_seen_once_is_known_though_its_parent_has_ended(unmarked: Callable[..., Unmarked]) -> None:
    child = unmarked(between=True)
    async with open_manager({"f": child.entry(_fake())}, raise_internal=True) as manager:
        await _ready(manager)
        await _until(child.born, "a child without a mark")
        await _counted(manager)
        child.go.touch()
        await _until(child.alone, "the end of its parent")
        assert (await _counted(manager)).owned == 2
        await manager.disconnect("f")
        assert child.pids() == []


async def test_without_mark_and_without_parent_before_anybody_looked_it_is_not_seen(
    unmarked: Callable[..., Unmarked],
) -> None:
    """What the reference says is not seen. Should this test fail, say so there."""
    child = unmarked(between=True)
    child.go.touch()
    async with open_manager({"f": child.entry(_fake())}, raise_internal=True) as manager:
        await _ready(manager)
        await _until(child.alone, "the end of its parent")
        assert (await _counted(manager)).owned == 1
    assert child.alone()
    assert manager.processes == ProcessCount(0, 0)


async def test_a_process_that_cannot_be_ended_is_a_leak_and_told_as_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = _fake().on_start(do.spawn(new_session=True))
    async with open_manager({"f": fake.config()}, raise_internal=True) as manager:
        await _ready(manager)
        await _until(lambda: len(fake.alive()) == 2, "a child")
        with monkeypatch.context() as patched:
            patched.setattr(_ownership, "kill", lambda _pid, _start: None)
            patched.setattr(_process, "_KILL_WAIT_SECONDS", 0.1)
            patched.setattr(_ownership, "_LATE_SECONDS", 0.1)
            await manager.disconnect("f")
            left = fake.alive()
            assert len(left) == 1
            assert manager.server("f").processes == 1
            assert manager.processes == ProcessCount(owned=1, leaked=1)
            await _counted(manager)
            assert manager.processes.leaked == 1  # the same one, not another
        told = [event for event in events_of(manager.events, ServerLog) if event.logger == "processes"]
        assert [(event.server, event.level, event.text[:18]) for event in told] == [
            ("f", "error", "1 of its processes")
        ]
        assert "lived on after it had been stopped" in caplog.text
        await _counted(manager)
        assert fake.alive() == []
        assert await _counted(manager) == ProcessCount(owned=0, leaked=1)


async def test_a_process_that_appears_after_its_servers_stop_is_a_leak_and_ended() -> None:
    async with open_manager({"f": _fake().config()}, raise_internal=True) as manager:
        await _ready(manager)
        mark = next(iter(manager._owner._trees))
        await manager.disconnect("f")
        assert await _counted(manager) == ProcessCount(0, 0)
        with _sleeping(mark) as (late,):
            assert (await _counted(manager)).leaked == 1
            assert await trio.to_thread.run_sync(late.wait, 10) == -signal.SIGKILL
        assert await _counted(manager) == ProcessCount(owned=0, leaked=1)


async def test_what_ends_while_it_is_counted_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_manager({"f": _fake().config()}, raise_internal=True) as manager:
        await _ready(manager)
        token = trio.lowlevel.current_trio_token()

        def look(wanted: str, strays: Any) -> Look:
            seen = _census.look(wanted, strays)
            trio.from_thread.run(manager.disconnect, "f", trio_token=token)
            return seen

        monkeypatch.setattr(_ownership, "look", look)
        # The stop looks too, but not for the whole instance.
        monkeypatch.setattr(_ownership.Tree, "look", _nothing)
        monkeypatch.setattr(_ownership.Tree, "end", _end_with_real_look)
        assert await _counted(manager) == ProcessCount(0, 0)


async def _nothing(_tree: object) -> None:
    await trio.lowlevel.checkpoint()


async def _end_with_real_look(tree: _ownership.Tree, _seconds: float) -> int:
    await trio.lowlevel.checkpoint()
    tree.count, tree.stopped = 0, True
    return 0


async def test_of_stopped_servers_only_so_many_are_remembered() -> None:
    instance = Instance.claim(None)
    for _ in range(1000):
        tree = instance.plant("f")
        tree.stopped = True
    assert len(instance._trees) < 300
    assert instance.owned == 0


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_server_that_could_not_be_started_is_not_waited_for(cancelled: bool) -> None:
    tree = Instance.claim(None).plant("f")
    launch = Launch(("/no/such/program",), {}, None)
    async with trio.open_nursery() as nursery:
        if cancelled:
            nursery.cancel_scope.cancel()
        with pytest.raises(trio.Cancelled if cancelled else ServerFailed):
            await _process.start_process(nursery, "f", launch, mask=str, on_stderr=lambda _line: None, tree=tree)
    assert (tree.count, tree.stopped) == (0, True)


def test_what_a_killed_host_left_behind_is_counted_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    living = Instance.claim(tmp_path)
    dead = f"{uuid4().hex}"
    (tmp_path / f"{dead}.lock").touch()
    with _sleeping(living.next_mark(), f"{dead}.1", f"{dead}.2"):
        assert left_behind(tmp_path) == 2
        assert left_behind(tmp_path / "nowhere") == 0
    living.close()


def test_the_worker_tells_how_many_processes_there_are(state_dir: Path) -> None:
    family = _fake().on_start(do.spawn(new_session=True))
    write_servers(state_dir, {"f": family.config()})
    with worker(state_dir) as running:
        until(lambda: len(family.alive()) == 2, "a child")
        until(lambda: command("list", "--json").json["processes_owned"] == 2, "a count")
        shown = command("show", "f")
        assert "processes\t2" in shown.out
        assert command("doctor").out.splitlines()[-1].startswith("ok\tprocesses\t2 belong to the worker's servers")
        running.process.kill()
        running.process.wait()
        family.kill_all()  # of those that ignore nothing, none may be left by now
        with _sleeping(f"{next((state_dir / 'instances').iterdir()).stem}.1") as (stray,):
            assert "1 were left behind by a host that was killed" in command("doctor").out
            assert command("list").code == 0
            assert stray.wait(10) == -signal.SIGKILL


def _leaky(owned: int, leaked: int) -> dict[str, Any]:
    return {"version": 1, "processes_owned": owned, "processes_leaked": leaked, "servers": []}


def test_list_and_doctor_say_that_there_is_a_leak(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ServerStatus(name="f", type="local").to_dict()
    monkeypatch.setattr(_servers, "from_worker", lambda *_: {**_leaky(1, 2), "servers": [row]})
    assert main(["list"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("f\t")
    assert said.err == "openprogram-mcp: 2 processes lived on after their server had been stopped\n"
    info = WorkerInfo(pid=os.getpid(), started_at="", url="http://127.0.0.1:1", token="t", instance="i")
    monkeypatch.setattr(_checks, "find_worker", lambda: info)
    monkeypatch.setattr(WorkerClient, "get", lambda *_: _leaky(1, 2))
    assert main(["doctor"]) == 1
    assert "error\tprocesses\t2 lived on after their server had been stopped" in capsys.readouterr().out
    monkeypatch.setattr(WorkerClient, "get", lambda *_: {"version": 1, "servers": []})
    assert main(["doctor"]) == 0
    assert "processes" not in capsys.readouterr().out
