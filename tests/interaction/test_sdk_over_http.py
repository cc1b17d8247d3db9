"""Servers of the official SDK over Streamable HTTP and HTTP+SSE: in both eras, and started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp.manager import MCPManager
from tests._ports import free_port, until_listening
from tests.faults._host import hosting

SERVER = Path(__file__).with_name("_sdk_http_server.py")
KINDS = [("http", "auto"), ("http", "legacy"), ("json", "auto"), ("json", "legacy"), ("sse", "auto")]


@asynccontextmanager
async def serving(kind: str, port: int) -> AsyncIterator[trio.Process]:
    async with trio.open_nursery() as nursery:
        command = [sys.executable, str(SERVER), kind, str(port)]
        run = partial(trio.run_process, command, check=False, stderr=subprocess.DEVNULL)
        process: trio.Process = await nursery.start(run)
        try:
            await until_listening(port, 30)
            yield process
        finally:
            nursery.cancel_scope.cancel()


def entry(kind: str, port: int, era: str) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}", "era": era}


async def text(manager: MCPManager, tool: str, arguments: dict[str, Any], **more: Any) -> str:
    result = await manager.call_tool(f"sdk__{tool}", arguments, **more)
    assert not result.is_error, result.text
    return result.text


@pytest.mark.parametrize(("kind", "era"), KINDS)
async def test_a_server_of_the_sdk_is_called_cancelled_and_told_of_progress(kind: str, era: str) -> None:
    port, told = free_port(), []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with serving(kind, port), hosting({"sdk": entry(kind, port, era)}) as manager:
        row = manager.status()["sdk"].to_dict()
        assert row["status"] == "connected", row
        assert row["protocol_version"] == ("2026-07-28" if era == "auto" and kind != "sse" else "2025-11-25")
        assert (row["pid"], row["exit_code"], row["stderr"]) == (None, None, [])
        assert await text(manager, "add", {"a": 1, "b": 2}) == "3"
        assert await text(manager, "count", {"upto": 3}, on_progress=on_progress) == "done"
        if kind != "json":
            assert told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        with trio.move_on_after(0.3) as patience:
            await text(manager, "sleep", {})
        assert patience.cancelled_caught
        if (kind, era) != ("json", "auto"):  # which does not look whether its client is still there
            with trio.fail_after(10):
                # What is waited for is in another process.
                while await text(manager, "how_many_were_cancelled", {}) != "1":  # noqa: ASYNC110
                    await trio.sleep(0.05)
        results: list[str] = []

        async def add(number: int) -> None:
            results.append(await text(manager, "add", {"a": number, "b": 0}))

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(add, number)
        assert sorted(map(int, results)) == list(range(40))


@pytest.mark.parametrize(("kind", "era"), KINDS)
async def test_a_server_that_is_started_again_is_reached_again(kind: str, era: str) -> None:
    port = free_port()
    async with serving(kind, port) as process, hosting({"sdk": entry(kind, port, era)}) as manager:
        assert await text(manager, "add", {"a": 1, "b": 2}) == "3"
        process.kill()
        await process.wait()
        async with serving(kind, port):
            assert await text(manager, "add", {"a": 2, "b": 2}) == "4"
            assert manager.status()["sdk"].to_dict()["status"] == "connected"
