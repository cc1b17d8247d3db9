"""The calls of one server's tools: a turn, a request, and one truthful outcome for each.

A call runs in its caller's own task, so that cancellation, exceptions and context variables are the caller's by
construction. What may have run is never sent again, unless the tool says that a second run does no harm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import perf_counter, time
from typing import Any, Literal

import trio
from attrs import define, field

from ..adapter import AgentToolResult, RemoteTool, check_arguments, convert_call_result, error_result
from ..adapter import protocol_error_result as protocol_error
from ..config import MCPServerConfig
from ..errors import Denied, InvalidArguments, NotConnected, ServerGone, TimedOut, UnknownTool
from ..events import EventBus, ToolCallEnded, ToolCallProgress, ToolCallStarted, shortened
from ..status import LastCall
from ._budgets import Limits, Patience
from ._connection import Connection, protocol
from ._failures import would_wait_for_itself
from ._hidden import Hidden
from ._lingering import Lingering
from ._turns import Turns

__all__ = ["Call", "CallDesk", "OnProgress"]

OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Told of progress: how far, of how much, and a word about it."""


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
        may_still_run: Set when it was given up, the server was told, and has not answered.
    """

    tool: RemoteTool
    arguments: dict[str, Any]
    call_id: str
    label: str
    timeout: float | None = None
    on_progress: OnProgress | None = None
    may_still_run: bool = field(default=False, init=False)


@define(eq=False)
class CallDesk:
    """Where the calls of one server are made.

    Args:
        config: The configuration in force.
        turns: The request queue.
        bus: Where the events of calls go.
        hidden: What nobody is to see.
        relist: Reads the tools of a connection anew.
        permit: Lets a call pass, by its tool's full name, or raises ``Denied``. Every call passes here, and nowhere
            else: when it is asked for, and once more right before it is sent.
        hasten: Told that a call has to wait for its turn.
    """

    config: MCPServerConfig
    turns: Turns[Connection]
    hidden: Hidden
    _bus: EventBus
    _relist: Callable[[Connection], Awaitable[object]]
    _permit: Callable[[str], None]
    _hasten: Callable[[], None] = lambda: None
    last: LastCall | None = None
    lingering: Lingering = field(init=False)
    tickets: count[int] = field(factory=count, init=False)
    _patient: set[Patience] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.lingering = Lingering(self.turns)
        self.turns.on_connection = self._connection_changed

    @property
    def busy(self) -> bool:
        """Whether the server has a call of ours, or may still be at one that was given up."""
        return self.turns.running > 0 or trio.current_time() < self.lingering.busy_until

    @trio.lowlevel.enable_ki_protection
    async def make(self, call: Call) -> AgentToolResult:
        """Make a call, and publish its beginning and its end.

        Ctrl-C falls into its waiting, never between the granting of a turn and the place that gives it back.

        Raises:
            Denied: The permissions do not allow it.
            InvalidArguments: They do not fit the tool's schema.
            UnknownTool: The server does not offer it any more.
            NotConnected: There is no connection, and none on its way.
            TimedOut: A budget ran out.
            ServerGone: The connection was lost before the answer came.
        """
        self._permit(call.label)
        check_arguments(call.tool.input_schema, call.arguments)
        name, started = self.config.name, perf_counter()
        self._bus.publish(
            ToolCallStarted(
                server=name,
                call_id=call.call_id,
                tool=call.label,
                arguments=shortened(call.arguments),
                mask=self.hidden.masker.mask_value,
            )
        )
        outcome, is_error, text = "cancelled", True, ""
        try:
            result = await self._result(call)
            outcome, is_error, text = "tool_error" if result.is_error else "ok", result.is_error, result.text[:1000]
            return result  # noqa: TRY300 - what the finally below tells is decided here
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
            seconds = perf_counter() - started
            self.last = LastCall(call.label, time(), outcome, seconds)
            self._bus.publish(
                ToolCallEnded(
                    server=name,
                    call_id=call.call_id,
                    tool=call.label,
                    outcome=outcome,
                    is_error=is_error,
                    duration_seconds=seconds,
                    may_still_run=call.may_still_run,
                    result=text,
                    mask=self.hidden.masker.mask_value,
                )
            )

    async def _result(self, call: Call) -> AgentToolResult:
        config, tool, sdk = self.config, call.tool, protocol()
        try:
            raw = await self._answer(call)
        except sdk.BrokenAnswer as error:
            return self._unusable(call, error.message)
        except sdk.MCPError as error:
            message, data = self.hidden.conceal(error.message), self.hidden.conceal(error.error.data)
            return protocol_error(error.code, message, data, server=config.name, tool=tool.name)
        fault = _output_fault(tool, raw)
        if fault is not None:
            return self._unusable(call, fault)
        raw = self.hidden.conceal(raw)
        return convert_call_result(raw, server=config.name, tool=tool.name, max_chars=config.max_result_chars)

    def _unusable(self, call: Call, fault: str) -> AgentToolResult:
        message = self.hidden.conceal(f"The server's answer cannot be used: {fault}.")
        return error_result(message, server=self.config.name, tool=call.tool.name)

    async def _answer(self, call: Call) -> dict[str, Any]:
        """Send a call until its fate is known: again on the next connection while that can do no harm."""
        sdk, config, tool, limits, sent = protocol(), self.config, call.tool, self._limits(call), False
        ticket, forgotten = next(self.tickets), False
        while True:
            alone = config.serialize == "all" or (config.serialize == "writes" and not tool.read_only)
            try:
                connection = self.turns.acquire_nowait(alone=alone)
                if connection is None:
                    connection = await self._turn(call, ticket, limits, alone=alone)
            except (NotConnected, TimedOut) as error:
                if not sent:
                    raise
                raise self._gone(call) from error
            request, lost = _Request(call, limits, self._progress), False
            try:
                try:
                    self._check_once_more(call, connection)
                except (Denied, UnknownTool) as error:
                    if not sent:
                        raise
                    raise self._gone(call) from error
                answer: dict[str, Any] = await connection.session.call_tool(
                    tool.name,
                    call.arguments,
                    request.options,
                    relist=partial(self._relist, connection),
                    while_asked=request.standing_still,
                )
                return answer  # noqa: TRY300 - the turn is given back below, whatever the way out
            except (sdk.ConnectionClosed, sdk.RequestLost) as loss:
                lost = True
                if isinstance(loss, sdk.ConnectionClosed):
                    self.turns.withdraw(connection)
                if isinstance(loss, sdk.SessionLost):
                    if forgotten:
                        # Sent before, over a connection that broke, it may have run all the same.
                        raise (self._gone(call) if sent else self._forgotten(call)) from None
                    forgotten = True
                # Where all is cancelled, the connection may be gone before its caller has noticed: that is no loss.
                await trio.lowlevel.checkpoint_if_cancelled()
                if request.left_us:
                    if sent or not tool.repeatable:
                        raise self._gone(call) from None
                    sent = True
            except sdk.MCPError as error:
                if request.expired is None:
                    raise
                raise self._timed_out(request, request.expired) from error
            finally:
                if request.unanswered and not lost:
                    call.may_still_run = True
                    self.lingering.keep(connection, request.fate, limits.idle / 2, limits.hard, alone=alone)
                else:
                    self.turns.release(connection)
            config = self.config

    def _check_once_more(self, call: Call, connection: Connection) -> None:
        """While it waited for its turn, what it may do and what is offered may have changed."""
        self._permit(call.label)
        if call.tool.name not in connection.tools:
            raise UnknownTool(
                f"server {self.config.name!r} offers {call.label} no longer",
                remedy="List its tools to see what it offers now.",
                server=self.config.name,
            )

    def _limits(self, call: Call) -> Limits:
        idle = self.config.call_seconds if call.timeout is None else call.timeout
        connect = self.config.startup_seconds if call.timeout is None else call.timeout
        return Limits(idle, max(self.config.max_call, idle), connect)

    async def _turn(self, call: Call, ticket: int, limits: Limits, *, alone: bool) -> Connection:
        """Wait for a turn."""
        if self.turns.serves(protocol().serving_request.get()):
            raise would_wait_for_itself(self.config.name, f"{call.label} was called")
        self._hasten()
        patience = limits.patience
        self._patient.add(patience)
        try:
            with patience.waiting(self._awaited()):
                if not self.turns.connected:
                    name = self.config.name
                    await self._progress(call, 0.0, None, f"waiting for server {name!r} to be connected")
                return await self.turns.acquire(alone=alone, ticket=ticket)
        finally:
            self._patient.remove(patience)
        raise limits.waited_in_vain(call.label, self.config.name, self.turns.running, self.turns.waiting)

    def _awaited(self) -> Literal["queue", "connect"]:
        return "queue" if self.turns.connected else "connect"

    def _connection_changed(self) -> None:
        for patience in self._patient:
            patience.switch(self._awaited())

    async def _progress(self, call: Call, progress: float, total: float | None, message: str | None) -> None:
        said = None if message is None else self.hidden.mask(message)
        self._bus.publish(
            ToolCallProgress(
                server=self.config.name, call_id=call.call_id, progress=progress, total=total, message=said
            )
        )
        if call.on_progress is not None:
            await call.on_progress(progress, total, message)

    def _timed_out(self, request: _Request, expired: str) -> TimedOut:
        fate = request.fate
        if fate.last_progress is not None:
            ago, progress, total, message = fate.last_progress
            said = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            if message is not None:
                said = f"{said}, {self.hidden.mask(message[:200])!r}"
            heard = f"its last progress, {ago:.3g} s before, was {said}"
        elif fate.silence is not None:
            heard = f"the server's last word about anything came {fate.silence:.3g} s before"
        else:
            heard = "nothing else was heard"
        return request.limits.unanswered(request.call.label, self.config.name, expired, heard)

    def _forgotten(self, call: Call) -> ServerGone:
        return ServerGone(
            f"server {self.config.name!r} made a new session for {call.label}, and did not know that one either",
            may_have_run=False,
            remedy="Nothing was run. See whether several servers without a common memory stand behind the address.",
            server=self.config.name,
        )

    def _gone(self, call: Call) -> ServerGone:
        return ServerGone(
            f"the connection to server {self.config.name!r} was lost before {call.label} was answered; "
            "it may or may not have run",
            may_have_run=True,
            remedy="Call it again when the server is back; it does no harm."
            if call.tool.repeatable
            else "Find out whether it had its effect before calling it again.",
            server=self.config.name,
        )


@define(eq=False)
class _Request:
    """One sending of a call over one connection: a request to the server, and one more for each round of input."""

    call: Call
    limits: Limits
    _on_progress: Callable[[Call, float, float | None, str | None], Awaitable[None]]
    _fates: list[Any] = field(factory=list, init=False)
    _until: float | None = field(default=None, init=False)

    def options(self) -> dict[str, Any]:
        """The limits and callbacks of the next request."""
        fate, hard = protocol().Fate(), self.limits.hard
        self._fates.append(fate)
        if self._until is None:
            self._until = trio.current_time() + hard
        else:
            hard = max(0.0, self._until - trio.current_time())
        return {
            "fate": fate,
            "timeout": self.limits.idle,
            "hard_timeout": hard,
            "on_progress": partial(self._on_progress, self.call),
        }

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """For as long as the server waits for us, its time does not run."""
        began = trio.current_time()
        try:
            yield
        finally:
            if self._until is not None:
                self._until += trio.current_time() - began

    @property
    def left_us(self) -> bool:
        """Whether the server may have got any of it."""
        queued = protocol().FateState.QUEUED
        return any(fate.state is not queued for fate in self._fates)

    @property
    def fate(self) -> Any:
        """What became of its last sending."""
        return self._fates[-1]

    @property
    def unanswered(self) -> bool:
        """Whether the server has got it and has not answered, so that it may be at it still."""
        return bool(self._fates) and self._fates[-1].state is protocol().FateState.WRITTEN

    @property
    def expired(self) -> str | None:
        """The limit that ran out, ``idle`` or ``hard``."""
        return self._fates[-1].expired if self._fates else None


def _output_fault(tool: RemoteTool, result: Mapping[str, Any]) -> str | None:
    """What is wrong with a result by the tool's output schema (specification: server/tools, "Output Schema")."""
    if tool.output_schema is None or result.get("isError"):
        return None
    if "structuredContent" not in result:
        return "the tool has an output schema, but the result has no structured content"
    structured = result["structuredContent"]
    if not isinstance(structured, dict) and tool.output_schema.get("type") == "object":
        return "its structured content is not an object"
    try:
        check_arguments(tool.output_schema, structured)
    except InvalidArguments as fault:
        said = f" at {fault.message}" if fault.path else f": {fault.message.removeprefix('arguments: ')}"
        return f"its structured content does not fit the output schema{said}"
    return None
