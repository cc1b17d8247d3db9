"""The everything server of npm over Streamable HTTP and over HTTP+SSE: called, watched, restarted, and cut off."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from openprogram_mcp import ServerState, ServerStatus
from openprogram_mcp.manager import MCPManager
from tests import servers
from tests._living import until
from tests._middleman import Middleman
from tests._ports import free_port, until_listening
from tests.faults._host import hosting
from tests.interaction._load import Load

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("npm_servers")]

_S = ServerState
KINDS = {"streamableHttp": "/mcp", "sse": "/sse"}
AT_ONCE = {"initial_seconds": 0.05, "max_seconds": 0.5}


@asynccontextmanager
async def everything(kind: str, port: int) -> AsyncIterator[trio.Process]:
    """The server, once it can be connected to."""
    async with trio.open_nursery() as nursery:
        environment = {**os.environ, "PORT": str(port)}
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        start = partial(
            trio.run_process, servers.argv("everything", kind), check=False, env=environment, stdin=b"", **quiet
        )
        process: trio.Process = await nursery.start(start)
        await until_listening(port, 60)
        yield process
        nursery.cancel_scope.cancel()


def entry(kind: str, port: int, **more: Any) -> dict[str, Any]:
    # What others do to this machine's two cores is not under test.
    return {"url": f"http://127.0.0.1:{port}{KINDS[kind]}", "timeout_seconds": 60, "reconnect": AT_ONCE, **more}


async def echo(manager: MCPManager, word: str) -> str:
    return (await manager.call_tool("e__echo", {"message": word})).text


@pytest.mark.parametrize("kind", KINDS)
async def test_the_everything_server_is_called_and_tells_its_progress(kind: str) -> None:
    port, told = free_port(), []

    async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
        told.append((progress, total))

    async with everything(kind, port), hosting({"e": entry(kind, port)}, seconds=120) as manager:
        row = manager.server("e")
        assert (row.status, row.protocol_version) == (_S.CONNECTED, "2025-11-25"), row.error
        assert row.tool_count > 5
        texts: dict[int, str] = {}

        async def ask(number: int) -> None:
            texts[number] = await echo(manager, f"word {number}")

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(ask, number)
        assert texts == {number: f"Echo: word {number}" for number in range(40)}
        long = {"duration": 0.4, "steps": 4}
        result = await manager.call_tool("e__trigger-long-running-operation", long, on_progress=on_progress)
        assert not result.is_error, result.text
        assert [total for _, total in told] == [4] * len(told)
        assert [progress for progress, _ in told] == sorted(progress for progress, _ in told)
        assert len(told) >= 3
        image = await manager.call_tool("e__get-tiny-image")
        assert any(block["type"] == "image" for block in image.content)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_is_given_up_leaves_the_everything_server_usable(kind: str) -> None:
    port = free_port()
    async with everything(kind, port), hosting({"e": entry(kind, port)}, seconds=120) as manager:
        with trio.move_on_after(0.5) as patience:
            await manager.call_tool("e__trigger-long-running-operation", {"duration": 60, "steps": 60})
        assert patience.cancelled_caught
        assert await echo(manager, "after") == "Echo: after"
        assert manager.server("e").generation == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_the_everything_server_is_restarted_under_load_and_every_call_has_one_outcome(kind: str) -> None:
    port = free_port()
    async with (
        everything(kind, port) as process,
        hosting({"e": entry(kind, port)}, seconds=120) as manager,
        trio.open_nursery() as nursery,
    ):
        load = Load(lambda number: echo(manager, f"word {number}"))
        load.start(nursery, callers=4)
        await load.reaches(20)
        process.kill()
        await process.wait()
        async with everything(kind, port):
            await until(manager, "e", _S.CONNECTED, where=partial(_is_after, 1))
            await load.more(20)
            with trio.fail_after(10):  # nobody still waits for the server that is gone
                await load.stop()
    others = load.other_than(lambda number: f"Echo: word {number}")
    assert len(others) <= 4, others
    assert all(outcome.startswith("gone") for outcome in others.values()), others


def _is_after(generation: int, row: ServerStatus) -> bool:
    return row.generation > generation


@pytest.mark.parametrize("kind", KINDS)
async def test_the_everything_server_is_reached_again_after_the_network_has_cut_all_connections(kind: str) -> None:
    port = free_port()
    async with everything(kind, port):
        middleman = Middleman(port)
        async with middleman.standing(), hosting({"e": entry(kind, middleman.port)}, seconds=120) as manager:
            for number in range(3):
                assert await echo(manager, f"word {number}") == f"Echo: word {number}"
                middleman.cut(reset=number % 2 == 1)
                if kind == "sse":  # its only stream is gone
                    await until(manager, "e", _S.CONNECTED, where=partial(_is_after, number + 1))
            assert await echo(manager, "last") == "Echo: last"
            # Streamable HTTP has lost nothing but connections.
            assert manager.server("e").generation == (1 if kind == "streamableHttp" else 4)
