"""The fake server: what it can do with time, with its process, and in memory."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.testing._records import is_alive
from tests._peer import Peer, Start, as_process, in_memory


@pytest.fixture(params=[as_process, in_memory], ids=["process", "memory"])
def start(request: pytest.FixtureRequest) -> Start:
    found: Start = request.param
    return found


# Time, and the process.


async def test_a_server_that_stands_still_answers_nothing_until_it_moves_again(start: Start) -> None:
    fake = FakeServer().on("rest", do.stall(0.05)).tool("t", do.sleep(0.01), do.reply("t"))
    async with start(fake) as peer:
        await peer.call("t")
        begun = time.monotonic()
        await peer.send("rest")
        await peer.ask("ping")
        await peer.messages(2)
        assert time.monotonic() - begun > 0.04


async def test_a_server_that_stands_still_for_ever_is_still_killed_by_a_signal(start: Start) -> None:
    fake = FakeServer().on("rest", do.stall()).on_signal("SIGTERM", do.sleep(0.01), do.exit(3))
    async with start(fake) as peer:
        await peer.send("rest")
        await fake.wait_for("received")
        await peer.send_signal("SIGTERM")
        assert await peer.ended() == 3


async def test_nothing_is_read_before_what_is_played_at_the_start_has_ended(start: Start) -> None:
    fake = FakeServer().on_start(do.stderr("loading\n", times=2), do.sleep(0.01), do.stderr("ready\n"))
    async with start(fake) as peer:
        await peer.ask("ping")
        await peer.message()
        await peer.server.stdin.aclose()
        assert await peer.complaints() == b"loading\nloading\nready\n"


async def test_what_comes_in_meanwhile_is_received_afterwards(start: Start) -> None:
    fake = FakeServer().on_start(do.sleep(0.01), do.note("ready"))
    async with start(fake) as peer:
        await peer.ask("ping")
        await peer.message()
    assert [record.event for record in fake.records()][:3] == ["start", "note", "received"]


async def test_a_wait_that_is_over_wakes_nothing_later(start: Start) -> None:
    fake = FakeServer().tool("t", do.wait("go", timeout=0.01), do.hang(), do.reply("wrong"))
    fake.on("go", do.wake("go")).on("later", do.sleep(0.03), do.result("right"))
    async with start(fake) as peer:
        await peer.call("t")
        await peer.send("go")
        await peer.ask("later")
        assert await peer.result() == "right"


async def test_eof_ends_it_with_0(start: Start) -> None:
    async with start(FakeServer()) as peer:
        await peer.server.stdin.aclose()
        assert await peer.ended() == 0


async def test_life_09_a_call_is_answered_after_eof(start: Start) -> None:
    fake = FakeServer().tool("t", do.wait("eof"), do.sleep(0.01), do.reply("late"), do.exit(0)).on_eof()
    async with start(fake) as peer:
        await peer.call("t")
        await peer.server.stdin.aclose()
        assert await peer.text() == "late"
        assert await peer.ended() == 0


async def test_life_02_eof_and_sigterm_can_be_ignored_but_not_sigkill(start: Start) -> None:
    fake = FakeServer().on_eof().on_signal("SIGTERM")
    async with start(fake) as peer:
        await peer.server.stdin.aclose()
        await fake.wait_for("eof")
        await peer.send_signal("SIGTERM")
        await fake.wait_for("signal")
        await peer.send_signal("SIGKILL")
        assert await peer.ended() == -9


async def test_sigterm_ends_what_does_not_mind(start: Start) -> None:
    fake = FakeServer()
    async with start(fake) as peer:
        await fake.wait_for("start")
        await peer.send_signal("SIGTERM")
        assert await peer.ended() == -15


@pytest.mark.parametrize(("step", "code"), [(do.die(), -9), (do.die("SIGSEGV"), -11), (do.exit(42), 42)])
async def test_time_01_a_call_can_kill_its_server(start: Start, step: do.Step, code: int) -> None:
    async with start(FakeServer().tool("t", do.write(b"half a fr"), step)) as peer:
        await peer.call("t")
        assert await peer.line() == b"half a fr"
        assert await peer.ended() == code


async def test_what_is_spawned_holds_stdout_open_after_the_server_has_gone(start: Start) -> None:
    fake = FakeServer().tool("t", do.spawn(), do.exit(0))
    async with start(fake) as peer:
        await peer.call("t")
        assert await peer.ended() == 0
        with trio.move_on_after(0.05) as scope:
            await peer.line()
        assert scope.cancelled_caught


async def test_something_else_happens_each_time(start: Start, tmp_path: Path) -> None:
    fake = FakeServer()
    fake.tool("stays", do.turns([do.reply("1")], [do.reply("2")]))
    fake.tool("cycles", do.turns([do.reply("a")], [do.reply("b")], cycle=True))
    async with start(fake) as peer:
        for tool in ["stays"] * 3 + ["cycles"] * 3:
            await peer.call(tool)
        assert [await peer.text() for _ in range(6)] == ["1", "2", "2", "a", "b", "a"]


async def test_start_02_the_count_goes_on_from_one_process_to_the_next(start: Start, tmp_path: Path) -> None:
    first = [do.stderr("downloading\n"), do.exit(1)]
    fake = FakeServer().on_start(do.turns(first, [], file=str(tmp_path / "count")))
    async with start(fake) as peer:
        assert await peer.ended() == 1
    async with start(fake) as peer:
        await peer.ask("ping")
        assert await peer.result() == {}
    assert fake.starts == 2


async def test_a_script_branches_on_an_argument_and_repeats(start: Start) -> None:
    fake = FakeServer().tool(
        "t",
        do.repeat(do.log("$count"), times=2),
        do.choose("$args.mode", {"loud": [do.reply("LOUD")], "3": [do.reply("three")]}, [do.reply("other")]),
    )
    async with start(fake) as peer:
        for mode in ("loud", 3, "none"):
            await peer.call("t", mode=mode)
            logs = await peer.messages(2)
            assert [log["params"]["data"] for log in logs] == [0, 1]
            assert await peer.text() == {"loud": "LOUD", 3: "three", "none": "other"}[mode]


async def test_steps_run_beside_others_for_ever(start: Start) -> None:
    fake = FakeServer().on_start(do.beside(do.repeat(do.log("tick"), do.sleep(0.001))))
    async with start(fake) as peer:
        await peer.messages(3)
        call = await peer.ask("ping")
        while (await peer.message()).get("id") != call:
            pass


async def test_an_endless_flood_leaves_others_their_turn(start: Start) -> None:
    async with start(FakeServer().on_start(do.beside(do.repeat(do.log("flood"))))) as peer:
        call = await peer.ask("ping")
        while (await peer.message()).get("id") != call:
            pass


async def test_spec_09_the_order_of_tools_differs_each_time(start: Start) -> None:
    async with start(FakeServer(shuffled=True).tool("a").tool("b").tool("c")) as peer:
        orders = []
        for _ in range(3):
            await peer.ask("tools/list")
            orders.append("".join(tool["name"] for tool in (await peer.result())["tools"]))
    assert orders == ["abc", "bca", "cab"]


# What only a process can do.


async def test_the_facts_of_the_process_stand_in_its_record_and_can_be_told(tmp_path: Path) -> None:
    fake = FakeServer(info={"title": "$cwd"}).tool("env", do.reply("${env.MARK} ${argv} ${pid}"))
    environ = {**os.environ, "MARK": "here"}
    process = await trio.lowlevel.open_process(
        [*fake.command, "one", "two"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=environ,
    )
    peer = Peer(process)
    await peer.ask("initialize", {})
    assert (await peer.result())["serverInfo"]["title"] == str(tmp_path)
    await peer.call("env")
    assert await peer.text() == f'here ["one","two"] {process.pid}'
    assert process.stdin is not None
    await process.stdin.aclose()
    await process.wait()
    facts = fake.records("start")[0].facts
    assert (facts["argv"], facts["env"]["MARK"]) == (["one", "two"], "here")
    assert (fake.pid, fake.starts, fake.alive()) == (process.pid, 1, [])


async def test_life_01_a_wrapper_leaves_the_server_behind() -> None:
    fake = FakeServer().tool("echo").on_eof().on_signal("SIGTERM", do.turns([], [do.exit(0)])).wrapped()
    async with as_process(fake) as peer:
        await peer.call("echo")
        await peer.message()
        assert fake.pid != peer.server.pid
        assert set(fake.alive()) == {fake.pid, peer.server.pid}
        peer.server.terminate()
        assert await peer.ended() == 0
        assert fake.alive() == [fake.pid]
        assert fake.kill_all() == [fake.pid]


async def test_a_wrapper_passes_the_exit_code_on() -> None:
    async with as_process(FakeServer().on("go", do.exit(5)).wrapped()) as peer:
        await peer.send("go")
        assert await peer.ended() == 5


async def test_a_spawned_process_can_leave_the_group_and_ignore_signals() -> None:
    fake = FakeServer().on("go", do.spawn(new_session=True, ignore=["SIGTERM"]), do.spawn())
    async with as_process(fake) as peer:
        await peer.send("go")
        spawned = [record.facts["spawned"] for record in await fake.wait_for("spawn", count=2)]
        await fake.wait_for("start", count=3)
        groups = [os.getpgid(pid) for pid in spawned]
        assert groups == [spawned[0], os.getpgid(fake.pid)]
        os.kill(spawned[0], 15)
        await fake.wait_for("signal")
        assert set(fake.alive()) == {fake.pid, *spawned}


async def test_life_04_a_server_that_ignores_broken_pipes_lives_on() -> None:
    fake = FakeServer(ignore_broken_pipe=True).on_eof().on("go", do.log("x"), do.log("y"), do.note("alive"))
    async with as_process(fake) as peer:
        await peer.server.stdout.aclose()
        await peer.send("go")
        await fake.wait_for("note")


async def test_a_server_whose_stdout_nobody_reads_ends() -> None:
    fake = FakeServer()
    async with as_process(fake) as peer:
        await peer.server.stdout.aclose()
        await peer.ask("ping")
        assert await peer.ended() == 1
    assert fake.records("broken pipe")


async def test_stdio_08_a_server_blocked_in_a_write_reads_nothing() -> None:
    fake = FakeServer().on("flood", do.note("flooding"), do.write(b"x" * 999_999 + b"\n"))
    async with as_process(fake) as peer:
        await peer.send("flood")
        await fake.wait_for("note")
        await peer.ask("ping")
        begun = time.monotonic()
        await peer.line()
        await peer.message()
    assert fake.records("received", method="ping")[0].time > begun


async def test_a_server_blocked_in_a_write_still_hears_a_signal() -> None:
    fake = FakeServer().on("flood", do.note("flooding"), do.write(b"x" * 1_000_000))
    fake.on_signal("SIGTERM", do.turns([], [do.exit(4)]))
    async with as_process(fake) as peer:
        await peer.send("flood")
        await fake.wait_for("note")
        peer.server.terminate()
        await fake.wait_for("signal")
        peer.server.terminate()
        assert await peer.ended() == 4


async def test_a_server_changed_while_it_runs_is_another_at_its_next_start() -> None:
    fake = FakeServer().tool("t", do.reply("old"))
    command = fake.command
    fake.tool("t", do.reply("new"))
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        peer = Peer(process)
        await peer.call("t")
        assert await peer.text() == "new"


def test_only_a_process_of_ours_counts_as_alive() -> None:
    # A pid may have become somebody else's: he must not be killed at the end of a test.
    assert not is_alive(os.getpid(), "no such script")


async def test_an_installed_program_is_found_by_its_name(tmp_path: Path) -> None:
    fake = FakeServer().tool("t", do.reply("$argv"))
    fake.install(tmp_path, "docker")
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    async with AsyncExitStack() as stack:
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", "exec docker run img"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        peer = Peer(process)
        await peer.call("t")
        assert await peer.text() == '["run","img"]'


async def test_nothing_is_noted_where_nobody_wants_to_know(start: Start) -> None:
    fake = FakeServer(recording=False)
    async with start(fake) as peer:
        await peer.ask("ping")
        await peer.message()
        peer.server.kill()
        await peer.ended()
    assert fake.records() == []


def test_its_program_imports_nothing_but_the_standard_library_and_not_much_of_it() -> None:
    fake = FakeServer().on("ping", do.exit(0))
    command = fake.command
    listing = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]],
        input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        capture_output=True,
        check=True,
        timeout=20,
    ).stderr.decode()
    imported = {line.rpartition("|")[2].strip() for line in listing.splitlines() if line.startswith("import time:")}
    assert "_play.player" in imported
    assert imported.isdisjoint({"typing", "pathlib", "subprocess", "threading", "trio", "attr", "openprogram_mcp"})


# What only memory can do.


def test_time_is_the_mock_clocks_in_memory() -> None:
    fake = FakeServer().tool("t", do.sleep(3600), do.reply("an hour later"))

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            peer = Peer(fake.start_memory(nursery))
            await peer.call("t")
            assert await peer.text() == "an hour later"
            nursery.cancel_scope.cancel()
        return trio.current_time()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 3600
    (call,) = fake.calls()
    assert (call.began, call.ended) == (0, 3600)


async def test_a_server_in_memory_ends_with_its_nursery() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(FakeServer().start_memory(nursery))
        await peer.ask("ping")
        await peer.message()
        nursery.cancel_scope.cancel()
    assert await peer.ended() == -9
    assert await peer.line() == b""
    with pytest.raises(trio.BrokenResourceError):
        await peer.write(b"\n")


async def test_a_wait_that_is_over_is_not_woken_by_another_that_ends_now(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fake = FakeServer().on("tick", do.sleep(1), do.result("tick")).on("later", do.sleep(2), do.result("right"))
    fake.tool("t", do.wait("go", timeout=1), do.hang(), do.reply("wrong")).on("go", do.wake("go"))
    async with trio.open_nursery() as nursery:
        peer = Peer(fake.start_memory(nursery))
        for method in ("tick", "later"):
            await peer.ask(method)
        await peer.call("t")
        await peer.send("go")
        assert [await peer.result(), await peer.result()] == ["tick", "right"]
        nursery.cancel_scope.cancel()


async def test_waiting_for_what_never_happens_ends_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        fake = FakeServer()
        fake.start_memory(nursery)
        with pytest.raises(trio.TooSlowError):
            await fake.wait_for("eof", within=3)
        nursery.cancel_scope.cancel()


def test_turns_need_an_alternative() -> None:
    with pytest.raises(ValueError, match="at least one"):
        do.turns()


def test_a_signal_that_does_not_exist_is_refused_where_it_is_named() -> None:
    with pytest.raises(AttributeError, match="SIGNOPE"):
        FakeServer().on_signal("SIGNOPE")
