"""Whether a server that nobody uses still lives: a question now and then, where the configuration wants it.

A process may live and its server be stuck. That is seen at the next call, or here before it. A server that is busy is
never condemned, and any answer is a sign of life, a refusal too.

MCP specification: basic/utilities/ping (2025-11-25); server/discover (2026-07-28), which has no ping.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..config import MCPServerConfig
from ._connection import Connection, Ending, is_closed, is_refusal
from ._held import Held

__all__ = ["watch_health"]


async def _until_silent(connection: Connection, interval: float, patience: float, busy: Callable[[], bool]) -> None:
    """Wait until a server that has nothing to do does not answer a question.

    Args:
        connection: Its connection.
        interval: Seconds of silence after which it is asked.
        patience: Seconds that it has for its answer.
        busy: Whether it has, or may have, something to do.
    """
    asked_at = trio.current_time()
    while True:
        await trio.sleep_until(max(connection.heard_at, asked_at) + interval)
        if trio.current_time() < connection.heard_at + interval:
            continue
        asked_at = trio.current_time()
        if busy():
            continue
        with trio.move_on_after(patience) as limit:
            try:
                await connection.session.probe()
            except Exception as error:
                if not is_refusal(error):
                    raise
                if is_closed(error):
                    # Whoever watches the connection itself knows more about it.
                    await trio.sleep_forever()
        if limit.cancelled_caught and connection.heard_at < asked_at and not busy():
            return


async def watch_health(held: Held, connection: Connection, config: MCPServerConfig, busy: Callable[[], bool]) -> None:
    """Take a connection for lost when its server is silent, where the configuration wants that to be seen.

    Args:
        held: What is told that it is lost.
        connection: The connection.
        config: The server's configuration.
        busy: Whether it has, or may have, something to do.
    """
    if config.health is not None:
        interval = config.health.interval_seconds
        patience = min(interval, config.call_seconds)
        await _until_silent(connection, interval, patience, busy)
        held.lost(Ending(f"it did not answer a health check within {patience:g} s"))
