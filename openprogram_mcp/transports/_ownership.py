"""Whose a process is, by a mark in its environment that it hands on to all its descendants.

A process group loses those that leave it (``setsid``, a double fork, ``nohup``); the environment is inherited all the
same. So every server process is marked with the instance of this program that has started it and a number of its own,
and what carries the mark is found and ended with it: at the stop of the server, and, when the host was killed hard, by
the next one that starts. Which instances live is told by a lock that each holds on a file, not by process ids, which
are used again.

Only where the system shows the environment of processes (Linux); elsewhere the group is all there is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

import trio
from attrs import define, field

from ._census import MARK, Look, Processes, kill, look

__all__ = ["Instance", "Tree", "end_marked", "marked_environment", "sweep"]

# One look that finds nothing proves nothing: a process that forks again may be between two places.
_EMPTY_LOOKS: Final = 3
_LOOK_PAUSE_SECONDS: Final = 0.005
# A count is good for so long.
_COUNT_SECONDS: Final = 0.5
# How long what was found after its server's stop is tried to be ended, whenever it is found.
_LATE_SECONDS: Final = 1.0
# Of so many stopped servers it is known whose late processes are.
_MAX_STOPPED: Final = 256


@define(eq=False)
class Tree:
    """The processes of one run of a server: all that carry its mark, and their descendants.

    Args:
        owner: Whose it is.
        server: The server's name.
        mark: Its mark.
    """

    owner: Instance
    server: str
    mark: str
    count: int = field(default=0, init=False)
    """How many there were at the last look; from its start until then 1, the server itself."""
    stopped: bool = field(default=False, init=False)
    strays: Processes = field(factory=dict, init=False)
    """Descendants that do not carry the mark, as far as they were seen."""

    def begin(self) -> None:
        """The server's process was started."""
        self.count = 1

    def never_began(self) -> None:
        """No process was started after all, or none of it is left."""
        self.count, self.stopped = 0, True

    async def look(self) -> None:
        """Look at it, to know its strays before their parents are ended."""
        if sys.platform == "linux":
            seen = await trio.to_thread.run_sync(
                look, self.mark, {self.mark: self.strays}, limiter=trio.CapacityLimiter(1)
            )
            self.strays = seen.strays.get(self.mark, {})

    async def end(self, seconds: float) -> int:
        """End what is left of it, wherever it went; how many could not be ended."""
        self.count = await end_marked(self.mark, seconds=seconds, strays={self.mark: self.strays})
        self.stopped = True
        if self.count:
            await self.owner.count_processes(max_age=0)
        return self.count


@define(eq=False)
class Instance:
    """One run of this program, as the owner of processes. Its lock is held until :meth:`close`."""

    id: str
    _file: IO[bytes] | None = None
    on_leak: Callable[[str, int], None] | None = field(default=None, init=False)
    """Told the name of a server and how many processes of it were found alive after it had been stopped."""
    _started: int = field(default=0, init=False)
    _trees: dict[str, Tree] = field(factory=dict, init=False)
    _leaked: set[tuple[int, int]] = field(factory=set, init=False)
    _counted_at: float = field(default=-math.inf, init=False)
    _counting: trio.Event | None = field(default=None, init=False)

    @classmethod
    def claim(cls, folder: Path | None) -> Instance:
        """A new instance.

        Args:
            folder: Where the locks of instances are, so that the next start can tell that this one is gone; ``None``
                for an instance of which nobody else is to know. Without leave to write there, it is the same.
        """
        identity = uuid4().hex
        if folder is None or sys.platform == "win32":
            return cls(identity)
        import fcntl

        # The last one to end removes the folder, perhaps just now.
        for _ in range(10):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = (folder / f"{identity}.lock").open("xb")
            except FileNotFoundError:
                continue
            except OSError:
                break  # a home that cannot be written to: what is left behind is left behind
            fcntl.flock(file, fcntl.LOCK_EX)
            return cls(identity, file)
        return cls(identity)

    def next_mark(self) -> str:
        """The mark of one more server process."""
        self._started += 1
        return f"{self.id}.{self._started}"

    def plant(self, server: str) -> Tree:
        """A tree, with a mark of its own, for a process of a server that is about to be started."""
        tree = Tree(self, server, self.next_mark())
        self._trees[tree.mark] = tree
        gone = [mark for mark, old in self._trees.items() if old.stopped and not old.count]
        for mark in gone[:-_MAX_STOPPED]:
            del self._trees[mark]
        return tree

    @property
    def owned(self) -> int:
        """How many processes there were at the last look."""
        return sum(tree.count for tree in self._trees.values())

    @property
    def leaked(self) -> int:
        """How many were ever found alive after the stop of their server: 0, or it is a defect."""
        return len(self._leaked)

    async def count_processes(self, *, max_age: float = _COUNT_SECONDS) -> None:
        """Count all processes, in a thread; those who ask at the same time share one look.

        Args:
            max_age: A count that is so many seconds old is good enough.
        """
        while self._counting is not None:
            await self._counting.wait()
        if sys.platform != "linux" or trio.current_time() - self._counted_at < max_age:
            return
        self._counting = trio.Event()
        try:
            # What is stopped while the look lasts may be seen as it was before.
            living = {mark for mark, tree in self._trees.items() if not tree.stopped}
            strays = {mark: tree.strays for mark, tree in self._trees.items() if tree.strays}
            seen = await trio.to_thread.run_sync(look, f"{self.id}.", strays, limiter=trio.CapacityLimiter(1))
            self._counted_at = trio.current_time()
            late = self._take(seen, living)
            for mark in late:
                await end_marked(mark, seconds=_LATE_SECONDS, strays=seen.strays)
        finally:
            self._counting.set()
            self._counting = None

    def _take(self, seen: Look, living: set[str]) -> list[str]:
        """Note what was seen; gives the marks of stopped servers among it."""
        late = []
        for mark in seen.found.keys() - self._trees.keys():
            self._trees[mark] = Tree(self, "", mark)
            self._trees[mark].stopped = True
        for mark, tree in self._trees.items():
            found = seen.found.get(mark, {})
            if not tree.stopped:
                # One that was planted while the look lasted is not in it.
                tree.count = max(tree.count, len(found)) if mark not in living else len(found)
                tree.strays = seen.strays.get(mark, {}) if mark in living else tree.strays
            elif mark not in living:
                tree.count = len(found)
                new = set(found.items()) - self._leaked
                self._leaked |= new
                if found:
                    late.append(mark)
                if new and self.on_leak is not None:
                    self.on_leak(tree.server, len(new))
        return late

    def close(self) -> None:
        """Give the lock up. Closing twice is harmless."""
        if self._file is not None:
            with suppress(OSError):  # somebody has cleaned up before us, or others live
                Path(self._file.name).unlink()
                Path(self._file.name).parent.rmdir()
            self._file.close()
            self._file = None


def marked_environment(env: Mapping[str, str], mark: str, own: Mapping[str, str]) -> dict[str, str]:
    """An environment with a mark, behind the marks that we carry ourselves."""
    outer = own.get(MARK)
    return {**env, MARK: f"{outer}:{mark}" if outer else mark}


def _look_and_kill(mark: str, strays: Mapping[str, Processes]) -> Look:
    seen = look(mark, strays)
    for processes in seen.found.values():
        for pid, start in processes.items():
            kill(pid, start)
    return seen


async def end_marked(mark: str, *, seconds: float, strays: Mapping[str, Processes] | None = None) -> int:
    """End every process that carries a mark, and its descendants, until several looks in a row find none.

    Args:
        mark: The mark of one server process; or an instance's id with a dot behind it, for all that it has started.
        seconds: How long to try.
        strays: Descendants without the mark that were seen before, by mark.

    Returns:
        How many were seen at the last look: 0 unless some cannot be ended.
    """
    if sys.platform != "linux":
        return 0
    seen, empty, known = 0, 0, strays or {}
    with trio.move_on_after(seconds):
        while empty < _EMPTY_LOOKS:
            found = await trio.to_thread.run_sync(_look_and_kill, mark, known, limiter=trio.CapacityLimiter(1))
            seen, known = sum(map(len, found.found.values())), found.strays
            empty = 0 if seen else empty + 1
            if seen:
                await trio.sleep(_LOOK_PAUSE_SECONDS)
    return seen


async def sweep(folder: Path, *, seconds: float = 5.0) -> list[str]:
    """End what dead instances have left behind.

    Args:
        folder: Where the locks of instances are.
        seconds: How long to try for each.

    Returns:
        The instances that were found dead.
    """
    swept = []
    for path, file in await trio.to_thread.run_sync(_take_dead, folder):
        with file:
            if not await end_marked(f"{path.stem}.", seconds=seconds):
                path.unlink(missing_ok=True)
                swept.append(path.stem)
    return swept


def _take_dead(folder: Path) -> list[tuple[Path, IO[bytes]]]:
    """The locks that nobody holds, held by us now, so that two who sweep at once do not do it twice."""
    if sys.platform == "win32" or not folder.is_dir():
        return []
    import fcntl

    taken: list[tuple[Path, IO[bytes]]] = []
    for path in sorted(folder.glob("*.lock")):
        try:
            file = path.open("rb")
        except OSError:
            continue  # its owner has just closed it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()  # it lives
        else:
            taken.append((path, file))
    return taken
