"""What is told of the conformance suite is what it has written down, and the page says what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance._report import PAGE, Report, is_current, write
from tests.conformance._suite import SUITE, Checks, Outcome, Scenario, judge, version


def check(status: str, name: str = "own") -> dict[str, Any]:
    return {"id": name, "name": name.title(), "status": status}


@pytest.mark.parametrize(
    ("checks", "code", "verdict"),
    [
        ([check("SUCCESS")], 0, "passed"),
        ([check("SUCCESS"), check("INFO"), check("SKIPPED", "b")], 0, "passed"),
        ([], 0, "not run"),
        ([check("SKIPPED"), check("INFO")], 0, "not run"),
        ([check("SKIPPED"), check("SUCCESS", "wire-schema-valid")], 0, "not run"),
        ([check("SUCCESS"), check("WARNING", "b")], 1, "failed"),
        ([check("SUCCESS"), check("FAILURE", "wire-schema-valid")], 1, "failed"),
        ([check("SUCCESS")], 1, "failed"),
        ([], 1, "failed"),
    ],
)
def test_a_tick_without_a_check_counts_as_not_run(checks: list[dict[str, Any]], code: int, verdict: str) -> None:
    assert judge(checks, code).verdict == verdict


def test_a_check_that_is_made_for_every_request_counts_once_and_fails_if_one_does() -> None:
    made = [check("SUCCESS"), check("SUCCESS"), check("SUCCESS", "b"), check("FAILURE", "b"), check("SUCCESS", "b")]
    assert judge(made, 1).checks == Checks(1, ("b",))


def _report(second: Outcome) -> Report:
    scenarios = (
        Scenario("one", "2025-11-25", scored=frozenset({"2025-11-25", "2026-07-28"})),
        Scenario("two", "2026-07-28", unscored=frozenset({"2026-07-28"})),
    )
    passed = Outcome("passed", Checks(3))
    outcomes = {("one", "2025-11-25"): passed, ("one", "2026-07-28"): passed, ("two", "2026-07-28"): second}
    return Report("1.2.3", scenarios, outcomes)


def test_the_closing_line_tells_every_set() -> None:
    assert _report(Outcome("failed", Checks(1, ("x",)))).closing() == (
        "conformance: 2025-11-25: 1 passed, 0 failed, 0 not run of 1 (checks: 3 passed, 0 failed); "
        "2026-07-28: 1 passed, 0 failed, 0 not run of 1 (checks: 3 passed, 0 failed); "
        "not scored: 0 passed, 1 failed, 0 not run of 1 (checks: 1 passed, 1 failed); "
        "whole suite: 1 passed, 1 failed, 0 not run of 2 (checks: 4 passed, 1 failed)"
    )


def test_the_page_is_written_between_its_marks_and_a_difference_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    report = _report(Outcome("failed", Checks(1, ("x",))))
    assert not is_current(report, page)
    write(report, page)
    assert is_current(report, page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Conformance\n")
    assert "| `two` |  | **failed** (1 of 2), not scored |\n" in text
    assert "- `two`, 2026-07-28: `x`\n" in text
    assert "## Why some do not pass" in text
    assert not is_current(_report(Outcome("not run", why="nothing was checked")), page)


def test_the_page_is_that_of_the_pinned_suite() -> None:
    assert f"`@modelcontextprotocol/conformance` {version()}." in PAGE.read_text(encoding="utf-8")
    lock = json.loads((SUITE.folder / "package-lock.json").read_text(encoding="utf-8"))
    assert lock["packages"]["node_modules/@modelcontextprotocol/conformance"]["version"] == version()
    assert "resolved" not in json.dumps(lock)


def test_the_driver_uses_what_the_package_shows() -> None:
    text = (SUITE.folder / "driver.py").read_text(encoding="utf-8")
    assert "from openprogram_mcp import MCPManager, OpenProgramMCPError, open_manager\n" in text
    assert text.count("openprogram_mcp ") + text.count("openprogram_mcp.") == 1
    assert "._" not in text
