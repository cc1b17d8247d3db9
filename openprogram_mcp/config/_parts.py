"""The parts of a server's configuration that are objects themselves: signing in, reconnecting, health, source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from attrs import field, frozen

from ._kinds import Seconds, Secret, Text, Url, whole

__all__ = [
    "AUTH_KINDS",
    "Auth",
    "BearerAuth",
    "ClientCredentialsAuth",
    "EnterpriseAuth",
    "Health",
    "NoAuth",
    "OAuthAuth",
    "Reconnect",
    "Source",
    "WorkloadAuth",
]

_Port: TypeAlias = Annotated[int, whole(0, 65535)]


def _unknown() -> Any:
    """The field that keeps what this version of the program does not know."""
    return field(factory=dict, repr=False, kw_only=True)


@frozen
class NoAuth:
    """No signing in, not even when the server asks for it."""

    kind: ClassVar[str] = "none"
    unknown: Mapping[str, Any] = _unknown()


@frozen
class BearerAuth:
    """A token that is sent as it is, in ``Authorization: Bearer``."""

    kind: ClassVar[str] = "bearer"
    token: Secret = field(repr=False)
    unknown: Mapping[str, Any] = _unknown()


@frozen(kw_only=True)
class OAuthAuth:
    """OAuth with a browser. Without ``client_id`` the client registers itself, or shows ``client_metadata_url``.

    ``redirect_port`` is the local port the browser comes back to; 0 or ``None`` takes a free one.
    """

    kind: ClassVar[str] = "oauth"
    client_name: Text | None = None
    client_id: Text | None = None
    client_secret: Secret | None = field(default=None, repr=False)
    scope: Text | None = None
    redirect_port: _Port | None = None
    client_metadata_url: Url | None = None
    unknown: Mapping[str, Any] = _unknown()


@frozen(kw_only=True)
class ClientCredentialsAuth:
    """OAuth without a human: a client secret, or a private key that signs an assertion with ``signing_algorithm``."""

    kind: ClassVar[str] = "client_credentials"
    client_id: Text
    client_secret: Secret | None = field(default=None, repr=False)
    private_key_file: Text | None = None
    signing_algorithm: Text | None = None
    scope: Text | None = None
    unknown: Mapping[str, Any] = _unknown()


@frozen(kw_only=True)
class EnterpriseAuth:
    """OAuth by an organisation's consent: an assertion (ID-JAG) of its identity provider is exchanged for a token.

    Another program keeps a fresh assertion in ``assertion_file``; it is shown to ``issuer`` and to nobody else.
    """

    kind: ClassVar[str] = "enterprise"
    client_id: Text
    client_secret: Secret = field(repr=False)
    issuer: Url
    assertion_file: Text
    scope: Text | None = None
    unknown: Mapping[str, Any] = _unknown()


@frozen(kw_only=True)
class WorkloadAuth:
    """OAuth by what the platform says of us: an assertion (JWT) about this workload is exchanged for a token.

    The platform keeps a fresh assertion in ``assertion_file``; it is shown to ``issuer`` and to nobody else.
    """

    kind: ClassVar[str] = "workload"
    client_id: Text
    issuer: Url
    assertion_file: Text
    scope: Text | None = None
    unknown: Mapping[str, Any] = _unknown()


Auth: TypeAlias = NoAuth | BearerAuth | OAuthAuth | ClientCredentialsAuth | EnterpriseAuth | WorkloadAuth
"""How to sign in to a server; which one, is told by ``kind``."""

AUTH_KINDS: Final[Mapping[str, type[Auth]]] = {
    form.kind: form for form in (NoAuth, BearerAuth, OAuthAuth, ClientCredentialsAuth, EnterpriseAuth, WorkloadAuth)
}


@frozen(kw_only=True)
class Reconnect:
    """How to try again after a lost connection: waits in seconds, growing from the first to the longest.

    ``max_attempts`` of ``None`` never gives up; a connection that has lasted ``stable_seconds`` starts the count anew.
    """

    initial_seconds: Seconds = 1.0
    max_seconds: Seconds = 60.0
    max_attempts: Annotated[int, whole(1)] | None = None
    stable_seconds: Seconds = 30.0
    unknown: Mapping[str, Any] = _unknown()


@frozen(kw_only=True)
class Health:
    """Ask the server now and then, every ``interval_seconds``, whether it still answers."""

    interval_seconds: Seconds
    unknown: Mapping[str, Any] = _unknown()


@frozen(kw_only=True)
class Source:
    """Where the catalog took an entry from, and what it was like then."""

    catalog_url: Text
    entry_hash: Text
    unknown: Mapping[str, Any] = _unknown()
