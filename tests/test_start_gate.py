"""How many servers are busy starting at once, and that one which sleeps keeps nobody waiting."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp import MCPManager
from openprogram_mcp.client import StartGate, _gate
from openprogram_mcp.testing import FakeServer, Step, do
from tests._living import managed

# It works without a pause until it is told to go on.
BUSY: tuple[Step, ...] = (do.beside(do.repeat(do.stderr(""))), do.wait("SIGUSR1"))


Looks = Callable[[int], Awaitable[None]]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Waits until the gate has looked so many times more at what servers do."""
    seen, looked = 0, trio.Event()
    real = _gate._activity

    def look(pid: int) -> tuple[bool, int]:
        nonlocal seen, looked
        seen += 1
        looked.set()
        looked = trio.Event()
        return real(pid)

    async def wait(count: int) -> None:
        until = seen + count
        with trio.fail_after(20):
            while seen < until:
                await looked.wait()

    monkeypatch.setattr(_gate, "_activity", look)
    return wait


@pytest.fixture
def limited(state_dir: Path) -> Callable[[dict[str, Any]], AbstractAsyncContextManager[MCPManager]]:
    """A manager of these servers, of which one at a time may be busy starting."""

    def limit(servers: dict[str, Any]) -> AbstractAsyncContextManager[MCPManager]:
        state_dir.mkdir(mode=0o700)
        (state_dir / "mcp_servers.json").write_text(json.dumps({"servers": servers, "start_limit": 1}))
        return managed()

    return limit


def _fake() -> FakeServer:
    return FakeServer().on_signal("SIGUSR1")


async def test_no_more_are_let_in_than_the_limit_and_the_first_to_come_is_the_first_to_start() -> None:
    gate = StartGate(2)
    inside: list[int] = []
    order: list[int] = []
    go_on = [trio.Event() for _ in range(5)]

    async def start(number: int) -> None:
        async with gate.slot():
            inside.append(number)
            order.append(number)
            await go_on[number].wait()
            inside.remove(number)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(start, number)
            await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            assert len(inside) <= 2
            go_on[number].set()
            await trio.testing.wait_all_tasks_blocked()
    assert order == [0, 1, 2, 3, 4]


async def test_a_slot_is_given_back_once_however_often_that_is_said() -> None:
    gate = StartGate(1)
    async with gate.slot() as slot:
        slot.give_back()
        slot.give_back()
        async with gate.slot():
            with trio.move_on_after(0) as scope:
                async with gate.slot():
                    raise AssertionError("there is one slot only")
            assert scope.cancelled_caught
    async with gate.slot():
        pass


async def test_whoever_is_cancelled_while_it_waits_leaves_no_slot_taken() -> None:
    gate = StartGate(1)
    async with gate.slot(), trio.open_nursery() as nursery:

        async def wait() -> None:
            async with gate.slot():
                raise AssertionError("it was cancelled")

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with trio.fail_after(1):
        async with gate.slot():
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: whether a process works is seen in /proc")
async def test_a_server_that_works_at_its_start_keeps_the_next_one_waiting(limited: Any, looks: Looks) -> None:
    busy, next_one = _fake().on_start(*BUSY), _fake()
    async with limited({"busy": busy.config(), "next": next_one.config()}) as manager:
        await busy.wait_for("start")
        await looks(6)
        assert next_one.starts == 0
        busy.send_signal("SIGUSR1")
        with trio.fail_after(20):
            await manager.started.wait()
        up = busy.records("begin", method="tools/list")[0].time
        assert next_one.records("start")[0].time >= up


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: whether a process works is seen in /proc")
async def test_a_server_that_sleeps_at_its_start_keeps_nobody_waiting(limited: Any) -> None:
    asleep, next_one = _fake().on_start(do.wait("SIGUSR1")), _fake()
    async with limited({"asleep": asleep.config(), "next": next_one.config()}) as manager:
        with trio.fail_after(10):
            assert (await manager.wait_settled("next")).ready
        assert not manager.server("asleep").ready
        asleep.send_signal("SIGUSR1")
        with trio.fail_after(20):
            await manager.started.wait()
        assert manager.server("asleep").ready


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: whether a process works is seen in /proc")
async def test_the_work_of_a_child_counts_as_the_servers_own(limited: Any, looks: Looks) -> None:
    busy = _fake().on_start(do.spawn(do.repeat(do.stderr(""))), do.wait("SIGUSR1"))
    next_one = _fake()
    async with limited({"busy": busy.config(), "next": next_one.config()}) as manager:
        await busy.wait_for("spawn")
        await looks(6)
        assert next_one.starts == 0
        busy.send_signal("SIGUSR1")
        with trio.fail_after(20):
            await manager.started.wait()


async def test_the_limit_of_a_start_counts_from_its_own_slot_and_not_from_the_queue(limited: Any, looks: Looks) -> None:
    busy, patient = _fake().on_start(*BUSY), _fake()
    configs = {"busy": busy.config(), "patient": patient.config(startup_timeout_seconds=0.4)}
    async with limited(configs) as manager:
        await busy.wait_for("start")
        await looks(12)
        busy.send_signal("SIGUSR1")
        with trio.fail_after(20):
            await manager.started.wait()
        assert manager.server("patient").ready


async def test_a_failed_start_gives_its_slot_back(limited: Any) -> None:
    dead = {f"dead{number}": FakeServer().on_start(do.exit(1)).config() for number in range(3)}
    async with limited({**dead, "good": FakeServer().config()}) as manager:
        with trio.fail_after(20):
            await manager.started.wait()
        assert manager.server("good").ready
