"""What is started on Windows, decided on any system: only the platform's name and the search are played."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.transports._launch import prepare_launch

_ENV = {"PATH": r"C:\nodejs;C:\tools", "SYSTEMROOT": r"C:\Windows"}


@pytest.fixture
def only_npx_cmd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which there is nothing but ``npx.cmd``."""

    def which(program: str, path: str | None = None) -> str | None:
        del path
        return r"C:\nodejs\npx.cmd" if program in ("npx", "npx.cmd") else None

    monkeypatch.setattr(shutil, "which", which)


@pytest.mark.usefixtures("only_npx_cmd")
def test_start_05_a_bare_npx_is_found_through_pathext_and_run_by_the_command_interpreter() -> None:
    launch = prepare_launch("f", ["npx", "-y", "pkg"], _ENV, None, platform="win32")
    assert launch.argv[0] == r"C:\nodejs\npx.cmd"
    assert launch.command_line is not None
    assert "/d /s /c" in launch.command_line
    assert launch.command_line.split(" /d ")[0].lower().rstrip('"').endswith("cmd.exe")


@pytest.mark.usefixtures("only_npx_cmd")
@pytest.mark.parametrize("argument", [r"C:\dir with space & x", "50%", "a^b", "a|b>c<d", 'say "hi"', "(x)", "!y!"])
def test_start_05_no_character_of_an_argument_means_something_to_the_command_interpreter(argument: str) -> None:
    line = prepare_launch("f", ["npx", "--path", argument], _ENV, None, platform="win32").command_line
    assert line is not None
    inner = line.split(" /d /s /c ", 1)[1][1:-1]
    for place, character in enumerate(inner):
        if character in "&|<>()%!":
            carets = len(inner[:place]) - len(inner[:place].rstrip("^"))
            assert carets % 2 == 1, f"{character!r} at {place} is not guarded in {inner}"


@pytest.mark.usefixtures("only_npx_cmd")
def test_start_05_what_is_not_found_names_the_command_and_the_path_that_was_searched() -> None:
    with pytest.raises(ServerFailed) as caught:
        prepare_launch("f", ["uvx", "server"], _ENV, None, platform="win32")
    assert "uvx" in caught.value.message
    assert "nodejs" in caught.value.message
    assert caught.value.remedy is not None
    assert "uv" in caught.value.remedy


def test_elsewhere_nothing_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    launch = prepare_launch("f", ["./server", "a & b"], {"PATH": ""}, str(tmp_path), platform="linux")
    assert launch.argv == (str(program), "a & b")
    assert launch.command_line is None
