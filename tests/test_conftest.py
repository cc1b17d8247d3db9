from __future__ import annotations

import pytest

from tests.conftest import is_expected_skip

pytest_plugins = ["pytester"]

_SUITE = """
import pytest

@pytest.mark.skipif(True, reason="needs Windows: drive letters")
def test_expected(): ...

def test_unexpected():
    pytest.skip("no network today")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False

def test_fine(): ...
"""


@pytest.fixture
def suite(
    pytester: pytest.Pytester, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    hooks = (request.config.rootpath / "tests" / "conftest.py").read_text()
    pytester.makepyfile(test_suite=_SUITE, test_module="import pytest\npytest.importorskip('no_such_module')")
    pytester.makeconftest(hooks)
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
    return pytester


def test_with_ci_an_unexpected_skip_is_a_failure_and_names_its_reason(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = suite.runpytest_subprocess("-p", "no:anyio", "test_suite.py")
    result.assert_outcomes(passed=1, skipped=1, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["*which CI=true does not expect: no network today*"])


def test_with_ci_a_module_that_skips_itself_is_a_failure_too(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = suite.runpytest_subprocess("-p", "no:anyio", "test_module.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*which CI=true does not expect:*no_such_module*"])


def test_without_ci_a_skip_stays_a_skip(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    result = suite.runpytest_subprocess("-p", "no:anyio")
    result.assert_outcomes(passed=1, skipped=3, xfailed=1)


def test_only_what_the_machine_is_excuses_a_skip() -> None:
    assert is_expected_skip("needs Linux: /proc")
    assert is_expected_skip("needs not to be root: permissions")
    assert not is_expected_skip("npm's servers are not available: npm ci ended with 1")
