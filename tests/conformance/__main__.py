"""``python -m tests.conformance [--check] [--jobs N] [SCENARIO …]``.

All scenarios, over each revision that asks for them; one that fails is run once more, alone, since some of them
measure time. Writes the table in docs/reference/conformance.md; with ``--check`` it compares instead, and ends with 1
where the table says something else. With names of scenarios (``auth/*`` too), only those are run, what they printed is
shown where they fail, and nothing is written.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import sys

import trio

from tests._npm import NpmUnavailable

from . import _suite
from ._report import PAGE, Report, is_current, write
from ._suite import ROOT, SUITE, Outcome

RESULTS = ROOT / ".cache" / "conformance"


async def _run_all(wanted: list[tuple[str, str]], jobs: int) -> dict[tuple[str, str], Outcome]:
    outcomes: dict[tuple[str, str], Outcome] = {}
    limit = trio.CapacityLimiter(jobs)

    async def run(name: str, wire: str, again: str = "") -> None:
        async with limit:
            outcome = await _suite.run(name, wire, RESULTS / wire / name)
        outcomes[name, wire] = outcome
        failed = f", {len(outcome.checks.failed)} failed" if outcome.checks.failed else ""
        why = f": {outcome.why}" if outcome.why else ""
        print(f"{outcome.verdict:8}{name} ({wire}): {outcome.checks.passed} passed{failed}{why}{again}", flush=True)

    async with trio.open_nursery() as nursery:
        for name, wire in wanted:
            nursery.start_soon(run, name, wire)
    for key in [key for key in wanted if outcomes[key].verdict == "failed"]:
        await run(*key, again=" (once more, alone)")
    return outcomes


def main(argv: list[str] | None = None) -> int:
    """Run it; 1 where the table is not what has come out, 2 where the suite cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the table instead of writing it")
    parser.add_argument("--jobs", type=int, default=2, help="so many scenarios at a time")
    parser.add_argument("scenarios", nargs="*", help="only these")
    given = parser.parse_args(argv)
    try:
        if not SUITE.is_installed():
            print("Installing the conformance suite; once.", file=sys.stderr, flush=True)
            SUITE.install()
    except NpmUnavailable as error:
        print(f"The conformance suite is not available: {error}", file=sys.stderr)
        return 2
    known = _suite.scenarios()
    patterns = given.scenarios or ["*"]
    chosen = [one for one in known if any(fnmatch.fnmatchcase(one.name, pattern) for pattern in patterns)]
    outcomes = trio.run(_run_all, [(one.name, wire) for one in chosen for wire in one.wires], given.jobs)
    if given.scenarios:
        for (name, wire), outcome in outcomes.items():
            if outcome.verdict == "failed":
                print(f"\n== {name} ({wire})\n{outcome.output}")
        return int(not outcomes or any(outcome.verdict != "passed" for outcome in outcomes.values()))
    report = Report(_suite.version(), tuple(known), outcomes)
    current = is_current(report)
    if not current and not given.check:
        write(report)
        print(f"Written: {PAGE.relative_to(ROOT)}")
    if not current and given.check:
        print(f"{PAGE.relative_to(ROOT)} says something else: see what has changed, then run make conformance.")
    else:
        shutil.rmtree(RESULTS, ignore_errors=True)
    print(report.closing())
    return int(given.check and not current)


sys.exit(main())
