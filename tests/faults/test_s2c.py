"""What servers ask of us while we ask of them: answered at once, in every order, and nobody's ids are mistaken."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio

from openprogram_mcp.events import ServerLog
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of

from ._host import hosting, well_behaved

_ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
Era = Literal["legacy", "modern"]


@_ERAS
@pytest.mark.parametrize("serialize", ["all", "none"])
@pytest.mark.parametrize("request_id", ["s1", 0, 1, 4, "4"], ids=repr)
async def test_s2c_01_what_a_tool_asks_before_it_answers_is_answered_while_its_call_runs(
    request_id: Any, serialize: str, era: Era
) -> None:
    """Among the ids are those that our own requests have."""
    fake = FakeServer(era=era).tool(
        "asks",
        do.request("ping", id=request_id),
        do.note("$answer"),
        do.request("foo/bar", {"n": 1}, id=request_id),
        do.note("$answer"),
        do.reply("done"),
    )
    async with hosting({"f": fake.config(serialize=serialize)}) as manager:
        result = await manager.call_tool("f__asks", {}, timeout=5)
        assert (result.text, result.is_error) == ("done", False)
        pong, refused = (record.facts["value"] for record in fake.records("note"))
        # At 2026-07-28 there is no ping any more, and it is refused as what it is: unknown.
        assert pong == {} if era == "legacy" else pong["code"] == -32601
        assert refused["code"] == -32601
        assert manager.server("f").generation == 1
    answers = [message for message in fake.received() if "method" not in message]
    # The very id, not one that only looks like it.
    assert [message["id"] for message in answers] == [request_id, request_id]
    assert [type(message["id"]) for message in answers] == [type(request_id)] * 2


@_ERAS
async def test_s2c_01_many_that_ask_at_once_are_answered_while_calls_run_and_others_are_not_disturbed(
    era: Era,
) -> None:
    fake = FakeServer(era=era).tool("asks", do.request("ping"), do.request("foo/bar"), do.reply("${args.n}"))
    done: list[str] = []
    async with hosting({"f": fake.config(serialize="none", max_concurrency=50), "good": well_behaved()}) as manager:

        async def call(number: int) -> None:
            result = await manager.call_tool("f__asks", {"n": number}, timeout=20)
            assert result.text == str(number)
            done.append(result.text)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(call, number)
            assert not (await manager.call_tool("good__echo", {})).is_error
        assert len(done) == 100
    assert len([message for message in fake.received() if "method" not in message]) == 200


async def test_s2c_01_a_server_that_waits_for_an_answer_and_one_that_never_reads_it_are_alike() -> None:
    """It asks and answers at once, without waiting for us."""
    fake = FakeServer(era="legacy").tool("rude", do.request("ping", id="r", wait=False), do.reply("done"))
    async with hosting({"f": fake}) as manager:
        for _ in range(20):
            assert (await manager.call_tool("f__rude", {}, timeout=5)).text == "done"


async def test_s2c_01_a_cancelled_call_leaves_what_its_server_asks_next_answered() -> None:
    fake = (
        FakeServer(era="legacy")
        .tool("asks", do.ignore_cancel(), do.wait("cancelled"), do.request("ping", id="late"), do.note("$answer"))
        .tool("echo", read_only=True)
    )
    async with hosting({"f": fake}) as manager:
        with trio.move_on_after(0.2):
            await manager.call_tool("f__asks", {})
        notes = await fake.wait_for("note")
        assert notes[0].facts["value"] == {}
        assert not (await manager.call_tool("f__echo", {}, timeout=5)).is_error


async def test_s2c_03_what_a_server_asks_and_tells_before_it_is_initialized_is_answered_and_heard() -> None:
    fake = FakeServer(era="legacy").on(
        "initialize",
        do.log("before the result", logger="boot"),
        do.request("ping", id=0),
        do.note("$answer"),
        do.standard(),
        do.request("foo/bar", id="after"),
        do.note("$answer"),
    )
    fake.tool("echo", read_only=True)
    async with hosting({"f": fake}) as manager:
        notes = [record.facts["value"] for record in await fake.wait_for("note", count=2)]
        assert not (await manager.call_tool("f__echo", {})).is_error
        logs = [(event.logger, event.text) for event in events_of(manager.events, ServerLog)]
    assert notes[0] == {}
    assert notes[1]["code"] == -32601
    assert ("boot", "before the result") in logs
    answered = [message["id"] for message in fake.received() if "method" not in message]
    assert answered == [0, "after"]


async def test_s2c_03_a_server_that_asks_at_once_and_waits_for_us_before_it_reads_is_no_deadlock() -> None:
    """It handles one thing at a time: until it has its answer, it does not look at ``initialize``."""
    fake = FakeServer(era="legacy", single_threaded=True).on(
        "initialize", do.request("ping", id="first"), do.standard()
    )
    fake.tool("echo", do.request("ping", id="again"), do.reply("done"), read_only=True)
    async with hosting({"f": fake}) as manager:
        assert manager.server("f").ready
        assert (await manager.call_tool("f__echo", {}, timeout=5)).text == "done"
