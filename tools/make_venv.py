"""Makes ``.venv`` and installs this project into it, for the Makefile: ``make_venv.py run|test|all|fuzz``.

Uses the standard library only. A virtual environment that was left half made is made anew; a healthy one, whoever made
it, is kept and completed. Where the system's Python comes without ``ensurepip`` (Debian's), its own pip installs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two makes at once are the user's affair there
    fcntl = None  # type: ignore[assignment]  # the name is asked for before use

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
PROJECT = ROOT / "pyproject.toml"
UNFINISHED = VENV / ".unfinished"

LEVELS = {"run": "", "test": "[test]", "all": "[test,lint]", "fuzz": "[test,lint,fuzz]"}
"""What each level installs of this project; each holds all before it."""


def say(text: str) -> None:
    """Tell what is happening, at once."""
    print(text, file=sys.stderr, flush=True)


def runs(*argv: str | Path) -> bool:
    """Whether a command can be run and says yes; its output is nobody's."""
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def is_healthy() -> bool:
    """Whether there is a virtual environment that was finished and still runs on a Python that is new enough."""
    return not UNFINISHED.exists() and runs(PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))")


def make() -> None:
    """Make the environment from nothing, marked as unfinished until something has been installed into it."""
    if VENV.exists():
        say(".venv was left unfinished, or its Python is gone: making it anew.")
        shutil.rmtree(VENV)
    say(f"Making .venv with Python {sys.version.split()[0]}.")
    VENV.mkdir()
    UNFINISHED.touch()
    with_pip = runs(sys.executable, "-c", "import ensurepip")
    venv.create(VENV, with_pip=with_pip, symlinks=os.name != "nt")


def installers() -> list[list[str | Path]]:
    """The commands that could install into the environment, best first."""
    found: list[list[str | Path]] = []
    pip: list[str | Path] = ["-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        found.append([uv, "pip", "install", "--quiet", "--python", PYTHON])
    if runs(PYTHON, "-m", "pip", "--version"):
        found.append([PYTHON, *pip, "install"])
    elif runs(sys.executable, "-m", "pip", "--version"):
        found.append([sys.executable, *pip, "--python", PYTHON, "install"])
    return found


def install(level: str, lock: int) -> bool:
    """Install the project, editable, with what the level needs; the installer holds the lock should we be killed."""
    commands = installers()
    if not commands:
        say("Neither pip nor uv was found. Debian and Ubuntu: apt install python3-pip. Others: python3 -m ensurepip.")
        return False
    for command in commands:
        argv = [*command, "--editable", f".{LEVELS[level]}"]
        if subprocess.run(argv, cwd=ROOT, pass_fds=(lock,) if os.name != "nt" else (), check=False).returncode == 0:
            return True
        if command is not commands[-1]:
            say(f"{Path(command[0]).name} could not install it; trying pip.")
    say("What is needed could not be installed; the reason stands above. Repeat the command to go on.")
    return False


def main(level: str) -> int:
    """Bring the environment up to a level, and stamp it."""
    with PROJECT.open("rb") as project:
        if fcntl is not None:
            fcntl.flock(project, fcntl.LOCK_EX)  # a second make waits here for the first
        wanted = f"{VENV} {hashlib.sha256(project.read()).hexdigest()}\n"
        stamp = VENV / f".ready-{level}"
        if not is_healthy():
            make()
        if not stamp.exists() or stamp.read_text() != wanted:
            say(f"Installing openprogram-mcp{LEVELS[level]} and what it needs; the first time takes about a minute.")
            started = time.monotonic()
            if not install(level, project.fileno()):
                return 1
            say(f"Installed in {time.monotonic() - started:.0f} s.")
            UNFINISHED.unlink(missing_ok=True)
        for lower in LEVELS:
            (VENV / f".ready-{lower}").write_text(wanted)
            if lower == level:
                break
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LEVELS:
        sys.exit(f"usage: {Path(sys.argv[0]).name} {'|'.join(LEVELS)}")
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit("interrupted; the next run goes on from here")
