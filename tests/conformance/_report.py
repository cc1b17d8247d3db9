"""What came of all scenarios: the closing line, and the part of docs/reference/conformance.md that is written by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen

from ._suite import REVISIONS, ROOT, Outcome, Scenario

__all__ = ["PAGE", "Report", "is_current", "write"]

PAGE: Final = ROOT / "docs" / "reference" / "conformance.md"
_BEGIN: Final = "<!-- written by make conformance: begin -->\n"
_END: Final = "<!-- written by make conformance: end -->\n"


@frozen
class Report:
    """All outcomes, by scenario and the revision it was run over.

    Args:
        version: Of the suite.
        scenarios: All there are, in order.
        outcomes: What came of each.
    """

    version: str
    scenarios: tuple[Scenario, ...]
    outcomes: Mapping[tuple[str, str], Outcome]

    def sets(self) -> dict[str, list[tuple[Scenario, str]]]:
        """The sets that are told of: scenarios that count for a revision, those run beside them, the whole suite."""
        told: dict[str, list[tuple[Scenario, str]]] = {
            revision: [(one, revision) for one in self.scenarios if revision in one.scored] for revision in REVISIONS
        }
        beside = [(one, revision) for one in self.scenarios for revision in sorted(one.unscored)]
        return {**told, "not scored": beside, "whole suite": [(one, one.wire) for one in self.scenarios]}

    def counts(self, members: Iterable[tuple[Scenario, str]]) -> tuple[Counter[str], int, int]:
        """Scenarios by verdict, checks that passed, checks that failed."""
        found = [self.outcomes[one.name, wire] for one, wire in members]
        return (
            Counter(outcome.verdict for outcome in found),
            sum(outcome.checks.passed for outcome in found),
            sum(len(outcome.checks.failed) for outcome in found),
        )

    def closing(self) -> str:
        """The one line at the end."""
        parts = []
        for name, members in self.sets().items():
            verdicts, passed, failed = self.counts(members)
            parts.append(
                f"{name}: {verdicts['passed']} passed, {verdicts['failed']} failed, {verdicts['not run']} not run of "
                f"{len(members)} (checks: {passed} passed, {failed} failed)"
            )
        return "conformance: " + "; ".join(parts)

    def markdown(self) -> str:
        """The part of the page that is written."""
        lines = [
            f"Suite: npm `@modelcontextprotocol/conformance` {self.version}.",
            "",
            "| set | scenarios | passed | failed | not run | checks passed | checks failed |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, members in self.sets().items():
            verdicts, passed, failed = self.counts(members)
            shown = f"required by {name}" if name in REVISIONS else name
            numbers = (len(members), verdicts["passed"], verdicts["failed"], verdicts["not run"], passed, failed)
            lines.append(f"| {shown} | {' | '.join(map(str, numbers))} |")
        lines += ["", f"| scenario | {' | '.join(REVISIONS)} |", "|---|---|---|"]
        for one in self.scenarios:
            cells = [self._cell(one, revision) for revision in REVISIONS]
            lines.append(f"| `{one.name}` | {' | '.join(cells)} |")
        failing = [(name, wire, outcome) for (name, wire), outcome in self._in_order() if outcome.verdict != "passed"]
        if failing:
            lines += ["", "What does not pass:", ""]
        for name, wire, outcome in failing:
            checks = ", ".join(f"`{check}`" for check in dict.fromkeys(outcome.checks.failed))
            lines.append(f"- `{name}`, {wire}: {checks or outcome.why}")
        return "\n".join(lines) + "\n"

    def _in_order(self) -> list[tuple[tuple[str, str], Outcome]]:
        keys = [(one.name, wire) for one in self.scenarios for wire in one.wires]
        return [(key, self.outcomes[key]) for key in keys]

    def _cell(self, scenario: Scenario, revision: str) -> str:
        outcome = self.outcomes.get((scenario.name, revision))
        if outcome is None:
            return ""
        counted = "" if revision in scenario.scored else ", not scored"
        if outcome.verdict == "not run":
            return f"not run{counted}"
        total = outcome.checks.passed + len(outcome.checks.failed)
        if outcome.verdict == "passed":
            return f"passed ({total}){counted}"
        return f"**failed** ({len(outcome.checks.failed)} of {total}){counted}"


def _split(page: Path) -> tuple[str, str, str]:
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    middle, _, after = rest.partition(_END)
    return before + _BEGIN, middle, _END + after


def is_current(report: Report, page: Path = PAGE) -> bool:
    """Whether the page says what has come out."""
    return _split(page)[1] == report.markdown()


def write(report: Report, page: Path = PAGE) -> None:
    """Write what has come out into the page."""
    before, _, after = _split(page)
    page.write_text(before + report.markdown() + after, encoding="utf-8")
