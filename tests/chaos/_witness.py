"""What the callers were told, what the servers have written down, what the events said: and whether all three agree.

Pure: it is given the three accounts and says, in sentences, where they contradict each other. The servers' account is
read from their own files (see ``_server``), which no part of the client has a hand in.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen

__all__ = ["Asked", "Fact", "RecordFile", "Told", "Witness", "stories"]

REPEATABLE: Final = frozenset({"read", "idem", "extra"})
READ_ONLY: Final = frozenset({"read", "extra"})

# What an outcome is called in ToolCallEnded.
_EVENT_OUTCOMES: Final = {
    "ok": "ok",
    "tool_error": "tool_error",
    "refused": "tool_error",
    "garbled": "tool_error",
    "cancelled": "cancelled",
    "timeout:queue": "timed_out",
    "timeout:connect": "timed_out",
    "timeout:call": "timed_out",
    "timeout:max_call": "timed_out",
    "gone:unknown": "unknown",
    "gone:not_run": "failed",
    "not_connected": "failed",
    "unknown_tool": "failed",
}
_NOT_RUN: Final = frozenset({"timeout:queue", "timeout:connect", "gone:not_run", "not_connected", "unknown_tool"})
# Outcomes of calls that never came to the queue: no event tells of them.
_BEFORE_THE_QUEUE: Final = frozenset({"timeout:connect", "not_connected", "unknown_tool", "cancelled"})


@define(eq=False)
class Asked:
    """One call, as its caller knows it.

    ``outcome`` is what it was told, ``None`` until then. Times are in seconds of the monotonic clock.
    """

    id: str
    server: str
    tool: str
    began: float
    outcome: str | None = None
    outcomes: int = 0
    text: str = ""
    ended: float = 0.0
    heard: list[str | None] = field(factory=list)

    def told(self, outcome: str, text: str = "") -> None:
        """Its outcome has come."""
        self.outcomes += 1
        self.outcome, self.text = outcome, text

    @property
    def said_not_to_have_run(self) -> bool:
        """Whether its caller may be sure that it had no effect."""
        return self.outcome in _NOT_RUN


@frozen
class Fact:
    """One line of a server's record."""

    server: str
    t: float
    pid: int
    event: str
    more: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The call that it is about."""
        return str(self.more.get("id", ""))


@frozen
class Told:
    """One event of the manager's bus: of a call (``started``, ``ended``), or ``status``."""

    kind: str
    server: str
    call_id: str = ""
    what: str = ""


@define(eq=False)
class RecordFile:
    """The record of one server, read piece by piece."""

    server: str
    path: Path
    _offset: int = field(default=0, init=False)

    def read(self) -> list[Fact]:
        """What was written since the last reading."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        facts = []
        for line in whole.splitlines():
            entry = json.loads(line)
            facts.append(Fact(self.server, entry.pop("t"), entry.pop("pid"), entry.pop("e"), entry))
        return facts


@define(eq=False)
class Witness:
    """The three accounts of a stretch of time in which every call has come to its end.

    Args:
        asked: The calls.
        facts: The servers' records, each server's in the order of its file.
        told: The events, in order.
        never_run: The calls of earlier stretches that were said not to have run; those of this one are added.
        serialize: The setting of each server.
        limit: How many calls may run at once on each.
    """

    asked: Sequence[Asked]
    facts: Sequence[Fact]
    told: Sequence[Told]
    never_run: set[str]
    serialize: Mapping[str, str]
    limit: int
    connected_before: Mapping[str, bool] = field(factory=dict)

    def contradictions(self) -> list[tuple[str, set[str]]]:
        """Every contradiction as a sentence, with the calls it is about."""
        self.never_run.update(asked.id for asked in self.asked if asked.said_not_to_have_run)
        return [
            *self._of_outcomes(),
            *self._of_runs(),
            *self._of_answers(),
            *self._of_events(),
            *self._of_calls_without_a_connection(),
            *self._of_turns(),
        ]

    def _of_outcomes(self) -> Iterator[tuple[str, set[str]]]:
        for asked in self.asked:
            if asked.outcomes != 1:
                yield f"{asked.id} has {asked.outcomes} outcomes", {asked.id}
            elif asked.outcome not in _EVENT_OUTCOMES and asked.outcome not in _NOT_RUN:
                yield f"{asked.id} has an outcome that no call may have: {asked.outcome}: {asked.text}", {asked.id}

    def _of_runs(self) -> Iterator[tuple[str, set[str]]]:
        begun: dict[str, list[Fact]] = defaultdict(list)
        for fact in self.facts:
            if fact.event == "begin":
                begun[fact.id].append(fact)
        for call, runs in begun.items():
            if call in self.never_run:
                yield f"{call} was said not to have run, and it ran", {call}
            if len(runs) > 1 and runs[0].more["tool"] not in REPEATABLE:
                yield f"{call} ran {len(runs)} times, and its tool may not be repeated", {call}
            if len(runs) > 2:
                yield f"{call} ran {len(runs)} times", {call}

    def _of_answers(self) -> Iterator[tuple[str, set[str]]]:
        finished = {(fact.id, fact.pid, fact.more["n"]) for fact in self.facts if fact.event == "end"}
        for asked in self.asked:
            for message in asked.heard:
                if message != asked.id:
                    yield f"{asked.id} heard the progress of {message}", {asked.id, str(message)}
            if asked.outcome not in ("ok", "tool_error"):
                continue
            words = asked.text.split()
            if len(words) != 3 or words[0] != asked.id:
                yield f"{asked.id} got an answer that is not its own: {asked.text!r}", {asked.id, *words[:1]}
            elif (asked.id, int(words[1]), int(words[2])) not in finished:
                yield f"{asked.id} got an answer that its server did not give: {asked.text!r}", {asked.id}

    def _of_events(self) -> Iterator[tuple[str, set[str]]]:
        started: dict[str, int] = defaultdict(int)
        ended: dict[str, list[str]] = defaultdict(list)
        for told in self.told:
            if told.kind == "started":
                started[told.call_id] += 1
            elif told.kind == "ended":
                if not started[told.call_id]:
                    yield f"{told.call_id} was told to have ended before it began", {told.call_id}
                ended[told.call_id].append(told.what)
        for asked in self.asked:
            begins, ends = started.pop(asked.id, 0), ended.pop(asked.id, [])
            if begins == 0 and not ends and asked.outcome in _BEFORE_THE_QUEUE:
                continue
            expected = _EVENT_OUTCOMES.get(asked.outcome or "", "failed")
            if begins != 1 or ends != [expected]:
                yield f"{asked.id}: {asked.outcome}, but the events tell {begins} starts and {ends}", {asked.id}
        for call in {*started, *ended}:
            if started.get(call) or ended.get(call):
                yield f"{call} is told of in events, and nobody has asked for it", {call}

    def _of_calls_without_a_connection(self) -> Iterator[tuple[str, set[str]]]:
        connected = dict(self.connected_before)
        # Calls that are under way, each with whether its server was connected at any moment since.
        under_way: dict[str, dict[str, bool]] = defaultdict(dict)
        ran = {fact.id for fact in self.facts if fact.event == "begin"}
        for told in self.told:
            calls = under_way[told.server]
            if told.kind == "status":
                connected[told.server] = told.what == "connected"
                if connected[told.server]:
                    calls.update(dict.fromkeys(calls, True))
            elif told.kind == "started":
                calls[told.call_id] = connected.get(told.server, False)
            elif not calls.pop(told.call_id, True) and told.call_id in ran:
                yield f"{told.call_id} ran, and its server was never connected meanwhile", {told.call_id}

    def _of_turns(self) -> Iterator[tuple[str, set[str]]]:
        known = {asked.id: asked for asked in self.asked}
        running: dict[tuple[str, int], dict[str, Fact]] = defaultdict(dict)
        for fact in self.facts:
            here = running[fact.server, fact.pid]
            if fact.event in ("end", "cancelled", "orphan"):
                here.pop(fact.id, None)
            elif fact.event == "begin" and not fact.more.get("orphan"):
                beside = [other for other in here.values() if not _given_up(known.get(other.id), fact.t)]
                if len(beside) >= self.limit:
                    yield f"{fact.id} ran beside {len(beside)} others", {fact.id, *(one.id for one in beside)}
                for other in beside:
                    # Over HTTP, a call that is sent again may meet what it was before: nobody can know.
                    if other.id != fact.id and (self._alone(fact) or self._alone(other)):
                        yield f"{fact.id} ran beside {other.id}, and may not", {fact.id, other.id}
                here[fact.id] = fact

    def _alone(self, fact: Fact) -> bool:
        serialize = self.serialize.get(fact.server, "writes")
        return serialize == "all" or (serialize == "writes" and fact.more["tool"] not in READ_ONLY)


def _given_up(asked: Asked | None, at: float) -> bool:
    """Whether a call's caller had its outcome at that time, though its server was still at it."""
    return asked is None or (asked.outcome is not None and asked.ended <= at)


def stories(calls: Iterable[str], witness: Witness) -> str:
    """All that the three accounts say about some calls, for whoever has to understand it."""
    wanted = set(calls)
    lines = [f"  asked  {asked}" for asked in witness.asked if asked.id in wanted]
    lines += [f"  event  {told}" for told in witness.told if told.call_id in wanted]
    lines += [f"  server {fact}" for fact in witness.facts if fact.id in wanted]
    return "\n".join(lines)
