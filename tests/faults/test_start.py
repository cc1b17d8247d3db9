"""Starts that have gone wrong for others, through the whole of ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp import open_manager
from openprogram_mcp.errors import NotConnected
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do

from ._host import hosting, well_behaved

_PRINT_CWD = FakeServer(era="legacy", info={"name": "$cwd"})


async def test_start_02_a_slow_first_start_is_shown_while_it_lasts_and_has_a_limit_of_its_own() -> None:
    """The limit of calls is short here; the start may take longer, and what it prints is told meanwhile."""
    fake = FakeServer(era="legacy").on_start(do.stderr("downloading 10%\n"), do.sleep(0.5), do.stderr("done\n"))
    fake.tool("echo", read_only=True)
    entry = fake.config(startup_timeout_seconds=20, call_timeout_seconds=0.25)
    async with open_manager({"slow": entry}, raise_internal=True) as manager:
        with trio.fail_after(20), manager.events.subscribe(0) as events:
            async for record in events:
                if record.to_dict().get("text") == "downloading 10%":
                    break
            assert manager.server("slow").status is ServerState.STARTING
            assert manager.server("slow").stderr == ("downloading 10%",)
            assert (await manager.wait_settled("slow")).status is ServerState.CONNECTED


async def test_start_02_a_start_that_is_cut_off_says_that_it_may_be_downloading() -> None:
    fake = FakeServer(era="legacy").on_start(do.stderr("downloading 10%\n"), do.hang())
    async with hosting({"slow": fake.config(startup_timeout_seconds=0.5)}) as manager:
        row = manager.server("slow")
    assert row.status is ServerState.FAILED
    assert row.phase == "initialize"
    assert "0.5 s" in (row.error or "")
    assert "download" in (row.remedy or "")
    assert "startup_timeout_seconds" in (row.remedy or "")
    assert fake.alive() == []


async def test_start_03_the_configured_limit_is_the_one_that_counts_and_no_server_fails_without_an_error() -> None:
    slow = FakeServer(era="legacy").on("initialize", do.sleep(0.6), do.standard())
    entries = {f"slow{number}": slow.config(timeout_seconds=10) for number in range(6)}
    async with hosting({**entries, "mute": {"command": ["sleep", "60"], "timeout_seconds": 0.4}}) as manager:
        rows = manager.status()
    assert [row.status for name, row in rows.items() if name != "mute"] == [ServerState.CONNECTED] * 6
    assert rows["mute"].error


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with programs that cannot be started, each for a reason of its own."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    bad = tmp_path / "bad-interpreter"
    bad.write_text("#!/no/such/interpreter -x\n")
    bad.chmod(0o755)
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x00\x01\x02 no program\n")
    garbage.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/no/such/bin", "command not found: /no/such/bin"),
        ("no-such-program-anywhere", "searched PATH"),
        ("./not-executable", "not executable"),
        ("./folder", "folder"),
        ("./bad-interpreter", "bad interpreter"),
        ("./garbage", "could not be started"),
    ],
)
async def test_start_07_a_program_that_cannot_be_started_fails_at_once_with_its_reason_and_harms_nobody(
    command: str, says: str, programs: Path
) -> None:
    entry = {"command": [command], "cwd": str(programs)}
    async with hosting({"bad": entry, "good": well_behaved()}) as manager:
        row = manager.server("bad")
        assert row.status is ServerState.FAILED
        assert row.phase == "spawn"
        assert says in (row.error or "")
        assert row.remedy
        assert (row.exit_code, row.pid) == (None, None)
        assert not (await manager.call_tool("good__echo", {})).is_error


async def test_start_07_a_missing_program_is_said_with_how_it_is_usually_installed() -> None:
    for program, hint in (("npx", "Node.js"), ("uvx", "uv"), ("docker", "Docker")):
        entry = {"command": [program], "env": {"PATH": "/nowhere"}}
        async with hosting({"bad": entry}) as manager:
            row = manager.server("bad")
        assert "/nowhere" in (row.error or "")
        assert hint in (row.remedy or "")


@pytest.mark.parametrize("kind", ["missing", "file"])
async def test_start_08_a_wrong_working_directory_is_blamed_and_not_the_command(kind: str, tmp_path: Path) -> None:
    place = tmp_path / kind
    if kind == "file":
        place.write_text("")
    async with hosting({"f": {"command": ["/usr/bin/env"], "cwd": str(place)}}) as manager:
        row = manager.server("f")
    assert str(place) in (row.error or "")
    assert "working directory" in (row.error or "")
    assert "cwd" in (row.remedy or "")


async def test_start_08_a_relative_directory_counts_from_the_folder_of_the_configuration(state_dir: Path) -> None:
    (state_dir / "sub").mkdir(parents=True)
    async with hosting({"f": _PRINT_CWD.config(cwd="sub")}) as manager:
        info = manager.server("f").server_info
    assert info is not None
    assert info["name"] == str(state_dir / "sub")


async def test_start_08_a_tilde_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    async with hosting({"f": _PRINT_CWD.config(cwd="~/work")}) as manager:
        info = manager.server("f").server_info
    assert info is not None
    assert info["name"] == str(tmp_path / "work")


async def test_start_08_a_relative_command_counts_from_the_working_directory(tmp_path: Path) -> None:
    _PRINT_CWD.install(tmp_path, "server.sh")
    async with hosting({"f": {"command": ["./server.sh"], "cwd": str(tmp_path)}}) as manager:
        assert manager.server("f").status is ServerState.CONNECTED


async def test_start_10_a_server_that_cannot_initialise_is_started_once_however_many_ask_for_it() -> None:
    fake = FakeServer(era="legacy").on("initialize").tool("echo")
    async with open_manager({"m": fake.config(startup_timeout_seconds=0.5)}, raise_internal=True) as manager:
        refused: list[str] = []

        async def session() -> None:
            for _ in range(3):
                with pytest.raises(NotConnected) as caught:
                    await manager.call_tool("m__echo")
                refused.append(caught.value.message)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(session)
        assert len(refused) == 18
        assert all("did not answer initialize" in message for message in refused)
        assert fake.starts == 1


async def test_the_environment_of_a_server_is_safe_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2hunter2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    fake = FakeServer(era="legacy", info={"name": "${env.MY_SECRET}|${env.LANG}|${env.EXTRA}"})

    async def seen(**more: Any) -> str:
        async with hosting({"f": fake.config(**more)}) as manager:
            return str((manager.server("f").server_info or {})["name"])

    assert "hunter2" not in await seen()
    assert "C.UTF-8" in await seen()
    assert "hunter2hunter2" in await seen(inherit_env="all")
    assert "hunter2hunter2" in await seen(inherit_env=["MY_SECRET"])
    assert "extra-value" in await seen(env={"EXTRA": "extra-value"})


async def test_conf_06_numbers_and_flags_reach_the_server_as_text_and_null_takes_a_variable_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    code = (
        "import os, sys, json; names = ['PORT', 'DEBUG', 'TERM', 'a-b'];"
        "sys.stderr.write(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]) + chr(10))"
    )
    entry = {
        "command": [sys.executable, "-S", "-c", code],
        "args": ["--n", 5],
        "env": {"PORT": 8080, "DEBUG": True, "TERM": None, "a-b": "c"},
    }
    async with hosting({"f": entry}) as manager:
        said = manager.server("f").stderr
    assert said == ('[["--n", "5"], {"PORT": "8080", "DEBUG": "true", "TERM": null, "a-b": "c"}]',)
    assert os.environ["TERM"] == "xterm"
