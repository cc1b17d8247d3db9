"""Edits while many call: no call fails for it, none runs twice, and the old processes are gone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from openprogram_mcp.testing import FakeServer
from tests._living import managed
from tests._worker_process import write_servers

CALLERS = 20


@pytest.mark.parametrize(
    ("calls", "edits"), [pytest.param(10_000, 50, marks=pytest.mark.long), (600, 6)], ids=["long", "short"]
)
async def test_no_call_fails_or_runs_twice_while_its_server_is_edited(calls: int, edits: int, state_dir: Path) -> None:
    # Half of the calls must run alone: those of a new connection wait for what still runs on the old one.
    servers = [
        FakeServer(version=str(number)).tool("write").tool("read", read_only=True) for number in range(edits + 1)
    ]
    write_servers(state_dir, {"a": servers[0].config()})
    answers: Counter[str] = Counter()
    numbers = iter(range(calls))
    quarter = calls // (edits + 1)
    made = trio.Event()

    async with managed() as manager:
        await manager.started.wait()

        async def call() -> None:
            for number in numbers:
                tool = "a__write" if number % 2 else "a__read"
                result = await manager.call_tool(tool, {"n": number})
                assert not result.is_error
                answers[result.text] += 1

        async def edit() -> None:
            for number, server in enumerate(servers[1:], 1):
                # Spread over the calls, by their count and not by the clock.
                while answers.total() < min(number * quarter, calls - 1) and not drained.is_set():
                    await trio.lowlevel.checkpoint()
                row = await manager.update("a", server.server_config("a"))
                assert (row.status, row.generation) == ("connected", number + 1)
            made.set()

        drained = trio.Event()
        with trio.fail_after(300):
            async with trio.open_nursery() as editing:
                editing.start_soon(edit)
                async with trio.open_nursery() as calling:
                    for _ in range(CALLERS):
                        calling.start_soon(call)
                drained.set()
            assert made.is_set()
            # The drain is bounded; what was replaced ends when its last call has.
            while any(server.alive() for server in servers[:-1]):  # noqa: ASYNC110 - the system tells nobody when a process that is not ours to wait for ends
                await trio.sleep(0.01)
        assert servers[-1].alive()
    seen = Counter(int(record.arguments["n"]) for server in servers for record in server.calls())
    assert seen == Counter(range(calls)), "each ran once"
    assert answers.total() == calls
    assert max(answers.values()) == 1
    assert all(server.alive() == [] for server in servers)
    served = [len(server.calls()) for server in servers]
    assert sum(bool(number) for number in served) >= edits // 2, f"the edits were made while calls ran: {served}"
