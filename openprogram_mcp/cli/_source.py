"""Where a command's answers come from: the worker that runs, or nobody, and then a manager of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..web.client import WorkerClient, WorkerGone
from ..web.worker_file import find_worker

__all__ = ["from_worker"]

T = TypeVar("T")


def from_worker(ask: Callable[[WorkerClient], T], otherwise: Callable[[], T]) -> T:
    """Ask the worker, or do it without one.

    Args:
        ask: Asks a worker.
        otherwise: Does it where none runs, or where what its file names is gone.
    """
    info = find_worker()
    if info is not None:
        try:
            return ask(WorkerClient(info))
        except WorkerGone:
            # Its process number lives on as somebody else's, or it is just ending: there is no worker to ask.
            pass
    return otherwise()
