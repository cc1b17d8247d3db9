"""Which calls run side by side on a real server: seen from the server's own record of when each began and ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from openprogram_mcp import MCPManager
from openprogram_mcp.client._lingering import Lingering
from openprogram_mcp.client._turns import Turns
from openprogram_mcp.errors import TimedOut
from openprogram_mcp.events import Subscription, ToolCallEnded
from openprogram_mcp.testing import Call as Recorded
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.transports.stdio import Fate
from tests._living import managed


def _fake(**options: Any) -> FakeServer:
    fake = FakeServer(**options)
    for name in ("read", "write"):
        # Long enough that two which may run side by side do so, however the machine is loaded.
        fake.tool(name, do.sleep(0.15), do.reply("$args.n"), read_only=name == "read")
    return fake


async def _play(manager: MCPManager, calls: list[str]) -> None:
    """Make calls side by side, each a moment after the one before, so that their order is known."""
    texts: dict[int, str] = {}

    async def call(number: int, tool: str) -> None:
        texts[number] = (await manager.call_tool(f"f__{tool}", {"n": number})).text

    with trio.fail_after(30):
        await manager.started.wait()
        async with trio.open_nursery() as nursery:
            for number, tool in enumerate(calls):
                nursery.start_soon(call, number, tool)
                await trio.testing.wait_all_tasks_blocked()
    assert texts == {number: str(number) for number in range(len(calls))}, "each got its own answer"


def _in_order(calls: list[Recorded], *together: set[int]) -> bool:
    """Whether the calls began in the order of asking; those that are let go at one moment begin in any order."""
    numbers = [call.arguments["n"] for call in calls]
    for group in together:
        size = len(group)
        first = min(group)
        if set(numbers[first : first + size]) != group:
            return False
    alone = set(numbers) - set().union(*together)
    return all(numbers[number] == number for number in alone)


async def test_a_writing_call_runs_alone_and_reading_ones_side_by_side_in_the_order_of_asking() -> None:
    fake = _fake()
    async with managed({"f": fake.config()}) as manager:
        await _play(manager, ["read", "read", "read", "write", "read", "read", "write", "write", "read"])
    calls = fake.calls()
    assert _in_order(calls, {4, 5})
    for call in calls:
        beside = [other for other in calls if other is not call and call.overlaps(other)]
        if call.tool == "write":
            assert beside == [], f"call {call.arguments['n']} was not alone"
    groups = [calls[0:3], calls[4:6]]
    for group in groups:
        assert all(one.overlaps(other) for one in group for other in group), "those that read ran side by side"


async def test_all_run_one_after_the_other_where_that_is_asked_for() -> None:
    fake = _fake()
    async with managed({"f": fake.config(serialize="all")}) as manager:
        await _play(manager, ["read", "read", "write", "read"])
    assert fake.most_at_once() == 1
    assert _in_order(fake.calls())


async def test_writing_calls_run_side_by_side_too_where_nothing_is_to_be_serialized() -> None:
    fake = _fake()
    async with managed({"f": fake.config(serialize="none")}) as manager:
        await _play(manager, ["write", "read", "write", "write"])
    assert fake.most_at_once() == 4


@pytest.mark.parametrize("limit", [1, 3])
async def test_no_more_run_at_once_than_the_limit(limit: int) -> None:
    fake = _fake()
    async with managed({"f": fake.config(max_concurrency=limit)}) as manager:
        await _play(manager, ["read"] * 7)
    assert fake.most_at_once() == limit
    assert _in_order(fake.calls(), {3, 4, 5} if limit == 3 else {0})


async def test_calls_of_different_servers_never_wait_for_each_other() -> None:
    slow, quick = FakeServer().tool("t", do.hang()), FakeServer().tool("t")
    async with managed({"slow": slow.config(), "quick": quick.config()}) as manager, trio.open_nursery() as nursery:
        await manager.started.wait()
        nursery.start_soon(manager.call_tool, "slow__t")
        await slow.wait_for("begin", method="tools/call")
        with trio.fail_after(5):
            assert (await manager.call_tool("quick__t")).text == "{}"
        nursery.cancel_scope.cancel()


async def test_conc_02_two_hundred_calls_at_once_each_get_their_own_answer_whatever_the_order() -> None:
    fake = FakeServer(era="legacy").tool(
        "t", do.sleep("$args.wait"), do.request("ping", id="$id"), do.reply("$args.n"), read_only=True
    )
    async with managed({"f": fake.config(max_concurrency=1000)}) as manager:
        await manager.started.wait()
        texts: dict[int, str] = {}

        async def call(number: int) -> None:
            wait = 0.001 * ((number * 37) % 50)
            texts[number] = (await manager.call_tool("f__t", {"n": number, "wait": wait})).text

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(call, number)
    assert texts == {number: str(number) for number in range(200)}
    answered = [record.facts["id"] for record in fake.records("end", method="tools/call")]
    assert answered != sorted(answered), "the answers came in another order than the questions"


@pytest.mark.parametrize("how", ["its caller went away", "it timed out"])
async def test_a_writing_call_that_was_given_up_is_not_overtaken_by_the_next_one(how: str) -> None:
    # It takes a moment to stop, and says nothing when it has.
    fake = FakeServer().tool("write", do.ignore_cancel(), do.wait("SIGUSR1"), do.sleep(0.1), do.note("stopped"))
    fake.on_signal("SIGUSR1").tool("next")
    async with managed({"f": fake.config()}) as manager:
        await manager.started.wait()
        if how == "it timed out":
            with pytest.raises(TimedOut):
                await manager.call_tool("f__write", timeout=1)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(manager.call_tool, "f__write")
                await fake.wait_for("begin", method="tools/call")
                nursery.cancel_scope.cancel()
        assert manager.server("f").in_flight == 1, "the server may still be at it"
        fake.send_signal("SIGUSR1")
        assert (await manager.call_tool("f__next")).text == "{}"
        assert manager.server("f").in_flight == 0
    (stopped,) = fake.records("note")
    assert stopped.time < fake.calls("next")[0].began


async def test_a_call_that_never_stops_keeps_the_next_one_waiting_for_a_moment_only() -> None:
    fake = FakeServer().tool("write", do.ignore_cancel(), do.hang()).tool("next")
    async with managed({"f": fake.config()}) as manager:
        await manager.started.wait()
        with pytest.raises(TimedOut):
            await manager.call_tool("f__write", timeout=1.2)
        began = trio.current_time()
        await manager.call_tool("f__next")
        assert 0.3 < trio.current_time() - began < 3


async def test_a_reading_call_that_was_given_up_keeps_only_those_waiting_that_run_alone() -> None:
    fake = FakeServer().tool(
        "read", do.ignore_cancel(), do.wait("SIGUSR1"), do.note("stopped"), do.reply("late"), read_only=True
    )
    fake.on_signal("SIGUSR1").tool("look", read_only=True).tool("write")
    async with managed({"f": fake.config()}) as manager, trio.open_nursery() as nursery:
        await manager.started.wait()
        with manager.events.subscribe() as events:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_when_begun, fake, scope)
                await manager.call_tool("f__read")
            assert manager.server("f").in_flight == 0, "its own place is free at once"
            assert (await manager.call_tool("f__look")).text == "{}"
            fake.send_signal("SIGUSR1")
            assert (await manager.call_tool("f__write")).text == "{}"
            ended = [record async for record in _until_ended(events, "f__write")]
    (stopped,) = fake.records("note")
    assert fake.calls("look")[0].began < stopped.time < fake.calls("write")[0].began
    assert [(event.tool, event.outcome, event.may_still_run) for event in ended] == [
        ("f__read", "cancelled", True),
        ("f__look", "ok", False),
        ("f__write", "ok", False),
    ]


async def _cancel_when_begun(fake: FakeServer, scope: trio.CancelScope) -> None:
    await fake.wait_for("begin", method="tools/call")
    scope.cancel()


async def _until_ended(events: Subscription, tool: str) -> AsyncIterator[ToolCallEnded]:
    """The ends of calls, up to the one of this tool."""
    async for record in events:
        if isinstance(record.event, ToolCallEnded):
            yield record.event
            if record.event.tool == tool:
                return


@pytest.mark.parametrize("alone", [True, False])
async def test_a_turn_that_was_kept_does_not_outlive_its_connection(alone: bool, autojump_clock: MockClock) -> None:
    turns: Turns[str] = Turns(8)
    turns.offer("connection")
    lingering = Lingering(turns)

    def give_up() -> Fate:
        assert turns.acquire_nowait(alone=alone) == "connection"
        lingering.keep("connection", fate := Fate(), 9, 9, alone=alone)
        return fate

    def is_free() -> bool:
        if turns.acquire_nowait(alone=True) is None:
            return False
        turns.release("connection")
        return True

    give_up()
    assert is_free(), "nobody would give it back"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lingering.run)
        await trio.testing.wait_all_tasks_blocked()
        give_up()
        await trio.sleep(0.4)
        assert not is_free()
        await trio.sleep(0.2)
        assert is_free()
        give_up()
        await trio.testing.wait_all_tasks_blocked()
        assert not is_free()
        nursery.cancel_scope.cancel()
    assert is_free()
    give_up()
    assert is_free()


@pytest.mark.parametrize("alone", [True, False])
async def test_a_late_answer_gives_a_kept_turn_back_at_once_and_only_once(
    alone: bool, autojump_clock: MockClock
) -> None:
    turns: Turns[str] = Turns(8)
    turns.offer("connection")
    lingering = Lingering(turns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lingering.run)
        await trio.testing.wait_all_tasks_blocked()
        turns.acquire_nowait(alone=alone)
        lingering.keep("connection", fate := Fate(), 9, 9, alone=alone)
        assert turns.acquire_nowait(alone=True) is None
        assert fate.on_late_answer is not None
        fate.on_late_answer()
        assert turns.acquire_nowait(alone=True) == "connection"
        turns.release("connection")
        fate.on_late_answer()
        await trio.sleep(1)
        assert turns.running == 0
        nursery.cancel_scope.cancel()
    assert turns.running == 0


async def test_a_call_that_must_run_alone_begins_with_the_late_answer_of_the_one_before_it() -> None:
    fake = FakeServer().tool("write", do.ignore_cancel(), do.wait("SIGUSR1"), do.reply("late")).tool("next")
    fake.on_signal("SIGUSR1")
    async with managed({"f": fake.config()}) as manager, trio.open_nursery() as nursery:
        await manager.started.wait()
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_begun, fake, scope)
            await manager.call_tool("f__write")
        fake.send_signal("SIGUSR1")
        began = trio.current_time()
        assert (await manager.call_tool("f__next")).text == "{}"
        assert trio.current_time() - began < 0.4, "less than the moment for which it would be kept"
        assert manager.server("f").in_flight == 0


async def test_a_restart_does_not_wait_for_a_call_that_was_given_up() -> None:
    fake = FakeServer().tool("write", do.ignore_cancel(), do.hang()).tool("next")
    async with managed({"f": fake.config()}) as manager:
        await manager.started.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.call_tool, "f__write")
            await fake.wait_for("begin", method="tools/call")
            nursery.cancel_scope.cancel()
        assert manager.server("f").in_flight == 1
        await manager.restart("f")
        assert manager.server("f").in_flight == 0
        assert (await manager.call_tool("f__next")).text == "{}"


async def test_the_next_call_never_waits_in_vain_for_one_that_was_given_up() -> None:
    fake = FakeServer().tool("write", do.ignore_cancel(), do.hang()).tool("next")
    async with managed({"f": fake.config(call_timeout_seconds=0.2)}) as manager:
        await manager.started.wait()
        with pytest.raises(TimedOut):
            await manager.call_tool("f__write")
        assert (await manager.call_tool("f__next")).text == "{}"
