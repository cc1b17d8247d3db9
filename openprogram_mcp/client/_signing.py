"""What a server's life needs of signing in. Who does it is for its owner to say; nobody does without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from ..config import MCPServerConfig
from ..errors import AuthRequired

__all__ = ["NOBODY", "Signing"]


class Signing(Protocol):
    """Signs in to servers."""

    async def signer(self, config: MCPServerConfig) -> Any:
        """What signs the requests to a server, for an HTTP client; ``None`` where its configuration says it all.

        Args:
            config: Its configuration, expanded.
        """
        ...

    async def locked_out(self, config: MCPServerConfig, failure: AuthRequired, *, look: bool) -> AuthRequired:
        """A server does not let us in: what is known of that, and what to do.

        Args:
            config: Its configuration, expanded.
            failure: What it said.
            look: Find out what a sign-in would need; this asks its authorization server.
        """
        ...

    def tokens(self, server: str) -> Iterable[str]:
        """The secrets that came of signing in to a server, to be hidden."""
        ...


class _Nobody:
    async def signer(self, config: MCPServerConfig) -> Any:
        del config

    async def locked_out(self, config: MCPServerConfig, failure: AuthRequired, *, look: bool) -> AuthRequired:
        del config, look
        return failure

    def tokens(self, server: str) -> Iterable[str]:
        del server
        return ()


NOBODY: Signing = _Nobody()
"""Signs in nowhere."""
