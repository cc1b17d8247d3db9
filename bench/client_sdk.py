"""The Python SDK's own ``Client`` over its own transports, on asyncio or on Trio."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from .drive import drive
from .rows import Row, from_dict


async def _side_by_side(function: Callable[[int], Awaitable[None]], count: int) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(function, number)


async def main(row: Row, servers: list[Any]) -> None:
    """Measure a row; a server is a command, or an address."""
    async with AsyncExitStack() as stack:
        clients = []
        for server in servers:
            target = server
            if not isinstance(server, str):
                target = StdioServerParameters(command=server[0], args=server[1:])
            # The handshake of the server's era, so that no probe is measured.
            client = await stack.enter_async_context(Client(target, mode="legacy"))
            await client.list_tools()
            clients.append(client)

        async def call(number: int) -> int:
            result = await clients[number].call_tool("reply", {"size": row.size})
            block = result.content[0]
            return len(block.text) if isinstance(block, TextContent) else 0

        await drive(row, call, _side_by_side)


if __name__ == "__main__":
    anyio.run(main, from_dict(json.loads(sys.argv[1])), json.loads(sys.argv[2]), backend=sys.argv[3])
