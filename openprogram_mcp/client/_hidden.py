"""What is hidden of one server: its secrets from people, its credentials from models too.

A project's name in ``env`` is kept out of logs and left in what a tool answers, where a model needs it for its next
call; a token is kept out of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field

from ..config import MCPServerConfig
from ..masking import Masker

__all__ = ["Hidden"]

_BINARY: Final = frozenset({"data", "blob"})


@define(eq=False)
class Hidden:
    """The secrets of every configuration that a server has had: what was one may still be in what it will say."""

    masker: Masker = field(factory=lambda: Masker(()), init=False)
    _for_models: Masker = field(factory=lambda: Masker(()), init=False)
    _secrets: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    _credentials: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def hide(self, config: MCPServerConfig) -> None:
        """Hide what is secret in this configuration too."""
        secrets, credentials = config.secret_values(), config.credentials()
        if not self._secrets.issuperset(secrets) or not self._credentials.issuperset(credentials):
            self._secrets, self._credentials = self._secrets.union(secrets), self._credentials.union(credentials)
            self.masker, self._for_models = Masker(self._secrets), Masker(self._credentials)

    def hide_tokens(self, tokens: Iterable[str]) -> None:
        """Hide what came of a sign-in, from everybody."""
        tokens = frozenset(tokens)
        if not self._credentials.issuperset(tokens):
            self._secrets, self._credentials = self._secrets.union(tokens), self._credentials.union(tokens)
            self.masker, self._for_models = Masker(self._secrets), Masker(self._credentials)

    def mask(self, text: str) -> str:
        """A text without secrets, for people."""
        return self.masker.mask(text)

    def conceal(self, value: Any) -> Any:
        """What a server answered, as JSON, without credentials. Pictures and other files stay as they are."""
        return self._for_models.mask_value(value, binary=_BINARY)
