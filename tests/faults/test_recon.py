"""A server that comes back comes back by itself; one that does not is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from openprogram_mcp import open_manager
from openprogram_mcp.client import _supervisor
from openprogram_mcp.errors import NotConnected, OpenProgramMCPError, ServerGone
from openprogram_mcp.events import Record, StatusChanged, ToolsChanged
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.web.views import tool_list

from ._host import hosting

_AT_ONCE = {"initial_seconds": 0.01, "max_seconds": 0.05}
_LATE = {"initial_seconds": 600, "max_seconds": 600}


def _mortal() -> FakeServer:
    fake = FakeServer(era="legacy").tool("echo", read_only=True)
    return fake.tool("die", do.stderr("last words\n"), do.exit(3)).tool("hang", do.hang(), read_only=True)


async def _until(manager: MCPManager, state: ServerState, name: str = "f") -> list[Record]:
    """Wait until a server is in a state; give what was published before."""
    seen: list[Record] = []
    with manager.events.subscribe(0) as events:
        async for record in events:
            seen.append(record)
            told = isinstance(record.event, StatusChanged) and record.event.status.status is state
            if told and manager.server(name).status is state:
                return seen
    raise AssertionError


async def _kill(manager: MCPManager) -> None:
    with pytest.raises(ServerGone):
        await manager.call_tool("f__die")


async def test_a_lost_server_comes_back_by_itself_and_its_tools_stay_offered() -> None:
    fake = _mortal()
    async with hosting({"f": fake.config(reconnect=_AT_ONCE)}) as manager:
        offered = manager.registry.version
        await _kill(manager)
        assert (await manager.call_tool("f__echo", {"back": True})).text == '{"back":true}'
        states = [
            record.event.status.status
            for record in manager.events.since(0)[0]
            if isinstance(record.event, StatusChanged)
        ]
        assert states[-1] is ServerState.CONNECTED
        assert ServerState.RECONNECTING in states
        row = manager.server("f")
        assert (row.generation, row.error, row.retry_at, row.attempt) == (2, None, None, 0)
        assert manager.registry.version == offered
    assert fake.starts == 2


async def test_while_it_is_away_the_status_says_why_and_when_it_is_tried_again() -> None:
    async with hosting({"f": _mortal().config(reconnect=_LATE)}) as manager:
        await _kill(manager)
        await _until(manager, ServerState.RECONNECTING)
        row = manager.server("f")
        assert row.error is not None
        assert "code 3" in row.error
        assert (row.error_kind, row.phase, row.exit_code, row.attempt) == ("transient", "running", 3, 1)
        assert row.retry_at is not None
        assert row.retry_at > row.since
        assert row.stderr == ("last words",)
        assert row.tool_count == 3


async def test_conc_03_calls_that_fail_together_lead_to_one_new_connection_and_each_has_its_outcome() -> None:
    fake = _mortal()
    outcomes: list[str] = []

    async def call(manager: MCPManager) -> None:
        try:
            await manager.call_tool("f__hang", timeout=0.5)
        except OpenProgramMCPError as error:
            outcomes.append(type(error).__name__)

    async with hosting({"f": fake.config(reconnect=_AT_ONCE, serialize="none", max_concurrency=20)}) as manager:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(call, manager)
            await fake.wait_for("received", method="tools/call", count=10)
            fake.send_signal("SIGKILL")
        assert outcomes == ["TimedOut"] * 10  # sent again once, since they change nothing, and hung again
        assert fake.starts == 2
        assert manager.server("f").generation == 2


async def test_a_call_hastens_the_next_try_once() -> None:
    fake = _mortal()
    async with hosting({"f": fake.config(reconnect=_LATE)}) as manager:
        await _kill(manager)
        await _until(manager, ServerState.RECONNECTING)
        with trio.fail_after(10):
            assert not (await manager.call_tool("f__echo")).is_error


async def test_a_server_that_a_call_has_hastened_stays_connected() -> None:
    fake = _mortal()
    async with hosting({"f": fake.config(reconnect=_LATE)}) as manager:
        pid = manager.server("f").pid
        await _kill(manager)
        await _until(manager, ServerState.RECONNECTING)
        with trio.fail_after(10):
            while await trio.Path(f"/proc/{pid}").exists():  # noqa: ASYNC110 - the system tells nobody that it was reaped
                await trio.sleep(0.01)
            # Now there is nothing to do but to wait for the next try.
            await trio.testing.wait_all_tasks_blocked(0.05)
            await manager.call_tool("f__echo")
            await trio.testing.wait_all_tasks_blocked()
            # The waking for the next try was not taken for the loss of the connection that came of it.
            assert manager.server("f").status is ServerState.CONNECTED
            assert not (await manager.call_tool("f__echo")).is_error
        assert manager.server("f").generation == 2


@pytest.mark.parametrize("verb", ["disconnect", "disable", "remove"])
async def test_recon_06_a_server_that_is_taken_down_while_it_waits_is_not_tried_again(verb: str) -> None:
    fake = _mortal()
    async with hosting({"f": fake.config(reconnect=_AT_ONCE)}) as manager:
        fake.on("initialize")  # from now on it does not come up
        await _kill(manager)
        await _until(manager, ServerState.RECONNECTING)
        await getattr(manager, verb)("f")
        starts = fake.starts
        with trio.move_on_after(0.3):
            await fake.wait_for("start", count=starts + 1)
        assert fake.starts == starts
        assert fake.alive() == []


async def test_recon_08_a_crash_loop_ends_failed_with_the_last_words() -> None:
    fake = FakeServer(era="legacy").on("tools/list", do.standard(), do.stderr("crashed\n"), do.exit(1))
    fake.tool("echo", read_only=True)
    async with hosting({"f": fake.config(reconnect=_AT_ONCE)}) as manager:
        await _until(manager, ServerState.FAILED)
        with trio.fail_after(20), manager.events.subscribe() as events:
            while manager.server("f").retry_at is not None or manager.server("f").status is not ServerState.FAILED:
                await anext(events)
        row = manager.server("f")
        assert row.error_kind == "fatal"
        assert row.stderr[-1] == "crashed"
        assert 5 < fake.starts < 12
        with pytest.raises(NotConnected):
            await manager.call_tool("f__echo")


async def test_a_first_start_that_time_may_mend_is_tried_again_and_stays_failed_until_then(tmp_path: Path) -> None:
    fake = FakeServer(era="legacy").tool("echo", read_only=True)
    fake.on_start(do.turns([do.stderr("not yet\n"), do.exit(1)], [do.exit(1)], [], file=str(tmp_path / "n")))
    # The era is given: a server that ends at its first question would else be asked once more, the old way.
    entry = fake.config(reconnect=_AT_ONCE, era="legacy")
    async with open_manager({"f": entry}, raise_internal=True) as manager:
        with trio.fail_after(20):
            await manager.started.wait()
            first = [
                record.event.status
                for record in await _until(manager, ServerState.CONNECTED)
                if isinstance(record.event, StatusChanged) and record.event.status.status is ServerState.FAILED
            ]
    assert len(first) == 2
    assert all(row.retry_at is not None and row.error_kind == "transient" for row in first)
    assert fake.starts == 3


async def test_what_time_does_not_mend_is_not_tried_again() -> None:
    entry = {"command": ["/no/such/program"], "reconnect": _AT_ONCE}
    refusing = FakeServer(era="legacy").on("initialize", do.result({"protocolVersion": "2099-01-01"}))
    async with hosting({"f": entry, "g": refusing.config(reconnect=_AT_ONCE)}) as manager:
        for name in "fg":
            row = manager.server(name)
            assert (row.status, row.error_kind, row.retry_at) == (ServerState.FAILED, "fatal", None), name
    assert refusing.starts == 1


async def test_recon_09_during_a_short_outage_tools_stay_and_say_that_they_wait() -> None:
    async with hosting({"f": _mortal().config(reconnect=_LATE)}) as manager:
        echo = manager.registry["f__echo"]
        assert not manager.is_waiting(echo)
        await _kill(manager)
        await _until(manager, ServerState.RECONNECTING)
        assert manager.registry["f__echo"] is echo
        assert manager.is_waiting(echo)
        assert {tool["name"]: tool["waiting"] for tool in tool_list(manager)["tools"]}["f__echo"]
        said: list[str | None] = []

        async def note(_progress: float, _total: float | None, message: str | None) -> None:
            said.append(message)

        assert (await manager.call_tool("f__echo", {"a": 1}, on_progress=note)).text == '{"a":1}'
        assert said == ["waiting for server 'f' to be connected"]
        assert not manager.is_waiting(echo)
        await manager.call_tool("f__echo", on_progress=note)
        assert len(said) == 1, "nobody waits while it is there"


async def test_recon_09_after_a_long_outage_the_tools_are_taken_back_with_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_supervisor, "_KEEP_SECONDS", 0.1)
    async with hosting({"f": _mortal().config(reconnect=_LATE)}) as manager:
        await _kill(manager)
        with manager.events.subscribe(0) as events:
            async for record in events:
                if isinstance(record.event, ToolsChanged) and record.event.removed:
                    break
        assert manager.server("f").status is ServerState.RECONNECTING
        assert manager.registry.names() == []


async def test_a_reconnect_that_somebody_asks_for_begins_anew() -> None:
    fake = _mortal()
    async with hosting({"f": fake.config(reconnect=_LATE)}) as manager:
        await _kill(manager)
        await _until(manager, ServerState.RECONNECTING)
        row = await manager.connect("f")
        assert row.status is ServerState.CONNECTED
        assert (row.attempt, row.retry_at) == (0, None)


async def test_a_harmless_call_that_ran_is_not_said_not_to_have_run_when_its_server_is_disconnected() -> None:
    fake = _mortal()
    async with hosting({"f": fake}) as manager:
        gone: list[ServerGone] = []

        async def call() -> None:
            with pytest.raises(ServerGone) as raised:
                await manager.call_tool("f__hang")
            gone.append(raised.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await fake.wait_for("received", method="tools/call")
            await manager.disconnect("f")
        # It would have been sent again, and cannot be; that it was sent once is so all the same.
        assert gone[0].may_have_run


async def test_a_harmless_call_that_ran_is_not_said_to_be_unknown_when_its_server_comes_back_without_the_tool(
    tmp_path: Path,
) -> None:
    fake = FakeServer(era="legacy").tool("old", do.exit(1), read_only=True)
    fake.on("tools/list", do.turns([do.standard()], [do.result({"tools": []})], file=str(tmp_path / "n")))
    async with hosting({"f": fake.config(reconnect=_AT_ONCE)}) as manager:
        with pytest.raises(ServerGone) as raised:
            await manager.call_tool("f__old")
        assert raised.value.may_have_run
        assert fake.starts == 2


async def test_a_server_that_ends_in_the_middle_of_an_answer_is_gone_and_has_not_answered_with_an_error(
    tmp_path: Path,
) -> None:
    torn = [do.write(b'{"jsonrpc":"2.0","id":$id,"result":{"content":[{"ty'), do.exit(1)]
    fake = FakeServer(era="legacy").tool("write", *torn)
    fake.tool("read", do.turns(torn, [do.reply("whole")], file=str(tmp_path / "n")), read_only=True)
    async with hosting({"f": fake.config(reconnect=_AT_ONCE)}) as manager:
        with pytest.raises(ServerGone) as raised:
            await manager.call_tool("f__write")
        assert raised.value.may_have_run
        assert (await manager.call_tool("f__read")).text == "whole"
