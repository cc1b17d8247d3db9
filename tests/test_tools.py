"""The scripts under tools/ that the Makefile stands on."""

from __future__ import annotations

import importlib.util
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent / "tools"


def _with_python(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh") or "/bin/sh"
    return subprocess.run(
        [shell, str(TOOLS / "with_python.sh"), "-c", "ran"],
        env={"PATH": str(folder), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def pythons(tmp_path: Path) -> Callable[[str, str], Path]:
    """Puts a made-up Python of some version into a folder."""

    def add(name: str, version: str) -> Path:
        new = int(tuple(map(int, version.split("."))) >= (3, 11))
        program = tmp_path / name
        program.write_text(
            f"#!/bin/sh\ncase $2 in *version_info*3,*11*) exit {1 - new};; *print*) echo {version};;"
            f" *) echo {name} ran;; esac\n"
        )
        program.chmod(0o755)
        return tmp_path

    return add


def test_the_first_python_that_is_new_enough_is_taken(pythons: Callable[[str, str], Path]) -> None:
    pythons("python3", "3.9.1")
    pythons("python3.11", "3.11.2")
    folder = pythons("python3.12", "3.12.0")
    assert _with_python(folder).stdout == "python3.12 ran\n"


def test_a_python_that_is_too_old_is_named_with_what_to_do(pythons: Callable[[str, str], Path]) -> None:
    done = _with_python(pythons("python3", "3.9.1"))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "python3=3.9.1" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_python_that_the_user_names_is_the_only_one_tried(pythons: Callable[[str, str], Path]) -> None:
    folder = pythons("python3", "3.12.1")
    done = _with_python(folder, PYTHON="python9")
    assert done.returncode == 1
    assert "python9 is not one" in done.stderr


@pytest.fixture
def make_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, told to work in an empty project, with the slow parts written down instead of done."""
    spec = importlib.util.spec_from_file_location("make_venv", TOOLS / "make_venv.py")
    assert spec is not None
    assert spec.loader is not None
    script: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    done: list[str] = []
    folder = tmp_path / ".venv"
    project = tmp_path / "pyproject.toml"
    project.write_text("[project]")
    for name, value in {
        "ROOT": tmp_path,
        "VENV": folder,
        "PYTHON": folder / "bin/python",
        "PROJECT": project,
        "UNFINISHED": folder / ".unfinished",
    }.items():
        monkeypatch.setattr(script, name, value)

    def create(path: Path, **_: Any) -> None:
        done.append("create")
        (path / "bin").mkdir()
        (path / "bin/python").symlink_to(sys.executable)

    def install(level: str, _: int) -> bool:
        done.append(f"install {level}")
        return True

    monkeypatch.setattr(script, "venv", SimpleNamespace(create=create))
    monkeypatch.setattr(script, "install", install)
    return SimpleNamespace(main=script.main, done=done, folder=folder, project=project, script=script)


def test_a_second_run_does_nothing(make_venv: Any) -> None:
    assert make_venv.main("test") == 0
    assert make_venv.main("test") == 0
    assert make_venv.main("run") == 0, "what test needs holds what run needs"
    assert make_venv.done == ["create", "install test"]
    assert make_venv.main("all") == 0
    assert make_venv.done == ["create", "install test", "install all"]


def test_changed_requirements_are_installed_into_the_environment_that_is_there(make_venv: Any) -> None:
    make_venv.main("run")
    make_venv.project.write_text("[project] # changed")
    make_venv.main("run")
    assert make_venv.done == ["create", "install run", "install run"]


def test_an_environment_that_was_left_half_made_is_made_anew(make_venv: Any) -> None:
    def fail(*_: Any) -> bool:
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_venv.script, "install", fail)
        assert make_venv.main("run") == 1
    (make_venv.folder / "rubbish").touch()
    assert make_venv.main("run") == 0
    assert not (make_venv.folder / "rubbish").exists()
    assert make_venv.done == ["create", "create", "install run"]


def test_an_environment_whose_python_is_gone_is_made_anew(make_venv: Any) -> None:
    make_venv.main("run")
    (make_venv.folder / "bin/python").unlink()
    make_venv.main("run")
    assert make_venv.done == ["create", "install run"] * 2


def test_a_healthy_environment_that_somebody_else_made_is_kept(make_venv: Any) -> None:
    (make_venv.folder / "bin").mkdir(parents=True)
    (make_venv.folder / "bin/python").symlink_to(sys.executable)
    make_venv.main("run")
    assert make_venv.done == ["install run"]


_COMMAND = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(int(sys.argv[1])))
limit = time.monotonic() + 20
while os.tcgetpgrp(0) != os.getpgrp() and time.monotonic() < limit:  # it is given us after we start
    os.sched_yield()
print("mine" if os.tcgetpgrp(0) == os.getpgrp() else "not mine", flush=True)
signal.pause()
"""
_MAKEFILE = "run:\n\t@{python} {tools}/foreground.py {python} command.py {status}\n"


def _press_ctrl_c(folder: Path, status: int) -> tuple[int, str]:
    (folder / "command.py").write_text(_COMMAND)
    (folder / "Makefile").write_text(_MAKEFILE.format(python=sys.executable, tools=TOOLS, status=status))
    ours, theirs = pty.openpty()
    # The first terminal that the leader of a new session opens becomes the session's own: Ctrl-C works in it.
    line = f"exec make --no-print-directory run <{os.ttyname(theirs)} >{os.ttyname(theirs)} 2>&1"
    make = subprocess.Popen(["/bin/sh", "-c", line], cwd=folder, start_new_session=True)
    seen = b""
    try:
        while b"mine" not in seen:
            seen += os.read(ours, 1024)
        os.write(ours, b"\x03")
        status = make.wait(30)
        os.close(theirs)
        while more := os.read(ours, 1024):
            seen += more
    except OSError:  # the terminal's other end is closed
        pass
    finally:
        make.kill()
        os.close(ours)
    return status, seen.decode()


def test_ctrl_c_on_make_ends_with_the_status_of_the_command(tmp_path: Path) -> None:
    status, output = _press_ctrl_c(tmp_path, 0)
    assert status == 0, "make itself would end as interrupted"
    assert "not mine" not in output, "the command owns the terminal's foreground"


def test_a_command_that_fails_on_ctrl_c_fails_make(tmp_path: Path) -> None:
    status, output = _press_ctrl_c(tmp_path, 7)
    assert status == 2
    assert "Error 7" in output


def test_without_a_terminal_the_command_takes_the_place_of_the_launcher(tmp_path: Path) -> None:
    program = "import os; print(os.getpid())"
    with subprocess.Popen(
        [sys.executable, str(TOOLS / "foreground.py"), sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        output, _ = process.communicate(timeout=30)
    assert int(output) == process.pid
