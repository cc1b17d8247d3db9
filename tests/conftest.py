"""What every test shares: a state directory of its own, and the rule that with ``CI=true`` no test is skipped unseen.

A skip whose reason is not in the list below means that something is missing which a fresh machine ought to have, so
that a test which proves a promise did not run. On a developer's machine it stays a skip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests import servers

# How long an example takes says more about the machine than about us.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

EXPECTED_SKIPS = (
    r"^needs (Linux|macOS|Windows)\b",
    r"^needs Python 3\.\d+",
    r"^needs (root|not to be root)\b",
)
"""The reasons for which a test may be skipped anywhere: what the machine is, never what it lacks by accident."""


def is_expected_skip(reason: str) -> bool:
    """Whether a test may be skipped for this reason even with ``CI=true``."""
    return any(re.search(pattern, reason) for pattern in EXPECTED_SKIPS)


def _refuse_unexpected_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not is_expected_skip(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI=true does not expect: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_unexpected_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_unexpected_skip(report)
    return report


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory, named by the environment variable, for the time of one test."""
    path = tmp_path / "state"
    monkeypatch.setenv("OPENPROGRAM_MCP_STATE_DIR", str(path))
    return path


@pytest.fixture
def file(state_dir: Path) -> Path:
    """The configuration file, which is not there yet, in a state directory that is."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return state_dir / "mcp_servers.json"


@pytest.fixture(scope="session")
def npm_servers() -> None:
    """The servers of npm, installed. ``tests.servers.argv`` gives their command lines."""
    try:
        servers.install()
    except servers.ServersUnavailable as error:
        pytest.skip(f"npm's servers are not available: {error}")
