"""Time: limits that strike, progress that does not end, and calls that nobody waits for any more."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import trio

from openprogram_mcp import ServerState
from openprogram_mcp.client._connection import Connection
from openprogram_mcp.errors import ServerGone, TimedOut
from openprogram_mcp.events import StatusChanged, ToolCallProgress
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of, managed, until
from tests._strike import descriptors
from tests.faults._host import ODD_PROGRESS, hosting

_S = ServerState
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def cancellations(fake: FakeServer, method: str) -> list[Any]:
    """The ids that were cancelled, of requests of this method only."""
    asked = {message["id"] for message in fake.received(method)}
    told = [message["params"]["requestId"] for message in fake.received("notifications/cancelled")]
    return [request_id for request_id in told if request_id in asked]


async def test_time_01_the_status_after_a_death_in_the_middle_of_a_call_says_how_it_died() -> None:
    fake = FakeServer().tool("die", do.stderr("out of memory\n"), do.die())
    async with hosting({"f": fake.config(reconnect=False)}) as manager:
        with pytest.raises(ServerGone, match="it may or may not have run") as gone:
            await manager.call_tool("f__die")
        assert gone.value.may_have_run
        row = await until(manager, "f", _S.FAILED)
        assert row.error == "the connection was lost: it was ended by SIGKILL (exit code -9)"
        assert (row.phase, row.exit_code, row.exit_way) == ("running", -9, "own")
        assert (row.stderr, row.pid, row.tools) == (("out of memory",), None, ())
        assert manager.registry.names() == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the group of the process is looked for in /proc")
async def test_time_01_a_child_that_holds_the_output_open_does_not_hide_the_death_of_its_server() -> None:
    fake = FakeServer().tool("die", do.spawn(inherit=("stdout", "stderr"), ignore=("SIGTERM",)), do.die())
    async with hosting({"f": fake.config(reconnect=False, stop_timeout_seconds=0.2)}) as manager:
        with trio.fail_after(5), pytest.raises(ServerGone):
            await manager.call_tool("f__die")
        row = await until(manager, "f", _S.FAILED)
        assert row.exit_code == -9
    assert fake.alive() == []


async def test_a_lost_server_is_told_as_failed_before_its_process_has_ended() -> None:
    # It closes its output and lives on, deaf to everything: putting it away takes its time.
    fake = FakeServer().on_eof().on_signal("SIGTERM").tool("close", do.close("stdout"), do.hang())
    async with hosting({"f": fake.config(reconnect=False, stop_timeout_seconds=0.5)}) as manager:
        with pytest.raises(ServerGone):
            await manager.call_tool("f__close")
        row = await until(manager, "f", _S.FAILED)
        assert row.error == "the connection was lost: it closed its output"
        assert row.pid == fake.pid, "it is still there"
        assert fake.alive() == [fake.pid]
        row = await until(manager, "f", _S.FAILED, where=lambda row: row.exit_way is not None)
        assert (row.exit_way, row.exit_code) == ("kill", -9)
        assert fake.alive() == []


async def test_the_last_words_of_a_server_that_first_closed_its_output_are_heard() -> None:
    fake = FakeServer().tool("t", do.close("stdout"), do.sleep(0.2), do.stderr("disk full\n"), do.exit(7))
    async with hosting({"f": fake.config(reconnect=False)}) as manager:
        with pytest.raises(ServerGone):
            await manager.call_tool("f__t")
        row = await until(manager, "f", _S.FAILED)
        assert (row.error, row.exit_code) == ("the connection was lost: it exited with code 7", 7)
        assert row.stderr == ("disk full",)


async def test_the_limit_of_the_start_limits_nothing_that_comes_after() -> None:
    fake = FakeServer().tool("t", do.sleep(0.6), do.reply("done"))
    async with hosting({"f": fake.config(startup_timeout_seconds=0.5)}) as manager:
        assert (await manager.call_tool("f__t")).text == "done"
        assert manager.server("f").generation == 1


async def test_a_server_that_is_being_put_away_can_be_restarted() -> None:
    fake = FakeServer().on_eof().on_signal("SIGTERM").tool("close", do.close("stdout"), do.hang())
    async with hosting({"f": fake.config(reconnect=False, stop_timeout_seconds=0.2)}) as manager:
        with pytest.raises(ServerGone):
            await manager.call_tool("f__close")
        await until(manager, "f", _S.FAILED)
        row = await manager.restart("f")
        assert (row.status, row.generation) == (_S.CONNECTED, 2)
        states = [event.status.status for event in events_of(manager.events, StatusChanged)]
        assert states.count(_S.PENDING) == 2


@ERAS
@pytest.mark.parametrize("stage", ["initialize", "tools/list", "tools/call"])
async def test_time_03_a_server_that_never_answers_meets_a_limit_that_names_it(stage: str, era: Any) -> None:
    fake = FakeServer(era=era).tool("t").on(stage)
    if stage == "initialize":
        fake.on("server/discover")
    limits = {"startup_timeout_seconds": 0.4, "call_timeout_seconds": 0.2, "stop_timeout_seconds": 0.2}
    async with hosting({"f": fake.config(**limits, reconnect=False)}) as manager:
        if stage == "tools/call":
            with pytest.raises(TimedOut, match=r"f__t: nothing was heard of it from server 'f' for 0.2 s") as late:
                await manager.call_tool("f__t")
            assert (late.value.budget, late.value.seconds) == ("call", 0.2)
            assert manager.server("f").ready
        else:
            row = manager.server("f")
            assert (row.status, row.error) == (_S.FAILED, f"it did not answer {stage} within 0.4 s")
            assert "startup_timeout_seconds" in (row.remedy or "")
            assert fake.alive() == []
    assert cancellations(fake, "initialize") == cancellations(fake, "server/discover") == []


@ERAS
async def test_time_05_progress_without_an_end_meets_the_hard_limit_and_the_session_lives(era: Any) -> None:
    fake = FakeServer(era=era).tool("endless", do.repeat(do.progress("$count", total=0), do.sleep(0.02)))
    fake.tool("quick")
    heard: list[float] = []

    async def on_progress(progress: float, _total: float | None, _message: str | None) -> None:
        heard.append(progress)

    entry = fake.config(call_timeout_seconds=0.1, max_call_seconds=0.5)
    async with hosting({"f": entry}) as manager:
        with pytest.raises(TimedOut, match=r"f__endless did not come to an end within 0.5 s") as late:
            await manager.call_tool("f__endless", on_progress=on_progress)
        assert late.value.budget == "max_call"
        assert len(heard) > 5, "progress moved the idle limit of 0.1 s"
        assert heard == sorted(heard)
        assert (await manager.call_tool("f__quick")).text == "{}"
        assert manager.server("f").generation == 1
        assert len(cancellations(fake, "tools/call")) == 1


async def test_time_05_progress_keeps_a_call_alive_though_nobody_listens_to_it() -> None:
    fake = FakeServer().tool("long", do.repeat(do.progress("$count"), do.sleep(0.05), times=8), do.reply("done"))
    async with hosting({"f": fake.config(call_timeout_seconds=0.2)}) as manager:
        assert (await manager.call_tool("f__long")).text == "done"
        assert len(events_of(manager.events, ToolCallProgress)) == 8


async def test_time_05_odd_progress_is_dropped_and_costs_nothing() -> None:
    fake = FakeServer(era="legacy").tool(
        "t",
        *ODD_PROGRESS,
        do.reply("done"),
        do.progress(9, message="after the answer"),
    )
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__t")).text == "done"
        assert (await manager.call_tool("f__t")).text == "done"
        heard = [(event.progress, event.message) for event in events_of(manager.events, ToolCallProgress)]
        assert heard == [(2.5, None), (3.5, None)] * 2


@ERAS
async def test_time_06_a_call_that_timed_out_is_cancelled_once_with_its_own_id(era: Any) -> None:
    fake = FakeServer(era=era).tool("slow", do.wait("cancelled"), do.note("it stopped")).tool("quick")
    async with hosting({"f": fake.config(call_timeout_seconds=0.1)}) as manager:
        with pytest.raises(TimedOut):
            await manager.call_tool("f__slow")
        await fake.wait_for("note")
        assert (await manager.call_tool("f__quick")).text == "{}"
        (asked, _) = fake.received("tools/call")
        assert cancellations(fake, "tools/call") == [asked["id"]]


@ERAS
async def test_time_06_and_spec_02_a_call_whose_caller_went_away_is_cancelled_once_and_the_server_lives(
    era: Any,
) -> None:
    fake = FakeServer(era=era).tool("slow", do.wait("cancelled"), do.note("it stopped")).tool("quick")
    async with hosting({"f": fake}) as manager:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.call_tool, "f__slow")
            await fake.wait_for("begin", method="tools/call")
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < 0.1, "the caller does not wait for the server"
        await fake.wait_for("note")
        assert (await manager.call_tool("f__quick")).text == "{}"
        (asked, _) = fake.received("tools/call")
        assert cancellations(fake, "tools/call") == [asked["id"]]
        row = manager.server("f")
        assert (row.generation, row.in_flight, row.queued) == (1, 0, 0)


async def test_time_06_a_call_that_waited_for_its_turn_is_withdrawn_without_a_word() -> None:
    fake = FakeServer().tool("slow", do.wait("SIGUSR1"), do.reply("done")).tool("never").on_signal("SIGUSR1")
    async with hosting({"f": fake.config(max_concurrency=1)}) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.call_tool, "f__slow")
        await fake.wait_for("begin", method="tools/call")
        async with trio.open_nursery() as waiting:
            waiting.start_soon(manager.call_tool, "f__never")
            await trio.testing.wait_all_tasks_blocked()
            assert manager.server("f").queued == 1
            waiting.cancel_scope.cancel()
        assert manager.server("f").queued == 0
        fake.send_signal("SIGUSR1")
    assert [call.tool for call in fake.calls()] == ["slow"]
    assert cancellations(fake, "tools/call") == []


async def test_time_06_a_late_answer_to_a_cancelled_call_reaches_nobody() -> None:
    fake = FakeServer().on_signal("SIGUSR1")
    fake.tool("slow", do.ignore_cancel(), do.wait("SIGUSR1"), do.reply("late"), do.note("answered")).tool("quick")
    async with hosting({"f": fake.config(serialize="none")}) as manager:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.call_tool, "f__slow")
            await fake.wait_for("begin", method="tools/call")
            nursery.cancel_scope.cancel()
        fake.send_signal("SIGUSR1")
        await fake.wait_for("note")
        assert (await manager.call_tool("f__quick")).text == "{}"


async def test_start_02_what_a_slow_start_says_is_shown_while_it_lasts() -> None:
    fake = FakeServer(era="legacy").on_signal("SIGUSR1")
    fake.on_start(do.stderr("fetching 45 %\n"), do.wait("SIGUSR1"))
    async with managed({"f": fake.config()}) as manager:
        row = await until(manager, "f", _S.STARTING, where=lambda row: row.phase == "initialize")
        with trio.fail_after(10), manager.events.subscribe(0) as events:
            while manager.server("f").stderr != ("fetching 45 %",):
                await anext(events)
        row = manager.server("f")
        assert (row.status, row.pid, row.attempt) == (_S.STARTING, fake.pid, 1)
        fake.send_signal("SIGUSR1")
        assert (await manager.wait_settled("f")).ready


async def test_a_start_that_is_cut_off_by_its_limit_leaves_no_descriptor() -> None:
    fake = FakeServer(era="legacy").on("initialize")
    entry = fake.config(startup_timeout_seconds=0.05, stop_timeout_seconds=0.1, reconnect=False)
    async with hosting({"f": entry}) as manager:
        before = descriptors()
        for _ in range(10):
            assert (await manager.restart("f")).status is _S.FAILED
        assert descriptors() <= before
        assert fake.alive() == []


async def test_a_limit_that_strikes_as_the_server_comes_up_is_a_server_that_was_too_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Once it counted as a fault of ours: the connection was up, and then it failed to come up.
    real = Connection.read_tools

    async def just_in_time(self: Any) -> None:
        await real(self)
        task = trio.lowlevel.current_task()
        scope = next(scope for scope in _scopes(task) if scope.deadline < float("inf"))
        scope.cancel()

    monkeypatch.setattr(Connection, "read_tools", just_in_time)
    fake = FakeServer().tool("t")
    async with hosting({"f": fake.config(startup_timeout_seconds=20, reconnect=False)}) as manager:
        row = manager.server("f")
        assert (row.status, row.error) == (_S.FAILED, "it did not answer tools/list within 20 s")
        assert fake.alive() == []


def _scopes(task: trio.lowlevel.Task) -> list[trio.CancelScope]:
    """The cancel scopes around a task, innermost first."""
    found: list[trio.CancelScope] = []
    status: Any = task._cancel_status
    while status is not None:
        found.append(status._scope)
        status = status._parent
    return found
