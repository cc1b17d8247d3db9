"""The calls of one server's tools: a turn, a request, and one truthful outcome for each.

A call runs in its caller's own task, so that cancellation, exceptions and context variables are the caller's by
construction. What may have run is never sent again, unless the tool says that a second run does no harm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from time import time
from typing import Any, Final

import trio
from attrs import define, field

from ..adapter import AgentToolResult, RemoteTool, check_arguments, convert_call_result, error_result
from ..adapter import protocol_error_result as protocol_error
from ..config import MCPServerConfig
from ..errors import InvalidArguments, NotConnected, ServerGone, TimedOut
from ..events import EventBus, ToolCallEnded, ToolCallProgress, ToolCallStarted, shortened
from ..masking import Masker
from ..status import LastCall
from ._connection import Connection, protocol
from ._turns import Turns

__all__ = ["Call", "CallDesk", "OnProgress"]

OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Told of progress: how far, of how much, and a word about it."""

_REPEATS: Final = 1


@define(eq=False)
class Call:
    """One call that somebody wants made.

    Args:
        tool: What to call.
        arguments: As the model gave them.
        call_id: Names it in events.
        label: The tool's full name, for events and the status.
        timeout: Seconds without an answer or progress after which it is given up; ``None`` for the configured limit.
        on_progress: Told of progress, in the caller's task.
    """

    tool: RemoteTool
    arguments: Mapping[str, Any]
    call_id: str
    label: str
    timeout: float | None = None
    on_progress: OnProgress | None = None


@define(eq=False)
class CallDesk:
    """Where the calls of one server are made.

    Args:
        config: The configuration in force.
        turns: The request queue.
        bus: Where the events of calls go.
        masker: Hides the server's secrets.
        relist: Reads the tools of a connection anew.
    """

    config: MCPServerConfig
    turns: Turns[Connection]
    masker: Masker
    _bus: EventBus
    _relist: Callable[[Connection], Awaitable[None]]
    last: LastCall | None = None
    _tickets: count[int] = field(factory=count, init=False)

    async def make(self, call: Call) -> AgentToolResult:
        """Make a call, and publish its beginning and its end.

        Raises:
            NotConnected: There is no connection, and none on its way.
            TimedOut: A budget ran out.
            ServerGone: The connection was lost before the answer came.
        """
        name, started = self.config.name, trio.current_time()
        self._bus.publish(
            ToolCallStarted(
                server=name,
                call_id=call.call_id,
                tool=call.label,
                arguments=shortened(dict(call.arguments)),
                mask=self.masker.mask_value,
            )
        )
        outcome, result = "cancelled", None
        try:
            result = await self._result(call)
            outcome = "tool_error" if result.is_error else "ok"
        except TimedOut:
            outcome = "timed_out"
            raise
        except ServerGone as gone:
            outcome = "unknown" if gone.may_have_run else "failed"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            seconds = trio.current_time() - started
            self.last = LastCall(call.label, time(), outcome, seconds)
            self._bus.publish(
                ToolCallEnded(
                    server=name,
                    call_id=call.call_id,
                    tool=call.label,
                    outcome=outcome,
                    is_error=result is None or result.is_error,
                    duration_seconds=seconds,
                    result="" if result is None else result.text[:1000],
                    mask=self.masker.mask_value,
                )
            )
        return result

    async def _result(self, call: Call) -> AgentToolResult:
        config, tool = self.config, call.tool
        try:
            raw = await self._answer(call)
        except protocol().MCPError as error:
            return protocol_error(error.code, error.message, error.error.data, server=config.name, tool=tool.name)
        fault = _output_fault(tool, raw)
        if fault is not None:
            return error_result(f"The server's result cannot be used: {fault}.", server=config.name, tool=tool.name)
        return convert_call_result(raw, server=config.name, tool=tool.name, max_chars=config.max_result_chars)

    async def _answer(self, call: Call) -> dict[str, Any]:
        """Send a call until its fate is known: again on the next connection while that can do no harm."""
        sdk, ticket, repeats = protocol(), next(self._tickets), 0
        while True:
            connection = await self._turn(call, ticket)
            fate = sdk.Fate()
            try:
                return await self._ask(connection, call, fate)
            except sdk.ConnectionClosed:
                self.turns.withdraw(connection)
                if fate.state is sdk.FateState.QUEUED:
                    continue  # it never left us: it keeps its place for the next connection
                if not call.tool.repeatable or repeats >= _REPEATS:
                    raise self._gone(call) from None
                repeats += 1
            finally:
                self.turns.release()

    async def _turn(self, call: Call, ticket: int) -> Connection:
        serialize = self.config.serialize
        alone = serialize == "all" or (serialize == "writes" and not call.tool.read_only)
        connection = self.turns.acquire_nowait(alone=alone)
        if connection is not None:
            return connection
        if self.turns.serves(protocol().serving_request.get()):
            raise NotConnected(
                f"{call.label} was called while a request of its own server is served, and would wait for itself",
                remedy="Answer the server's request first, or allow more with 'serialize' and 'max_concurrency'.",
                server=self.config.name,
            )
        seconds = self.config.call_seconds if call.timeout is None else call.timeout
        with trio.move_on_after(seconds):
            return await self.turns.acquire(alone=alone, ticket=ticket)
        raise TimedOut(
            f"{call.label} waited {seconds:g} s for its turn; "
            f"{self.turns.running} calls run and {self.turns.waiting} wait on server {self.config.name!r}",
            budget="queue",
            seconds=seconds,
            remedy="Nothing was sent. Raise the limit, 'max_concurrency', or set 'serialize' to \"none\".",
            server=self.config.name,
        )

    async def _ask(self, connection: Connection, call: Call, fate: Any) -> dict[str, Any]:
        config, sdk = self.config, protocol()
        idle = config.call_seconds if call.timeout is None else call.timeout
        hard = max(config.max_call, idle)
        options = {
            "fate": fate,
            "timeout": idle,
            "hard_timeout": hard,
            "on_progress": partial(self._progress, call),
        }
        try:
            answer: dict[str, Any] = await connection.session.call_tool(
                call.tool.name, call.arguments, options, relist=partial(self._relist, connection)
            )
        except sdk.MCPError as error:
            if fate.expired is None:
                raise
            raise self._timed_out(call, fate.expired, idle, hard) from error
        return answer

    async def _progress(self, call: Call, progress: float, total: float | None, message: str | None) -> None:
        self._bus.publish(
            ToolCallProgress(
                server=self.config.name, call_id=call.call_id, progress=progress, total=total, message=message
            )
        )
        if call.on_progress is not None:
            await call.on_progress(progress, total, message)

    def _timed_out(self, call: Call, expired: str, idle: float, hard: float) -> TimedOut:
        if expired == "hard":
            return TimedOut(
                f"{call.label} did not come to an end within {hard:g} s",
                budget="max_call",
                seconds=hard,
                remedy="The server was told to stop; it may have run. Raise 'max_call_seconds' if it needs longer.",
                server=self.config.name,
            )
        return TimedOut(
            f"{call.label}: nothing was heard from server {self.config.name!r} for {idle:g} s",
            budget="call",
            seconds=idle,
            remedy="The server was told to stop; it may have run. Raise 'call_timeout_seconds' if it needs longer.",
            server=self.config.name,
        )

    def _gone(self, call: Call) -> ServerGone:
        return ServerGone(
            f"the connection to server {self.config.name!r} was lost before {call.label} was answered; "
            "it may or may not have run",
            may_have_run=True,
            remedy="Find out whether it had its effect before calling it again.",
            server=self.config.name,
        )


def _output_fault(tool: RemoteTool, result: Mapping[str, Any]) -> str | None:
    """What is wrong with a result by the tool's output schema (specification: server/tools, "Output Schema")."""
    if tool.output_schema is None or result.get("isError"):
        return None
    if "structuredContent" not in result:
        return "the tool has an output schema, but the result has no structured content"
    structured = result["structuredContent"]
    if not isinstance(structured, dict):
        return None if tool.output_schema.get("type") != "object" else "its structured content is not an object"
    try:
        check_arguments(tool.output_schema, structured)
    except InvalidArguments as fault:
        return f"its structured content does not fit the output schema at {fault.message}"
    return None
