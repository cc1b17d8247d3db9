"""The system's keyring as the place of secrets, for those who have asked for it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final, Protocol

from ..errors import ConfigError, StorageError

__all__ = ["STORAGE_VARIABLE", "Vault", "chosen_vault"]

STORAGE_VARIABLE: Final = "OPENPROGRAM_MCP_TOKEN_STORAGE"
"""The environment variable that says where tokens are kept: ``file`` (the default) or ``keyring``."""

_SERVICE: Final = "openprogram-mcp"


class Vault(Protocol):
    """A place that keeps texts by name. All of it blocks."""

    def get(self, name: str) -> str | None:
        """What is kept by this name."""

    def put(self, name: str, secret: str) -> None:
        """Keep it."""

    def drop(self, name: str) -> None:
        """Forget it; what is not there is no error."""


def chosen_vault(kind: str | None = None) -> Vault | None:
    """The vault that the environment asks for; ``None`` for the file itself.

    Raises:
        ConfigError: It asks for what is not there.
    """
    kind = kind or os.environ.get(STORAGE_VARIABLE) or "file"
    if kind == "file":
        return None
    if kind != "keyring":
        raise ConfigError(f"{STORAGE_VARIABLE}: expected file or keyring, got {kind!r}", path=STORAGE_VARIABLE)
    return _Keyring()


class _Keyring:
    """The keyring of the system, over the ``keyring`` package."""

    def __init__(self) -> None:
        try:
            # Not every installation has it, nor every type checker its types.
            self._ring: Any = import_module("keyring")
            errors: Any = import_module("keyring.errors")
        except ImportError as error:
            raise ConfigError(
                f"{STORAGE_VARIABLE} asks for the keyring, and the package for it is not installed.",
                remedy="Install it: pip install 'openprogram-mcp[keyring]'.",
                path=STORAGE_VARIABLE,
            ) from error
        self._error: type[Exception] = errors.KeyringError
        self._absent: type[Exception] = errors.PasswordDeleteError

    def get(self, name: str) -> str | None:
        try:
            found = self._ring.get_password(_SERVICE, name)
        except self._error as error:
            raise _failed("read", error) from error
        return found if isinstance(found, str) else None

    def put(self, name: str, secret: str) -> None:
        try:
            self._ring.set_password(_SERVICE, name, secret)
        except self._error as error:
            raise _failed("written", error) from error

    def drop(self, name: str) -> None:
        try:
            self._ring.delete_password(_SERVICE, name)
        except self._absent:
            return
        except self._error as error:
            raise _failed("written", error) from error


def _failed(what: str, error: Exception) -> StorageError:
    return StorageError(
        f"the keyring cannot be {what} ({type(error).__name__}); nothing was changed.",
        remedy=f"Unlock it, or set {STORAGE_VARIABLE}=file.",
    )
