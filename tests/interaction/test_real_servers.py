"""Servers that other people wrote, next to some that do not work: through the manager, and through a worker's HTTP."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from openprogram_mcp import MCPServerConfig, ServerState, open_manager
from openprogram_mcp.events import StatusChanged
from openprogram_mcp.web.worker_file import find_worker
from tests.interaction._neighbourhood import BAD, GOOD, Neighbourhood

pytestmark = [
    pytest.mark.real,
    pytest.mark.usefixtures("npm_servers"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: what is left behind is looked for in /proc"),
]

SHUTDOWN_SECONDS = 5.0


@pytest.fixture
def configured(neighbourhood: Neighbourhood, state_dir: Path) -> Neighbourhood:
    """The same, saved as the configuration of the state directory."""
    state_dir.mkdir(mode=0o700)
    (state_dir / "mcp_servers.json").write_text(json.dumps({"servers": neighbourhood.servers()}))
    return neighbourhood


@pytest.fixture
def neighbourhood(tmp_path: Path) -> Neighbourhood:
    folder = tmp_path / "neighbourhood"
    folder.mkdir()
    return Neighbourhood(folder)


def _configs(neighbourhood: Neighbourhood, **hanging: Any) -> list[MCPServerConfig]:
    configured = neighbourhood.servers(**hanging)
    return [MCPServerConfig.from_dict(name, entry) for name, entry in configured.items()]


async def _until(manager: Any, arrived: Callable[[], bool]) -> None:
    """Wait, event by event, until something is so."""
    with manager.events.subscribe(0) as events:
        if arrived():
            return
        async for _ in events:
            if arrived():
                return


async def test_start_02_good_servers_are_usable_while_another_never_answers(neighbourhood: Neighbourhood) -> None:
    async with open_manager(_configs(neighbourhood)) as manager:
        with trio.fail_after(120):
            await _until(manager, lambda: all(manager.server(name).ready for name in GOOD))
            assert manager.server("hanging").status is ServerState.STARTING
            result = await manager.call_tool("time__get_current_time", {"timezone": "UTC"})
            assert not result.is_error
            assert manager.server("hanging").status is ServerState.STARTING
            assert not manager.started.is_set(), "one server has had no verdict yet"
        told = [record.event for record in manager.events.since(0)[0]]
        verdicts = [event.server for event in told if isinstance(event, StatusChanged) and event.status.ready]
        assert sorted(set(map(str, verdicts))) == sorted(GOOD)
        closing = trio.current_time()
    assert trio.current_time() - closing < SHUTDOWN_SECONDS
    assert neighbourhood.left_behind() == []


async def test_a_server_that_does_not_work_says_where_why_and_what_to_do(neighbourhood: Neighbourhood) -> None:
    configs = [config for config in _configs(neighbourhood, startup_timeout_seconds=1.5) if config.name in BAD]
    async with open_manager(configs) as manager:
        with trio.fail_after(60):
            await manager.started.wait()
        rows = {name: status.to_dict() for name, status in manager.status().items()}
        assert {name: (row["status"], row["phase"], row["exit_code"]) for name, row in rows.items()} == {
            "missing": ("failed", "spawn", None),
            "dying": ("failed", "initialize", 3),
            "hanging": ("failed", "initialize", None),
        }
        assert all(row["remedy"] and row["error"] for row in rows.values())
        assert "no-such-mcp-server" in rows["missing"]["error"]
        assert rows["missing"]["stderr"] == []
        assert rows["dying"]["stderr"] == ["licence file not found"]
        assert rows["hanging"]["stderr"] == ["waiting for the database"]
        assert "1.5 s" in rows["hanging"]["error"]
        assert manager.tools() == []
    assert neighbourhood.left_behind() == []


async def test_two_hundred_calls_at_once_each_get_their_own_answer(neighbourhood: Neighbourhood) -> None:
    async with open_manager(_configs(neighbourhood)) as manager:

        async def answer(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
            result = await manager.call_tool(tool, arguments)
            return result.text, result.is_error

        with trio.fail_after(240):
            assert await _wrong_answers(neighbourhood, answer) == []
        assert all(manager.server(name).in_flight == manager.server(name).queued == 0 for name in GOOD)


async def test_two_hundred_requests_at_once_to_a_worker_each_get_their_own_answer(configured: Neighbourhood) -> None:
    with trio.fail_after(240):
        async with _worker() as (process, url):
            info = find_worker()
            assert info is not None
            assert (info.pid, info.url) == (process.pid, url)
            headers = {"Authorization": f"Bearer {info.token}"}
            limits = httpx2.Limits(max_connections=None)
            async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=None, limits=limits) as client:

                async def answer(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                    response = await client.post(f"/api/mcp/tools/{tool}/call", json={"arguments": arguments})
                    body = response.json()
                    assert response.status_code == 200, body
                    return body["text"], body["is_error"]

                assert await _wrong_answers(configured, answer) == []
                rows = {row["name"]: row for row in (await client.get("/api/mcp/servers")).json()["servers"]}
            assert {name for name, row in rows.items() if row["ready"]} == set(GOOD)
            assert [rows[name]["status"] for name in BAD] == ["failed", "failed", "starting"]
            asked = trio.current_time()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
            assert trio.current_time() - asked < SHUTDOWN_SECONDS
    assert configured.left_behind() == []
    assert find_worker() is None


async def _wrong_answers(
    neighbourhood: Neighbourhood, answer: Callable[[str, dict[str, Any]], Awaitable[tuple[str, bool]]]
) -> list[str]:
    """Make two hundred calls at once; say which got an answer that is not theirs."""
    calls = neighbourhood.calls(200)
    answers: list[tuple[str, bool]] = [("", True)] * len(calls)

    async def ask(index: int) -> None:
        answers[index] = await answer(calls[index].tool, calls[index].arguments)

    async with trio.open_nursery() as nursery:
        for index in range(len(calls)):
            nursery.start_soon(ask, index)
    return [
        f"{call.tool} {call.arguments}: {text}"
        for call, (text, is_error) in zip(calls, answers, strict=True)
        if is_error or not call.fits(text)
    ]


@asynccontextmanager
async def _worker() -> AsyncIterator[tuple[trio.Process, str]]:
    """A worker of the state directory: its process, and its address."""
    argv = [sys.executable, "-m", "openprogram_mcp", "worker", "--log-format", "json"]
    run = partial(trio.run_process, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run)
        assert process.stdout is not None
        log = b""
        while not (url := re.search(rb'"url": "([^"]+)"', log)):
            more = await process.stdout.receive_some()
            assert more, log
            log += more
        nursery.start_soon(_drain, process.stdout)
        yield process, url[1].decode()


async def _drain(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass
