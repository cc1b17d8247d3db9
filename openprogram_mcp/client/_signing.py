"""What a server's life needs of signing in. Who does it is for its owner to say; nobody does without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from attrs import frozen

from ..config import MCPServerConfig
from ..errors import AuthRequired
from ._hidden import Hidden

__all__ = ["NOBODY", "ServerSigning", "Signing"]


class Signing(Protocol):
    """Signs in to servers.

    A configuration that is only ``tried``, beside the one in force, changes nothing of what is kept for that.
    """

    async def signer(self, config: MCPServerConfig, *, tried: bool) -> Any:
        """What signs the requests to a server, for an HTTP client; ``None`` where its configuration says it all.

        Args:
            config: Its configuration, expanded.
            tried: It is only tried.
        """
        ...

    async def locked_out(
        self, config: MCPServerConfig, failure: AuthRequired, *, look: bool, tried: bool
    ) -> AuthRequired:
        """A server does not let us in: what is known of that, and what to do.

        Args:
            config: Its configuration, expanded.
            failure: What it said.
            look: Find out what a sign-in would need; this asks its authorization server.
            tried: The configuration is only tried.
        """
        ...

    def adopted(self, server: str) -> None:
        """What was tried for a server is in force from now on."""

    def tokens(self, server: str) -> Iterable[str]:
        """The secrets that came of signing in to a server, to be hidden."""
        ...


class _Nobody:
    async def signer(self, config: MCPServerConfig, *, tried: bool) -> Any:
        del config, tried

    async def locked_out(
        self, config: MCPServerConfig, failure: AuthRequired, *, look: bool, tried: bool
    ) -> AuthRequired:
        del config, look, tried
        return failure

    def adopted(self, server: str) -> None:
        del server

    def tokens(self, server: str) -> Iterable[str]:
        del server
        return ()


NOBODY: Signing = _Nobody()
"""Signs in nowhere."""


@frozen
class ServerSigning:
    """The same for one server: what comes of a sign-in is hidden from then on."""

    _signing: Signing
    _hidden: Hidden

    async def signer(self, config: MCPServerConfig, *, tried: bool) -> Any:
        """See :meth:`Signing.signer`."""
        signer = await self._signing.signer(config, tried=tried)
        self.hide(config.name)
        return signer

    async def locked_out(
        self, config: MCPServerConfig, failure: AuthRequired, *, look: bool, tried: bool
    ) -> AuthRequired:
        """See :meth:`Signing.locked_out`."""
        return await self._signing.locked_out(config, failure, look=look, tried=tried)

    def adopted(self, server: str) -> None:
        """See :meth:`Signing.adopted`."""
        self._signing.adopted(server)
        self.hide(server)

    def hide(self, server: str) -> None:
        """Hide what has come of a sign-in by now."""
        self._hidden.hide_tokens(self._signing.tokens(server))
