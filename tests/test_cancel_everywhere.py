"""A cancel, or Ctrl-C, may fall anywhere: nothing is left behind, and the next call or start works.

Every test strikes step after step of what it names, with a real process, and says how many steps there were.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from openprogram_mcp import open_manager
from openprogram_mcp.client._connection import protocol
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do

from ._strike import (
    descriptors,
    run_cancelled_at,
    run_interrupted_at,
    strike_a_running_manager,
    strike_every_step,
)

Report = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def _sdk() -> None:
    """The SDK is imported before steps are counted: the import is one step of a thread, and long."""
    protocol()


def _fake(era: str = "legacy") -> FakeServer:
    fake = FakeServer(era="legacy" if era == "legacy" else "modern", recording=True)
    fake.tool("echo", do.echo(), read_only=True)
    return fake.tool("count", do.progress(1), do.progress(2), do.reply("done"))


async def _whole_life(fake: FakeServer) -> None:
    async with open_manager({"f": fake.config(stop_timeout_seconds=1)}, raise_internal=True) as manager:
        await manager.started.wait()
        heard: list[float] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            del total, message
            heard.append(progress)

        await manager.call_tool("f__count", {}, on_progress=on_progress)
        await manager.restart("f")
        assert (await manager.call_tool("f__echo", {"a": 1})).is_error is False


# Each run starts real processes, so the full count takes a while; every seventh step is struck whenever tests are run.
_strides = pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.long)])


@_strides
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_whole_life_can_be_cancelled_at_any_step_and_nothing_is_left(
    era: str, stride: int, record_property: Report
) -> None:
    fake = _fake(era)
    assert not run_cancelled_at(10**9, lambda: _whole_life(fake))
    before = descriptors()

    def run(at: int) -> bool:
        struck = run_cancelled_at(at, lambda: _whole_life(fake))
        assert fake.alive() == [], f"a process is left after step {at}"
        assert descriptors() == before, f"a descriptor is left after step {at}"
        return struck

    record_property("steps", strike_every_step(run, at_least=60, stride=stride))


@_strides
def test_ctrl_c_may_fall_at_any_step_of_a_whole_life_and_nothing_is_left(stride: int, record_property: Report) -> None:
    fake = _fake()
    assert not run_interrupted_at(10**9, lambda: _whole_life(fake))
    before = descriptors()

    def run(at: int) -> bool:
        struck = run_interrupted_at(at, lambda: _whole_life(fake))
        assert fake.alive() == [], f"a process is left after step {at}"
        assert descriptors() == before, f"a descriptor is left after step {at}"
        return struck

    record_property("steps", strike_every_step(run, at_least=60, stride=stride))


async def _works(manager: MCPManager) -> None:
    with trio.fail_after(10):
        await manager.wait_settled("f")
        assert manager.server("f").status is ServerState.CONNECTED
        result = await manager.call_tool("f__echo", {"text": "after"})
    assert not result.is_error
    row = manager.server("f")
    assert (row.in_flight, row.queued) == (0, 0)


def test_a_call_can_be_cancelled_at_any_step_and_the_next_one_works(record_property: Report) -> None:
    async def piece(manager: MCPManager) -> None:
        await manager.call_tool("f__count", {})

    fake = _fake()
    record_property("steps", strike_a_running_manager(fake.config(), piece, _works, at_least=2))


def test_calls_side_by_side_can_be_cancelled_at_any_step_and_the_next_one_works(record_property: Report) -> None:
    async def piece(manager: MCPManager) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(manager.call_tool, "f__count" if number % 2 else "f__echo", {})

    fake = _fake()
    record_property("steps", strike_a_running_manager(fake.config(), piece, _works, at_least=10))


def test_a_restart_can_be_cancelled_at_any_step_and_the_server_comes_back(record_property: Report) -> None:
    fake = _fake()

    async def piece(manager: MCPManager) -> None:
        await manager.restart("f")

    async def after(manager: MCPManager) -> None:
        await _works(manager)
        assert len(fake.alive()) == 1

    record_property("steps", strike_a_running_manager(fake.config(), piece, after, at_least=10))


def test_adding_a_server_can_be_cancelled_at_any_step_and_leaves_all_or_nothing(record_property: Report) -> None:
    fake, other = _fake(), _fake()

    async def piece(manager: MCPManager) -> None:
        await manager.add(other.server_config("other"))

    async def after(manager: MCPManager) -> None:
        await _works(manager)
        if "other" in manager.status():
            assert manager.server("other").ready
            await manager.remove("other")
        assert other.alive() == []
        assert all(not name.startswith("other__") for name in manager.registry.names())

    record_property("steps", strike_a_running_manager(fake.config(), piece, after, at_least=10))
