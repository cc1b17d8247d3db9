"""What is to be started: from a server's configuration to a program, its arguments, environment and folder.

Everything that can be known to be wrong before a process exists is found here and said in plain words: a missing
program with the PATH that was searched and how such programs are usually installed, a folder that is not there, a
script whose interpreter is missing. Nothing here starts anything.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from ..errors import ServerFailed
from ._containers import Container, with_own_container

__all__ = ["Launch", "child_environment", "explain_spawn_error", "prepare_launch"]

_SAFE_NAMES: Final = frozenset(
    {
        "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
        "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
    }
)  # fmt: skip
_SAFE_NAMES_WINDOWS: Final = frozenset(
    {
        "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE",
        "PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR",
    }
)  # fmt: skip

_HOW_TO_INSTALL: Final = {
    "npx": "It comes with Node.js (nodejs.org, or your system's package 'npm').",
    "node": "Install Node.js (nodejs.org, or your system's package 'nodejs').",
    "npm": "It comes with Node.js (nodejs.org, or your system's package 'npm').",
    "bunx": "Install Bun (bun.sh).",
    "deno": "Install Deno (deno.com).",
    "uvx": "It comes with uv ('pip install uv', or docs.astral.sh/uv).",
    "uv": "Install uv ('pip install uv', or docs.astral.sh/uv).",
    "pipx": "Install pipx ('pip install pipx').",
    "docker": "Install Docker (docs.docker.com/get-docker).",
    "podman": "Install Podman (podman.io).",
    "python": "Your system may call it 'python3'.",
}


@frozen
class Launch:
    """A program ready to be started.

    Args:
        argv: The program by its full path, and its arguments.
        env: The whole environment of the process. Holds secrets.
        cwd: Its folder, or ``None`` for ours.
        command_line: ``argv`` as one text where the system takes no list (a ``.cmd`` file on Windows).
        container: The container that the server runs in, where the program is only its client.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    command_line: str | None = None
    container: Container | None = None

    def __repr__(self) -> str:
        # Arguments and environment may hold secrets.
        return f"Launch({self.argv[0]!r}, {len(self.argv) - 1} arguments)"


def child_environment(
    own: Mapping[str, str],
    inherit: str | Sequence[str],
    extra: Mapping[str, str | None],
    *,
    platform: str = sys.platform,
) -> dict[str, str]:
    """The environment of a server.

    Args:
        own: Our own environment.
        inherit: ``"safe"`` for the names that programs need and that hold no secrets, ``"all"``, or a list of names.
        extra: What the configuration sets, or takes out with ``None``; it wins.
        platform: As ``sys.platform``.
    """
    if inherit == "all":
        inherited = dict(own)
    elif inherit == "safe":
        safe = _SAFE_NAMES_WINDOWS if platform == "win32" else _SAFE_NAMES
        # "()" begins an exported shell function: code, not a value.
        inherited = {
            name: value
            for name, value in own.items()
            if ((name.upper() if platform == "win32" else name) in safe or name.startswith("LC_"))
            and not value.startswith("()")
        }
    else:
        inherited = {name: own[name] for name in inherit if name in own}
    inherited.update({name: value for name, value in extra.items() if value is not None})
    return {name: value for name, value in inherited.items() if extra.get(name, value) is not None}


def prepare_launch(
    server: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    *,
    platform: str = sys.platform,
) -> Launch:
    """Find the program and check all that can be checked before it is started.

    Args:
        server: The server's name, for the error.
        argv: The program and its arguments as configured, expanded.
        env: The environment that the process will have; its PATH is the one that is searched.
        cwd: The folder, absolute, or ``None``.
        platform: As ``sys.platform``.

    Raises:
        ServerFailed: In phase ``spawn``, never transient.
    """
    if cwd is not None and not _is_folder(Path(cwd)):
        what = "is not a folder" if _exists(Path(cwd)) else "does not exist"
        raise _failure(
            server, f"its working directory {cwd} {what}", "Correct 'cwd' in the configuration, or create it."
        )
    program = argv[0]
    path = env.get("PATH", os.defpath)
    found = (
        _resolve_place(server, program, cwd, path, platform)
        if _names_a_place(program, platform)
        else shutil.which(program, path=path)
    )
    if found is None:
        raise _not_found(server, program, path)
    if platform == "win32" and found.lower().endswith((".cmd", ".bat")):
        return Launch((found, *argv[1:]), env, cwd, _cmd_line(server, found, argv[1:], env))
    command, container = with_own_container((found, *argv[1:]))
    return Launch(command, env, cwd, container=container)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # it may be there, in a folder that we may not look into
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # as above
        return False


def _names_a_place(program: str, platform: str) -> bool:
    return "/" in program or (platform == "win32" and ("\\" in program or ":" in program))


def _resolve_place(server: str, program: str, cwd: str | None, path: str, platform: str) -> str:
    """A program given by its place, relative to the server's folder."""
    place = Path(cwd or Path.cwd(), os.path.expanduser(program))  # noqa: PTH111 - Path's own fails for a user unknown
    if platform == "win32" and not _exists(place):
        found = shutil.which(str(place), path=path)
        if found is not None:
            return found
    if not _exists(place):
        raise _failure(server, f"command not found: {place}", "Correct 'command' in the configuration.")
    if _is_folder(place):
        raise _failure(server, f"its command {place} is a folder, not a program", "Correct 'command'.")
    if platform != "win32" and not os.access(place, os.X_OK):
        raise _failure(
            server,
            f"its command {place} is not executable",
            f"Make it executable: chmod +x {place}, or name its interpreter.",
        )
    return str(place)


def _not_found(server: str, program: str, path: str) -> ServerFailed:
    name = program.lower().removesuffix(".exe").removesuffix(".cmd")
    how = _HOW_TO_INSTALL.get(name, "Install it, or give its full path as 'command'.")
    folders = os.pathsep.join(folder for folder in path.split(os.pathsep) if folder) or "an empty PATH"
    return _failure(server, f"command not found: {program}; searched PATH: {folders}", how)


def _failure(server: str, message: str, remedy: str) -> ServerFailed:
    return ServerFailed(message, phase="spawn", remedy=remedy, server=server)


def explain_spawn_error(server: str, launch: Launch, error: OSError | ValueError) -> ServerFailed:
    """What the refusal to start a program means.

    The program was found, so "no such file" can only be its interpreter, and "exec format error" that it is no program
    of this system.
    """
    program = launch.argv[0]
    if isinstance(error, ValueError):
        # Its text may hold what it is about.
        return _failure(
            server,
            f"{program} could not be started: an argument or a variable holds a character that no process can be given",
            "Look for zero bytes in 'command', 'args' and 'env', and for '=' in the names of variables.",
        )
    if launch.cwd is not None and error.filename == launch.cwd:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        return _failure(
            server,
            f"its working directory {launch.cwd} cannot be entered: {reason}",
            f"Look at its permissions: ls -ld {launch.cwd}",
        )
    if isinstance(error, FileNotFoundError):
        interpreter = _interpreter(program)
        if interpreter is not None and interpreter.endswith("\r"):
            return _failure(
                server,
                f"bad interpreter: the first line of {program} ends as on Windows, with a carriage return",
                f"Save it with the line ends of this system: sed -i 's/\\r$//' {program}",
            )
        if interpreter is not None:
            return _failure(
                server,
                f"bad interpreter: {program} asks for {interpreter}, which does not exist",
                "Install that interpreter, or name another one as 'command' with the script as its argument.",
            )
        return _failure(server, f"{program} could not be started: no such file", "Reinstall the program.")
    if isinstance(error, PermissionError):
        return _failure(server, f"{program} may not be executed", f"Look at its permissions: ls -l {program}")
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno == errno.ENOEXEC:
        return _failure(
            server,
            f"bad interpreter: {program} could not be started: {reason}",
            "If it is a script, name its interpreter in its first line (#!/usr/bin/env python3), or as 'command'.",
        )
    return _failure(
        server, f"{program} could not be started: {reason}", "Start it by hand to see what is wrong with it."
    )


def _interpreter(program: str) -> str | None:
    """The interpreter that a script's first line asks for."""
    try:
        with Path(program).open("rb") as file:
            first = file.readline(256)
        mode = Path(program).stat().st_mode
    except OSError:
        return None
    if not first.startswith(b"#!") or not stat.S_ISREG(mode):
        return None
    words = first[2:].decode("utf-8", "replace").strip(" \t\n").replace("\t", " ").split(" ")
    return words[0] or None


_CMD_META: Final = str.maketrans({character: f"^{character}" for character in '()[]%!^"`<>&|;, *?'})


def _cmd_line(server: str, program: str, arguments: Sequence[str], env: Mapping[str, str]) -> str:
    """The command line that makes cmd.exe start a batch file with its arguments unchanged.

    Three read it, one after the other: cmd.exe; cmd.exe again, when the batch file hands its arguments on with ``%*``;
    and the program at its end. An argument is quoted for the program. For cmd.exe each special character is guarded by
    ``^``, the quotes too, so that it sees no quotes of its own. When it reads for the second time the quotes guard what
    is in them, unless there is a quote among it: then that reading needs its own guards.
    """
    if any("\n" in argument or "\r" in argument for argument in arguments):
        raise _failure(
            server,
            f"an argument has a line break, which {program} cannot be given",
            "Put the text into a file, or name the program behind the batch file as 'command'.",
        )
    words = [program.translate(_CMD_META)]
    for argument in arguments:
        quoted = _quoted(argument).translate(_CMD_META)
        words.append(quoted.translate(_CMD_META) if '"' in argument else quoted)
    shell = next((value for name, value in env.items() if name.upper() == "COMSPEC"), "cmd.exe")
    return f'{_quoted(shell)} /d /s /c "{" ".join(words)}"'


def _quoted(argument: str) -> str:
    """An argument in quotes as programs on Windows read it: backslashes count only before a quote."""
    guarded = re.sub(r'(\\*)"', r'\1\1\\"', argument)
    return '"' + re.sub(r"(\\+)\Z", r"\1\1", guarded) + '"'
