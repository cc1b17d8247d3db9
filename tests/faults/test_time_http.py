"""Remote servers that are slow, silent or endless, and lists of theirs that change, as reports have found them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from openprogram_mcp import ServerState
from openprogram_mcp.errors import ServerGone, TimedOut
from openprogram_mcp.events import ToolCallProgress
from openprogram_mcp.testing import FakeHttpServer, do
from tests._living import events_of
from tests.faults._host import ODD_PROGRESS, hosting
from tests.faults._remote import AT_ONCE, ERAS, MANNERS, fake_of, remote
from tests.faults.test_list import EIGHT, tools_changed

_S = ServerState
_MANNERS = pytest.mark.parametrize("manner", MANNERS)


def cancelled(fake: FakeHttpServer) -> list[Any]:
    """The ids that were cancelled by a notification."""
    return [message["params"]["requestId"] for message in fake.received("notifications/cancelled")]


# TIME-03: servers that never answer.


@pytest.mark.parametrize(
    ("hook", "phase"),
    [("connect", "connect"), ("POST", "connect"), ("initialize", "initialize"), ("tools/list", "list_tools")],
)
async def test_time_03_a_server_that_takes_the_connection_and_never_answers_meets_the_limit(
    hook: str, phase: str
) -> None:
    fake = FakeHttpServer(era="legacy").tool("t").on(hook)
    async with fake.serving():
        began = trio.current_time()
        async with hosting({"f": fake.config(startup_timeout_seconds=0.4, reconnect=False)}) as manager:
            row = manager.server("f")
            assert (row.status, row.phase) == (_S.FAILED, phase)
            assert "0.4 s" in (row.error or "")
            assert "startup_timeout_seconds" in (row.remedy or "")
        assert trio.current_time() - began < 4
    assert cancelled(fake) == []


@_MANNERS
@pytest.mark.parametrize(
    "steps",
    [
        [do.hang()],
        [do.stream(), do.hang()],
        [do.stream(), do.write(": still here\n\n"), do.hang()],
        [do.tcp("HTTP/1.1 200 OK\r\nContent-"), do.hang()],
        [do.head(200, {"Content-Type": "application/json", "Content-Length": "999"}, framing="none"), do.hang()],
        [do.stream(), do.repeat(do.write(": tick\n\n"), do.sleep(0.02))],
    ],
    ids=["nothing", "a stream", "a comment", "half a header", "no body", "endless comments"],
)
async def test_time_03_a_call_that_is_never_answered_meets_its_limit_and_the_server_lives(
    steps: Any, manner: str
) -> None:
    fake = fake_of(manner).tool("t", *steps).tool("quick")
    async with remote(fake, call_timeout_seconds=0.3) as manager:
        with pytest.raises(TimedOut, match="f__t") as late:
            await manager.call_tool("f__t")
        assert (late.value.budget, late.value.seconds) == ("call", 0.3)
        assert (await manager.call_tool("f__quick")).text == "{}"
        row = manager.server("f")
        assert (row.status, row.generation, row.in_flight) == (_S.CONNECTED, 1, 0)


# TIME-05: progress without an end.


@_MANNERS
async def test_time_05_progress_without_an_end_meets_the_hard_limit_and_the_session_lives(manner: str) -> None:
    fake = fake_of(manner).tool("endless", do.repeat(do.progress("$count", total=0), do.sleep(0.02))).tool("quick")
    heard: list[float] = []

    async def on_progress(progress: float, _total: float | None, _message: str | None) -> None:
        heard.append(progress)

    async with remote(fake, call_timeout_seconds=0.15, max_call_seconds=0.6) as manager:
        with pytest.raises(TimedOut, match=r"0.6 s") as late:
            await manager.call_tool("f__endless", on_progress=on_progress)
        assert late.value.budget == "max_call"
        assert len(heard) > 5
        assert heard == sorted(heard)
        assert (await manager.call_tool("f__quick")).text == "{}"
        assert manager.server("f").generation == 1
        await fake.wait_for("cancelled")


@_MANNERS
async def test_time_05_odd_progress_is_dropped_and_costs_nothing(manner: str) -> None:
    fake = fake_of(manner).tool("t", *ODD_PROGRESS, do.reply("done"), do.progress(9, message="after the answer"))
    async with remote(fake) as manager:
        assert (await manager.call_tool("f__t")).text == "done"
        assert (await manager.call_tool("f__t")).text == "done"
        heard = [(event.progress, event.message) for event in events_of(manager.events, ToolCallProgress)]
        assert heard == [(2.5, None), (3.5, None)] * 2


# TIME-06 and SPEC-02: calls that nobody waits for any more.


@_MANNERS
@pytest.mark.parametrize("why", ["limit", "caller"])
@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "begun"])
async def test_time_06_and_spec_02_an_abandoned_call_is_cancelled_once_in_the_way_of_its_era(
    begun: bool, why: str, manner: str
) -> None:
    steps = [do.progress(1, token="t")] if begun else []
    fake = fake_of(manner).tool("slow", *steps, do.wait("cancelled"), do.note("it stopped")).tool("quick")
    async with remote(fake, call_timeout_seconds=0.3 if why == "limit" else 30) as manager:
        if why == "limit":
            with pytest.raises(TimedOut):
                await manager.call_tool("f__slow")
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(manager.call_tool, "f__slow")
                await fake.wait_for("begin", method="tools/call")
                began = trio.current_time()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began < 0.1, "the caller does not wait for the server"
        await fake.wait_for("note")
        assert (await manager.call_tool("f__quick")).text == "{}"
        assert manager.server("f").generation == 1
    slow, _ = fake.requests(rpc="tools/call")
    if manner == "modern":
        assert cancelled(fake) == []
        assert slow.ended_by == "client", "the end of its response says it"
    else:
        assert cancelled(fake) == [slow.message["id"]]
    assert len([record for record in fake.records("cancelled") if record.facts["id"] == slow.message["id"]]) == 1


@_MANNERS
async def test_time_06_a_late_answer_reaches_nobody(manner: str) -> None:
    fake = (
        fake_of(manner).tool("slow", do.ignore_cancel(), do.sleep(0.3), do.reply("late"), do.note("said")).tool("quick")
    )
    async with remote(fake, call_timeout_seconds=0.1, serialize="none") as manager:
        with pytest.raises(TimedOut):
            await manager.call_tool("f__slow")
        await fake.wait_for("note")
        assert (await manager.call_tool("f__quick")).text == "{}"
        assert manager.server("f").generation == 1


@_MANNERS
async def test_a_handshake_that_is_cut_off_is_not_cancelled_by_a_notification(manner: str) -> None:
    fake = fake_of(manner).on("initialize").on("server/discover")
    async with remote(fake, startup_timeout_seconds=0.3, reconnect=False) as manager:
        assert manager.server("f").status is _S.FAILED
    assert cancelled(fake) == []


# LIST and TIME-08: lists.


@_MANNERS
async def test_list_02_a_list_without_an_end_is_cut_off_and_the_server_is_usable(manner: str) -> None:
    fake = fake_of(manner).on("tools/list", do.result({"tools": EIGHT, "nextCursor": "p1", "resultType": "complete"}))
    fake.tool("t7")
    async with remote(fake) as manager:
        assert manager.server("f").tool_count == 8
        assert (await manager.call_tool("f__t7")).text == "{}"
    assert len(fake.received("tools/list")) < 5


@_MANNERS
async def test_list_05_a_changed_list_replaces_the_old_one(manner: str) -> None:
    fake = fake_of(manner).tool("old").tool("stays").tool("new", hidden=True)
    async with remote(fake) as manager:
        if manner == "modern":
            await fake.wait_for("begin", method="subscriptions/listen")
        elif manner == "legacy":
            await fake.wait_for("request", method="GET")
        last = manager.events.last_id
        fake.play(do.hide("old"), do.show("new"), do.changed())
        told = await tools_changed(manager, last)
        assert (told.added, told.removed) == (("f__new",), ("f__old",))
        assert (await manager.call_tool("f__new")).text == "{}"


@ERAS
async def test_list_05_what_changed_while_the_stream_was_lost_is_found_out(era: Any) -> None:
    fake = FakeHttpServer(era=era, retry=10).tool("old").tool("new", hidden=True)
    async with remote(fake, reconnect=AT_ONCE) as manager:
        await fake.wait_for(
            "begin" if era == "modern" else "request", method="subscriptions/listen" if era == "modern" else "GET"
        )
        last = manager.events.last_id
        fake.cut(reset=True)
        fake.play(do.show("new"))  # it tells nobody
        assert (await tools_changed(manager, last)).added == ("f__new",)
        assert manager.server("f").status is _S.CONNECTED


@_MANNERS
async def test_time_08_a_reading_that_fails_keeps_the_old_list_and_is_repeated(manner: str) -> None:
    fake = fake_of(manner).tool("old").tool("new", hidden=True)
    async with remote(fake) as manager:
        if manner != "sse":
            await fake.wait_for(
                "begin" if manner == "modern" else "request",
                method="subscriptions/listen" if manner == "modern" else "GET",
            )
        last = manager.events.last_id
        fake.on("tools/list", do.turns([do.respond(500, "oops")], [do.cut()], [do.standard()]))
        fake.play(do.show("new"), do.changed())
        await fake.wait_for("begin", method="tools/list", count=2)
        assert (await manager.call_tool("f__old")).text == "{}"
        assert (await tools_changed(manager, last)).added == ("f__new",)
        assert manager.server("f").generation == 1


# Streams that break.


async def test_a_legacy_stream_that_breaks_is_taken_up_behind_the_last_event() -> None:
    fake = FakeHttpServer(era="legacy", resumable=True, retry=20)
    fake.tool("work", do.progress(1), do.cut(), do.progress(2), do.sleep(0.05), do.reply("done"))
    async with remote(fake) as manager:
        assert (await manager.call_tool("f__work")).text == "done"
        assert [event.progress for event in events_of(manager.events, ToolCallProgress)] == [1, 2]
        assert manager.server("f").generation == 1
    assert len(fake.calls()) == 1
    resumed = [request for request in fake.requests("GET") if request.header("last-event-id")]
    assert len(resumed) == 1


async def test_a_legacy_stream_that_breaks_again_and_again_is_taken_up_each_time() -> None:
    fake = FakeHttpServer(era="legacy", resumable=True, retry=10)
    fake.on("GET", do.beside(do.sleep(0.03), do.cut()), do.standard())
    fake.tool("work", do.progress(1), do.cut(), *[do.sleep(0.04), do.progress("$id")] * 3, do.reply("done"))
    async with remote(fake) as manager:
        assert (await manager.call_tool("f__work")).text == "done"
    assert len(fake.calls()) == 1


@pytest.mark.parametrize("cut", [do.cut(), do.cut(reset=True)], ids=["end", "reset"])
async def test_a_legacy_stream_that_cannot_be_taken_up_fails_its_call_alone(cut: Any) -> None:
    fake = FakeHttpServer(era="legacy").tool("work", do.progress(1, token="t"), cut, do.hang()).tool("echo")
    async with remote(fake) as manager:
        with pytest.raises(ServerGone) as gone:
            await manager.call_tool("f__work")
        assert gone.value.may_have_run
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").generation == 1
    assert len(fake.calls("work")) == 1
