"""Any sequence of commands, edits, faults, calls and waiting: no move that the table lacks, no state without a way on.

The client is the real one, its servers live in memory, and time is the autojump clock's. What must hold while it goes
on is checked at every change of its state; what must hold in the end, once the commands have stopped, the server is
well again and time has passed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from openprogram_mcp import MCPServerConfig, ServerState, ServerStatus
from openprogram_mcp.adapter import RemoteTool
from openprogram_mcp.client import Call, MCPClient, StartGate
from openprogram_mcp.client._connection import protocol
from openprogram_mcp.errors import NotConnected, RevisionConflict, ServerFailed, ServerGone, TimedOut, UnknownTool
from openprogram_mcp.events import EventBus, ToolCallEnded, ToolCallStarted
from openprogram_mcp.status import TRANSITIONS
from openprogram_mcp.testing import FakeServer, do

from ._in_memory import MemoryWorld
from ._strike import Strike
from .chaos._processes import tasks

_S = ServerState

Move = tuple[str, int | float]
"""What is done, and what passes after it: so many steps of all tasks, or seconds where it is no whole number."""
_MAX_STEPS = 50_000
_DOWN = {_S.DISABLED, _S.DISCONNECTED}

# How a server is when it is started next.
WELL, SLOW, HANGS, DIES, DIES_LATER, REFUSES, MISSING, MUTE = (
    "well",
    "slow",
    "hangs",
    "dies",
    "dies later",
    "refuses",
    "missing",
    "mute",
)
# What time does not mend: the client does not try again, and a crash loop ends.
FATAL = {REFUSES, MISSING, DIES, DIES_LATER}

_TOOLS = ("read", "write", "hang_read", "hang", "die")


def _server(how: str, era: Any) -> FakeServer:
    fake = FakeServer(era=era, recording=False)
    fake.tool("read", read_only=True).tool("write").tool("die", do.die())
    fake.tool("hang_read", do.hang(), read_only=True).tool("hang", do.hang(), annotations={"idempotentHint": True})
    first = "server/discover" if era == "modern" else "initialize"
    match how:
        case "slow":
            fake.on(first, do.sleep(3), do.standard())
        case "hangs":
            fake.on(first)
        case "dies":
            fake.on(first, do.exit(3))
        case "dies later":
            fake.on("tools/list", do.standard(), do.sleep(0.5), do.exit(4))
        case "refuses":
            fake.on("tools/list", do.fail(-32603, "no"))
        case "missing":
            raise ServerFailed("there is no such program", phase="spawn", server="s")
        case "mute":
            fake.on("tools/call").on_eof().on_signal("SIGTERM")
    return fake


@define(eq=False)
class Machine:
    """A client, what was done to it, and what has to be true because of that."""

    client: MCPClient
    bus: EventBus
    world: MemoryWorld
    nursery: trio.Nursery
    how: str = WELL
    ever: set[str] = field(factory=set)
    hurt: set[int] = field(factory=set)
    up: bool = True
    states: list[ServerState] = field(factory=list)
    wrong: list[str] = field(factory=list)
    outcomes: list[str | None] = field(factory=list)
    pid: int | None = None
    edits: int = 0

    def changed(self, client: MCPClient) -> None:
        """Its state or its tools have changed: what is true of it at this moment."""
        row = client.status()
        last = self.states[-1] if self.states else row.status
        if row.status is not last and last is _S.CONNECTED:
            hurt = self._is_hurt()
            if row.status in (_S.RECONNECTING, _S.FAILED) and not hurt:
                self.wrong.append(f"lost, and nothing was done to it: {row}")
        if row.status is _S.CONNECTED and row.pid is not None:
            self.pid = row.pid
        if row.status is not last and row.status not in TRANSITIONS[last]:
            self.wrong.append(f"{last} -> {row.status}")
        self.states.append(row.status)
        self.wrong += [f"{what}: {row}" for what in _contradictions(row, client, hurt=self._is_hurt())]

    def _is_hurt(self) -> bool:
        """Whether something was done to the server that counted, so that its connection may end."""
        if self.pid is None:
            return False
        process = next(process for process in self.world.started if process.pid == self.pid)
        return process.server.returncode is not None or process.pid in self.hurt

    # What can happen.

    def do(self, action: str) -> None:
        """One thing."""
        client = self.client
        match action:
            case "connect" | "restart":
                try:
                    getattr(client, action)()
                except NotConnected:
                    if client.config.enabled:
                        self.wrong.append(f"{action} was refused")
                else:
                    self.up = True
            case "disconnect":
                client.disconnect()
                self.up = False
            case "enable" | "disable":
                enabled = action == "enable"
                if client.config.enabled is not enabled:
                    self.up = enabled
                client.configure(evolve(client.config, enabled=enabled))
            case "leave":
                client.leave()
            case "edit" | "edit by hand":
                # One in three needs no new connection.
                self.edits += 1
                change = {"description": str(self.edits)} if self.edits % 3 == 0 else {"env": {"N": str(self.edits)}}
                config = client.config.merge_patch(change)
                if action == "edit":
                    self.outcomes.append(None)
                    self.nursery.start_soon(self._edit, config, len(self.outcomes) - 1)
                elif client.config.enabled:
                    client.follow(config, config)
            case "kill":
                for process in self.world.living():
                    self.hurt.add(process.pid)
                    process.server.kill()
            case "close stdout":
                for process in self.world.living():
                    self.hurt.add(process.pid)
                    process.server.stdout.put_eof()
            case _ if action.startswith("call "):
                self.outcomes.append(None)
                self.nursery.start_soon(self._call, action.removeprefix("call "), len(self.outcomes) - 1)
            case _:
                self.how = action
                self.ever.add(action)

    async def _call(self, tool: str, number: int) -> None:
        known = self.client.tools.get(tool)
        if known is None:
            known = RemoteTool(name=tool, description="", input_schema={"type": "object"})
        try:
            with trio.move_on_after(40 if number % 3 else 2) as patience:
                await self.client.call_tool(Call(known, {}, str(number), tool))
                self.outcomes[number] = "ok"
            if patience.cancelled_caught:
                self.outcomes[number] = "given up"
        except (NotConnected, ServerGone, TimedOut, UnknownTool) as error:
            self.outcomes[number] = type(error).__name__

    async def _edit(self, config: MCPServerConfig, number: int) -> None:
        async def save() -> None:
            await trio.sleep(0.2 if number % 2 else 0)
            if not self.client.config.enabled:
                # It was disabled after the edit had been asked for, which enables it again.
                self.up = True

        try:
            with trio.move_on_after(40 if number % 3 else 2) as patience:
                await self.client.edit(config, config, save)
                self.outcomes[number] = "edited"
            if patience.cancelled_caught:
                self.outcomes[number] = "taken back"
        except (NotConnected, RevisionConflict, ServerFailed) as error:
            self.outcomes[number] = type(error).__name__

    # What must hold in the end.

    def expected(self) -> set[ServerState]:
        """The states that it may be in when nothing happens any more."""
        if self.client.leaving:
            return _DOWN
        if not self.client.config.enabled:
            return {_S.DISABLED}
        if not self.up:
            return {_S.DISCONNECTED}
        # Its server is well by now; whether it was given up before is seen from what the server was like.
        return {_S.CONNECTED, _S.FAILED} if self.ever & FATAL else {_S.CONNECTED}

    def check(self) -> None:
        """What is so when nothing happens any more."""
        client, row = self.client, self.client.status()
        story = f"{[str(state) for state in self.states]}, {self.outcomes}, {row}"
        assert self.wrong == []
        assert row.status in self.expected(), story
        assert client.ended.is_set() is client.leaving, story
        assert None not in self.outcomes, story
        assert (row.in_flight, row.queued) == (0, 0), story
        assert client.leaving or not client._edits.busy, story
        living = self.world.living()
        if row.status is _S.CONNECTED:
            assert [process.pid for process in living] == [row.pid], story
        else:
            assert (living, row.pid) == ([], None), story
            # It is tried again by itself, or it says that it will not be.
            assert row.status in _DOWN or (row.error_kind, row.retry_at) == ("fatal", None), story
        records, _, missed = self.bus.since(0)
        assert not missed
        started = [record.event.call_id for record in records if isinstance(record.event, ToolCallStarted)]
        ended = [record.event.call_id for record in records if isinstance(record.event, ToolCallEnded)]
        assert sorted(started) == sorted(ended) == sorted(set(started)), story


def _contradictions(row: ServerStatus, client: MCPClient, *, hurt: bool) -> list[str]:
    found = []
    state = row.status
    # That its process has exited may be known a moment before its connection has ended.
    gone = row.pid is None and not hurt
    if state is _S.CONNECTED and (set(client.tools) != set(_TOOLS) or row.error or row.retry_at or gone):
        found.append("connected, but not whole")
    if state not in (_S.CONNECTED, _S.RECONNECTING, _S.STARTING) and client.tools:
        found.append("tools of a server that is not there")
    if row.retry_at is not None and state not in (_S.RECONNECTING, _S.FAILED):
        found.append("a next try, of what is not waiting for one")
    if state is _S.RECONNECTING and row.retry_at is None:
        found.append("reconnecting, and nobody will")
    if (row.error is None) is (state in (_S.RECONNECTING, _S.FAILED)):
        found.append("an error where there is none, or none where there is one")
    if row.in_flight < 0 or row.queued < 0:
        found.append("counted wrong")
    return found


COMMANDS = ("connect", "restart", "disconnect", "enable", "disable")
FAULTS = ("kill", "kill", "close stdout")
EDITS = ("edit", "edit", "edit by hand")
CALLS = tuple(f"call {tool}" for tool in _TOOLS)
# Leaving is seldom, since nothing comes after it.
ACTIONS = st.one_of(
    *(st.sampled_from(some) for some in (COMMANDS, FAULTS, FAULTS, CALLS, CALLS, EDITS)),
    st.sampled_from((WELL, WELL, SLOW, HANGS, DIES, DIES_LATER, REFUSES, MISSING, MUTE)),
    st.sampled_from((*COMMANDS, "leave")),
)
# What passes in between: nothing, some steps of all tasks, or seconds.
PAUSES = st.sampled_from((0, 1, 2, 3, 5, 8, 13)) | st.sampled_from((0.3, 1.5, 1.5, 5.0, 40.0, 100.0))
MOVES = st.lists(st.tuples(ACTIONS, PAUSES), max_size=30)
# Half of the time it is up before anything happens.
FIRST = st.sampled_from((0, 3, 5.0, 5.0))


async def _play(moves: list[Move], era: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it all happen, and wait until nothing happens any more."""
    bus = EventBus()
    before = tasks()
    async with trio.open_nursery() as outer:
        world = MemoryWorld(outer, lambda: _server(machine.how, era))
        world.rule(monkeypatch)

        async def prepare(client: MCPClient) -> MCPServerConfig | None:
            await trio.lowlevel.checkpoint()
            return None if client.leaving or not client.config.enabled else client.config.expand({}, base=Path("/"))

        config = MCPServerConfig.from_dict(
            "s",
            {
                "command": [sys.executable],
                "timeout_seconds": 10,
                "stop_timeout_seconds": 0.4,
                "era": "legacy" if era == "legacy" else "2026-07-28",
                "max_concurrency": 2,
                "reconnect": {"initial_seconds": 4, "max_seconds": 20, "stable_seconds": 30},
            },
        )
        client = MCPClient(
            config,
            bus=bus,
            gate=StartGate(1),
            environ={},
            prepare=prepare,
            permit=lambda _tool: None,
            on_change=lambda client: machine.changed(client),
            raise_internal=True,
        )
        machine = Machine(client, bus, world, outer)
        outer.start_soon(client.run)
        for action, pause in moves:
            machine.do(action)
            await _pass(pause)
        # From here on it is left alone.
        machine.how = WELL
        await trio.sleep(3600)
        machine.check()
        if not client.leaving:
            # There is a way on from every state.
            for action in ("enable", "connect"):
                machine.do(action)
            await trio.sleep(3600)
            assert client.state is _S.CONNECTED
        client.leave()
        with trio.fail_after(60):
            await client.ended.wait()
        assert world.living() == []
        await trio.testing.wait_all_tasks_blocked()
        assert tasks() == before


async def _pass(pause: int | float) -> None:
    if isinstance(pause, float):
        await trio.sleep(pause)
        return
    for _ in range(pause):
        await trio.lowlevel.checkpoint()


@pytest.fixture(scope="module", autouse=True)
def _sdk() -> None:
    """The SDK is imported before a clock is mocked."""
    protocol()


def _run(moves: list[Move], era: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        # One that goes round and round, without time passing, would never come to an end.
        stop = Strike(_MAX_STEPS, lambda: signal.raise_signal(signal.SIGINT))
        stop.arm()
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            trio.run(_play, moves, era, monkeypatch, clock=clock, instruments=[stop])
        except BaseException as error:
            if stop.fired:
                raise AssertionError(f"no end after {_MAX_STEPS} steps") from error
            raise


@pytest.mark.parametrize("era", ["legacy", "modern"])
@settings(max_examples=120, deadline=None)
@given(first=FIRST, moves=MOVES)
def test_any_sequence_of_commands_and_faults_ends_where_it_was_wanted(
    era: str, first: int | float, moves: list[Move]
) -> None:
    _run([(WELL, first), *moves], era)


@pytest.mark.long
@pytest.mark.parametrize("era", ["legacy", "modern"])
@settings(max_examples=5000, deadline=None)
@given(first=FIRST, moves=MOVES)
def test_many_sequences_of_commands_and_faults_end_where_they_were_wanted(
    era: str, first: int | float, moves: list[Move]
) -> None:
    _run([(WELL, first), *moves], era)
