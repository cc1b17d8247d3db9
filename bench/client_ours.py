"""Our client: ``manager.call_tool`` with everything switched on."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from openprogram_mcp import open_manager

from .drive import drive
from .rows import Row, from_dict


async def _side_by_side(function: Callable[[int], Awaitable[None]], count: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(function, number)


async def main(row: Row, servers: list[Any]) -> None:
    """Measure a row; a server is a command, or an address."""
    limits = {"serialize": "none", "max_concurrency": 64, "max_result_chars": 10_000_000}
    configured = {
        f"fast{number}": ({"url": server, "type": "http"} if isinstance(server, str) else {"command": server}) | limits
        for number, server in enumerate(servers)
    }
    async with open_manager(configured) as manager:
        await manager.started.wait()

        async def call(number: int) -> int:
            result = await manager.call_tool(f"fast{number}__reply", {"size": row.size})
            return len(result.text)

        await drive(row, call, _side_by_side)


if __name__ == "__main__":
    trio.run(partial(main, from_dict(json.loads(sys.argv[1])), json.loads(sys.argv[2])))
