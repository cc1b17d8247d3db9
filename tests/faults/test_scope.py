"""One failing server, or one limit that strikes, harms nobody else and leaves nothing."""

from __future__ import annotations

import os
import time

import pytest
import trio

from openprogram_mcp import open_manager
from openprogram_mcp.errors import ServerGone, TimedOut
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do

from ._host import hosting, well_behaved


async def test_scope_02_a_server_that_crashes_in_its_handshake_leaves_the_calls_of_others_alone() -> None:
    good = well_behaved().tool("slow", do.sleep(0.3), do.reply("done"), read_only=True)
    bad = FakeServer(era="legacy").on("initialize", do.write(b'{"jsonrpc":"2.0","id":1,"resu'), do.exit(1))
    texts: list[str] = []

    async def call(manager: MCPManager) -> None:
        texts.append((await manager.call_tool("good__slow")).text)

    async with hosting({"good": good, "other": well_behaved()}) as manager, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call, manager)
        await good.wait_for("received", method="tools/call", count=3)
        with pytest.raises(Exception, match="exited with code 1"):
            await manager.add(bad.server_config("bad"))
        assert manager.server("good").status is ServerState.CONNECTED
    assert texts == ["done"] * 3


@pytest.mark.parametrize(
    ("stage", "phase"),
    [
        ("start", "initialize"),
        ("half of the answer", "initialize"),
        ("page 2", "list_tools"),
    ],
)
async def test_scope_04_a_limit_that_strikes_at_any_stage_of_a_start_leaves_nothing(stage: str, phase: str) -> None:
    fake = FakeServer(era="legacy", page_size=1).tool("a").tool("b").tool("c")
    if stage == "start":
        fake.on_start(do.stall())
    elif stage == "half of the answer":
        fake.on("initialize", do.write(b'{"jsonrpc":"2.0","id":$id,"result":{"proto'), do.hang())
    else:
        fake.on("tools/list", do.turns([do.standard()], [do.hang()]))
    async with hosting({"f": fake.config(startup_timeout_seconds=0.3, stop_timeout_seconds=0.2)}) as manager:
        row = manager.server("f")
        assert (row.status, row.phase) == (ServerState.FAILED, phase)
        assert manager.registry.names() == []
        assert fake.alive() == []
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number
        for _ in range(5):
            await manager.restart("f")
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        assert fake.alive() == []
        if stage != "start":
            fake.on("initialize", do.standard()).on("tools/list", do.standard())
            assert (await manager.restart("f")).ready


async def test_time_01_a_server_that_dies_in_a_call_fails_every_pending_call_at_once() -> None:
    fake = FakeServer(era="legacy").tool("hang", do.hang(), read_only=True).tool("die", do.die(), read_only=True)
    errors: list[ServerGone] = []

    async def call(manager: MCPManager, tool: str) -> None:
        try:
            await manager.call_tool(tool)
        except ServerGone as error:
            errors.append(error)

    async with hosting({"f": fake.config(reconnect=False)}) as manager:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call, manager, "f__hang")
            await fake.wait_for("received", method="tools/call", count=3)
            nursery.start_soon(call, manager, "f__die")
        row = await manager.wait_settled("f")
    assert len(errors) == 4
    assert all(error.may_have_run for error in errors)
    assert row.exit_code == -9


async def test_time_03_everything_has_a_limit_by_default_and_the_error_names_server_and_limit() -> None:
    fake = FakeServer(era="legacy").tool("hang", do.hang())
    assert fake.server_config("f").startup_seconds == fake.server_config("f").call_seconds == 30
    async with hosting({"f": fake.config(call_timeout_seconds=0.3)}) as manager:
        with pytest.raises(TimedOut) as caught:
            await manager.call_tool("f__hang")
        assert caught.value.budget == "call"
        assert "'f'" in caught.value.message
        assert "0.3 s" in caught.value.message
        assert manager.server("f").status is ServerState.CONNECTED


async def test_one_failing_server_after_the_other_takes_nobody_with_it() -> None:
    ways = {
        "exits": FakeServer(era="legacy").on_start(do.stderr("no API key\n"), do.exit(3)),
        "garbage": FakeServer(era="legacy").on("initialize", do.write(b"\x00\xff" * 500 + b"\n"), do.exit(0)),
        "closes": FakeServer(era="legacy").on("initialize", do.close("stdout"), do.hang()),
        "refuses": FakeServer(era="legacy").on("initialize", do.fail(-32603, "not today")),
        "odd": FakeServer(era="legacy").on("initialize", do.result({"protocolVersion": 7, "capabilities": []})),
    }
    entries = {
        name: fake.config(startup_timeout_seconds=5, stop_timeout_seconds=0.2, reconnect=False)
        for name, fake in ways.items()
    }
    async with hosting({**entries, "good": well_behaved().config()}) as manager:
        rows = manager.status()
        assert (await manager.call_tool("good__echo", {"a": 1})).text == '{"a":1}'
    assert rows["exits"].exit_code == 3
    assert rows["exits"].stderr == ("no API key",)
    assert "not today" in (rows["refuses"].error or "")
    for name in ("exits", "garbage", "closes", "refuses"):
        assert rows[name].status is ServerState.FAILED, name
        assert rows[name].remedy, name


async def test_what_the_body_raises_comes_out_as_it_was_raised() -> None:
    class Mine(Exception):
        pass

    fake = well_behaved()
    with pytest.raises(Mine):
        async with open_manager({"f": fake.config()}, raise_internal=True) as manager:
            await manager.started.wait()
            raise Mine
    assert fake.alive() == []


async def test_a_hung_server_does_not_hold_the_host_up() -> None:
    mute = {"command": ["sleep", "60"], "timeout_seconds": 30, "stop_timeout_seconds": 0.2}
    before = time.monotonic()
    async with open_manager({"mute": mute, "good": well_behaved().config()}, raise_internal=True) as manager:
        assert (await manager.call_tool("good__echo", {})).text == "{}"
        assert manager.server("mute").status is ServerState.STARTING
    assert time.monotonic() - before < 20
