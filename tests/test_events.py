from __future__ import annotations

import trio

from openprogram_mcp.events import EventBus, Gap, ServerLog, ToolCallStarted, rfc3339, shortened


def _log(text: str, server: str = "s", level: str = "info") -> ServerLog:
    return ServerLog(server=server, level=level, logger=None, text=text)


async def test_a_subscriber_sees_what_is_published_after_it_came_in_order() -> None:
    bus = EventBus()
    bus.publish(_log("before"))
    with bus.subscribe() as events:
        bus.publish(_log("one"))
        bus.publish(_log("two"))
        got = [await anext(events), await anext(events)]
    assert [record.to_dict()["text"] for record in got] == ["one", "two"]
    assert [record.id for record in got] == [2, 3]


async def test_a_waiting_subscriber_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    bus = EventBus()
    seen: list[str] = []

    async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with bus.subscribe() as events:
            task_status.started()
            async for record in events:
                seen.append(record.to_dict()["text"])
                if len(seen) == 2:
                    return

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        await trio.testing.wait_all_tasks_blocked()
        bus.publish(_log("a"))
        await trio.testing.wait_all_tasks_blocked()
        bus.publish(_log("b"))
    assert seen == ["a", "b"]


async def test_replay_begins_after_the_number_given() -> None:
    bus = EventBus()
    for text in "abc":
        bus.publish(_log(text))
    with bus.subscribe(since=1) as events:
        assert (await anext(events)).to_dict()["text"] == "b"
        assert (await anext(events)).to_dict()["text"] == "c"


async def test_whoever_was_too_slow_is_told_how_many_it_missed_and_goes_on() -> None:
    bus = EventBus(size=4)
    with bus.subscribe() as slow:
        for number in range(10):
            bus.publish(_log(str(number)))
        gap = await anext(slow)
        assert isinstance(gap.event, Gap)
        assert gap.event.missed == 6
        rest = [(await anext(slow)).to_dict()["text"] for _ in range(4)]
    assert rest == ["6", "7", "8", "9"]


def test_polling_tells_the_next_number_and_what_was_missed() -> None:
    bus = EventBus(size=4)
    for number in range(6):
        bus.publish(_log(str(number)))
    records, following, missed = bus.since(0)
    assert [record.id for record in records] == [3, 4, 5, 6]
    assert (following, missed) == (6, 2)
    assert bus.since(6) == ([], 6, 0)
    assert bus.since(99) == ([], 6, 0)  # a number from another life of the bus is no reason to fail


def test_log_lines_are_kept_apart_from_the_ring_of_events() -> None:
    bus = EventBus(size=2)
    bus.publish(_log("kept", server="a", level="error"))
    for _ in range(5):
        bus.publish(Gap(missed=1))
    assert [record.to_dict()["text"] for record in bus.logs(server="a")] == ["kept"]
    assert bus.logs(server="b") == []
    assert bus.logs(level="debug") == []
    assert bus.logs(since=1) == []


async def test_a_cancelled_subscriber_leaves_nothing_behind(autojump_clock: trio.testing.MockClock) -> None:
    bus = EventBus()
    with trio.move_on_after(1), bus.subscribe() as events:
        assert bus.heard
        await anext(events)
    assert not bus.heard


def test_arguments_are_masked_when_they_are_read() -> None:
    event = ToolCallStarted(
        server="s", call_id="1", tool="t", arguments={"key": "hunter2"}, mask=lambda value: dict.fromkeys(value, "***")
    )
    bus = EventBus()
    bus.publish(event)
    assert bus.since(0)[0][0].to_dict()["arguments"] == {"key": "***"}
    assert "hunter2" not in str(bus.since(0)[0][0].to_dict())


def test_what_is_kept_of_large_arguments_is_small() -> None:
    cut = shortened({"text": "x" * 10_000, "list": list(range(1000)), "deep": {"a": {"b": {"c": {"d": 1}}}}})
    assert len(str(cut)) < 2_000
    assert "10000 characters" in cut["text"]
    small = {"a": 1, "b": ["x", None, True]}
    assert shortened(small) == small


def test_times_are_rfc_3339_in_utc() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
