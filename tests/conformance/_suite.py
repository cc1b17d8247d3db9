"""The suite as it is installed: which scenarios there are, and the run of one of them.

Owns the judgement of a run. The suite ticks a scenario in which nothing was checked; here that counts as not run.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import trio
from attrs import field, frozen

from tests._npm import NpmPackages, node

__all__ = ["REVISIONS", "SUITE", "Checks", "Outcome", "Scenario", "Verdict", "judge", "run", "scenarios", "version"]

ROOT: Final = Path(__file__).parent.parent.parent
SUITE: Final = NpmPackages(Path(__file__).parent, oldest_node=22)
REVISIONS: Final = ("2025-11-25", "2026-07-28")
"""The revisions that have a set of requirements."""

Verdict = Literal["passed", "failed", "not run"]

# Over the limit for a start, with room for a machine that is busy.
_SCENARIO_SECONDS: Final = 60
# What the suite checks of any message beside what a scenario is about.
_ABOUT_ANY_MESSAGE: Final = "wire-schema-"


@frozen
class Scenario:
    """A scenario for clients.

    Args:
        name: Its name.
        wire: The revision that the suite speaks in it, where nothing else is asked for.
        scored: The sets of requirements that it counts for.
        unscored: The sets that it is run with, without counting.
    """

    name: str
    wire: str
    scored: frozenset[str] = frozenset()
    unscored: frozenset[str] = frozenset()

    @property
    def wires(self) -> tuple[str, ...]:
        """The revisions over which it is run."""
        return tuple(sorted({self.wire, *self.scored, *self.unscored}))


@frozen
class Checks:
    """How many checks have passed, and the names of those that have not; one that is made again counts once."""

    passed: int = 0
    failed: tuple[str, ...] = ()


@frozen
class Outcome:
    """What came of a scenario over one revision.

    Args:
        verdict: ``passed`` only where something that the scenario is about was checked, and nothing failed.
        checks: What was checked.
        why: What the suite says beside its checks: that the client failed, say.
        output: What the client and the suite have printed.
    """

    verdict: Verdict
    checks: Checks = Checks()
    why: str = ""
    output: str = field(default="", repr=False)


def _command(*arguments: str) -> list[str]:
    index = SUITE.modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    return [node(SUITE.oldest_node)[0], str(index), *arguments]


def version() -> str:
    """The pinned version of the suite."""
    wanted = json.loads((SUITE.folder / "package.json").read_text(encoding="utf-8"))
    return str(wanted["dependencies"]["@modelcontextprotocol/conformance"])


def scenarios() -> list[Scenario]:
    """All scenarios for clients, in the order of the suite. Blocks."""
    scored = {revision: _listed("--requirements", revision) for revision in REVISIONS}
    found = []
    for name, told in _listed().items():
        sets = {revision: listed[name] for revision, listed in scored.items() if name in listed}
        found.append(
            Scenario(
                name,
                # As the suite does it: what exists in the newer revision alone is spoken in that one.
                wire=REVISIONS[-1] if told == REVISIONS[-1] else REVISIONS[0],
                scored=frozenset(revision for revision, tag in sets.items() if tag != "client"),
                unscored=frozenset(revision for revision, tag in sets.items() if tag == "client"),
            )
        )
    return found


def _listed(*options: str) -> dict[str, str]:
    """Scenarios by name, with what stands in brackets behind them."""
    told = subprocess.run(
        _command("list", "--client", *options), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^ *- ([\w/-]+)(?: \[(.*)\])?$", told, re.MULTILINE)
    return {name: tag for name, tag in found if tag != "server"}


async def run(scenario: str, wire: str, folder: Path) -> Outcome:
    """Run a scenario once.

    Args:
        scenario: Its name.
        wire: The revision that the suite is to speak.
        folder: Where its files may lie; emptied first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    client = shlex.join([sys.executable, "-m", "tests.conformance.driver"])
    command = _command(
        *("client", "--command", client, "--scenario", scenario, "--spec-version", wire, "--force"),
        *("--timeout", str(_SCENARIO_SECONDS * 1000), "--output-dir", str(folder)),
    )
    done = await trio.run_process(command, cwd=ROOT, capture_stdout=True, capture_stderr=True, check=False)
    printed = (done.stdout + done.stderr).decode("utf-8", "replace")
    return await trio.to_thread.run_sync(_read, folder, done.returncode, printed)


def _read(folder: Path, code: int, printed: str) -> Outcome:
    files = sorted(folder.rglob("checks.json"))
    checks = json.loads(files[-1].read_text(encoding="utf-8")) if files else []
    client_said = "".join(
        f"--- the client's {path.name}\n{path.read_text(encoding='utf-8')}"
        for path in sorted(folder.rglob("std*.txt"))
        if path.stat().st_size
    )
    return judge(checks, code, printed + client_said)


def judge(checks: Iterable[Mapping[str, Any]], code: int, output: str = "") -> Outcome:
    """What came of a run.

    Args:
        checks: What the suite has written down, each with its ``id`` and ``status``.
        code: What the suite has ended with: other than 0 also where its client failed or was too slow.
        output: What was printed.
    """
    told = list(checks)
    # Some are written down once for each request, and how many requests there were is a matter of time.
    kinds: dict[tuple[str, str], bool] = {}
    for check in told:
        if check["status"] in ("SUCCESS", "FAILURE", "WARNING"):
            kind = (str(check["id"]), str(check.get("name")))
            kinds[kind] = check["status"] == "SUCCESS" and kinds.get(kind, True)
    failed = tuple(name for (name, _), good in kinds.items() if not good)
    counts = Checks(len(kinds) - len(failed), failed)
    if failed:
        return Outcome("failed", counts, output=output)
    if code:
        return Outcome("failed", counts, "the client failed, or was too slow", output)
    own = [check for check in told if not str(check["id"]).startswith(_ABOUT_ANY_MESSAGE)]
    if not any(check["status"] == "SUCCESS" for check in own):
        return Outcome("not run", counts, "nothing was checked", output)
    return Outcome("passed", counts, output=output)
