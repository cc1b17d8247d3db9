"""Hearing that the configuration file was changed, by an editor or by another process.

The file's folder is watched and not the file: an editor puts a new file in the place of the old one, and so does our
own saving. Only that something has changed is told; what, is read from the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio

__all__ = ["watch_file"]

logger = logging.getLogger(__name__)

# What an editor does in several steps is one change.
_SETTLES_MS: Final = 100
_STEP_MS: Final = 100
_STANDS_MS: Final = 500


async def watch_file(path: Path, changed: Callable[[], Awaitable[None]]) -> None:
    """Tell whenever a file may have changed, until cancelled.

    Where the system does not let us watch, that is logged, and this returns: an edit is then heard of at the next start
    or edit of any server.

    Args:
        path: The file; it need not be there yet, nor its folder.
        changed: Awaited after each change.
    """
    stop = threading.Event()
    send, receive = trio.open_memory_channel[None](1)

    def tell() -> None:
        try:
            send.send_nowait(None)
        except trio.WouldBlock:
            return  # it is known already that something has changed

    async def in_thread() -> None:
        with send:
            try:
                # What was changed before the watch stood was not heard, so that its standing is told like a change.
                await trio.to_thread.run_sync(
                    _watch, path, stop, tell, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )
            except OSError as error:
                logger.warning("the configuration file cannot be watched; edits by hand are followed later: %s", error)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread)
            async for _ in receive:
                await changed()
    finally:
        stop.set()


def _watch(path: Path, stop: threading.Event, tell: Callable[[], None]) -> None:
    """In a thread of its own: watch, until ``stop`` is set."""
    from watchfiles import watch

    watchfiles_log = logging.getLogger("watchfiles.main")
    if watchfiles_log.level == logging.NOTSET:
        # It tells every change in the folder as news.
        watchfiles_log.setLevel(logging.WARNING)
    stood = False
    while not stop.is_set():
        folders, names = _places(path)
        # It yields at its first timeout too: by then the watch stands.
        for changes in watch(
            *folders,
            watch_filter=None,
            debounce=_SETTLES_MS,
            step=_STEP_MS,
            stop_event=stop,
            recursive=False,
            yield_on_timeout=True,
            rust_timeout=_STANDS_MS,
            raise_interrupt=False,
        ):
            if not stood or any(Path(changed).name in names for _, changed in changes):
                stood = True
                trio.from_thread.run_sync(tell)
                if _places(path) != (folders, names):
                    # Its folder has come to be, or a link leads somewhere else now.
                    stood = False
                    break


def _places(path: Path) -> tuple[list[Path], set[str]]:
    """The folders to watch, and the names in them that mean the file, or the way to it."""
    folders: list[Path] = []
    names: set[str] = set()
    for file in {path, path.resolve()}:
        folder, name = file.parent, file.name
        while not folder.is_dir():
            folder, name = folder.parent, folder.name
        folders.append(folder)
        names.add(name)
    return sorted(set(folders)), names
