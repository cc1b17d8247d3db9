"""Calls of the host's own functions, which stand in the registry beside the servers' tools."""

from __future__ import annotations

import math
from typing import Any

import trio

from ..adapter import AgentTool, AgentToolResult
from ..client import OnProgress
from ..errors import TimedOut

__all__ = ["call_local"]


async def call_local(
    tool: AgentTool,
    arguments: dict[str, Any],
    timeout: float | None,
    on_progress: OnProgress | None,
    call_id: str | None,
) -> AgentToolResult:
    """Call a function of the host's own: no server and no queue.

    Raises:
        TimedOut: It took longer than ``timeout`` seconds.
    """
    seconds = math.inf if timeout is None else timeout
    with trio.move_on_after(seconds):
        return await tool.execute(arguments, call_id=call_id, on_update=on_progress)
    raise TimedOut(f"{tool.name} did not come to an end within {seconds:g} s", budget="call", seconds=seconds)
