"""A server of the official SDK's over HTTP, served by Hypercorn: ``python _sdk_http_server.py http|json|sse PORT``."""

from __future__ import annotations

import sys
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("sdk")


@server.tool()
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@server.tool()
async def count(upto: int, ctx: Context) -> str:
    """Count, and say so."""
    for step in range(upto):
        await ctx.report_progress(step + 1, upto, f"step {step + 1}")
        await trio.sleep(0.01)
    return "done"


@server.tool()
async def sleep() -> str:
    """Sleep until it is cancelled, and tell it."""
    try:
        await trio.sleep(3600)
    finally:
        cancelled.append(1)
    return "slept"


@server.tool()
def how_many_were_cancelled() -> int:
    """How many sleeps were cancelled."""
    return len(cancelled)


cancelled: list[int] = []


def main() -> None:
    kind, port = sys.argv[1], sys.argv[2]
    app: Any = server.sse_app() if kind == "sse" else server.streamable_http_app(json_response=kind == "json")
    config = Config.from_mapping(bind=[f"127.0.0.1:{port}"], graceful_timeout=0.1, loglevel="ERROR")
    trio.run(serve, app, config)


if __name__ == "__main__":
    main()
