"""Cancel, or press Ctrl-C, at the n-th step of a run, for every n.

A run is one ``trio.run`` or one piece of a longer one. An instrument counts the steps that its tasks take and strikes
at one of them; the same is done again with the next number until the run ends before it is struck. What must hold after
each strike is said by the test.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from attrs import define

from openprogram_mcp import MCPManager, open_manager

__all__ = [
    "Strike",
    "descriptors",
    "run_cancelled_at",
    "run_interrupted_at",
    "strike_a_running_manager",
    "strike_every_step",
]

_MAX_STEPS = 20_000


@define(eq=False)
class Strike(trio.abc.Instrument):
    """Strikes once, after so many steps of any task.

    Args:
        at: The step, counted from 0 at the moment of :meth:`arm`.
        act: What is done then.
    """

    at: int
    act: Callable[[], Any]
    fired: bool = False
    _steps: int = -1
    _armed: bool = False

    def arm(self) -> None:
        """Begin to count."""
        self._armed = True

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See :class:`trio.abc.Instrument`."""
        if not self._armed or self.fired:
            return
        self._steps += 1
        if self._steps == self.at:
            self.fired = True
            self.act()


def descriptors() -> int:
    """How many file descriptors this process has open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208 - only their number


def strike_every_step(run: Callable[[int], bool], *, at_least: int, stride: int = 1) -> int:
    """Strike at every step, or at every so-manyth.

    Args:
        run: Makes one run that is struck at the given step, checks what must hold, and says whether it was struck.
        at_least: So many steps there are; fewer mean that the run does not do what it is there for.
        stride: How far one struck step is from the next.

    Returns:
        How many steps the run has.
    """
    for at in range(0, _MAX_STEPS, stride):
        if not run(at):
            assert at >= at_least, f"only {at} steps were there to be struck"
            return at
    raise AssertionError("the run does not come to an end")


def run_cancelled_at(at: int, main: Callable[[], Awaitable[None]]) -> bool:
    """One ``trio.run`` whose whole body is cancelled at a step; says whether it came to that."""
    scope = trio.CancelScope()
    strike = Strike(at, scope.cancel)

    async def body() -> None:
        strike.arm()
        with scope:
            await main()

    trio.run(body, instruments=[strike])
    return strike.fired


def run_interrupted_at(at: int, main: Callable[[], Awaitable[None]]) -> bool:
    """One ``trio.run`` in which Ctrl-C is pressed at a step; says whether it came to that."""
    strike = Strike(at, lambda: signal.raise_signal(signal.SIGINT))

    async def body() -> None:
        strike.arm()
        await main()

    try:
        trio.run(body, instruments=[strike])
    except* KeyboardInterrupt:
        # In a group where it fell into a nursery, as Trio has it.
        assert strike.fired
    return strike.fired


def strike_a_running_manager(
    entry: Any,
    piece: Callable[[MCPManager], Awaitable[object]],
    after: Callable[[MCPManager], Awaitable[None]],
    *,
    at_least: int,
) -> int:
    """Strike at every step of a piece of work, on one manager that goes on living.

    Args:
        entry: The configuration of its one server, ``f``.
        piece: The work.
        after: Checks what must hold after each strike.
        at_least: So many steps there are; fewer mean that the work does not do what it is there for.

    Returns:
        How many steps were struck.
    """
    steps = 0

    class Relay(trio.abc.Instrument):
        strike: Strike | None = None

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            if self.strike is not None:
                self.strike.after_task_step(task)

    relay = Relay()

    async def main() -> None:
        nonlocal steps
        async with open_manager({"f": entry}, raise_internal=True) as manager:
            await manager.started.wait()
            while True:
                scope = trio.CancelScope()
                relay.strike = strike = Strike(steps, scope.cancel)
                strike.arm()
                with scope:
                    await piece(manager)
                relay.strike = None
                await after(manager)
                if not strike.fired:
                    break
                steps += 1

    trio.run(main, instruments=[relay])
    assert steps >= at_least, f"only {steps} steps were struck"
    return steps
