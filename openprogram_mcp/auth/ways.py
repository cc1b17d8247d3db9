"""How a configuration says that a server is signed in to. Reads it, and asks nobody.

Imports nothing of the SDK.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import trio
from attrs import frozen

from ..config import BearerAuth, ClientCredentialsAuth, EnterpriseAuth, MCPServerConfig, NoAuth, WorkloadAuth
from ..errors import ServerFailed
from ..status import AuthStatus
from .tokens import Binding, Credentials

__all__ = ["Way", "auth_status", "way_of"]

_NAME: Final = "OpenProgram MCP"


@frozen(kw_only=True)
class Way:
    """How tokens for a server are had.

    Args:
        binding: What they belong to.
        grant: By a human's consent (``code``), or by ourselves (``credentials``).
        client_name: What a human reads.
        client_secret: The client's, where it has one.
        document: The address of our metadata document.
        key_file: The key that signs for us, instead of a secret.
        algorithm: How it signs.
        issuer: The one authorization server that is asked, whatever the server says.
        assertion_file: Holds the organisation's consent, or what the platform says of us, for that authorization
            server.
    """

    binding: Binding
    grant: Literal["code", "credentials"] = "code"
    client_name: str = _NAME
    client_secret: str | None = None
    document: str | None = None
    key_file: str | None = None
    algorithm: str = "RS256"
    issuer: str | None = None
    assertion_file: str | None = None

    def assertion(self) -> Any:
        """What signs for us; ``None`` where a secret says who we are."""
        if self.key_file is None:
            return None
        path, client_id, algorithm = Path(self.key_file), self.binding.client_id or "", self.algorithm

        async def signed(audience: str) -> str:
            return await trio.to_thread.run_sync(_signed, path, client_id, algorithm, audience)

        return signed

    async def consent(self) -> str:
        """The organisation's consent, as it is in its file now.

        Raises:
            ServerFailed: It cannot be read.
        """
        path = trio.Path(self.assertion_file or "")
        try:
            return (await path.read_text(encoding="ascii")).strip()
        except (OSError, ValueError) as error:
            raise ServerFailed(
                f"its assertion_file cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}",
                phase="config",
                remedy="Whatever fetches the assertion, or issues it to this workload, must write it there.",
            ) from None


def way_of(config: MCPServerConfig) -> Way | None:
    """How tokens for a server are had; ``None`` where its requests carry none that we get.

    That is so with a local server, with ``auth`` of kind ``none`` or ``bearer``, and where the configuration has an
    ``Authorization`` header, or a user in the URL: who is given credentials does not look for others.
    """
    url, auth = config.url, config.auth
    if url is None or config.resolved_type == "local" or isinstance(auth, (NoAuth, BearerAuth)):
        return None
    if any(name.lower() == "authorization" for name in config.headers):
        return None
    if auth is None:
        host = url.partition("://")[2].partition("/")[0]
        return None if "@" in host else Way(binding=Binding.to(url))
    if isinstance(auth, ClientCredentialsAuth):
        return Way(
            binding=Binding.to(url, auth.client_id, auth.scope),
            grant="credentials",
            client_secret=auth.client_secret,
            key_file=auth.private_key_file,
            algorithm=auth.signing_algorithm or "RS256",
        )
    if isinstance(auth, EnterpriseAuth | WorkloadAuth):
        return Way(
            binding=Binding.to(url, auth.client_id, auth.scope),
            grant="credentials",
            client_secret=auth.client_secret if isinstance(auth, EnterpriseAuth) else None,
            issuer=auth.issuer,
            assertion_file=auth.assertion_file,
        )
    return Way(
        binding=Binding.to(url, auth.client_id, auth.scope),
        client_name=auth.client_name or _NAME,
        client_secret=auth.client_secret,
        document=None if auth.client_id else auth.client_metadata_url,
    )


def auth_status(config: MCPServerConfig, kept: Credentials | None) -> AuthStatus:
    """How a server is signed in to, by its configuration and what is kept."""
    kind = config.auth.kind if config.auth is not None else "none"
    way = way_of(config)
    if way is None:
        return AuthStatus(kind=kind)
    if kept is None or kept.binding != way.binding:
        # A server without 'auth' may want nobody to sign in: that is known once it has been asked.
        return AuthStatus(kind=kind) if config.auth is None else AuthStatus(kind=kind, state="not_logged_in")
    return AuthStatus(kind="oauth" if config.auth is None else kind, state=kept.state)


def _signed(path: Path, client_id: str, algorithm: str, audience: str) -> str:
    """A client assertion (RFC 7523). Blocks."""
    import time
    from uuid import uuid4

    import jwt

    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": now,
        "exp": now + 300,
        "jti": uuid4().hex,
    }
    try:
        return jwt.encode(claims, path.read_bytes(), algorithm=algorithm)
    except OSError as error:
        raise ServerFailed(
            f"its private_key_file cannot be read: {error.strerror or type(error).__name__}",
            phase="config",
            remedy="Correct 'private_key_file' in 'auth', or the permissions of the file.",
        ) from error
    except (ValueError, TypeError, NotImplementedError, jwt.PyJWTError):
        raise ServerFailed(
            f"its private_key_file does not hold a key for {algorithm}",
            phase="config",
            remedy="It must be a private key in PEM form without a password, fit for 'signing_algorithm'.",
        ) from None
