"""How servers end: on every way, nothing of them is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from openprogram_mcp import open_manager
from openprogram_mcp.errors import ServerGone
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeServer, do

from ._host import hosting


def _stubborn() -> FakeServer:
    return FakeServer(era="legacy").on_eof().on_signal("SIGTERM").tool("echo", read_only=True)


def _wrapped() -> FakeServer:
    """As npx: the wrapper leaves at SIGTERM, the server behind it does not hear of it and lives on at EOF."""
    return FakeServer(era="legacy").on_eof().wrapped().tool("echo", read_only=True)


async def _disconnect(manager: MCPManager) -> None:
    await manager.disconnect("f")


async def _disable(manager: MCPManager) -> None:
    await manager.disable("f")


async def _remove(manager: MCPManager) -> None:
    await manager.remove("f")


async def _restart(manager: MCPManager) -> None:
    await manager.restart("f")
    await manager.disconnect("f")


@pytest.mark.parametrize("end", [_disconnect, _disable, _remove, _restart])
@pytest.mark.parametrize("make", [_wrapped, _stubborn])
async def test_life_01_the_server_behind_a_wrapper_ends_with_it(
    make: Callable[[], FakeServer], end: Callable[[MCPManager], Awaitable[None]]
) -> None:
    fake = make()
    async with hosting({"f": fake.config(stop_timeout_seconds=0.2)}) as manager:
        pids = fake.pids()
        assert pids
        await end(manager)
        assert fake.alive() == []
    assert fake.alive() == []


async def test_life_01_the_server_behind_a_wrapper_ends_when_its_start_times_out() -> None:
    fake = _wrapped().on("initialize")
    async with hosting({"f": fake.config(startup_timeout_seconds=0.4, stop_timeout_seconds=0.2)}) as manager:
        assert manager.server("f").error
        assert fake.pids()
        assert fake.alive() == []


async def test_life_02_a_server_that_ignores_everything_is_killed_within_a_bound_and_that_is_told() -> None:
    fake = _stubborn()
    async with hosting({"f": fake.config(stop_timeout_seconds=0.2)}) as manager:
        with trio.fail_after(5):
            row = await manager.disconnect("f")
        assert row.exit_way == "kill"
        assert row.exit_code == -9
        assert fake.alive() == []


@pytest.mark.parametrize(
    ("fake", "way"),
    [
        (FakeServer(era="legacy"), "eof"),
        (FakeServer(era="legacy").on_eof(), "term"),
    ],
    ids=["polite", "ignores EOF"],
)
async def test_how_a_server_ended_is_told(fake: FakeServer, way: str) -> None:
    async with hosting({"f": fake.config(stop_timeout_seconds=0.3)}) as manager:
        assert (await manager.disconnect("f")).exit_way == way


async def test_servers_end_side_by_side() -> None:
    fakes = {f"f{number}": _stubborn() for number in range(6)}
    async with open_manager(
        {name: fake.config(stop_timeout_seconds=0.4) for name, fake in fakes.items()}, raise_internal=True
    ) as manager:
        await manager.started.wait()
        before = trio.current_time()
    # One after the other they would take six times 0.8 s.
    assert trio.current_time() - before < 3
    assert all(fake.alive() == [] for fake in fakes.values())


async def test_life_06_a_container_is_stopped_by_its_exact_name(tmp_path: Path) -> None:
    """A docker whose containers outlive EOF, SIGTERM and the client itself; only `docker kill NAME` ends them."""
    container = FakeServer(era="legacy").on_eof().on_signal("SIGTERM").wrapped(new_session=True).tool("echo")
    container.install(tmp_path, "container")
    log = tmp_path / "log"
    script = (
        "#!/bin/sh\n"
        f'echo "$@" >> {log}\n'
        f'if [ "$1" = run ]; then exec {tmp_path}/container; fi\n'
        f'if [ "$1" = kill ]; then kill -9 $(cat {tmp_path}/pid); fi\n'
    )
    docker = tmp_path / "docker"
    docker.write_text(script)
    docker.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    entry = {
        "command": ["docker", "run", "-i", "--rm", "img"],
        "env": {"PATH": path},
        "stop_timeout_seconds": 0.2,
    }
    async with hosting({"f": entry}) as manager:
        assert manager.server("f").ready
        await trio.Path(tmp_path / "pid").write_text(str(container.pid))
        await manager.disconnect("f")
    lines = log.read_text().splitlines()
    name = lines[0].split()[2]
    assert lines[0].split()[:2] == ["run", "--name"]
    assert name.startswith("openprogram-mcp-")
    assert lines[1:] == [f"kill {name}"]
    assert container.alive() == []


async def test_life_07_servers_live_in_a_session_of_their_own_so_that_ctrl_c_of_the_terminal_misses_them() -> None:
    fake = FakeServer(era="legacy")
    async with hosting({"f": fake}):
        assert os.getsid(fake.pid) != os.getsid(0)
        assert os.getpgid(fake.pid) != os.getpgid(0)


async def test_life_09_calls_that_run_when_a_server_is_stopped_may_come_to_an_end() -> None:
    fake = FakeServer(era="legacy").tool("slow", do.sleep(0.2), do.reply("done"), read_only=True)
    texts: list[str] = []

    async def call(manager: MCPManager) -> None:
        texts.append((await manager.call_tool("f__slow")).text)

    async with hosting({"f": fake}) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(call, manager)
        nursery.start_soon(call, manager)
        await fake.wait_for("received", method="tools/call", count=2)
        await manager.disconnect("f")
    assert texts == ["done", "done"]


async def test_life_09_calls_that_do_not_end_in_time_are_told_so() -> None:
    fake = FakeServer(era="legacy").tool("hang", do.hang())
    errors: list[ServerGone] = []

    async def call(manager: MCPManager) -> None:
        with pytest.raises(ServerGone) as caught:
            await manager.call_tool("f__hang")
        errors.append(caught.value)

    async with hosting({"f": fake.config(stop_timeout_seconds=0.2)}) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(call, manager)
        await fake.wait_for("received", method="tools/call")
        await manager.disconnect("f")
    assert [error.may_have_run for error in errors] == [True]


async def test_a_hundred_starts_and_stops_leave_no_descriptor_and_no_process() -> None:
    fake = FakeServer(era="legacy").tool("echo")
    async with hosting({"f": fake}, seconds=120) as manager:
        await manager.restart("f")
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number
        for _ in range(100):
            assert (await manager.restart("f")).ready
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        assert len(fake.alive()) == 1
    assert fake.alive() == []


@pytest.mark.skipif(shutil.which("setsid") is None, reason="needs the program setsid")
async def test_a_child_that_leaves_the_group_ends_with_its_server() -> None:
    fake = FakeServer(era="legacy").on_start(do.spawn(new_session=True)).tool("echo")
    async with hosting({"f": fake}) as manager:
        await fake.wait_for("spawn")
        assert len(fake.pids()) > 1
        await manager.disconnect("f")
        assert fake.alive() == []
