"""The request queue of one server: whose turn it is, and on which connection.

No I/O and no clock: turns are decided synchronously, at the moments when something changes. A turn is granted when
there is a connection, fewer than the allowed number of calls run, and nothing that must run alone is in the way; first
come, first served, so that a call that must run alone is not overtaken for ever. Those that may run side by side and
are let go at one moment begin in any order. The call itself runs in its caller's task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import outcome
import trio
from attrs import define

__all__ = ["Turns"]

ConnectionT = TypeVar("ConnectionT")


@define(eq=False)
class _Waiter:
    alone: bool
    task: trio.lowlevel.Task


class Turns(Generic[ConnectionT]):
    """Turns on the connections of one server: new ones on one connection, while those on an older one come to an end.

    ``on_connection`` is called, synchronously, when there is a connection again, and when there is none any more.

    Args:
        limit: How many calls may run at once.
    """

    def __init__(self, limit: int) -> None:
        self.on_connection: Callable[[], None] = lambda: None
        self._limit = limit
        self._connection: ConnectionT | None = None
        self._running = 0
        self._running_on: dict[ConnectionT, int] = {}
        self._lingering = 0
        self._alone = False
        self._waiting: dict[int, _Waiter] = {}
        self._refusal: Callable[[], BaseException] | None = None
        self._idle = trio.lowlevel.ParkingLot()

    @property
    def connection(self) -> ConnectionT | None:
        """The connection that calls go to now, for what takes no turn."""
        return self._connection

    @property
    def running(self) -> int:
        """How many calls hold a turn."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many calls wait for one."""
        return len(self._waiting)

    @property
    def connected(self) -> bool:
        """Whether there is a connection to send calls to."""
        return self._connection is not None

    def serves(self, dispatcher: object | None) -> bool:
        """Whether a call would wait for the very request that is being served over this dispatcher."""
        return dispatcher is not None and getattr(self._connection, "dispatcher", None) is dispatcher

    def offer(self, connection: ConnectionT) -> None:
        """Calls go to this connection from now on. Whoever waits is served, in order."""
        self._refusal = None
        self._connect(connection)
        self._grant()

    def allow(self, limit: int) -> None:
        """Let so many calls run at once from now on."""
        self._limit = limit
        self._grant()

    def withdraw(self, connection: ConnectionT) -> None:
        """Nobody is sent to this connection any more. Harmless where another one has taken its place.

        Whoever is the first to see that a connection has ended says so, before anybody else is sent there: a turn on a
        dead one would come back at once, without a checkpoint, and be granted again, for ever.
        """
        if self._connection is connection:
            self._connect(None)

    def hold(self) -> None:
        """There is no connection, but one is on its way: calls wait."""
        self._refusal = None
        self._connect(None)

    def refuse(self, why: Callable[[], BaseException]) -> None:
        """There is no connection, and none on its way: whoever waits, and whoever comes, is told why.

        Args:
            why: Makes the exception, one for each caller.
        """
        self._refusal = why
        self._connect(None)
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            trio.lowlevel.reschedule(waiter.task, outcome.Error(why()))

    def acquire_nowait(self, *, alone: bool) -> ConnectionT | None:
        """A turn, if one can be had at once and nobody waits before us. No checkpoint: the hot path cannot afford one.

        Raises:
            BaseException: What :meth:`refuse` was given.
        """
        if self._refusal is not None:
            raise self._refusal()
        if self._waiting or not self._may_run(alone):
            return None
        self._begin(self._connection, alone)
        return self._connection

    @trio.lowlevel.enable_ki_protection
    async def acquire(self, *, alone: bool, ticket: int) -> ConnectionT:
        """Wait for a turn. To limit the wait, put a scope around it.

        Args:
            alone: Nothing else may run meanwhile.
            ticket: The place in the queue; a call that comes back keeps its old one.

        Raises:
            BaseException: What :meth:`refuse` was given.
        """
        connection = self.acquire_nowait(alone=alone)
        if connection is not None:
            return connection
        waiting = self._waiting
        last = next(reversed(waiting)) if waiting else -1
        waiting[ticket] = _Waiter(alone, trio.lowlevel.current_task())
        if ticket < last:
            self._waiting = dict(sorted(waiting.items()))

        def abort(_raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
            # Withdrawn: the place is free at once, and those behind it may have waited for this one only.
            self._waiting.pop(ticket, None)
            self._grant()
            return trio.lowlevel.Abort.SUCCEEDED

        granted: ConnectionT = await trio.lowlevel.wait_task_rescheduled(abort)
        return granted

    def release(self, connection: ConnectionT) -> None:
        """Give a turn on this connection back."""
        self._running -= 1
        left = self._running_on[connection] - 1
        if left:
            self._running_on[connection] = left
        else:
            del self._running_on[connection]
            if self._idle:
                self._idle.unpark_all()
        if not self._running:
            self._alone = False
        if self._waiting:
            self._grant()

    def linger(self, connection: ConnectionT) -> None:
        """Give a turn back, but let nobody run alone until :meth:`unlinger`: the server may still be at it."""
        self._lingering += 1
        self.release(connection)

    def unlinger(self) -> None:
        """What :meth:`linger` spoke of is over."""
        self._lingering -= 1
        if self._waiting:
            self._grant()

    async def idle(self, connection: ConnectionT) -> None:
        """Wait until no call holds a turn on this connection."""
        while connection in self._running_on:
            await self._idle.park()

    def _begin(self, connection: Any, alone: bool) -> None:
        self._running += 1
        self._running_on[connection] = self._running_on.get(connection, 0) + 1
        self._alone = alone

    def _may_run(self, alone: bool) -> bool:
        if self._connection is None or self._alone or self._running >= self._limit:
            return False
        return not (alone and (self._running or self._lingering))

    def _connect(self, connection: ConnectionT | None) -> None:
        changes = (connection is None) is not (self._connection is None)
        self._connection = connection
        if changes:
            self.on_connection()

    def _grant(self) -> None:
        while self._waiting:
            ticket = next(iter(self._waiting))
            waiter = self._waiting[ticket]
            if not self._may_run(waiter.alone):
                return
            del self._waiting[ticket]
            self._begin(self._connection, waiter.alone)
            trio.lowlevel.reschedule(waiter.task, outcome.Value(self._connection))
