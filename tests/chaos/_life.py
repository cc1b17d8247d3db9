"""One life of a manager under fire: rounds of faults, a calm after each in which everything is counted, and an end.

A calm must come by itself: whatever is wanted up comes back without anybody's help, bounded in time, or it is stuck.
The end comes in the midst of a fire, in one of two ways: the body is left, or it is cancelled from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

import trio
from attrs import define, field

from openprogram_mcp import MCPManager, ServerState, open_manager
from openprogram_mcp.config import save_configs

from ._fire import CALL_BOUND_SECONDS, LIMIT, STOP_SECONDS, Fire, Folder
from ._processes import Size, marks_of
from ._witness import Fact, RecordFile, Witness, stories

__all__ = ["Life", "Report"]

# The longest wait between two tries, a start that hangs until its limit, and a stop; a few of them in a row, since a
# start that was to fail may still be under way.
_COMES_BACK_SECONDS: Final = 20.0
# A storm of changes slows the reading of the list down to this.
_LISTS_AGREE_SECONDS: Final = 35.0
# Draining, both waits of a stop, and looks at what is left; see MCPClient and ServerProcess. And a busy machine.
_SHUTDOWN_SECONDS: Final = 0.5 + 2 * STOP_SECONDS + 0.25 + 0.25 + 1.0 + 4.0
_SETTLES_SECONDS: Final = 8.0
_LEFTOVERS: Final = 4
_MORE_OBJECTS: Final = 25_000
"""How many objects more than after the second round there may be: so many events and compiled schemas are kept."""


@define(eq=False)
class Report:
    """What has happened, over all lives."""

    seed: int
    faults: Counter[str] = field(factory=Counter)
    outcomes: Counter[str] = field(factory=Counter)
    edits: Counter[str] = field(factory=Counter)
    broken: list[str] = field(factory=list)
    never_run: set[str] = field(factory=set)
    lives: int = 0
    rounds: int = 0
    starts: int = 0
    twice: int = 0
    longest_shutdown: float = 0.0
    longest_return: float = 0.0
    sizes: list[Size] = field(factory=list)

    @property
    def total(self) -> int:
        """How many faults."""
        return sum(self.faults.values())

    def text(self) -> str:
        """For whoever reads the terminal."""
        lines = [
            f"seed {self.seed}: {self.total} faults, in {self.rounds} rounds and {self.lives} lives",
            f"  calls:    {sum(self.outcomes.values())}, starts of a server: {self.starts}",
            f"  faults:   {_counted(self.faults)}",
            f"  outcomes: {_counted(self.outcomes)}; {self.twice} ran twice, and may",
            f"  edits:    {_counted(self.edits)}",
            f"  back:     after {self.longest_return:.1f} s at the longest",
            f"  shutdown: {self.longest_shutdown:.1f} s at the longest ({_SHUTDOWN_SECONDS:.1f} allowed)",
        ]
        if self.sizes:
            lines += [f"  size:     {size}" for size in (self.sizes[0], self.sizes[-1])]
        return "\n".join(lines)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counter.items()))


@define(eq=False)
class Life:
    """One manager, from its opening to its end.

    Args:
        report: What has happened so far; added to.
        folder: The servers' folder, of this life alone.
        callers: How many callers.
        rate: Faults a second.
        enough: Whether it is time to end.
    """

    report: Report
    folder: Folder
    callers: int
    rate: float
    enough: Callable[[], bool]
    _records: list[RecordFile] = field(init=False)
    _fire: Fire = field(init=False)
    _connected: dict[str, bool] = field(factory=dict, init=False)
    _offered: dict[str, set[str]] = field(factory=dict, init=False)
    _second: Size | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._records = [RecordFile(name, self.folder.path / f"{name}.record") for name in self.folder.names]

    async def live(self, rounds: int, faults: int) -> None:
        """The whole of it.

        Args:
            rounds: How many rounds at most, each with a calm after it.
            faults: How many faults in each, and as many at the end.
        """
        report = self.report
        report.lives += 1
        before = Size.now()
        seed = f"{report.seed}.{report.lives}"
        async with self.folder.running(seed), trio.open_nursery() as around:
            began = await self._until_closing(around, rounds, faults)
            fire = self._fire
            took = trio.current_time() - began
            report.longest_shutdown = max(report.longest_shutdown, took)
            if took > _SHUTDOWN_SECONDS:
                self._broken(f"the shutdown took {took:.1f} s")
            left = marks_of(_instance(fire.manager))
            if left:
                self._broken(f"processes are left: {left}")
            fire.calls_wanted = False
        await self._compare()
        report.edits += fire.edits
        del fire, self._fire
        self.folder.remotes.clear()
        after = await self._size(lambda size: size.tasks == before.tasks and size.descriptors == before.descriptors)
        if (after.tasks, after.descriptors) != (before.tasks, before.descriptors):
            self._broken(f"after the end there are {after}, and before it there were {before}")
        report.sizes.append(after)

    async def _until_closing(self, around: trio.Nursery, rounds: int, faults: int) -> float:
        """All of it but the last look; says when the end began."""
        began = 0.0
        seed = f"{self.report.seed}.{self.report.lives}"
        await trio.to_thread.run_sync(self._save)
        with trio.CancelScope() as whole:
            async with open_manager(state_dir=self.folder.path, raise_internal=True) as manager:
                fire = self._fire = Fire(manager, self.folder, seed, self.rate, self._broken)
                await self._rounds(rounds, faults)
                # The end, with everything under way.
                for number in range(self.callers):
                    around.start_soon(fire.calls, f"last caller {number}")
                async with trio.open_nursery() as last:
                    last.start_soon(fire.edit, "last editor")
                    await fire.burn(faults // 2)
                    around.start_soon(self._burn_on, fire)
                    last.cancel_scope.cancel()
                began = trio.current_time()
                if fire.random("the end").random() < 0.5:
                    whole.cancel()
        return began

    def _save(self) -> None:
        save_configs(map(self.folder.config, self.folder.names), self.folder.path / "mcp_servers.json")

    @staticmethod
    async def _burn_on(fire: Fire) -> None:
        # While it ends; what is broken then is broken for nobody.
        with trio.move_on_after(0.5):
            await fire.burn(50)

    async def _rounds(self, rounds: int, faults: int) -> None:
        fire, report = self._fire, self.report
        await self._calm()
        first = self._now()
        for number in range(rounds):
            if self.enough():
                return
            fire.calls_wanted = True
            async with trio.open_nursery() as callers:
                for caller in range(self.callers):
                    callers.start_soon(fire.calls, f"caller {number}.{caller}")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fire.edit, f"editor {number}.1")
                    nursery.start_soon(fire.edit, f"editor {number}.2")
                    nursery.start_soon(fire.watch)
                    await fire.burn(faults)
                    nursery.cancel_scope.cancel()
                fire.calls_wanted = False
                with trio.move_on_after(CALL_BOUND_SECONDS + 1) as bound:
                    while callers.child_tasks:  # noqa: ASYNC110 - a nursery tells nobody that it is empty
                        await trio.sleep(0.01)
                if bound.cancelled_caught:
                    self._broken(f"callers do not end: {[a for a in fire.asked if a.outcome is None]}")
                    callers.cancel_scope.cancel()
            await self._calm()
            await self._compare()
            await self._check_lists()
            report.rounds += 1
            await self._count(first, number)
            if report.broken:
                return

    # The calm.

    async def _calm(self) -> None:
        fire, manager, names = self._fire, self._fire.manager, self.folder.names
        self.folder.calm()
        began = trio.current_time()

        def waits_for_nobody(name: str) -> bool:
            row = manager.status().get(name)
            if row is None or row.status in (ServerState.CONNECTED, ServerState.DISABLED, ServerState.DISCONNECTED):
                return True
            return row.status is ServerState.FAILED and row.retry_at is None

        # Nobody helps: what is wanted up comes back by itself.
        if not await self._holds(_COMES_BACK_SECONDS, lambda: all(map(waits_for_nobody, names))):
            self._broken(f"stuck: {[row for name, row in manager.status().items() if not waits_for_nobody(name)]}")
        self.report.longest_return = max(self.report.longest_return, trio.current_time() - began)
        # What was taken down is put up again; a removal that is still under way has to come to its end first.
        with trio.move_on_after(_COMES_BACK_SECONDS):
            while not all(map(self._is_up, names)):
                for name in names:
                    await fire.attempt("put right", name)
                await trio.sleep(0.05)
        if not all(map(self._is_up, names)):
            down = [manager.status().get(name, name) for name in names if not self._is_up(name)]
            self._broken(f"not up after having been put right: {down}")
            return
        # Whatever was sent over a connection before has been read when this is answered.
        random = Random(0)  # noqa: S311 - nothing to choose
        for name in names:
            asked = await fire.call(random, name, "read", patient=True)
            left = _LEFTOVERS if name in self.folder.remotes else 0
            while asked.outcome != "ok" and left:
                # A remote server may have an order left for its next answer, and be told of another one meanwhile.
                left -= 1
                await trio.sleep(0.2)
                asked = await fire.call(random, name, "read", patient=True)
            if asked.outcome != "ok":
                self._broken(f"{name} does not answer in the calm: {asked}, {manager.status().get(name)}")
        if not await self._holds(_SETTLES_SECONDS, lambda: not self._busy()):
            self._broken(f"turns are not given back: {self._busy()}")
        fire.look()

    def _is_up(self, name: str) -> bool:
        row = self._fire.manager.status().get(name)
        return row is not None and row.status is ServerState.CONNECTED and name in self._fire.manager.document.servers

    def _busy(self) -> list[str]:
        rows = self._fire.manager.status().values()
        return [
            f"{row.name}: {row.in_flight} in flight, {row.queued} queued" for row in rows if row.in_flight or row.queued
        ]

    @staticmethod
    async def _holds(seconds: float, what: Callable[[], bool]) -> bool:
        with trio.move_on_after(seconds):
            while not what():  # noqa: ASYNC110 - what is seen from outside tells nobody that it has changed
                await trio.sleep(0.02)
            return True
        return what()

    # The comparison of the accounts.

    async def _compare(self) -> None:
        fire, report = self._fire, self.report
        facts: list[Fact] = []
        for record in self._records:
            facts += await trio.to_thread.run_sync(record.read)
        witness = Witness(
            asked=fire.asked,
            facts=facts,
            told=fire.told,
            never_run=report.never_run,
            serialize={name: self.folder.config(name).serialize for name in self.folder.names},
            limit=LIMIT,
            connected_before=self._connected,
        )
        for sentence, calls in witness.contradictions():
            self._broken(f"{sentence}\n{stories(calls, witness)}")
        for told in fire.told:
            if told.kind == "status":
                self._connected[told.server] = told.what == "connected"
        report.outcomes.update(asked.outcome or "none" for asked in fire.asked)
        report.faults.update(_fault(fact) for fact in facts if fact.event == "fault")
        report.starts += sum(fact.event == "start" for fact in facts)
        begun = Counter(fact.id for fact in facts if fact.event == "begin")
        report.twice += sum(number > 1 for number in begun.values())
        report.faults += fire.faults
        for remote in self.folder.remotes.values():
            report.faults += remote.take_faults()
        for account in (fire.asked, fire.told, fire.faults):
            account.clear()
        self._offered.update(
            {fact.server: set(fact.more["tools"]) for fact in facts if fact.event in ("start", "tools")}
        )

    async def _check_lists(self) -> None:
        """The status tells the tools that the servers have."""

        def agree() -> bool:
            rows = self._fire.manager.status()
            return all(
                {f"{name}__{tool}" for tool in self._offered[name]} == set(rows[name].tools)
                for name in self.folder.names
            )

        if not await self._holds(_LISTS_AGREE_SECONDS, agree):
            told = {name: row.tools for name, row in self._fire.manager.status().items()}
            self._broken(f"the servers offer {self._offered}, and the status says {told}")

    # What is there.

    async def _count(self, first: Size, number: int) -> None:
        manager = self._fire.manager
        if not await self._holds(_SETTLES_SECONDS, lambda: set(marks_of(_instance(manager))) == set(_marks(manager))):
            self._broken(f"processes: {marks_of(_instance(manager))}, and the servers are {_marks(manager)}")
        # A legacy server that ended its GET stream again and again is not asked for one any more.
        least = first.tasks - len(self.folder.remotes)

        def as_at_first(size: Size) -> bool:
            return least <= size.tasks <= first.tasks and size.descriptors == first.descriptors

        size = await self._size(as_at_first)
        if not as_at_first(size):
            self._broken(f"after round {number}: {size}, and at first {first}")
        if number == 1:
            self._second = size
        elif self._second is not None and size.objects > self._second.objects + _MORE_OBJECTS:
            self._broken(f"after round {number}: {size}, and after the second {self._second}")

    async def _size(self, is_right: Callable[[Size], bool]) -> Size:
        with trio.move_on_after(_SETTLES_SECONDS):
            while not is_right(self._now()):  # noqa: ASYNC110 - see above
                await trio.sleep(0.1)
        return self._now()

    def _now(self) -> Size:
        """How large the client is: what belongs to the remote servers is not its own."""
        remotes = self.folder.remotes.values()
        return Size.now(self.folder.apart, sum(remote.middleman.open for remote in remotes))

    def _broken(self, what: str) -> None:
        self.report.broken.append(what)


def _fault(fact: Fact) -> str:
    what = str(fact.more["what"])
    return what if what.startswith("start:") else what.partition(":")[0]


def _instance(manager: MCPManager) -> str:
    return manager._roster._owner.id


def _marks(manager: MCPManager) -> set[str]:
    """The marks of the processes that the client knows of."""
    processes = (client._process for client in manager._roster)
    return {process.tree.mark for process in processes if process is not None and process.tree is not None}
