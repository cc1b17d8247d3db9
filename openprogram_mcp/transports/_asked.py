"""One request of ours over HTTP, in the task of its caller, and how its progress is told.

Progress that comes with the answer's own stream is told by the caller's task, between two pieces of it. What comes by
another way is told beside it, since a caller that waits for bytes cannot be disturbed without losing them: in order, in
the caller's context, and never after its return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio
from attrs import define, field
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError

from ._clock import CallClock
from ._outbox import Fate, FateState
from ._requests import tell_progress
from .wire import RequestId, Slot

__all__ = ["Asked"]

_CALLBACK_SECONDS: Final = 1.0


@define(eq=False, kw_only=True)
class Asked(Slot):
    """A request of ours, in the task of its caller.

    Args:
        wire_id: Its id as it goes out.
        method: Its method.
        params: Its parameters, as they go out.
        headers: Headers that its sender wants with it.
        fate: Told how far it has come.
        on_progress: Told of progress.
        clock: What its limits run by.
        task: The task that asks.
        scope: Ends the exchange: its limit ran out, or somebody else has brought the answer.
        posting: Ends the sending alone, where the answer comes by another way.
        teller: Set when nobody tells progress in another task any more; ``None`` while none does.
        garbled: What came on its own response and was no message: its answer, where no other comes.
    """

    wire_id: RequestId
    method: str
    params: Mapping[str, Any] | None
    headers: Mapping[str, str]
    fate: Fate
    on_progress: ProgressFnT | None
    clock: CallClock
    task: trio.lowlevel.Task
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    posting: trio.CancelScope | None = None
    teller: trio.Event | None = None
    garbled: MCPError | None = None

    def restart(self, now: float) -> None:
        """Something has moved: the limit that moves with it begins again."""
        super().restart(now)
        if self.idle is not None:
            self.set_timer()

    def set_timer(self) -> None:
        """The limits, or the clock that they run by, have changed."""
        self.scope.deadline = self.clock.when(self.deadline)

    def written(self) -> None:
        """Some of it has left us."""
        self.fate.state = FateState.WRITTEN
        self.issued = True
        self.restart(self.clock.now())

    def not_run(self) -> None:
        """The server has said that it did nothing of it."""
        self.fate.state = FateState.QUEUED
        self.issued = False

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Told by the HTTP client of every step; a proxy's own request is none of ours."""
        if name == "http11.send_request_body.started" and info["request"].method != b"CONNECT":
            self.written()

    # Progress.

    async def tell(self) -> None:
        """Tell the progress that was heard, in the caller's task."""
        while self.progress and self.on_progress is not None and self.teller is None:
            await tell_progress(self.on_progress, self)

    def tell_beside(self, nursery: trio.Nursery) -> None:
        """Tell it in another task, unless somebody is at it."""
        if self.progress and self.interrupt is None and self.teller is None:
            self.teller = trio.Event()
            self.task.context.copy().run(nursery.start_soon, self._tell_beside, self.teller)

    async def _tell_beside(self, done: trio.Event) -> None:
        try:
            while self.progress and self.on_progress is not None:
                await tell_progress(self.on_progress, self)
        finally:
            self.teller = None
            done.set()

    async def told(self) -> None:
        """Wait until the progress that was heard before the answer has been told, within the limits of the request."""
        with trio.CancelScope(deadline=self.clock.when(self.deadline)):
            if self.teller is not None:
                await self.teller.wait()
            await self.tell()

    async def silence(self) -> None:
        """Nobody tells its progress any more once it has come back."""
        teller, self.progress = self.teller, None
        if teller is None:
            return
        if self.interrupt is not None:
            self.interrupt()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CALLBACK_SECONDS):
            await teller.wait()
