"""Real server processes: owned from their first moment, ended on every way out, and nothing of them left."""

from __future__ import annotations

import errno
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.transports import _process
from openprogram_mcp.transports._launch import Launch, prepare_launch
from openprogram_mcp.transports._process import ServerProcess, start_process
from openprogram_mcp.transports._stderr import StderrLines
from tests._processes import ENV, PYTHON, serving, started, talking
from tests._strike import Strike, descriptors, run_interrupted_at, strike_every_step


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A fake of which neither a process nor a descriptor may be left."""
    fake = FakeServer(era="legacy")
    before = descriptors()
    yield fake
    assert fake.kill_all() == []
    assert descriptors() == before


# How it ends.


async def test_a_polite_server_ends_when_its_input_is_closed(fake: FakeServer) -> None:
    async with serving(fake) as process:
        await process.stop(5)
        assert (process.exit_way, process.exit_code) == ("eof", 0)
    assert [record.event for record in fake.records()][-2:] == ["eof", "exit"]


async def test_a_server_that_ignores_eof_is_asked_by_a_signal(fake: FakeServer) -> None:
    async with serving(fake.on_eof()) as process:
        await process.stop(0.1)
        assert (process.exit_way, process.exit_code) == ("term", -signal.SIGTERM)


async def test_life_02_a_server_that_ignores_eof_and_sigterm_is_killed_within_a_bound(fake: FakeServer) -> None:
    async with serving(fake.on_eof().on_signal("SIGTERM")) as process:
        before = trio.current_time()
        await process.stop(0.2)
        assert trio.current_time() - before < 0.4 + 2
        assert (process.exit_way, process.exit_code) == ("kill", -signal.SIGKILL)


@pytest.mark.parametrize(
    ("step", "code"), [(do.exit(0), 0), (do.exit(3), 3), (do.die("SIGKILL"), -9), (do.die("SIGSEGV"), -11)]
)
async def test_how_it_has_ended_by_itself_is_known_at_once_and_stays(step: Any, code: int, fake: FakeServer) -> None:
    async with started(fake.on_start(step)) as process:
        await process.exited.wait()
        assert process.exit_code == code
        await process.stop(5)
        assert (process.exit_way, process.exit_code) == ("own", code)


async def test_a_process_that_has_ended_is_not_reaped_before_its_group_is_ended(fake: FakeServer) -> None:
    """Its id is its group's, and must not be given to others while the group may have to be killed."""
    async with started(fake.on_start(do.exit(0))) as process:
        await process.exited.wait()
        status = await trio.Path(f"/proc/{process.pid}/stat").read_text()
        assert status.rpartition(")")[2].split()[0] == "Z"
        await process.stop(5)
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait


@pytest.mark.parametrize("end", ["eof", "own"])
async def test_life_01_what_a_server_leaves_in_its_group_ends_with_it(end: str, fake: FakeServer) -> None:
    fake.on_start(do.spawn(ignore=["SIGTERM"]), *([do.exit(0)] if end == "own" else []))
    async with started(fake, stop=0.1) as process:
        await fake.wait_for("start", count=2)
        if end == "own":
            await process.exited.wait()
        assert len(fake.alive()) == (1 if end == "own" else 2)
        await process.stop(0.3)
        assert fake.alive() == []
        assert process.exit_way == ("own" if end == "own" else "kill")


async def test_life_01_the_server_behind_a_wrapper_is_ended_though_the_wrapper_leaves_first(fake: FakeServer) -> None:
    async with serving(fake.wrapped().on_eof().on_signal("SIGTERM")) as process:
        assert len(fake.alive()) == 2
        await process.stop(0.2)
        assert fake.alive() == []
        assert process.exit_way == "kill"


async def test_life_01_the_server_behind_a_wrapper_has_its_time_after_sigterm(fake: FakeServer) -> None:
    fake.wrapped().on_eof().on_signal("SIGTERM", do.sleep(0.3), do.note("all is saved"), do.exit(0))
    async with serving(fake) as process:
        before = trio.current_time()
        await process.stop(1)
        assert process.exit_way == "term"
        assert trio.current_time() - before < 2
    assert [record.facts["value"] for record in fake.records("note")] == ["all is saved"]


async def test_a_group_that_follows_its_leader_by_itself_was_ended_by_eof(fake: FakeServer) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(0.1)'])"
    async with started([*PYTHON, "-c", f"{code}; sys.stdin.read()"]) as process:
        await process.stop(5)
        assert (process.exit_way, process.exit_code) == ("eof", 0)


async def test_a_group_that_forks_for_its_life_is_killed_as_a_whole() -> None:
    code = textwrap.dedent("""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        while True:
            if os.fork():
                time.sleep(0.002)
                os._exit(0)
    """)
    async with started([*PYTHON, "-c", code]) as process:
        await process.link().receive()
        await process.exited.wait()
        await process.stop(0.2)
        assert [_process._group_members(process.pid) for _ in range(3)] == [[]] * 3


async def test_life_09_what_a_server_writes_while_it_ends_does_not_hold_it_up(fake: FakeServer) -> None:
    fake.on_eof(do.sleep(0.05), do.write(b"x" * 3_000_000), do.stderr("bye\n"), do.exit(0))
    async with serving(fake) as process:
        await process.stop(5)
        assert (process.exit_way, process.exit_code) == ("eof", 0)
        assert process.stderr.last() == ("bye",)


async def test_a_child_that_left_the_group_and_holds_the_pipes_holds_up_nothing(fake: FakeServer) -> None:
    fake.on_start(do.spawn(new_session=True, inherit=["stdin", "stdout", "stderr"]), do.exit(0))
    try:
        async with started(fake) as process:
            await fake.wait_for("spawn")
            await process.exited.wait()
            assert process.exit_code == 0
            before = trio.current_time()
            await process.stop(5)
            assert trio.current_time() - before < 4
            assert process.exit_way == "own"
    finally:
        (left,) = fake.alive()
        pidfd = os.pidfd_open(left)
        fake.kill_all()
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)


async def test_stopping_twice_waits_for_the_first(fake: FakeServer) -> None:
    left: list[list[int]] = []
    async with serving(fake.on_eof().on_signal("SIGTERM")) as process:

        async def stop() -> None:
            await process.stop(0.1)
            left.append(fake.alive())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stop)
        await stop()
        assert left == [[]] * 4
        assert process.exit_way == "kill"


async def test_a_stop_in_a_cancelled_scope_is_a_whole_stop(fake: FakeServer) -> None:
    async with serving(fake.on_eof()) as process:
        with trio.CancelScope() as scope:
            scope.cancel()
            await process.stop(0.1)
        assert process.exit_way == "term"
        assert fake.alive() == []


async def test_a_process_is_watched_until_it_is_stopped_whatever_was_cancelled_around_it(fake: FakeServer) -> None:
    async with trio.open_nursery() as nursery:
        launch = prepare_launch("s", fake.command, ENV, None)
        process = await start_process(nursery, "s", launch, mask=str, on_stderr=ignored)
        nursery.cancel_scope.cancel()
        await process.stop(5)
    assert (process.exit_way, process.exit_code) == ("eof", 0)


async def test_ctrl_c_falls_neither_into_a_start_nor_into_a_stop(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = []

    class Lines(StderrLines):
        def __init__(self, *args: Any) -> None:
            guarded.append(trio.lowlevel.currently_ki_protected())
            super().__init__(*args)

    def close(pipe: Any) -> None:
        guarded.append(trio.lowlevel.currently_ki_protected())
        pipe.close()

    monkeypatch.setattr(_process, "StderrLines", Lines)
    monkeypatch.setattr(ServerProcess, "_close", staticmethod(close))
    async with serving(fake):
        assert guarded == [True]
    assert set(guarded) == {True}


async def test_a_fault_within_the_stop_leaves_nothing_either(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: int) -> list[int]:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_process, "_group_members", fail)
    pidfds = []
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True, allow_unwrapped=True):
        async with serving(fake.wrapped().on_eof().on_signal("SIGTERM")) as process:
            pidfds = [os.pidfd_open(pid) for pid in fake.alive()]
            await process.stop(0.1)
    assert len(pidfds) == 2
    for pidfd in pidfds:
        with trio.fail_after(5):
            await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)


# Where the system gives less help.


async def test_without_a_descriptor_to_wait_on_exits_are_seen_all_the_same(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_pidfd(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse_pidfd)
    async with started(fake.on_start(do.spawn(), do.exit(7))) as process:
        await process.exited.wait()
        assert process.exit_code == 7
        await process.stop(0.2)
        assert process.exit_way == "own"
        assert fake.alive() == []


async def test_a_server_that_somebody_else_has_reaped_is_a_server_that_has_ended(fake: FakeServer) -> None:
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with started(fake.on_start(do.exit(7))) as process:
            await process.exited.wait()
            assert process.exit_code is None
            await process.stop(5)
            assert process.exit_way == "own"
    finally:
        signal.signal(signal.SIGCHLD, old)


# How it starts.


async def test_life_07_a_server_lives_in_a_session_of_its_own(fake: FakeServer) -> None:
    async with serving(fake) as process:
        assert process.pid == fake.pid
        assert os.getsid(process.pid) == process.pid
        assert os.getpgid(process.pid) == process.pid


_HOST = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
import trio
from openprogram_mcp.transports._launch import prepare_launch
from openprogram_mcp.transports._process import ServerProcess, start_process
from openprogram_mcp.transports._stderr import StderrLines
from openprogram_mcp.transports._stderr import StderrLines
from openprogram_mcp.transports.stdio import StdioDispatcher

async def nothing(*args):
    return {}

async def main():
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            launch = prepare_launch("s", sys.argv[1:], {}, None)
            process = await start_process(nursery, "s", launch, mask=str, on_stderr=print)
            try:
                dispatcher = StdioDispatcher(process.link())
                async with trio.open_nursery() as inner:
                    await inner.start(dispatcher.run, nothing, nothing)
                    await dispatcher.send_raw_request("ping", None)
                    print("UP", flush=True)
                    await anext(signals)
                    await dispatcher.send_raw_request("ping", None)
                    print("LIVES", flush=True)
                    inner.cancel_scope.cancel()
            finally:
                await process.stop(5)
            print("ENDED", process.exit_way, flush=True)

trio.run(main)
"""


async def test_life_07_ctrl_c_of_the_terminal_does_not_reach_a_server(fake: FakeServer) -> None:
    fake.on_signal("SIGINT", do.note("SIGINT"), do.exit(1))
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", _HOST, *fake.command]
    host = await trio.lowlevel.open_process(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ}
    )
    os.close(theirs)
    terminal = trio.lowlevel.FdStream(ours)
    said = b""

    async def until(word: bytes) -> None:
        nonlocal said
        while word not in said:
            said += await terminal.receive_some()

    try:
        with trio.fail_after(20):
            await until(b"UP")
            await terminal.send_all(b"\x03")
            await until(b"ENDED eof")
            assert b"LIVES" in said
            assert await host.wait() == 0
    finally:
        host.kill()
        await terminal.aclose()
    assert fake.records("note") == []


async def test_start_07_a_start_that_fails_leaves_no_descriptor_and_says_why(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    before = descriptors()
    for launch, says in [
        (Launch((str(program),), ENV, None), "bad interpreter"),
        (Launch(("/bin/true", "a\0b"), ENV, None), "no process can be given"),
        (Launch(("/bin/true",), {"A=B": "c"}, None), "no process can be given"),
        (Launch(("/bin/true",), ENV, str(tmp_path / "gone")), "cannot be entered"),
        (Launch(("/bin/true", "x" * 3_000_000), ENV, None), "Argument list too long"),
    ]:
        async with trio.open_nursery() as nursery:
            with pytest.raises(ServerFailed, match=says) as caught:
                await start_process(nursery, "s", launch, mask=str, on_stderr=ignored)
        assert (caught.value.phase, caught.value.transient) == ("spawn", False)
    assert descriptors() == before


def ignored(_line: str) -> None:
    return


async def test_a_process_that_nobody_can_watch_is_not_left(fake: FakeServer) -> None:
    async with trio.open_nursery() as nursery:
        pass
    before = descriptors()
    with pytest.raises(RuntimeError, match="ursery is closed"):
        await start_process(nursery, "s", prepare_launch("s", fake.command, ENV, None), mask=str, on_stderr=ignored)
    assert fake.alive() == []
    assert descriptors() == before


async def test_rounds_of_starts_and_stops_leave_nothing(fake: FakeServer) -> None:
    launch = prepare_launch("s", ["cat"], ENV, None)
    before = 0
    for number in range(60):
        async with started(launch) as process:
            with trio.move_on_after(0 if number % 3 == 0 else 5):
                async with talking(process):
                    pass
        if number == 5:
            before = descriptors()
    assert descriptors() == before


# Standard error.


async def test_stdio_07_standard_error_is_read_to_its_end_whatever_it_holds(fake: FakeServer) -> None:
    told: list[str] = []
    fake.on_start(
        do.stderr(b"x" * 262_144), do.stderr(b"\rdone 10%" * 10_000), do.stderr(b"\n\xff\xfe\nlast words"), do.exit(1)
    )
    async with started(fake, told) as process:
        await process.exited.wait()
        await process.stderr_ended(5)
        assert told[-2:] == ["\ufffd\ufffd", "last words"]
        assert process.stderr.last(1) == ("last words",)


async def test_stdio_07_a_listener_that_raises_does_not_stop_the_draining(fake: FakeServer) -> None:
    fake.on("ping", do.stderr(b"line\n" * 500 + b"x" * 100_000), do.result({}))

    def listen(_line: str) -> None:
        raise ZeroDivisionError

    async with trio.open_nursery() as nursery:
        launch = prepare_launch("s", fake.command, ENV, None)
        process = await start_process(nursery, "s", launch, mask=str, on_stderr=listen)
        try:
            async with talking(process, fake):
                pass
        finally:
            await process.stop(5)
        assert process.exit_way == "eof"


# Whoever is cancelled, and whenever.


async def _life(fake: FakeServer) -> None:
    async with trio.open_nursery() as nursery:
        await _guarded(nursery, fake)


@trio.lowlevel.enable_ki_protection
async def _guarded(nursery: trio.Nursery, fake: FakeServer) -> None:
    """As whoever starts a process has to do it: guarded before anything can fall in between."""
    launch = prepare_launch("s", fake.command, ENV, None)
    process = await start_process(nursery, "s", launch, mask=str, on_stderr=ignored)
    try:
        async with talking(process, fake) as dispatcher:
            await dispatcher.send_raw_request("tools/call", {"name": "echo", "arguments": {}})
    finally:
        await process.stop(2)


# Each step is a process started and stopped, so the full count takes a while.
_strides = pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])


@_strides
def test_a_life_may_be_cancelled_at_any_step_and_leaves_nothing(stride: int, fake: FakeServer) -> None:
    fake.tool("echo")

    async def main(at: int) -> bool:
        scope = trio.CancelScope()
        strike = Strike(at, scope.cancel)
        trio.lowlevel.add_instrument(strike)
        strike.arm()
        with scope:
            await _life(fake)
        return strike.fired

    trio.run(main, 10**6)
    before = descriptors()

    def run(at: int) -> bool:
        fired = trio.run(main, at)
        assert fake.alive() == []
        assert descriptors() == before
        return fired

    assert strike_every_step(run, at_least=15, stride=stride) < 200


@_strides
def test_ctrl_c_may_fall_at_any_step_of_a_life_and_leaves_nothing(stride: int, fake: FakeServer) -> None:
    fake.tool("echo")
    assert not run_interrupted_at(10**6, lambda: _life(fake))
    before = descriptors()

    def run(at: int) -> bool:
        fired = run_interrupted_at(at, lambda: _life(fake))
        assert fake.alive() == []
        assert descriptors() == before
        return fired

    assert strike_every_step(run, at_least=15, stride=stride) < 200
