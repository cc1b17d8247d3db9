"""A signal that ends the host, held back until its servers are put away.

A program that says nothing about SIGTERM is ended by it on the spot: no ``finally`` runs, and the servers stay. So
while a manager is open in such a program, SIGTERM and SIGHUP end the managers first, as leaving their blocks would, and
do what they always do afterwards, so that whoever sent one sees what he expects. A second one waits for nothing.

What the host handles or ignores is left to the host. Python delivers signals to the main thread alone; a manager in
another thread leaves them alone too.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Final

import trio
from attrs import define, field

__all__ = ["ended_by_signals"]

_NAMES: Final = ("SIGTERM", "SIGHUP")


@define(eq=False)
class _Taker:
    """The handlers of this process, while there is a manager that wants them."""

    ends: list[Callable[[], None]] = field(factory=list)
    installed: list[int] = field(factory=list)
    taken: int | None = None
    token: trio.lowlevel.TrioToken | None = None
    process: int | None = None

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.token, self.process = trio.lowlevel.current_trio_token(), os.getpid()
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self.take)
                self.installed.append(number)

    def remove(self) -> None:
        for number in self.installed:
            # The host may have put a handler of its own in the place of ours.
            if signal.getsignal(number) == self.take:
                signal.signal(number, signal.SIG_DFL)
        self.installed.clear()

    def take(self, number: int, _frame: FrameType | None) -> None:
        # What the host has forked meanwhile has our handler too, and no servers.
        if self.taken is not None or self.token is None or os.getpid() != self.process:
            self.obey(number)
            return
        self.taken = number
        try:
            self.token.run_sync_soon(self.end_all)
        except trio.RunFinishedError:
            self.obey(number)

    def end_all(self) -> None:
        for end in self.ends:
            end()

    def obey(self, number: int) -> None:
        self.remove()
        signal.raise_signal(number)
        # The kernel spares the first process of a container, unless it has a handler.
        os._exit(128 + number)


_taker = _Taker()


@asynccontextmanager
async def ended_by_signals(end: Callable[[], None]) -> AsyncIterator[None]:
    """Hold signals back that would end the process, until the block has been left.

    When one has come, whatever stands behind the block does not run.

    Args:
        end: Makes the block come to its end; called in Trio's thread when a signal has come.
    """
    if not _taker.ends:
        _taker.install()
    _taker.ends.append(end)
    try:
        yield
    finally:
        _taker.ends.remove(end)
        if _taker.taken is not None:
            if _taker.ends:
                # The last manager ends the process. Where the others hold this one, this is cancelled.
                await trio.sleep_forever()
            _taker.obey(_taker.taken)
        elif not _taker.ends:
            _taker.remove()
