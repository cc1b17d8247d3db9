"""Where the files of this program are.

Owns the names of the state directory and of the files in it. Looks everything up at every call, so that an environment
variable set later, or a directory chosen for one manager, holds at once. Creates nothing, but for
:func:`ensure_state_dir`; reads nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

__all__ = [
    "PROFILE_VARIABLE",
    "STATE_DIR_VARIABLE",
    "config_path",
    "ensure_state_dir",
    "get_state_dir",
    "instances_dir",
    "tokens_dir",
    "use_state_dir",
    "worker_path",
]

STATE_DIR_VARIABLE: Final = "OPENPROGRAM_MCP_STATE_DIR"
"""The environment variable that names the state directory itself."""

PROFILE_VARIABLE: Final = "OPENPROGRAM_PROFILE"
"""The environment variable that picks one of several state directories by a name."""

_chosen: ContextVar[Path | None] = ContextVar("openprogram_mcp_state_dir", default=None)


def get_state_dir() -> Path:
    """The directory that holds the configuration, tokens and the worker's address. It need not exist.

    In this order: what :func:`use_state_dir` chose; ``OPENPROGRAM_MCP_STATE_DIR``; the profile that
    ``OPENPROGRAM_PROFILE`` names, under ``profiles``; the user's own ``~/.openprogram`` (on Windows
    ``%APPDATA%\\OpenProgram``).

    Returns:
        An absolute path.

    Raises:
        ValueError: The profile's name is not the name of a directory.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if named := os.environ.get(STATE_DIR_VARIABLE):
        return Path(named).expanduser().absolute()
    root = _user_dir()
    if profile := os.environ.get(PROFILE_VARIABLE):
        if profile in {".", ".."} or not profile.isprintable() or any(mark in profile for mark in "/\\:"):
            raise ValueError(f"{PROFILE_VARIABLE}: expected a plain name, got {profile!r}")
        return root / "profiles" / profile
    return root


def _user_dir() -> Path:
    if os.name == "nt" and (roaming := os.environ.get("APPDATA")):
        return Path(roaming) / "OpenProgram"
    return Path.home() / ".openprogram"


@contextmanager
def use_state_dir(path: str | os.PathLike[str]) -> Generator[Path]:
    """Make ``path`` the state directory for the time of a ``with`` block, in this task and in those it starts."""
    chosen = Path(path).expanduser().absolute()
    token = _chosen.set(chosen)
    try:
        yield chosen
    finally:
        _chosen.reset(token)


def ensure_state_dir() -> Path:
    """Make the state directory, with 0700 for what is made; one of ours that others can enter is narrowed.

    Raises:
        OSError: It cannot be made.
    """
    path = get_state_dir()
    for missing in reversed([part for part in (path, *path.parents) if not part.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix":
        found = path.stat()
        # A directory that is shared on purpose carries the sticky bit (/tmp); it is not ours to close.
        if found.st_uid == os.geteuid() and found.st_mode & 0o077 and not found.st_mode & stat.S_ISVTX:
            path.chmod(0o700)
    return path


def config_path() -> Path:
    """The configuration: ``mcp_servers.json``."""
    return get_state_dir() / "mcp_servers.json"


def worker_path() -> Path:
    """Where a running worker says how to reach it: ``mcp_worker.json``."""
    return get_state_dir() / "mcp_worker.json"


def tokens_dir() -> Path:
    """The directory of sign-in state, one file a server."""
    return get_state_dir() / "mcp_tokens"


def instances_dir() -> Path:
    """The directory of the locks that running instances hold, so that the processes of dead ones are found."""
    return get_state_dir() / "instances"
