"""A text in somebody's editor, in a file that is theirs alone; and what of it was changed.

Owns the file, the editor's process and the comparison of what was shown with what came back. Knows nothing of servers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define, field

from ..errors import OpenProgramMCPError, UsageError

__all__ = ["Draft", "applied", "changes", "editor_command"]

_USUAL = ("sensible-editor", "editor", "nano", "vim", "vi", "notepad")


def editor_command() -> list[str]:
    """The editor: ``$VISUAL``, or else ``$EDITOR``, which may have arguments; or else one that is usually there.

    Raises:
        UsageError: There is none.
    """
    for variable in ("VISUAL", "EDITOR"):
        if given := os.environ.get(variable, "").strip():
            try:
                return shlex.split(given)
            except ValueError as error:
                raise UsageError(f"${variable} cannot be understood: {error}", remedy="Correct its quotes") from None
    found = next((path for path in map(shutil.which, _USUAL) if path), None)
    if found is None:
        raise UsageError("No editor was found", remedy="Set EDITOR, for example: EDITOR=nano")
    return [found]


@define
class Draft:
    """A text in a private file, for as long as the block lasts; longer if it is to be kept.

    Args:
        name: What the file is called; its ending tells the editor what it is.
    """

    _name: str
    _kept: bool = field(default=False, init=False)
    path: Path = field(default=Path(), init=False)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make its folder, 0700, and remove it at the end."""
        folder = Path(tempfile.mkdtemp(prefix="openprogram-mcp-"))
        try:
            self.path = folder / self._name
            yield
        finally:
            if not self._kept:
                shutil.rmtree(folder, ignore_errors=True)

    def keep(self) -> None:
        """Leave the file where it is: there is work in it."""
        self._kept = True

    def edit(self, text: str) -> str:
        """Let a text be edited, and give what has become of it.

        Raises:
            OpenProgramMCPError: The editor could not be started, or says that it failed.
        """
        # 0600 from the first byte: what is typed into it may be a secret.
        self.path.unlink(missing_ok=True)
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, which Path.open does not take
            file.write(text)
        self._run([*editor_command(), str(self.path)])
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise OpenProgramMCPError(
                f"What the editor left cannot be read ({type(error).__name__})",
                remedy="Save it as UTF-8, and try again",
            ) from error

    def _run(self, argv: list[str]) -> None:
        try:
            process = subprocess.Popen(argv)
        except OSError as error:
            raise OpenProgramMCPError(
                f"The editor {argv[0]} cannot be started: {error.strerror}", remedy="Set EDITOR to one that is there"
            ) from error
        # Ctrl-C on its terminal is the editor's alone; it inherits nothing of this, since it is started already.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = process.wait()
        finally:
            signal.signal(signal.SIGINT, before)
        if code:
            raise OpenProgramMCPError(
                f"The editor {argv[0]} ended with {code}; nothing was changed", remedy="Save and end it as usual"
            )


def changes(shown: Mapping[str, Any], edited: Mapping[str, Any]) -> dict[str, Any]:
    """What an edit changes, as a merge patch (RFC 7396): what was left is not in it, what is gone is ``null``.

    An object whose ``kind`` is another one is another object, and stands in it whole.
    """
    patch: dict[str, Any] = {key: None for key in shown if key not in edited}
    for key, value in edited.items():
        old = shown.get(key)
        if key in shown and _same(old, value):
            continue
        if isinstance(old, dict) and isinstance(value, dict) and old.get("kind") == value.get("kind"):
            value = changes(old, value)
        patch[key] = value
    return patch


def applied(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A value with what :func:`changes` found in another one."""
    result = dict(value)
    for key, change in patch.items():
        old = result.get(key)
        if change is None:
            result.pop(key, None)
        elif isinstance(change, dict) and isinstance(old, dict) and change.get("kind") in (None, old.get("kind")):
            result[key] = applied(old, change)
        else:
            result[key] = change
    return result


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where ``true`` is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
