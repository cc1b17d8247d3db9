"""One manager per process, in a nursery of the host's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from openprogram_mcp import (
    MCPManager,
    ServerState,
    load_mcp_servers,
    open_manager,
    server_status,
    shutdown_mcp_servers,
)
from openprogram_mcp.manager import _process_wide
from openprogram_mcp.testing import FakeServer

Saved = Callable[..., None]


@pytest.fixture
def saved(state_dir: Path) -> Saved:
    """Saves these servers as the configuration."""

    def save(**servers: FakeServer) -> None:
        state_dir.mkdir(mode=0o700, exist_ok=True)
        entries = {name: fake.config() for name, fake in servers.items()}
        (state_dir / "mcp_servers.json").write_text(json.dumps({"servers": entries}))

    return save


async def test_loading_starts_the_saved_servers_and_waits_for_none_of_them(saved: Saved, nursery: trio.Nursery) -> None:
    fake = FakeServer(era="legacy").tool("t").on("initialize")
    saved(a=fake)
    assert server_status() == {}
    manager = await load_mcp_servers(nursery)
    assert isinstance(manager, MCPManager)
    assert list(server_status()) == ["a"]
    assert server_status()["a"].status in (ServerState.PENDING, ServerState.STARTING)
    await shutdown_mcp_servers()
    assert fake.alive() == []


async def test_loading_a_second_time_does_nothing_and_gives_the_same(saved: Saved, nursery: trio.Nursery) -> None:
    fake = FakeServer().tool("t")
    saved(a=fake)
    first = await load_mcp_servers(nursery)
    await first.started.wait()
    assert await load_mcp_servers(nursery) is first
    assert (await first.call_tool("a__t")).text == "{}"
    assert fake.starts == 1
    await shutdown_mcp_servers()


async def test_a_shutdown_resets_it(saved: Saved, nursery: trio.Nursery) -> None:
    fake = FakeServer()
    saved(a=fake)
    first = await load_mcp_servers(nursery)
    await first.started.wait()
    await shutdown_mcp_servers()
    assert server_status() == {}
    assert fake.alive() == []
    await shutdown_mcp_servers()
    second = await load_mcp_servers(nursery)
    assert second is not first
    await second.started.wait()
    assert server_status()["a"].ready
    await shutdown_mcp_servers()


async def test_all_who_load_at_the_same_moment_get_the_same(saved: Saved, nursery: trio.Nursery) -> None:
    saved(a=FakeServer())
    managers: list[MCPManager] = []

    async def load() -> None:
        managers.append(await load_mcp_servers(nursery))

    async with trio.open_nursery() as loading:
        for _ in range(5):
            loading.start_soon(load)
    assert len({id(manager) for manager in managers}) == 1
    await shutdown_mcp_servers()


async def test_whoever_loads_while_it_is_being_stopped_gets_a_new_one(saved: Saved, nursery: trio.Nursery) -> None:
    saved(a=FakeServer())
    first = await load_mcp_servers(nursery)
    await first.started.wait()
    managers: list[MCPManager] = []

    async def load() -> None:
        managers.append(await load_mcp_servers(nursery))

    async with trio.open_nursery() as at_once:
        at_once.start_soon(shutdown_mcp_servers)
        await wait_all_tasks_blocked()
        at_once.start_soon(load)
    assert managers != [first]
    assert first.server("a").status is ServerState.DISCONNECTED
    await shutdown_mcp_servers()


async def test_a_host_that_is_cancelled_takes_the_servers_with_it_and_another_one_may_follow(saved: Saved) -> None:
    fake = FakeServer()
    saved(a=fake)
    for _ in range(2):
        async with trio.open_nursery() as host:
            manager = await load_mcp_servers(host)
            await manager.started.wait()
            assert server_status()["a"].ready
            host.cancel_scope.cancel()
        assert server_status() == {}
        assert fake.alive() == []


async def test_a_load_that_fails_can_be_repeated_and_keeps_nobody_waiting(
    saved: Saved, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(a=FakeServer())
    real = open_manager
    calls = 0

    def broken() -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no home")
        return real()

    monkeypatch.setattr(_process_wide, "open_manager", broken)
    with pytest.raises(OSError, match="no home"):
        await load_mcp_servers(nursery)
    with trio.fail_after(5):
        await shutdown_mcp_servers()
    await load_mcp_servers(nursery)
    await shutdown_mcp_servers()


async def test_a_load_that_is_cancelled_leaves_nothing(saved: Saved, nursery: trio.Nursery) -> None:
    fake = FakeServer()
    saved(a=fake)
    with trio.CancelScope() as scope:
        scope.cancel()
        await load_mcp_servers(nursery)
    assert scope.cancelled_caught
    assert server_status() == {}
    assert fake.alive() == []


async def test_a_nursery_that_is_closed_cannot_hold_it_and_that_is_no_lasting_harm(saved: Saved) -> None:
    saved(a=FakeServer())
    async with trio.open_nursery() as closed:
        pass
    with pytest.raises(RuntimeError):
        await load_mcp_servers(closed)
    async with trio.open_nursery() as host:
        await load_mcp_servers(host)
        await shutdown_mcp_servers()
