"""What hangs on the order in which Trio runs what can run: compared over many of them.

Here ours is better by construction: notifications are handed over one after the other, and progress is told in the task
of the caller who waits. The SDK starts a task for each.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import pytest
import trio
import trio.testing

from ._sides import SIDES, Side, SideName
from ._stage import play, run_seeded
from .steps import Ask, Cancel, Run, answer, line, progress, says

OURS: Final[tuple[SideName, ...]] = ("ours", "ours over streams")


def _orders(side: SideName, channel: str, *steps: Any) -> set[tuple[str, ...]]:
    return {tuple(item.text for item in play(side, steps, seed=seed) if item.channel == channel) for seed in range(12)}


@pytest.mark.parametrize("side", OURS)
def test_8_notifications_in_one_breath_are_handed_over_in_their_order_which_the_sdks_are_not(side: SideName) -> None:
    steps = (Run(), says(*({"method": "slow", "params": {"n": number}} for number in range(20))))
    in_order = tuple(f'slow {{"n":{number}}}' for number in range(20))
    assert _orders(side, "notify", *steps) == {in_order}
    theirs = _orders("sdk", "notify", *steps)
    assert {tuple(sorted(order)) for order in theirs} == {tuple(sorted(in_order))}
    assert theirs != {in_order}
    # Both show them to the interceptor in their order.
    assert _orders(side, "intercept", *steps) == _orders("sdk", "intercept", *steps) == {in_order}


@pytest.mark.parametrize("side", OURS)
def test_10_progress_in_one_breath_is_told_in_order_which_the_sdks_is_not(side: SideName) -> None:
    asked = Ask("a", hears_progress=True, takes_time_to_hear=True)
    steps = (Run(), asked, says(*(progress("a", number) for number in range(8)), answer("a")))
    in_order = tuple(f"a [{number}.0,null,null]" for number in range(8))
    assert _orders(side, "progress", *steps) == {in_order}
    theirs = _orders("sdk", "progress", *steps)
    assert theirs != {in_order}
    assert any(text.endswith("after its end") for order in theirs for text in order)


@pytest.mark.parametrize("side", OURS)
@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ((says(answer("a"), progress("a", 1)),), 0),
        ((says(progress("a", 1)), Cancel("a"), says(progress("a", 2))), 1),
        ((says(progress("a", 1), answer("a"), progress("a", 2)),), 1),
    ],
    ids=["behind the answer", "behind a cancellation", "around the answer"],
)
def test_10_no_progress_is_told_that_comes_behind_the_end_of_its_call(
    steps: tuple[Any, ...], told: int, side: SideName
) -> None:
    in_order = ("a [1.0,null,null]",)[:told]
    assert _orders(side, "progress", Run(), Ask("a", hears_progress=True), *steps) == {in_order}


def test_10_progress_is_told_in_the_callers_own_context_which_the_sdks_is_not() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="the connection's")

    async def heard_in(side_name: SideName, clock: trio.testing.MockClock) -> list[str]:
        del clock
        heard: list[str] = []
        ids: dict[str, Any] = {}

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            del progress, total, message
            heard.append(whose.get())

        async def unheard(*_args: Any) -> Any:
            return {}

        async def ask() -> None:
            whose.set("the caller's")
            await side.dispatcher.send_raw_request("a", None, {"on_progress": on_progress})

        async with trio.open_nursery() as nursery:
            side: Side = SIDES[side_name](nursery, lambda message: ids.setdefault("a", message.get("id")), lambda: None)
            await nursery.start(side.dispatcher.run, unheard, unheard)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await side.feed(line(progress("a", 1), ids))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return heard

    assert run_seeded(heard_in, "ours", seed=0) == ["the caller's"]
    assert run_seeded(heard_in, "sdk", seed=0) == ["the connection's"]
