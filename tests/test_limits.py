"""The limits of a call: which clock they run by, when it stands still, and what a timeout has to tell."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from mcp.shared.exceptions import MCPError
from trio.testing import MockClock, wait_all_tasks_blocked

from openprogram_mcp.adapter import RemoteTool
from openprogram_mcp.client import Call
from openprogram_mcp.client._budgets import Limits
from openprogram_mcp.client._calls import _Request
from openprogram_mcp.errors import TimedOut
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.transports.stdio import Fate
from tests._by_hand import connected
from tests._living import managed

Dispatcher = Any


# Standing still: while a human is asked, no call of that connection runs out of time.


@pytest.mark.parametrize("limit", ["timeout", "hard_timeout"])
async def test_a_limit_does_not_run_while_somebody_is_asked(limit: str, autojump_clock: MockClock) -> None:
    async with connected() as it:
        began = trio.current_time()
        options: dict[str, Any] = {limit: 5.0}
        pending = it.start_call(**options)
        await it.hand.message()
        await trio.sleep(2)
        with it.dispatcher.standing_still():
            await trio.sleep(1000)
            assert not pending.done.is_set()
        await trio.sleep(2.9)
        assert not pending.done.is_set(), "what remained when it stopped is what is left when it goes on"
        with pytest.raises(MCPError, match="timed out"):
            await pending.result()
        assert trio.current_time() - began == pytest.approx(1005)


async def test_several_reasons_to_stand_still_count_as_one(autojump_clock: MockClock) -> None:
    async with connected() as it:
        began = trio.current_time()
        pending = it.start_call(timeout=5.0)
        await it.hand.message()
        async with trio.open_nursery() as nursery:

            async def ask(begin: float, seconds: float) -> None:
                await trio.sleep(begin)
                with it.dispatcher.standing_still():
                    await trio.sleep(seconds)

            nursery.start_soon(ask, 1, 10)
            nursery.start_soon(ask, 4, 20)
            nursery.start_soon(ask, 5, 1)
        with pytest.raises(MCPError, match="timed out"):
            await pending.result()
        assert trio.current_time() - began == pytest.approx(5 + 23), "they stood still from 1 to 24"


async def test_a_request_that_begins_meanwhile_has_its_whole_limit_afterwards(autojump_clock: MockClock) -> None:
    async with connected() as it:
        with it.dispatcher.standing_still():
            pending = it.start_call(timeout=5.0)
            await it.hand.message()
            await trio.sleep(100)
        began = trio.current_time()
        with pytest.raises(MCPError, match="timed out"):
            await pending.result()
        assert trio.current_time() - began == pytest.approx(5)


async def test_a_limit_that_has_struck_stays_struck(autojump_clock: MockClock) -> None:
    async with connected() as it:
        pending = it.start_call(timeout=1.0)
        await it.hand.message()
        await trio.sleep(1.5)
        with it.dispatcher.standing_still(), pytest.raises(MCPError, match="timed out"):
            await pending.result()
        # Nothing is left that would wake anybody: the connection goes on as before.
        again = it.start_call(timeout=1.0)
        await it.hand.message()  # the cancellation
        await it.hand.answer(await it.hand.message(), {})
        assert await again.result() == {}


def test_a_call_spends_nothing_while_the_server_waits_for_our_input() -> None:
    async def main() -> None:
        call = Call(RemoteTool(name="t"), {}, "call", "t")

        async def unheard(*_args: Any) -> None:
            raise AssertionError("nothing is told here")

        request = _Request(call, Limits(idle=5, hard=10, connect=5), unheard)
        assert request.options()["hard_timeout"] == 10
        await trio.sleep(4)
        with request.standing_still():
            await trio.sleep(100)
        assert request.options()["hard_timeout"] == pytest.approx(6)
        await trio.sleep(7)
        assert request.options()["hard_timeout"] == 0, "nothing is left, and never less"

    trio.run(main, clock=MockClock(autojump_threshold=0))


# What a timeout tells.


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_timeout_says_what_was_last_heard(era: Any) -> None:
    fake = FakeServer(era=era)
    fake.tool("silent", do.hang(), read_only=True)
    fake.tool("stuck", do.progress(3, total=10, message="fetching key-1234-secret"), do.hang(), read_only=True)
    entry = fake.config(env={"KEY": "key-1234-secret"})
    async with managed({"f": entry}) as manager:
        await manager.started.wait()
        with pytest.raises(TimedOut) as silent:
            await manager.call_tool("f__silent", timeout=0.2)
        said, _, heard = silent.value.message.partition("; ")
        assert said == "f__silent: nothing was heard of it from server 'f' for 0.2 s"
        assert heard.startswith("the server's last word about anything came ")
        with pytest.raises(TimedOut) as stuck:
            await manager.call_tool("f__stuck", timeout=0.2)
        _, _, heard = stuck.value.message.partition("; ")
        assert heard.startswith("its last progress, ")
        assert heard.endswith(" s before, was 3 of 10, 'fetching ********'")
        assert stuck.value.budget == "call"


# Late answers.


async def test_a_late_answer_is_told_to_whoever_gave_the_request_up(autojump_clock: MockClock) -> None:
    async with connected() as it:
        told: list[str] = []
        fate: Any = Fate(on_late_answer=lambda: told.append("late"))
        pending = it.start_call(timeout=1.0, fate=fate)
        request = await it.hand.message()
        with pytest.raises(MCPError, match="timed out"):
            await pending.result()
        assert fate.state.value == "written"
        await it.hand.message()
        await it.hand.answer(request, {})
        await it.hand.answer(request, {})
        await wait_all_tasks_blocked()
        assert (told, fate.state.value) == (["late"], "answered")


async def test_of_requests_that_were_given_up_only_the_last_are_remembered(autojump_clock: MockClock) -> None:
    async with connected() as it:
        told: list[int] = []
        requests = []
        for number in range(300):
            pending = it.start_call(timeout=1.0, fate=Fate(on_late_answer=partial(told.append, number)))
            requests.append(await it.hand.message())
            with pytest.raises(MCPError, match="timed out"):
                await pending.result()
            await it.hand.message()
        for request in requests:
            await it.hand.answer(request, {})
        await wait_all_tasks_blocked()
        assert told == list(range(300 - 256, 300))
