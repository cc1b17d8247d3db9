"""What one server says is told at a bounded pace, and the worker's log misses no state for it."""

from __future__ import annotations

import trio
from attrs import evolve
from trio.testing import MockClock

from openprogram_mcp.cli._log import WorkerLog
from openprogram_mcp.client._said import Said
from openprogram_mcp.events import EventBus, ServerLog, StatusChanged
from openprogram_mcp.status import ServerState, ServerStatus


async def test_a_burst_is_told_whole_and_a_flood_at_a_pace_with_a_count_of_what_was_left_out(
    autojump_clock: MockClock,
) -> None:
    bus = EventBus()
    said = Said("loud", bus)
    for number in range(1000):
        said.log("info", "stderr", str(number))
    assert bus.last_id == 200
    await trio.sleep(1)
    for number in range(1000, 1100):
        said.log("info", "stderr", str(number))
    records = [record.event for record in bus.since(200)[0]]
    texts = [event.text for event in records if isinstance(event, ServerLog)]
    assert texts[:2] == ["800 lines of its log were left out here: it says more than can be kept", "1000"]
    assert texts[-1] == "1019"
    await trio.sleep(100)
    said.log("info", "stderr", "quiet again")
    assert next(record.event for record in bus.since(bus.last_id - 2)[0]) == ServerLog(
        server="loud",
        level="warning",
        logger=None,
        text="80 lines of its log were left out here: it says more than can be kept",
    )


async def test_a_state_whose_change_was_missed_in_a_flood_is_logged_all_the_same(autojump_clock: MockClock) -> None:
    bus = EventBus(size=8)
    row = ServerStatus(name="quiet", type="local", status=ServerState.PENDING)
    log = WorkerLog(False)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.follow, bus, lambda: [row])
        bus.publish(StatusChanged(server="quiet", status=row))
        await trio.testing.wait_all_tasks_blocked()
        row = evolve(row, status=ServerState.FAILED, error="it exited", phase="initialize")
        bus.publish(StatusChanged(server="quiet", status=row))
        for _ in range(20):
            bus.publish(ServerLog(server="loud", level="info", logger=None, text="x"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    lines = [line[9:] for line in log._waiting]
    assert lines[0] == "quiet: pending"
    assert lines[1].startswith("warning: ")
    assert lines[1].endswith(" events came too fast to be logged")
    assert lines[2] == "warning: quiet: failed (0.0 s) in initialize: it exited"
