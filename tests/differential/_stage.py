"""Where the steps of an exchange are played: to the SDK's dispatcher, and to ours, with everything seen noted down.

What is noted is a list of :class:`Seen`, each with the number of the step it came of. A step is over when nothing moves
any more, so that what is compared does not hang on who was a little faster. The clock stands still but for ``Advance``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

import trio
import trio.testing
from attrs import define, field, frozen
from mcp.shared.exceptions import MCPError
from opentelemetry import trace
from pydantic import BaseModel

from . import steps as do
from ._sides import SIDES, MakeSide, Side, SideName
from .steps import Step

__all__ = ["SPAN", "Seen", "play", "run_seeded", "shown"]

Channel = Literal["call", "wire", "intercept", "notify", "progress", "serve", "noise", "run"]

SPAN: Final = trace.NonRecordingSpan(
    trace.SpanContext(0x1234567890ABCDEF1234567890ABCDEF, 0x1234567890ABCDEF, False, trace.TraceFlags(1))
)


@frozen
class Seen:
    """Something that could be seen of a dispatcher from outside.

    Args:
        step: The number of the step it came of.
        channel: Where it was seen.
        text: What it was.
    """

    step: int
    channel: Channel
    text: str

    def __str__(self) -> str:
        return f"{self.step} {self.channel}: {self.text}"


def shown(value: Any) -> str:
    """JSON as short as can be."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, default=repr)
    return re.sub("0{50,}", "0...", text)


# What the client does with what the peer asks and tells.


class _Strict(BaseModel):
    n: int


@define(eq=False)
class Handlers:
    """The client's handlers, which are told by a request's method what to do:

    ``echo`` answers with the parameters; ``wait`` does when told to finish; ``stubborn`` the same, and cannot be
    cancelled; ``refuse`` raises an ``MCPError``, ``invalid`` a ``ValidationError``, ``crash`` any other one; ``odd``
    answers with what is no JSON; ``ask back`` asks the peer ``back``; ``report`` tells progress, ``tell`` sends a
    notification.
    """

    see: Callable[[Channel, str], None]
    contexts: dict[int | str, Any] = field(factory=dict)
    finished: dict[int | str, trio.Event] = field(factory=dict)
    shields: list[trio.CancelScope] = field(factory=list)

    @contextlib.contextmanager
    def _shielded(self, shield: bool = True) -> Iterator[None]:
        """What cannot be cancelled until the play is over."""
        with trio.CancelScope(shield=shield) as scope:
            self.shields.append(scope)
            yield

    async def on_request(self, context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        name = f"{context.request_id!r} {method}"
        self.see("serve", f"{name} {shown(params)}")
        self.contexts[context.request_id] = context
        way = "cancelled"
        try:
            result = await self._handle(context, method, params)
            way = "returned"
            return result  # noqa: TRY300 - what the finally notes is decided here
        except Exception:
            way = "raised"
            raise
        except BaseExceptionGroup:
            way = "failed over it"
            raise
        finally:
            asked = " as asked" if context.cancel_requested.is_set() else ""
            self.see("serve", f"{name} {way}{asked}")

    async def _handle(self, context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        match method:
            case "wait" | "stubborn":
                event = self.finished[context.request_id] = trio.Event()
                with self._shielded(method == "stubborn"):
                    await event.wait()
            case "refuse":
                raise MCPError(code=-7, message="mine", data={"a": 1})
            case "invalid":
                _Strict.model_validate({"n": "secret"})
            case "crash":
                raise ValueError("secret")
            case "odd":
                return {"odd": object()}
            case "fail when cancelled":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._fail_when_cancelled)
                    nursery.start_soon(trio.sleep_forever)
            case "ask back":
                return {"back": await context.send_raw_request("back", {"n": 1})}
            case "ask back stubbornly":
                with self._shielded():
                    return {"back": await context.send_raw_request("back", None)}
            case "report":
                await context.progress(1, 2, "half")
                await context.progress(2)
            case "tell":
                await context.notify("told", {"n": 1})
            case _:
                pass
        return {"echo": None if params is None else dict(params)}

    async def _fail_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ZeroDivisionError

    async def on_notify(self, context: Any, method: str, params: Mapping[str, Any] | None) -> None:
        assert context.request_id is None
        name = f"{method} {shown(params)}"
        if method == "slow":
            for _ in range((params or {})["n"] % 3):
                await trio.lowlevel.checkpoint()
        self.see("notify", name)
        if method == "crash":
            raise ValueError("secret")

    def intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        self.see("intercept", f"{method} {shown(params)}")
        if method == "crash":
            raise ValueError("secret")
        return method == "consumed"


# The play.

_logger: Final = logging.getLogger("openprogram_mcp.transports._hearing")


class _Faults(logging.Handler):
    """What our dispatcher logs as a fault of its own. It survives them; nothing should ever come to that."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@define(eq=False)
class _Play:
    """One exchange on one side."""

    side: Side
    nursery: trio.Nursery
    hard_limits: bool
    seen: list[Seen]
    number: int = 0
    over: bool = False
    ids: dict[str, Any] = field(factory=dict)
    callers: dict[str, trio.CancelScope] = field(factory=dict)
    waiting: set[str] = field(factory=set)
    running: trio.CancelScope = field(factory=trio.CancelScope)
    handlers: Handlers = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.handlers = Handlers(self.see)

    def see(self, channel: Channel, text: str) -> None:
        if not self.over:
            self.seen.append(Seen(self.number, channel, text))

    def hear(self, message: Mapping[str, Any]) -> None:
        if "id" in message and "method" in message:
            self.ids[message["method"]] = message["id"]
        self.see("wire", shown({key: value for key, value in message.items() if key != "jsonrpc"}))

    def noise(self) -> None:
        self.see("noise", "a line that is no message")

    async def perform(self, step: Step) -> None:
        match step:
            case do.Run():
                self.nursery.start_soon(self._run, step.again)
            case do.Ask():
                self.nursery.start_soon(self._ask, step)
            case do.AskBack():
                self.nursery.start_soon(self._ask_back, step)
            case do.Cancel():
                self.callers[step.method].cancel()
            case do.Tell():
                self.nursery.start_soon(self._tell, step)
            case do.Finish():
                if step.request_id in self.handlers.finished:
                    self.handlers.finished[step.request_id].set()
            case do.Leave():
                self.running.cancel()
            case do.Advance():
                pass
            case do.PeerSays():
                await self.side.feed(b"".join(do.line(message, self.ids) for message in step.messages))
            case do.PeerLine():
                await self.side.feed(step.text.encode() + b"\n")
            case do.PeerCloses():
                self.side.close()
            case do.PeerHangsUp():
                self.side.hang_up()
            case do.PeerStopsReading():
                self.side.read(on=False)
            case do.PeerReads():
                self.side.read(on=True)

    async def _run(self, again: bool) -> None:
        run, handlers = self.side.dispatcher.run, self.handlers
        scope = trio.CancelScope() if again else self.running
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(run, handlers.on_request, handlers.on_notify, handlers.intercept)
                    self.see("run", "started")
        except Exception as error:  # noqa: BLE001 - which one it is is what is compared
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            self.see("run", f"raised {type(error).__name__}")
        else:
            self.see("run", "cancelled" if scope.cancelled_caught else "ended")

    async def _ask(self, step: do.Ask) -> None:
        scope = self.callers[step.method] = trio.CancelScope()
        if step.cancelled_already:
            scope.cancel()
        options = dict(step.options)
        if self.hard_limits and "timeout" in options:
            options["hard_timeout"] = options["timeout"]
        if step.hears_progress:
            options["on_progress"] = self._hears(step)

        async def send() -> dict[str, Any]:
            if step.traced:
                with trace.use_span(SPAN):
                    return await self.side.dispatcher.send_raw_request(step.method, step.params, options)  # type: ignore[arg-type]  # any options
            return await self.side.dispatcher.send_raw_request(step.method, step.params, options)  # type: ignore[arg-type]  # any options

        self.waiting.add(step.method)
        await self._outcome(step.method, send, scope)

    def _hears(self, step: do.Ask) -> Callable[[float, float | None, str | None], Awaitable[None]]:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            for _ in range(5 - int(progress) % 3 if step.takes_time_to_hear else 0):
                await trio.lowlevel.checkpoint()
            late = "" if step.method in self.waiting else " after its end"
            self.see("progress", f"{step.method} {shown([progress, total, message])}{late}")
            if step.breaks_at_progress:
                raise ValueError("secret")

        return on_progress

    async def _ask_back(self, step: do.AskBack) -> None:
        context = self.handlers.contexts[step.context]
        await context.notify("from a handler that has ended", None)
        await context.progress(3)
        self.see("call", f"{step.method}: may send: {context.can_send_request}")
        await self._outcome(step.method, lambda: context.send_raw_request(step.method, None), trio.CancelScope())

    async def _outcome(self, name: str, send: Callable[[], Awaitable[Any]], scope: trio.CancelScope) -> None:
        text = "cancelled"
        try:
            with scope:
                text = f"result {shown(await send())}"
        except MCPError as error:
            data = "" if error.error.data is None else f" {shown(error.error.data)}"
            text = f"error {error.code} {error.message!r}{data}"
        except Exception as error:  # noqa: BLE001 - which one it is is what is compared
            text = f"raised {'ValueError' if isinstance(error, ValueError) else type(error).__name__}"
        self.waiting.discard(name)
        self.see("call", f"{name}: {text}")

    async def _tell(self, step: do.Tell) -> None:
        try:
            await self.side.dispatcher.notify(step.method, step.params)
        except Exception as error:  # noqa: BLE001 - which one it is is what is compared
            self.see("call", f"tell {step.method}: raised {type(error).__name__}")


async def _play(make: MakeSide, steps: Iterable[Step], clock: trio.testing.MockClock, hard_limits: bool) -> list[Seen]:
    seen: list[Seen] = []
    async with trio.open_nursery() as nursery:
        play: _Play
        side = make(nursery, lambda message: play.hear(message), lambda: play.noise())
        play = _Play(side, nursery, hard_limits, seen)
        for step in steps:
            play.number += 1
            await play.perform(step)
            if isinstance(step, do.Advance):
                clock.jump(step.seconds)
            await trio.testing.wait_all_tasks_blocked()
        for method in sorted(play.waiting):
            seen.append(Seen(play.number, "call", f"{method}: waits"))
        play.over = True
        side.hang_up()
        for shield in play.handlers.shields:
            shield.shield = False
        nursery.cancel_scope.cancel()
    return seen


def run_seeded(function: Callable[..., Awaitable[Any]], *args: Any, seed: int) -> Any:
    """Run something under a clock that stands still, and in an order of tasks that a seed tells.

    Args:
        function: What to run; the clock is its last argument.
        args: Its arguments before that.
        seed: For the order of tasks that could run at the same time.
    """
    clock = trio.testing.MockClock()
    trio._core._run._r.seed(seed)  # pytest-trio has made the order depend on this alone
    return trio.run(partial(function, *args), clock, clock=clock, strict_exception_groups=True)


def play(side: SideName, steps: Iterable[Step], *, seed: int = 0, hard_limits: bool = False) -> list[Seen]:
    """Play an exchange on one side and say what was seen.

    Args:
        side: On which.
        steps: The exchange.
        seed: For the order of tasks that could run at the same time.
        hard_limits: Limits hold whatever is heard, as the SDK's do.
    """

    async def main(clock: trio.testing.MockClock) -> list[Seen]:
        return await _play(SIDES[side], list(steps), clock, hard_limits)

    faults = _Faults()
    _logger.addHandler(faults)
    try:
        seen: list[Seen] = run_seeded(main, seed=seed)
    finally:
        _logger.removeHandler(faults)
    return seen + [Seen(0, "run", fault) for fault in faults.found]
