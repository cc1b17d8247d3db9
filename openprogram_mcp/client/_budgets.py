"""What a call may spend: on waiting for its turn, on waiting for a connection, and on its answer.

Each budget runs by itself: what is waited for the server to come back is not taken from the place in the queue, and
neither from the call. Owns the clocks of the two waits; those of the answer belong to the dispatcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import trio
from attrs import define, field

from ..errors import TimedOut

__all__ = ["Limits", "Patience"]

Wait = Literal["queue", "connect"]


@define(eq=False)
class Patience:
    """The two waits of one call. One of them runs at a time, however often the connection comes and goes.

    Args:
        queue: Seconds left for waiting behind others.
        connect: Seconds left for waiting for a connection.
    """

    queue: float
    connect: float
    running: Wait = "queue"
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _since: float = field(default=0.0, init=False)

    @contextmanager
    def waiting(self, running: Wait) -> Iterator[None]:
        """Wait within the budgets, and no longer. The body ends early when the one that runs has run out."""
        self.running, self._since, self._scope = running, trio.current_time(), trio.CancelScope()
        self._scope.deadline = self._since + self._left()
        try:
            with self._scope:
                yield
        finally:
            self._spend()

    def switch(self, running: Wait) -> None:
        """What is waited for has changed. Where a budget has run out already, that stands."""
        if not self._scope.cancel_called and running != self.running:
            self._spend()
            self.running = running
            self._scope.deadline = self._since + self._left()

    def _left(self) -> float:
        return self.queue if self.running == "queue" else self.connect

    def _spend(self) -> None:
        now = trio.current_time()
        left = max(0.0, self._left() - (now - self._since))
        self._since = now
        if self.running == "queue":
            self.queue = left
        else:
            self.connect = left


@define(eq=False)
class Limits:
    """The budgets of one call, in seconds.

    Args:
        idle: Without a sign of life from the server; also for waiting behind others.
        hard: For all rounds together, whatever is heard.
        connect: For waiting for a connection.
    """

    idle: float
    hard: float
    connect: float
    _patience: Patience | None = field(default=None, init=False)

    @property
    def patience(self) -> Patience:
        """What is left for waiting: one budget for all the waits of a call."""
        if self._patience is None:
            self._patience = Patience(self.idle, self.connect)
        return self._patience

    def waited_in_vain(self, label: str, server: str, running: int, waiting: int) -> TimedOut:
        """The error of a call that was never sent, by the budget that ran out."""
        if self.patience.running == "connect":
            return TimedOut(
                f"{label} waited {self.connect:g} s for server {server!r} to come back",
                budget="connect",
                seconds=self.connect,
                remedy="Nothing was sent. The server's status says what is wrong; call again when it is connected.",
                server=server,
            )
        return TimedOut(
            f"{label} waited {self.idle:g} s for its turn; {running} calls run and {waiting} wait on server {server!r}",
            budget="queue",
            seconds=self.idle,
            remedy="Nothing was sent. Raise the limit, 'max_concurrency', or set 'serialize' to \"none\".",
            server=server,
        )

    def unanswered(self, label: str, server: str, expired: str, heard: str) -> TimedOut:
        """The error of a call that was sent and not answered in time.

        Args:
            label: The tool's full name.
            server: The server's name.
            expired: The limit that ran out, ``idle`` or ``hard``.
            heard: What was last heard, as a sentence.
        """
        hard = expired == "hard"
        seconds, field_name = (self.hard, "max_call_seconds") if hard else (self.idle, "call_timeout_seconds")
        what = (
            f"{label} did not come to an end within {seconds:g} s on server {server!r}"
            if hard
            else f"{label}: nothing was heard of it from server {server!r} for {seconds:g} s"
        )
        return TimedOut(
            f"{what}; {heard}",
            budget="max_call" if hard else "call",
            seconds=seconds,
            remedy=f"The server was told to stop; it may have run. Raise {field_name!r} if it needs longer.",
            server=server,
        )
