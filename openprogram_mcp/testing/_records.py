"""What a fake server noted about itself, as values.

Owns the reading of the record and what can be known from it; not the writing, which the server does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import field, frozen

__all__ = ["Call", "Record", "calls_of", "is_alive", "most_at_once"]


@frozen
class Record:
    """One line of a fake server's record.

    ``event`` is one of: ``start`` (facts: ``pid``, ``argv``, ``cwd``, ``env``, ``beside``), ``received`` (``text``),
    ``garbled`` (``text``: a line that is no JSON), ``torn`` (``text``: bytes before EOF without a line end), ``begin``
    and ``end`` of a request's handling (``id``, ``method``, ``tool``, ``arguments``, ``outcome``), ``cancelled``
    (``id``, ``reason``, ``known``), ``signal`` (``signal``), ``eof``, ``spawn`` (``spawned``: a pid), ``close``
    (``stream``), ``broken pipe``, ``note`` (``value``), ``exit`` (``code`` or ``signal``: only where the script says
    so, at EOF too).
    """

    time: float
    """Seconds of the monotonic clock, which all processes of a machine share; of Trio's clock in memory."""
    pid: int
    event: str
    facts: dict[str, Any] = field(factory=dict)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Record:
        """The record that one line of the file holds."""
        facts = {key: value for key, value in entry.items() if key not in ("time", "event")}
        return cls(entry["time"], entry["pid"], entry["event"], facts)

    @property
    def message(self) -> Any:
        """The message, where one was received; else ``None``."""
        return json.loads(self.facts["text"]) if self.event == "received" else None

    @property
    def method(self) -> str | None:
        """The method of what was received, begun or ended."""
        if self.event == "received":
            message = self.message
            return message.get("method") if isinstance(message, dict) else None
        return self.facts.get("method")


@frozen
class Call:
    """One tool call as the server saw it. ``ended`` and ``outcome`` are ``None`` where it has not ended."""

    id: Any
    tool: str
    arguments: dict[str, Any]
    began: float
    ended: float | None = None
    outcome: str | None = None

    def overlaps(self, other: Call) -> bool:
        """Whether both ran at the same time."""
        return (other.ended is None or self.began < other.ended) and (self.ended is None or other.began < self.ended)


def calls_of(records: Iterable[Record]) -> list[Call]:
    """The tool calls in the order in which they began."""
    calls: dict[tuple[int, Any, str], Call] = {}
    done: list[Call] = []
    for record in records:
        # Over HTTP ids are the client's: two of them may use the same at the same time.
        key = (record.pid, record.facts.get("exchange"), json.dumps(record.facts.get("id")))
        if record.event == "begin" and record.method == "tools/call":
            facts = record.facts
            if key in calls:
                done.append(calls.pop(key))
            calls[key] = Call(facts["id"], facts["tool"], facts["arguments"], record.time)
        elif record.event == "end" and key in calls:
            call = calls.pop(key)
            outcome = record.facts["outcome"]
            done.append(Call(call.id, call.tool, call.arguments, call.began, record.time, outcome))
    return sorted([*done, *calls.values()], key=lambda call: call.began)


def most_at_once(calls: Iterable[Call]) -> int:
    """How many of these calls ran at the same time, at most."""
    edges: list[tuple[float, int]] = []
    for call in calls:
        edges.append((call.began, 1))
        if call.ended is not None:
            edges.append((call.ended, -1))
    running = most = 0
    for _, step in sorted(edges):  # an end at the very moment of a beginning counts first
        running += step
        most = max(most, running)
    return most


def is_alive(pid: int, mark: str) -> bool:
    """Whether the process of this pid runs and is one of ours: ``mark`` stands in its command line."""
    process = Path("/proc") / str(pid)
    if not Path("/proc/self").exists():
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    try:
        # That of a zombie is empty.
        return mark.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False
