"""A short run of chaos, and that what it looks for it would find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openprogram_mcp.client import _calls

from . import __main__ as command
from .__main__ import Settings, chaos
from ._witness import Asked, Fact, RecordFile, Told, Witness, stories

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: processes are looked at in /proc")


def _short(folder: Path, **more: Any) -> Settings:
    settings: dict[str, Any] = {
        "servers": 4,
        "remote": 0,
        "callers": 8,
        "rate": 60.0,
        "rounds": 1,
        "round_faults": 60,
        "faults": 1,
    }
    return Settings(seed=4, folder=folder, **{**settings, **more})


async def test_nothing_is_lost_in_a_short_fire(tmp_path: Path) -> None:
    report = await chaos(_short(tmp_path))
    assert report.broken == []
    assert (report.lives, report.rounds) == (1, 1)
    assert report.total > 40
    assert report.outcomes["ok"] > 20
    assert f"{report.total} faults" in report.text()
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - only whether there is anything


async def test_nothing_is_lost_in_a_short_fire_of_remote_servers_behind_a_bad_network(tmp_path: Path) -> None:
    report = await chaos(_short(tmp_path, servers=1, remote=4, round_faults=100))
    assert report.broken == []
    assert report.outcomes["ok"] > 20
    # The network, the servers and those who end them all had a hand in it.
    assert {"net:cut", "net:delay"} <= report.faults.keys()
    assert report.faults.keys() & {"forget", "cutoff", "wait", "away", "streams", "failed"}
    assert report.faults["kill"] > 0


async def test_a_remote_client_that_sends_again_what_has_run_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_calls._Request, "left_us", property(lambda self: False))
    report = await chaos(_short(tmp_path, servers=0, remote=4, faults=1000, round_faults=100))
    assert any("and its tool may not be repeated" in sentence for sentence in report.broken)


async def test_a_client_that_sends_again_what_has_run_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_calls._Request, "left_us", property(lambda self: False))
    said: list[str] = []
    report = await chaos(_short(tmp_path, faults=1000), said.append)
    assert any("and its tool may not be repeated" in sentence for sentence in report.broken)
    # What is needed to understand it is there: what the servers wrote down too.
    assert any("server Fact(" in sentence for sentence in report.broken)
    assert (tmp_path / f"4.{report.lives}" / "s0.record").exists()
    assert any(str(tmp_path) in text for text in said)


# The comparison alone.

_SERVER = "s0"


def _asked(name: str, outcome: str | None = "ok", tool: str = "write", **more: Any) -> Asked:
    text = f"{name} 1 1" if outcome == "ok" else ""
    settings = {"outcome": outcome, "outcomes": 1, "text": text, "ended": 9.0, "began": 1.0, **more}
    return Asked(id=name, server=_SERVER, tool=tool, **settings)


def _fact(event: str, name: str, t: float, n: int = 1, tool: str = "write", pid: int = 1) -> Fact:
    return Fact(_SERVER, t, pid, event, {"id": name, "n": n, "tool": tool})


def _ran(name: str, t: float, tool: str = "write", pid: int = 1) -> list[Fact]:
    return [_fact("begin", name, t, tool=tool, pid=pid), _fact("end", name, t + 1, tool=tool, pid=pid)]


def _told(name: str, outcome: str = "ok") -> list[Told]:
    return [Told("started", _SERVER, name), Told("ended", _SERVER, name, outcome)]


_UP = Told("status", _SERVER, what="connected")
_DOWN = Told("status", _SERVER, what="reconnecting")


def _witness(asked: list[Asked], facts: list[Fact], told: list[Told], **more: Any) -> Witness:
    settings: dict[str, Any] = {"never_run": set(), "serialize": {}, "limit": 2, **more}
    return Witness(asked, facts, told, **settings)


def _agreeing() -> Witness:
    return _witness(
        [
            _asked("a"),
            _asked("b", "gone:unknown", ended=4.5),
            _asked("c", "not_connected"),
            _asked("d", "ok", "read", text="d 2 1", heard=["d"]),
            _asked("e", "timeout:connect"),
            _asked("f", "cancelled"),
        ],
        [*_ran("a", 2.0), _fact("begin", "b", 4.0), *_ran("d", 5.0, "read", 1), *_ran("d", 6.0, "read", 2)],
        [_UP, *_told("a"), *_told("b", "unknown"), *_told("d"), *_told("f", "cancelled"), _DOWN, *_told("c", "failed")],
    )


def test_accounts_that_agree_are_not_objected_to() -> None:
    witness = _agreeing()
    assert witness.contradictions() == []
    assert witness.never_run == {"c", "e"}


CONTRADICTIONS: dict[str, tuple[Callable[[], Witness], str]] = {
    "no outcome": (lambda: _witness([_asked("a", None, outcomes=0)], [], _told("a")), "a has 0 outcomes"),
    "two outcomes": (lambda: _witness([_asked("a", outcomes=2)], _ran("a", 2), [_UP, *_told("a")]), "a has 2 outcomes"),
    "an outcome nobody knows": (
        lambda: _witness([_asked("a", "stuck")], [], _told("a", "failed")),
        "an outcome that no call may have: stuck",
    ),
    "it ran": (
        lambda: _witness([_asked("a", "gone:not_run")], _ran("a", 2), [_UP, *_told("a", "failed")]),
        "a was said not to have run, and it ran",
    ),
    "it runs in a later stretch": (
        lambda: _witness([], _ran("a", 2), [], never_run={"a"}),
        "a was said not to have run, and it ran",
    ),
    "it ran twice": (
        lambda: _witness([_asked("a")], [*_ran("a", 2), *_ran("a", 4, pid=2)], [_UP, *_told("a")]),
        "a ran 2 times, and its tool may not be repeated",
    ),
    "it ran three times": (
        lambda: _witness(
            [_asked("a", tool="read")],
            [fact for at in (2, 4, 6) for fact in _ran("a", at, "read")],
            [_UP, *_told("a")],
        ),
        "a ran 3 times",
    ),
    "another's answer": (
        lambda: _witness([_asked("a", text="b 1 1")], _ran("a", 2), [_UP, *_told("a")]),
        "a got an answer that is not its own: 'b 1 1'",
    ),
    "an answer of no server": (
        lambda: _witness([_asked("a", text="a 1 7")], _ran("a", 2), [_UP, *_told("a")]),
        "a got an answer that its server did not give",
    ),
    "another's progress": (
        lambda: _witness([_asked("a", heard=["b"])], _ran("a", 2), [_UP, *_told("a")]),
        "a heard the progress of b",
    ),
    "no end is told": (
        lambda: _witness([_asked("a")], _ran("a", 2), [_UP, Told("started", _SERVER, "a")]),
        "a: ok, but the events tell 1 starts and []",
    ),
    "another end is told": (
        lambda: _witness([_asked("a")], _ran("a", 2), [_UP, *_told("a", "failed")]),
        "a: ok, but the events tell 1 starts and ['failed']",
    ),
    "the end is told first": (
        lambda: _witness([_asked("a")], _ran("a", 2), [_UP, *reversed(_told("a"))]),
        "a was told to have ended before it began",
    ),
    "nobody asked": (lambda: _witness([], [], _told("a")), "a is told of in events, and nobody has asked for it"),
    "no connection": (
        lambda: _witness([_asked("a", "cancelled")], _ran("a", 2), [_UP, _DOWN, *_told("a", "cancelled")]),
        "a ran, and its server was never connected meanwhile",
    ),
    "beside one that runs alone": (
        lambda: _witness(
            [_asked("a"), _asked("b", tool="read")],
            [_fact("begin", "a", 2), *_ran("b", 2.5, "read"), _fact("end", "a", 4)],
            [_UP, *_told("a"), *_told("b")],
        ),
        "b ran beside a, and may not",
    ),
    "too many at once": (
        lambda: _witness(
            [_asked(name, tool="read") for name in "abc"],
            [_fact(event, name, 2, tool="read") for event in ("begin", "end") for name in "abc"],
            [_UP, *(told for name in "abc" for told in _told(name))],
        ),
        "c ran beside 2 others",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_found(name: str) -> None:
    make, sentence = CONTRADICTIONS[name]
    witness = make()
    found = witness.contradictions()
    assert [said for said, _ in found if sentence in said], found
    # And all that is known of the calls concerned can be told.
    assert all(stories(calls, witness) for _, calls in found)


def test_one_that_was_given_up_may_run_beside_its_successor() -> None:
    asked = [_asked("a", "timeout:call", ended=2.5), _asked("b")]
    facts = [_fact("begin", "a", 2), *_ran("b", 3), _fact("end", "a", 5)]
    told = [_UP, *_told("a", "timed_out"), *_told("b")]
    assert _witness(asked, facts, told).contradictions() == []
    asked[0].ended = 3.5
    assert _witness(asked, facts, told).contradictions() != []


def test_a_line_that_is_half_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "s0.record"
    record = RecordFile("s0", path)
    assert record.read() == []
    path.write_text('{"t": 1, "pid": 2, "e": "begin", "id": "a"}\n{"t": 2, "pid"')
    assert record.read() == [Fact("s0", 1, 2, "begin", {"id": "a"})]
    with path.open("a") as file:
        file.write(': 2, "e": "end", "id": "a"}\n')
    assert record.read() == [Fact("s0", 2, 2, "end", {"id": "a"})]


# The command.


def test_the_command_says_its_seed_and_that_nothing_was_lost() -> None:
    words = ["--seed", "5", "--faults", "1", "--servers", "2", "--callers", "2", "--round-faults", "10"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words], cwd=command.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seed 5\n")
    assert done.stdout.endswith("Nothing was lost.\n")
