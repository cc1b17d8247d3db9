"""Commands where no worker runs: a manager of their own, only the servers they need, and nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from openprogram_mcp.cli import main
from openprogram_mcp.testing import FakeServer, do

from ._terminal import said_until_its_end
from ._worker_process import command, write_servers


@pytest.fixture
def two(state_dir: Path) -> tuple[FakeServer, FakeServer]:
    """Two configured servers, and one that cannot start."""
    first, second = FakeServer().tool("echo"), FakeServer().tool("other")
    servers = {"first": first.config(), "second": second.config(), "missing": {"command": ["no-such-program-here"]}}
    write_servers(state_dir, servers)
    return first, second


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """A command in this process."""
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_list_starts_every_server_and_puts_them_away(
    two: tuple[FakeServer, FakeServer], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    assert [line.split("\t")[:3] for line in out.splitlines()] == [
        ["first", "connected", "1"],
        ["second", "connected", "1"],
        ["missing", "failed", "0"],
    ]
    assert [server.starts for server in two] == [1, 1]
    assert [server.alive() for server in two] == [[], []]


@pytest.mark.parametrize(
    ("argv", "expected"), [(["show", "first"], 0), (["call", "first__echo"], 0), (["test", "first"], 0)]
)
def test_a_command_about_one_server_starts_that_one_alone(
    two: tuple[FakeServer, FakeServer], argv: list[str], expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == expected
    assert [server.starts for server in two] == [1, 0]
    assert two[0].alive() == []


def test_the_file_s_own_settings_hold_without_a_worker_too(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = FakeServer().tool("echo"), FakeServer().tool("echo")
    write_servers(state_dir, {"a b": first.config(), "a.b": second.config()}, tool_names="mcp")
    _, out, _ = run(capsys, "tools")
    names = [line.split("\t")[0] for line in out.splitlines()]
    assert all(re.fullmatch(r"mcp__a_b_[0-9a-f]{8}__echo", name) for name in names)
    # Both names came from a collision: a call by one of them needs to know of the other.
    assert run(capsys, "call", names[0])[0] == 0


def test_nothing_configured_is_said_with_where_to(capsys: pytest.CaptureFixture[str], state_dir: Path) -> None:
    code, out, err = run(capsys, "list")
    assert (code, out) == (0, "")
    assert str(state_dir / "mcp_servers.json") in err
    code, _, err = run(capsys, "call", "demo__echo", "text=hello")
    assert code == 1
    assert "worker --demo-if-empty" in err
    assert not state_dir.exists()


def test_a_file_that_cannot_be_read_is_an_error_with_its_place(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir.mkdir()
    (state_dir / "mcp_servers.json").write_text('{"servers": {\n  "a": }')
    for argv in (["list"], ["tools"], ["show", "a"], ["call", "a__b"], ["test", "a"]):
        code, out, err = run(capsys, *argv)
        assert (code, out) == (1, ""), argv
        assert "mcp_servers.json:2:8: " in err


def test_an_unknown_server_is_told_with_what_was_probably_meant(
    two: tuple[FakeServer, FakeServer], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Did you mean 'first'?" in run(capsys, "show", "frist")[2]
    assert "first, second, missing" in run(capsys, "test", "zzz")[2]
    assert [server.starts for server in two] == [0, 0]


# test


def test_test_says_why_a_server_does_not_come_up(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = FakeServer().on_start(do.stderr("licence not found\n"), do.exit(3))
    write_servers(state_dir, {"broken": broken.config(), "wrong": {"command": ["x"], "timeout_seconds": "soon"}})
    code, out, _ = run(capsys, "test", "broken")
    assert code == 1
    assert {"exit code\t3", "stderr\tlicence not found"} <= set(out.splitlines())
    assert "remedy\t" in out
    code, out, _ = run(capsys, "test", "broken", "--json")
    assert code == 1
    assert '"status": "failed"' in out
    code, _, err = run(capsys, "test", "wrong")
    assert code == 1
    assert "servers.wrong.timeout_seconds" in err


def test_test_starts_a_disabled_server_and_saves_nothing(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer().tool("echo")
    write_servers(state_dir, {"off": server.config(enabled=False)})
    before = (state_dir / "mcp_servers.json").read_bytes()
    assert run(capsys, "test", "off")[0] == 0
    assert server.starts == 1
    assert (state_dir / "mcp_servers.json").read_bytes() == before


def test_a_disabled_server_is_listed_and_not_started(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = FakeServer().tool("echo")
    write_servers(state_dir, {"off": server.config(enabled=False), "on": FakeServer().config()})
    assert run(capsys, "list")[1].splitlines()[0] == "off\tdisabled\t0"
    assert run(capsys, "show", "off")[0] == 0
    assert run(capsys, "call", "off__echo")[0] == 1
    assert server.starts == 0


# Results


def test_a_result_goes_to_stdout_as_it_is_and_an_error_of_the_tool_to_stderr(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}
    server = (
        FakeServer()
        .tool("odd", do.reply("\x1b[31mred\u2028☃"))
        .tool("fail", do.reply("no", is_error=True))
        .tool("picture", do.result(picture))
    )
    write_servers(state_dir, {"s": server.config()})
    assert run(capsys, "call", "s__odd") == (0, "\x1b[31mred\u2028☃\n", "")
    assert run(capsys, "call", "s__fail") == (1, "", "no\n")
    assert run(capsys, "call", "s__picture")[1].startswith("[image: image/png, ")
    code, out, _ = run(capsys, "call", "s__fail", "--json")
    assert code == 1
    assert '"is_error": true' in out


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_arguments_reach_the_server_as_they_were_typed(state_dir: Path) -> None:
    server = FakeServer().tool("echo")
    write_servers(state_dir, {"s": server.config()})
    assert command("call", "s__echo", "a=1", "b:=[1, null]", "--args", '{"c": {"d": "ü"}}').code == 0
    assert command("call", "s__echo", "--args", "-", stdin='{"e": "\\u2028"}').code == 0
    assert [call.arguments for call in server.calls()] == [
        {"a": "1", "b": [1, None], "c": {"d": "ü"}},
        {"e": "\u2028"},
    ]


# A terminal


def in_terminal(*argv: str) -> str:
    """What a command shows on a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        os.execv(sys.executable, [sys.executable, "-m", "openprogram_mcp", *argv])  # noqa: S606 - a shell is what this is to do without
    code, said = said_until_its_end(pid, terminal)
    assert code == 0
    return said.decode()


def plain(text: str) -> str:
    """The text without its colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_on_a_terminal_servers_are_seen_starting_and_then_stand_in_a_table(state_dir: Path) -> None:
    slow = FakeServer().tool("echo").on_start(do.stderr("loading [red]models\n"), do.sleep(0.5))
    write_servers(state_dir, {"slow": slow.config(), "quick": FakeServer().config()})
    said = in_terminal("list")
    assert re.search(r"slow +starting +0\.\d s +loading \[red\]models", plain(said))
    table = said.rpartition("SERVER")[2]
    assert re.search(r"slow +connected +1 ", plain(table))
    assert "\x1b[32m" in table
    assert "models" not in table


def test_on_a_terminal_a_call_tells_its_progress(state_dir: Path) -> None:
    server = FakeServer().tool(
        "work", do.progress(1, total=4, message="[bold]reading\x1b[2J"), do.sleep(0.5), do.reply("a\x1b[2Jb")
    )
    write_servers(state_dir, {"s": server.config()})
    said = in_terminal("call", "s__work")
    assert "s__work 25% [bold]reading\\x1b[2J" in plain(said)
    assert said.endswith("a\\x1b[2Jb\r\n")


# doctor


def doctor(capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    import json

    code, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert found["ok"] is (code == 0)
    return code, found["checks"]


def levels(checks: list[dict[str, Any]], subject: str) -> list[str]:
    return [check["level"] for check in checks if check["subject"] == subject]


def test_doctor_finds_nothing_wrong_where_nothing_is(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(capsys)[0] == 0
    assert not state_dir.exists()
    write_servers(state_dir, {"good": FakeServer().config()})
    code, checks = doctor(capsys)
    assert code == 0
    assert {check["level"] for check in checks} <= {"ok", "note"}


def test_doctor_says_what_is_wrong_with_each_server_and_what_to_do(
    state_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for program in ("npx", "tool"):
        (bin_dir / program).write_text("#!/bin/sh\necho 10.1\n")
        (bin_dir / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_dir))
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    write_servers(
        state_dir,
        {
            "missing": {"command": ["no-such-program"]},
            "uv": {"command": "uvx mcp-server-time"},
            "node": {"command": ["npx", "-y", "x"]},
            "variable": {"command": ["npx"], "env": {"KEY": "${NOT_SET_ANYWHERE}"}},
            "folder": {"command": ["npx"], "cwd": "nowhere"},
            "wrong": {"command": ["npx"], "timeout_seconds": -1},
            "relative": {"command": ["./tool"], "cwd": str(bin_dir)},
            "remote": {"url": "https://example.com/mcp", "ca_file": "/no/such/file"},
            "off": {"command": ["no-such-program"], "enabled": False},
        },
    )
    code, checks = doctor(capsys)
    assert code == 1
    assert levels(checks, "missing") == ["error"]
    assert levels(checks, "uv") == ["error"]
    assert "https://docs.astral.sh/uv" in next(check["remedy"] for check in checks if check["subject"] == "uv")
    assert levels(checks, "node") == ["ok", "error"]  # npx is there, the node it needs is not
    assert "(10.1)" in next(check["text"] for check in checks if check["subject"] == "node")
    assert levels(checks, "variable") == ["error"]
    assert "NOT_SET_ANYWHERE" in next(check["text"] for check in checks if check["subject"] == "variable")
    assert levels(checks, "folder") == ["error"]
    assert levels(checks, "wrong") == ["error"]
    assert "servers.wrong.timeout_seconds" in next(check["text"] for check in checks if check["subject"] == "wrong")
    assert levels(checks, "relative") == ["ok"]
    assert levels(checks, "remote") == ["error"]
    assert levels(checks, "off") == ["note"]
    assert all(check["remedy"] for check in checks if check["level"] == "error" and check["subject"] != "wrong")


def test_doctor_finds_files_that_others_can_read(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_servers(state_dir, {})
    path = state_dir / "mcp_servers.json"
    path.chmod(0o644)
    state_dir.chmod(0o755)
    code, checks = doctor(capsys)
    assert code == 0
    assert levels(checks, "mcp_servers.json") == ["warning"]
    assert f"chmod 600 {path}" in [check["remedy"] for check in checks]
    assert f"chmod 700 {state_dir}" in [check["remedy"] for check in checks]
    assert path.stat().st_mode & 0o777 == 0o644


def test_doctor_tells_the_place_of_what_cannot_be_read(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_servers(state_dir, {})
    (state_dir / "mcp_servers.json").write_text("{\n,}")
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert re.search(r"^error\tconfiguration\t.*mcp_servers.json:2:1: ", out, re.MULTILINE)
