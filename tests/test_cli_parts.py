"""The command line's parts that need no server: arguments, help, output, errors, exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest

from openprogram_mcp import paths
from openprogram_mcp.cli import main
from openprogram_mcp.cli._arguments import read_arguments
from openprogram_mcp.cli._log import describe
from openprogram_mcp.cli._oneshot import could_own
from openprogram_mcp.cli._output import one_line, printable
from openprogram_mcp.errors import UsageError
from openprogram_mcp.status import ServerState, ServerStatus


def run(*argv: str, env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own."""
    command = [sys.executable, "-m", "openprogram_mcp", *argv]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, env=env, timeout=60, check=False)


# Arguments


@pytest.mark.parametrize(
    ("pairs", "whole", "expected"),
    [
        ([], None, {}),
        (["a=1"], None, {"a": "1"}),
        (["a:=1"], None, {"a": 1}),
        (["a="], None, {"a": ""}),
        (["url=http://x:=y"], None, {"url": "http://x:=y"}),
        (["a:b=c"], None, {"a:b": "c"}),
        (["a:=[1, {}]", "b:=null", "c:=true"], None, {"a": [1, {}], "b": None, "c": True}),
        (["a==b"], None, {"a": "=b"}),
        (["a= spaces \n"], None, {"a": " spaces \n"}),
        ([], '{"x": {"y": 1}}', {"x": {"y": 1}}),
        (["b=2"], '{"a": 1}', {"a": 1, "b": "2"}),
    ],
)
def test_arguments_are_text_or_json(pairs: list[str], whole: str | None, expected: dict[str, Any]) -> None:
    assert read_arguments(pairs, whole) == expected


@pytest.mark.parametrize(
    ("pairs", "whole", "said"),
    [
        (["novalue"], None, "'novalue' is no argument"),
        (["=x"], None, "is no argument"),
        ([":=1"], None, "is no argument"),
        (["a:=one"], None, "a: 'one' is not JSON"),
        (["a:="], None, "not JSON"),
        (["a:=NaN"], None, "NaN is not JSON"),
        (["a=1", "a:=2"], None, "given twice"),
        (["a=1"], '{"a": 1}', "given twice"),
        ([], "[1]", "expected a JSON object"),
        ([], "{", "--args is not JSON"),
        ([], "", "--args is not JSON"),
    ],
)
def test_a_wrong_argument_is_named(pairs: list[str], whole: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        read_arguments(pairs, whole)


def test_arguments_can_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"a": "ü"}'))
    assert read_arguments([], "-") == {"a": "ü"}


# Usage


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["list", "--nonsense"],
        ["show"],
        ["call"],
        ["call", "t", "--timeout", "0"],
        ["call", "t", "--timeout", "nan"],
        ["call", "t", "x"],
        ["worker", "--port", "70000"],
        ["worker", "--port", "-1"],
        ["worker", "--log-format", "xml"],
        ["lis"],
        ["list", "--js"],
    ],
)
def test_wrong_usage_is_2_in_two_lines_without_a_traceback(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("openprogram-mcp: ")
    assert len(err.splitlines()) == 2
    assert main([*argv, "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "usage"
    assert err == ""


@pytest.mark.parametrize("argv", [["--json", "config-path"], ["config-path", "--json"]])
def test_common_options_may_stand_before_or_after_the_command(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(paths.config_path()), "exists": False}


def test_the_state_directory_can_be_given(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state-dir", str(tmp_path / "x"), "config-path"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'x' / 'mcp_servers.json'}\n"
    assert not (tmp_path / "x").exists()


def test_options_may_stand_between_the_arguments_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["call", "t", "a=1", "--timeout", "3", "b=2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_tool"
    assert main(["call", "t", "a=1", "--timeout", "3", "b=2", "--nonsense"]) == 2


@pytest.mark.parametrize("argv", [["--help"], ["list", "--help"], ["worker", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    heavy = (
        "mcp",
        "trio",
        "rich",
        "litestar",
        "hypercorn",
        "httpx",
        "httpx2",
        "attr",
        "filelock",
        "http",
        "jsonschema",
    )
    code = (
        "import sys\nfrom openprogram_mcp.cli import main\n"
        f"try: main({argv!r})\nexcept SystemExit as end: assert end.code == 0\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


# Errors and output


def test_a_fault_of_ours_is_told_without_its_message_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("openprogram_mcp.cli._doctor.config_path", broken)
    assert main(["config-path"]) == 1
    err = capsys.readouterr().err
    assert "RuntimeError at test_cli_parts.py" in err
    assert "hunter2" not in err
    assert "Traceback" not in err
    monkeypatch.setenv("OPENPROGRAM_MCP_DEBUG", "1")
    assert main(["config-path", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "internal"
    assert "Traceback" in err


def test_a_profile_that_cannot_be_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("OPENPROGRAM_MCP_STATE_DIR")
    monkeypatch.setenv("OPENPROGRAM_PROFILE", "../elsewhere")
    assert main(["config-path"]) == 1
    assert "OPENPROGRAM_PROFILE" in capsys.readouterr().err


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    code = "import sys, subprocess; sys.exit(subprocess.call(sys.argv[1:], stdout=open('/dev/full', 'w')))"
    command = [sys.executable, "-c", code, sys.executable, "-m", "openprogram_mcp", "config-path"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    closed = subprocess.Popen(
        [sys.executable, "-m", "openprogram_mcp", "config-path"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert closed.stdout is not None
    assert closed.stderr is not None
    closed.stdout.close()
    assert closed.stderr.read() == b""
    assert closed.wait() == 1
    closed.stderr.close()


def test_what_a_server_says_cannot_move_the_cursor() -> None:
    assert printable("a\x1b[2Jb\x07\r\n\tc\x9b1m\u202e") == "a\\x1b[2Jb\\x07\\x0d\n\tc\\x9b1m\\x202e"
    assert one_line("a\n  b\x1b[31m" + "x" * 500, 20) == "a b\\x1b[31mxxxxxxxx…"


@pytest.mark.parametrize(
    ("tool", "owners"),
    [
        ("time__now", {"time"}),
        ("mcp__time__now", {"time", "mcp"}),
        ("a_b__x", {"a.b", "a b"}),
        ("a__b__c", {"a", "a__b"}),
        ("mcp__mcp__x", {"mcp"}),
        ("zzz__x", set()),
        ("time_0123abcd__now", {"time", "a", "a__b", "a.b", "a b", "mcp"}),
    ],
)
def test_servers_that_could_own_a_name_are_all_found_and_few_others(tool: str, owners: set[str]) -> None:
    assert could_own(tool, ["time", "a", "a__b", "a.b", "a b", "mcp"]) == owners


def test_a_state_is_one_line_with_what_to_do() -> None:
    row = ServerStatus(name="a", type="local", status=ServerState.CONNECTED, tools=("a__x",))
    assert describe(row, 1.26) == "connected, 1 tool (1.3 s)"
    failed = ServerStatus(
        name="a",
        type="local",
        status=ServerState.FAILED,
        phase="spawn",
        error="It exited.",
        exit_code=3,
        remedy="Mend it.",
    )
    assert describe(failed, None) == "failed in spawn: It exited. (exit code 3). Mend it."
    assert describe(ServerStatus(name="a", type="local", status=ServerState.DISABLED), None) == "disabled"
