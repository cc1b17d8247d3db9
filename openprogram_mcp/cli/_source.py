"""Where a command's answers come from: the worker that runs, or nobody, and then a manager of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import WorkerUnreachable
from ..web.client import WorkerClient, WorkerGone
from ..web.worker_file import find_worker

__all__ = ["from_worker", "no_worker"]

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


def no_worker(what: str) -> WorkerUnreachable:
    """That there is no worker, for a command that makes no sense without one.

    Args:
        what: What only a worker has.
    """
    from ..paths import get_state_dir

    return WorkerUnreachable(
        f"No worker is running in {get_state_dir()}, and {what}", remedy="Start one with: openprogram-mcp worker"
    )
