"""One server's life: what a command does in each state, what becomes of calls, and what is said of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from openprogram_mcp import MCPServerConfig, ServerState
from openprogram_mcp.adapter import RemoteTool
from openprogram_mcp.client import Call, MCPClient, StartGate
from openprogram_mcp.client._calls import CallDesk
from openprogram_mcp.client._connection import protocol
from openprogram_mcp.client._hidden import Hidden
from openprogram_mcp.client._turns import Turns
from openprogram_mcp.errors import NotConnected, ServerGone, TimedOut, UnknownTool
from openprogram_mcp.events import EventBus
from openprogram_mcp.status import check_transition
from openprogram_mcp.testing import FakeServer, do
from tests._living import Living, living

_S = ServerState


# What a command does, in every state.


def _disable(client: MCPClient) -> None:
    client.configure(evolve(client.config, enabled=False))


def _enable(client: MCPClient) -> None:
    client.configure(evolve(client.config, enabled=True))


COMMANDS: dict[str, Callable[[MCPClient], None]] = {
    "connect": MCPClient.connect,
    "disconnect": MCPClient.disconnect,
    "restart": MCPClient.restart,
    "disable": _disable,
    "enable": _enable,
    "leave": MCPClient.leave,
}

# What comes of it: a state; "refused"; or "goes on", for a start that nobody has touched.
OUTCOMES: dict[str, dict[str, ServerState | str]] = {
    "disabled": {
        "connect": "refused",
        "disconnect": _S.DISABLED,
        "restart": "refused",
        "disable": _S.DISABLED,
        "enable": _S.CONNECTED,
        "leave": _S.DISABLED,
    },
    "pending": {
        "connect": _S.CONNECTED,
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": _S.CONNECTED,
        "leave": _S.DISCONNECTED,
    },
    "starting": {
        "connect": "goes on",
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": "goes on",
        "leave": _S.DISCONNECTED,
    },
    "connected": {
        "connect": "goes on",
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": "goes on",
        "leave": _S.DISCONNECTED,
    },
    "failed": {
        "connect": _S.CONNECTED,
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": _S.FAILED,
        "leave": _S.DISCONNECTED,
    },
    "failed, and tried again later": {
        "connect": _S.CONNECTED,
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": _S.FAILED,
        "leave": _S.DISCONNECTED,
    },
    "reconnecting": {
        "connect": _S.CONNECTED,
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": _S.RECONNECTING,
        "leave": _S.DISCONNECTED,
    },
    "disconnected": {
        "connect": _S.CONNECTED,
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": _S.DISCONNECTED,
        "leave": _S.DISCONNECTED,
    },
    "being stopped": {
        "connect": _S.CONNECTED,
        "disconnect": _S.DISCONNECTED,
        "restart": _S.CONNECTED,
        "disable": _S.DISABLED,
        "enable": _S.DISCONNECTED,
        "leave": _S.DISCONNECTED,
    },
}


@asynccontextmanager
async def _in_state(state: str, folder: Path) -> AsyncIterator[tuple[Living, FakeServer]]:
    """A server that is in this state, and that comes up when it is started the next time."""
    fake = FakeServer(era="legacy").tool("echo")
    options: dict[str, Any] = {"stop_timeout_seconds": 0.2}
    again = str(folder / "starts")
    async with AsyncExitStack() as stack:
        gate = StartGate(1)
        match state:
            case "disabled":
                options["enabled"] = False
            case "starting":
                fake.on_signal("SIGUSR1")
                fake.on("initialize", do.turns([do.wait("SIGUSR1"), do.standard()], [do.standard()], file=again))
            case "failed" | "failed, and tried again later":
                options["reconnect"] = False if state == "failed" else {"initial_seconds": 60}
                fake.on_start(do.turns([do.exit(3)], [do.exit(3)], [], file=again))
            case "reconnecting":
                options["reconnect"] = {"initial_seconds": 60}
                fake.tool("die", do.die())
            case "being stopped":
                fake.on_eof()
        held = await stack.enter_async_context(gate.slot())
        if state != "pending":
            held.give_back()
        async with living(fake.server_config(**options), gate=gate) as life:
            match state:
                case "starting":
                    await fake.wait_for("received", method="initialize")
                    life.go_on = lambda: fake.send_signal("SIGUSR1")
                case "reconnecting":
                    await life.settled()
                    with pytest.raises(ServerGone):
                        await life.call("die")
                    await life.until(_S.RECONNECTING)
                case "disconnected":
                    await life.settled()
                    life.client.disconnect()
                    await life.settled()
                case "being stopped":
                    await life.settled()
                    life.client.disconnect()
                    await fake.wait_for("eof")
                case "pending":
                    await trio.testing.wait_all_tasks_blocked()
                    assert life.client.state is _S.PENDING
                    life.go_on = held.give_back
                case _:
                    await life.settled()
            yield life, fake


@pytest.mark.parametrize(("state", "command"), [(state, command) for state, row in OUTCOMES.items() for command in row])
async def test_a_command_does_in_each_state_what_it_says(state: str, command: str, tmp_path: Path) -> None:
    outcome = OUTCOMES[state][command]
    async with _in_state(state, tmp_path) as (life, fake):
        starts, before = fake.starts, life.client.state
        if outcome == "refused":
            with pytest.raises(NotConnected, match="is disabled") as refused:
                COMMANDS[command](life.client)
            assert refused.value.remedy == "Enable it first."
            assert (await life.settled()).status is before
        else:
            COMMANDS[command](life.client)
            if outcome == "goes on" or state == "pending":
                life.go_on()
            row = await life.settled()
            if outcome == "goes on":
                assert (row.status, row.generation) == (_S.CONNECTED, 1), "the one that was on its way, or was there"
                assert fake.starts == starts
            else:
                assert row.status is outcome
    assert life.client.ended.is_set()
    for old, new in zip(life.states, life.states[1:], strict=False):
        check_transition(old, new)
    assert fake.alive() == []


async def test_a_start_that_is_withdrawn_without_a_word_ends_somewhere() -> None:
    async with living(FakeServer().server_config(), prepared=False) as life:
        assert (await life.settled()).status is _S.DISCONNECTED


async def test_a_client_that_never_ran_can_be_ended_and_keeps_nobody_waiting() -> None:
    async with living(FakeServer().server_config(), run=False) as life, trio.open_nursery() as nursery:
        nursery.start_soon(life.settled)
        await trio.testing.wait_all_tasks_blocked()
        life.client.end()
        assert life.client.status().status is _S.DISCONNECTED


async def test_a_cancelled_client_takes_its_process_with_it_and_says_so() -> None:
    fake = FakeServer()
    async with living(fake.server_config(), leave=False) as life:
        await life.settled()
    assert fake.alive() == []
    assert life.client.status().status is _S.DISCONNECTED
    assert (await life.settled()).pid is None


async def test_pending_lasts_until_its_turn_has_come() -> None:
    gate = StartGate(1)
    async with gate.slot() as held, living(FakeServer().server_config(), gate=gate) as life:
        await trio.testing.wait_all_tasks_blocked()
        assert life.client.state is _S.PENDING
        held.give_back()
        await life.settled()
        assert life.states == [_S.PENDING, _S.STARTING, _S.CONNECTED]


async def test_what_one_waits_for_is_the_last_command_that_was_given() -> None:
    async with living(FakeServer().server_config()) as life:
        await life.settled()
        life.client.restart()
        life.client.disconnect()
        life.client.restart()
        assert (await life.settled()).status is _S.CONNECTED
        life.client.restart()
        life.client.disconnect()
        assert (await life.settled()).status is _S.DISCONNECTED


# What becomes of calls.


@pytest.mark.parametrize(
    ("command", "said", "remedy"),
    [("disconnect", "is disconnected", "Connect it first."), ("disable", "is disabled", "Enable it first.")],
)
async def test_a_call_to_a_server_that_was_taken_down_is_refused_with_what_to_do(
    command: str, said: str, remedy: str
) -> None:
    async with living(FakeServer().tool("echo").server_config()) as life:
        await life.settled()
        echo = life.client.tools["echo"]
        COMMANDS[command](life.client)
        await life.settled()
        with pytest.raises(NotConnected, match=said) as refused:
            await life.call_remote(echo)
        assert refused.value.remedy == remedy


async def test_a_call_to_a_server_that_failed_says_why_it_failed() -> None:
    fake = FakeServer().tool("die", do.die())
    async with living(fake.server_config(reconnect=False)) as life:
        await life.settled()
        die = life.client.tools["die"]
        with pytest.raises(ServerGone):
            await life.call_remote(die)
        await life.settled()
        with pytest.raises(NotConnected, match=r"is failed: the connection was lost: .*SIGKILL \(exit code -9\)"):
            await life.call_remote(die)


async def test_calls_wait_for_the_next_connection_in_order_and_are_made_there() -> None:
    fake = FakeServer().tool("first", do.hang()).tool("next")
    async with living(fake.server_config(max_concurrency=1)) as life:
        await life.settled()
        order: list[int] = []

        async def numbered(number: int) -> None:
            assert (await life.call("next", number=number)).text == f'{{"number":{number}}}'
            order.append(number)

        async def lost() -> None:
            with pytest.raises(ServerGone):
                await life.call("first")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lost)
            await fake.wait_for("begin", method="tools/call")
            for number in range(4):
                nursery.start_soon(numbered, number)
                await trio.testing.wait_all_tasks_blocked()
            assert life.client.status().queued == 4
            life.client.restart()
        assert order == [0, 1, 2, 3]
        assert [call.arguments["number"] for call in fake.calls("next")] == [0, 1, 2, 3]
        assert life.client.status().generation == 2


async def test_a_running_call_has_a_moment_to_end_before_its_server_is_stopped() -> None:
    fake = FakeServer().tool("slow", do.sleep(0.1), do.reply("done"))
    async with living(fake.server_config()) as life:
        await life.settled()
        results: list[str] = []

        async def call() -> None:
            results.append((await life.call("slow")).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await fake.wait_for("begin", method="tools/call")
            life.client.disconnect()
        assert results == ["done"]


async def test_calls_that_wait_are_refused_at_once_when_the_server_is_taken_down() -> None:
    fake = FakeServer().tool("slow", do.sleep(0.2), do.reply("done"))
    async with living(fake.server_config(max_concurrency=1)) as life:
        await life.settled()

        async def refused() -> None:
            with pytest.raises(NotConnected, match="is disconnected"):
                await life.call("slow", nr=2)
            assert life.client.state is _S.CONNECTED, "while the other one still runs"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.call, "slow")
            await fake.wait_for("begin", method="tools/call")
            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            life.client.disconnect()
        assert len(fake.calls()) == 1


@pytest.mark.parametrize("hint", ["readOnlyHint", "idempotentHint"])
async def test_a_call_that_does_no_harm_twice_is_sent_again_over_the_next_connection(hint: str, tmp_path: Path) -> None:
    fake = FakeServer().tool(
        "look", do.turns([do.hang()], [do.reply("seen")], file=str(tmp_path / "n")), annotations={hint: True}
    )
    async with living(fake.server_config()) as life:
        await life.settled()
        results: list[str] = []

        async def call() -> None:
            results.append((await life.call("look")).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await fake.wait_for("begin", method="tools/call")
            life.client.restart()
        assert results == ["seen"]


async def test_a_call_is_sent_again_once_and_not_for_ever() -> None:
    fake = FakeServer().tool("look", do.hang(), read_only=True)
    async with living(fake.server_config()) as life:
        await life.settled()

        async def call() -> None:
            with pytest.raises(ServerGone) as gone:
                await life.call("look")
            assert gone.value.may_have_run
            assert gone.value.remedy == "Call it again when the server is back; it does no harm."

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            for times in (1, 2):
                await fake.wait_for("begin", method="tools/call", count=times)
                life.client.restart()
        assert len(fake.calls()) == 2


async def test_a_call_that_may_do_harm_is_not_sent_again() -> None:
    fake = FakeServer().tool("write", do.hang())
    async with living(fake.server_config()) as life:
        await life.settled()

        async def call() -> None:
            with pytest.raises(ServerGone) as gone:
                await life.call("write")
            assert gone.value.may_have_run

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await fake.wait_for("begin", method="tools/call")
            life.client.restart()
        await life.settled()
        assert len(fake.calls()) == 1


async def test_one_that_was_sent_and_cannot_be_sent_again_is_gone_and_not_merely_refused() -> None:
    fake = FakeServer().tool("look", do.die(), read_only=True)
    async with living(fake.server_config(reconnect=False)) as life:
        await life.settled()
        with pytest.raises(ServerGone, match="may or may not have run") as gone:
            await life.call("look")
        assert gone.value.may_have_run
        assert isinstance(gone.value.__cause__, NotConnected)


async def test_a_single_call_behind_one_that_killed_the_server_does_not_spin() -> None:
    # It was granted turn after turn on the dead connection, without a checkpoint: the event loop stood still.
    fake = FakeServer().tool("die", do.die()).tool("write")
    async with living(fake.server_config(max_concurrency=1, reconnect=False)) as life:
        await life.settled()
        errors: list[str] = []

        async def call(tool: RemoteTool) -> None:
            try:
                await life.call_remote(tool)
            except (ServerGone, NotConnected) as error:
                errors.append(type(error).__name__)

        die, write = life.client.tools["die"], life.client.tools["write"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, die)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(call, write)
        assert sorted(errors) == ["NotConnected", "ServerGone"]


async def test_a_call_gives_up_its_place_when_its_budget_for_waiting_is_over() -> None:
    fake = FakeServer().tool("slow", do.hang()).tool("echo")
    async with living(fake.server_config()) as life, trio.open_nursery() as nursery:
        await life.settled()
        nursery.start_soon(life.call, "slow")
        await fake.wait_for("begin", method="tools/call")
        with pytest.raises(TimedOut, match=r"echo waited 0.05 s for its turn; 1 calls run and 0 wait") as late:
            await life.call("echo", 0.05)
        assert late.value.budget == "queue"
        nursery.cancel_scope.cancel()
    assert [call.tool for call in fake.calls()] == ["slow"]


async def test_the_budget_for_waiting_is_one_for_all_connections(autojump_clock: MockClock) -> None:
    turns: Turns[Any] = Turns(8)
    desk = CallDesk(FakeServer().server_config(), turns, Hidden(), EventBus(), _never_asked, lambda _tool: None)
    async with trio.open_nursery() as nursery:

        async def one_dies_every_second() -> None:
            while True:
                await trio.sleep(1)
                turns.offer(_Dead())

        nursery.start_soon(one_dies_every_second)
        with pytest.raises(TimedOut, match=r"write waited 2.5 s for server 'fake' to come back") as late:
            await desk.make(Call(RemoteTool(name="write"), {}, "call", "write", timeout=2.5))
        assert (late.value.budget, late.value.seconds) == ("connect", 2.5)
        assert trio.current_time() == pytest.approx(2.5)
        nursery.cancel_scope.cancel()


async def test_waiting_for_the_server_to_come_back_is_not_taken_from_the_wait_for_a_turn(
    autojump_clock: MockClock,
) -> None:
    turns: Turns[Any] = Turns(1)
    config = FakeServer().server_config(startup_timeout_seconds=5, call_timeout_seconds=2)
    desk = CallDesk(config, turns, Hidden(), EventBus(), _never_asked, lambda _tool: None)
    turns.offer(_Dead())
    assert turns.acquire_nowait(alone=True) is not None, "somebody has a turn and never gives it back"
    async with trio.open_nursery() as nursery:

        async def away_for_a_while() -> None:
            await trio.sleep(1.5)
            turns.hold()
            await trio.sleep(4)
            turns.offer(_Dead())

        nursery.start_soon(away_for_a_while)
        with pytest.raises(TimedOut, match=r"write waited 2 s for its turn") as late:
            await desk.make(Call(RemoteTool(name="write"), {}, "call", "write"))
        assert (late.value.budget, late.value.seconds) == ("queue", 2)
        assert trio.current_time() == pytest.approx(6.0), "1.5 s of the queue, 4 s away, and the rest of the queue"
        assert turns.waiting == 0


async def test_a_server_that_is_enabled_and_disconnected_at_once_is_down_and_can_be_connected() -> None:
    fake = FakeServer()
    async with living(fake.server_config(enabled=False)) as life:
        await life.until(_S.DISABLED)
        _enable(life.client)
        life.client.disconnect()
        await life.until(_S.DISCONNECTED)
        assert fake.starts == 0
        life.client.connect()
        assert (await life.settled()).status is _S.CONNECTED


async def test_a_tool_that_the_server_has_taken_back_is_not_called_any_more() -> None:
    fake = FakeServer().tool("old")
    async with living(fake.server_config()) as life:
        await life.settled()
        old = life.client.tools["old"]
        fake._tools.clear()
        fake.tool("new")
        life.client.restart()
        await life.settled()
        with pytest.raises(UnknownTool, match="offers old no longer"):
            await life.call_remote(old)
        assert fake.calls() == []
        assert (await life.call("new")).text == "{}"


async def test_no_secret_of_a_running_process_shows_after_its_configuration_has_lost_it() -> None:
    fake = FakeServer().on_eof(do.stderr("the token is sesame-1234\n"), do.exit(0))
    async with living(fake.server_config(env={"TOKEN": "sesame-1234"})) as life:
        await life.settled()
        life.client.configure(MCPServerConfig.from_dict("fake", fake.config(enabled=False)))
        assert (await life.settled()).stderr == ("the token is ********",)
    assert "sesame" not in repr([record.to_dict() for record in life.bus.since(0)[0]])


async def test_an_edit_that_does_not_touch_the_connection_keeps_what_is_known_of_it() -> None:
    fake = FakeServer(era="legacy")
    async with living(fake.server_config()) as life:
        await life.settled()
        _disable(life.client)
        await life.settled()
        _enable(life.client)
        await life.settled()
        assert [message["method"] for message in fake.received()].count("server/discover") == 1


async def _never_asked(_connection: object) -> None:
    raise AssertionError("no tools are to be read")


class _Dead:
    """A connection that has ended without anybody having noticed."""

    def __init__(self) -> None:
        self.tools = {"write": RemoteTool(name="write")}
        self.session = self
        self.dispatcher = self
        self.asked = 0

    async def call_tool(self, *_call: Any, **_more: Any) -> dict[str, Any]:
        self.asked += 1
        raise protocol().ConnectionClosed


async def test_a_call_that_meets_a_dead_connection_is_not_sent_there_again() -> None:
    turns: Turns[Any] = Turns(8)
    config = FakeServer().server_config()
    desk = CallDesk(config, turns, Hidden(), EventBus(), _never_asked, lambda _tool: None)
    dead = [_Dead(), _Dead()]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.make, Call(RemoteTool(name="write"), {}, "call", "write"))
        for connection in dead:
            turns.offer(connection)
            await trio.testing.wait_all_tasks_blocked()
            assert (turns.running, turns.waiting) == (0, 1)
        nursery.cancel_scope.cancel()
    assert [connection.asked for connection in dead] == [1, 1]


async def test_a_caller_that_is_cancelled_with_its_connection_is_cancelled_and_not_told_of_a_loss() -> None:
    scope = trio.CancelScope()

    class _Cancelled(_Dead):
        async def call_tool(self, *call: Any, **more: Any) -> dict[str, Any]:
            more["relist"] = None
            call[2]()["fate"].state = protocol().FateState.WRITTEN
            scope.cancel()
            return await super().call_tool(*call, **more)

    turns: Turns[Any] = Turns(8)
    turns.offer(_Cancelled())
    desk = CallDesk(FakeServer().server_config(), turns, Hidden(), EventBus(), _never_asked, lambda _tool: None)
    with scope:
        await desk.make(Call(RemoteTool(name="write"), {}, "call", "write"))
    assert scope.cancelled_caught
    assert turns.running == 0
