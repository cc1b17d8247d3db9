"""The request queue: whose turn it is. In memory, without a server: a connection is any object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from openprogram_mcp.client._turns import Turns


class Refused(Exception):
    """What a caller is told when there is no connection."""


@define(eq=False)
class Caller:
    """One call: it waits for a turn, holds it until it is told to end, and gives it back."""

    turns: Turns[str]
    ticket: int
    alone: bool = False
    where: str | None = None
    error: BaseException | None = None
    over: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    _end: trio.Event = field(factory=trio.Event)
    _again: bool = False

    @property
    def running(self) -> bool:
        return self.where is not None

    def end(self) -> None:
        self._end.set()

    def come_back(self) -> None:
        """Its connection was lost before anything was sent: it gives its turn back and asks again."""
        self._again = True
        self._end.set()

    async def run(self) -> None:
        with self.scope:
            try:
                while True:
                    self.where = await self.turns.acquire(alone=self.alone, ticket=self.ticket)
                    try:
                        await self._end.wait()
                    finally:
                        where, self.where = self.where, None
                        self.turns.release(where)
                    if not self._again:
                        return
                    self._again, self._end = False, trio.Event()
            except Refused as error:
                self.error = error
            finally:
                self.over = True


@define(eq=False)
class Queue:
    """Turns, and those who ask for them."""

    nursery: trio.Nursery
    turns: Turns[str]
    callers: list[Caller] = field(factory=list)

    async def ask(self, *, alone: bool = False) -> Caller:
        caller = Caller(self.turns, len(self.callers), alone)
        self.callers.append(caller)
        self.nursery.start_soon(caller.run)
        await wait_all_tasks_blocked()
        return caller

    def running(self) -> list[int]:
        return [caller.ticket for caller in self.callers if caller.running]

    def waiting(self) -> list[int]:
        return [caller.ticket for caller in self.callers if not caller.running and not caller.over]


async def _with_queue(limit: int, play: Callable[[Queue], Any]) -> None:
    async with trio.open_nursery() as nursery:
        queue = Queue(nursery, Turns(limit))
        await play(queue)
        nursery.cancel_scope.cancel()


async def test_an_idle_server_grants_at_once_and_without_a_checkpoint(nursery: trio.Nursery) -> None:
    turns: Turns[str] = Turns(8)
    turns.offer("here")
    assert turns.acquire_nowait(alone=False) == "here"
    assert turns.running == 1
    turns.release("here")
    with trio.CancelScope() as scope:
        scope.cancel()
        # A cancelled scope would strike at the first checkpoint.
        assert await turns.acquire(alone=True, ticket=0) == "here"
        turns.release("here")
    assert turns.running == 0


async def test_no_more_run_at_once_than_the_limit_and_the_first_to_come_is_the_first_to_go() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("here")
        callers = [await queue.ask() for _ in range(5)]
        assert queue.running() == [0, 1]
        callers[1].end()
        await wait_all_tasks_blocked()
        assert queue.running() == [0, 2]
        callers[0].end()
        callers[2].end()
        await wait_all_tasks_blocked()
        assert queue.running() == [3, 4]

    await _with_queue(2, play)


async def test_a_call_that_must_run_alone_waits_for_all_and_is_overtaken_by_none() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("here")
        readers = [await queue.ask(), await queue.ask()]
        writer = await queue.ask(alone=True)
        late = await queue.ask()
        assert queue.running() == [0, 1], "there is room for the late one, but the writer was here before it"
        readers[0].end()
        await wait_all_tasks_blocked()
        assert queue.running() == [1]
        readers[1].end()
        await wait_all_tasks_blocked()
        assert queue.running() == [writer.ticket]
        writer.end()
        await wait_all_tasks_blocked()
        assert queue.running() == [late.ticket]

    await _with_queue(8, play)


async def test_a_withdrawn_call_frees_its_place_and_those_behind_it_go() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("here")
        await queue.ask()
        writer = await queue.ask(alone=True)
        behind = [await queue.ask(), await queue.ask()]
        assert queue.running() == [0]
        writer.scope.cancel()
        await wait_all_tasks_blocked()
        assert queue.running() == [0, *(caller.ticket for caller in behind)]
        assert queue.turns.waiting == 0

    await _with_queue(8, play)


async def test_ten_that_timed_out_do_not_block_the_eleventh(autojump_clock: trio.testing.MockClock) -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("here")
        first = await queue.ask(alone=True)

        async def impatient(ticket: int) -> None:
            with trio.move_on_after(1) as scope:
                await queue.turns.acquire(alone=True, ticket=ticket)
            assert scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for ticket in range(100, 110):
                nursery.start_soon(impatient, ticket)
        eleventh = await queue.ask(alone=True)
        assert queue.turns.waiting == 1
        first.end()
        await wait_all_tasks_blocked()
        assert eleventh.running

    await _with_queue(1, play)


async def test_a_call_that_comes_back_has_its_old_place() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("first")
        callers = [await queue.ask(alone=True) for _ in range(3)]
        queue.turns.withdraw("first")
        callers[0].come_back()
        await wait_all_tasks_blocked()
        assert queue.running() == []
        queue.turns.offer("second")
        await wait_all_tasks_blocked()
        assert queue.running() == [0]
        assert callers[0].where == "second"

    await _with_queue(8, play)


async def test_a_connection_that_was_withdrawn_is_given_to_nobody() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("first")
        holder = await queue.ask(alone=True)
        waiter = await queue.ask()
        queue.turns.withdraw("first")
        holder.end()
        await wait_all_tasks_blocked()
        assert queue.turns.acquire_nowait(alone=False) is None
        assert not waiter.running
        queue.turns.offer("second")
        queue.turns.withdraw("first")
        late = await queue.ask()
        assert waiter.where == late.where == "second", "what is said of an older one does not touch the newer one"

    await _with_queue(8, play)


async def test_a_turn_on_the_old_connection_keeps_a_lone_call_from_the_new_one() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("old")
        old = await queue.ask()
        queue.turns.offer("new")
        writer = await queue.ask(alone=True)
        assert not writer.running
        old.end()
        await wait_all_tasks_blocked()
        assert writer.where == "new"

    await _with_queue(8, play)


async def test_a_refusal_reaches_those_who_wait_and_those_who_come_each_with_its_own_error() -> None:
    async def play(queue: Queue) -> None:
        callers = [await queue.ask(), await queue.ask()]
        queue.turns.refuse(Refused)
        await wait_all_tasks_blocked()
        callers.append(await queue.ask())
        errors = [caller.error for caller in callers]
        assert all(isinstance(error, Refused) for error in errors)
        assert len({id(error) for error in errors}) == 3
        with pytest.raises(Refused):
            queue.turns.acquire_nowait(alone=False)
        queue.turns.hold()
        assert queue.turns.acquire_nowait(alone=False) is None, "held: there will be one"

    await _with_queue(8, play)


async def test_a_higher_limit_lets_those_who_wait_go() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("here")
        for _ in range(3):
            await queue.ask()
        assert queue.running() == [0]
        queue.turns.allow(2)
        await wait_all_tasks_blocked()
        assert queue.running() == [0, 1]

    await _with_queue(1, play)


async def test_idle_waits_for_the_last_turn_to_be_given_back() -> None:
    async def play(queue: Queue) -> None:
        queue.turns.offer("here")
        callers = [await queue.ask(), await queue.ask()]
        idle = trio.Event()

        async def wait() -> None:
            await queue.turns.idle("here")
            idle.set()

        queue.nursery.start_soon(wait)
        callers[0].end()
        await wait_all_tasks_blocked()
        assert not idle.is_set()
        callers[1].end()
        await wait_all_tasks_blocked()
        assert idle.is_set()

    await _with_queue(8, play)


async def test_a_turn_that_was_granted_and_cancelled_in_one_step_is_given_back() -> None:
    turns: Turns[str] = Turns(1)
    scope = trio.CancelScope()
    reached = trio.Event()

    async def caller() -> None:
        with scope:
            await turns.acquire(alone=False, ticket=0)
            try:
                reached.set()
                await trio.sleep_forever()
            finally:
                turns.release("here")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller)
        await wait_all_tasks_blocked()
        turns.offer("here")
        scope.cancel()
    assert reached.is_set(), "the turn was had"
    assert turns.running == 0


# The same against a model that is too simple to be wrong.


@define
class Model:
    """Who runs and who waits, decided anew from the whole queue after each step."""

    limit: int
    connection: str | None = None
    refused: bool = False
    running: dict[int, bool] = field(factory=dict)
    waiting: dict[int, bool] = field(factory=dict)

    def settle(self) -> None:
        if self.refused:
            self.waiting.clear()
        for ticket, alone in sorted(self.waiting.items()):
            room = len(self.running) < self.limit and not any(self.running.values())
            if self.connection is None or not room or (alone and self.running):
                return
            del self.waiting[ticket]
            self.running[ticket] = alone


_STEPS = st.one_of(
    st.tuples(st.just("ask"), st.booleans()),
    st.tuples(st.sampled_from(["end", "come back", "cancel running", "cancel waiting"]), st.integers(0, 50)),
    st.tuples(st.sampled_from(["offer", "hold", "refuse", "withdraw", "withdraw an older one"]), st.none()),
    st.tuples(st.just("allow"), st.integers(1, 4)),
)


@given(st.lists(_STEPS, max_size=60), st.integers(1, 4))
@settings(deadline=None)
async def test_whatever_happens_in_whatever_order_the_right_ones_run(steps: list[tuple[str, Any]], limit: int) -> None:
    offered = ["none yet", "none either"]  # known by identity, as connections are
    model = Model(limit)

    async def play(queue: Queue) -> None:
        turns = queue.turns
        for step, value in steps:
            among = {"cancel waiting": sorted(model.waiting)}.get(step, sorted(model.running))
            ticket = among[(value or 0) % len(among)] if among else None
            match step:
                case "ask":
                    await queue.ask(alone=value)
                    model.waiting[len(queue.callers) - 1] = value
                case "end" if ticket is not None:
                    queue.callers[ticket].end()
                    del model.running[ticket]
                case "come back" if ticket is not None:
                    alone = model.running.pop(ticket)
                    queue.callers[ticket].come_back()
                    # Those who wait are let go before it asks again.
                    model.settle()
                    model.waiting[ticket] = alone
                case "cancel running" | "cancel waiting" if ticket is not None:
                    queue.callers[ticket].scope.cancel()
                    model.running.pop(ticket, None)
                    model.waiting.pop(ticket, None)
                case "offer":
                    offered.append(f"number {len(offered)}")
                    model.connection, model.refused = offered[-1], False
                    turns.offer(offered[-1])
                case "hold":
                    model.connection, model.refused = None, False
                    turns.hold()
                case "refuse":
                    model.connection, model.refused = None, True
                    turns.refuse(Refused)
                case "withdraw":
                    model.connection = None
                    turns.withdraw(offered[-1])
                case "withdraw an older one":
                    turns.withdraw(offered[-2])
                case "allow":
                    model.limit = value
                    turns.allow(value)
            model.settle()
            await wait_all_tasks_blocked()
            assert queue.running() == sorted(model.running)
            assert queue.waiting() == sorted(model.waiting)
            assert (turns.running, turns.waiting) == (len(model.running), len(model.waiting))

    await _with_queue(limit, play)
