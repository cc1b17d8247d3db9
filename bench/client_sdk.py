"""The Python SDK's own ``Client`` over its own stdio transport, on asyncio or on Trio."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from .drive import drive
from .rows import Row, from_dict


async def _side_by_side(function: Callable[[int], Awaitable[None]], count: int) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(function, number)


async def main(row: Row, server: list[str]) -> None:
    """Measure a row."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(row.servers):
            # The handshake of the server's era, so that no probe is measured.
            parameters = StdioServerParameters(command=server[0], args=server[1:])
            client = await stack.enter_async_context(Client(parameters, mode="legacy"))
            await client.list_tools()
            clients.append(client)

        async def call(number: int) -> int:
            result = await clients[number].call_tool("reply", {"size": row.size})
            block = result.content[0]
            return len(block.text) if isinstance(block, TextContent) else 0

        await drive(row, call, _side_by_side)


if __name__ == "__main__":
    anyio.run(main, from_dict(json.loads(sys.argv[1])), json.loads(sys.argv[2]), backend=sys.argv[3])
