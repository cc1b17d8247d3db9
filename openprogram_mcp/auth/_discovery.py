"""Finding out whom to ask for tokens, and what they say of themselves, wherever deployed servers have put it.

The order of places is the SDK's, which is that of the specification. A page of HTML, or a document that does not fit,
is as if nothing were there; a server that fails is not: what it would have said may forbid what we would do instead.

MCP specification: basic/authorization; RFC 9728, RFC 8414, OpenID Connect Discovery.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from attrs import field, frozen
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import ValidationError

from ._asking import Asker, SignInFailed, host_of, one_line
from .tokens import Credentials, same_issuer

__all__ = ["Authority", "discover", "known_authority", "remembered"]

_BROKEN: Final = frozenset({408, 425, 429})


class Metadata(OAuthMetadata):
    """What an authorization server says of itself, with what the SDK does not read."""

    dpop_signing_alg_values_supported: list[str] | None = None


@frozen(kw_only=True)
class Authority:
    """An authorization server, as far as it is known.

    Args:
        server_url: The MCP server that it is for.
        issuer: Its name, as it writes it itself where it says anything.
        metadata: What it says of itself; ``None`` where it says nothing.
        resource: What the MCP server says of itself as a protected resource, or ``None``.
        key: What tokens are to be bound to, if they are.
    """

    server_url: str
    issuer: str
    metadata: Metadata | None = None
    resource: ProtectedResourceMetadata | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def authorization_endpoint(self) -> str:
        """Where the browser goes."""
        return str(self.metadata.authorization_endpoint) if self.metadata else f"{host_of(self.issuer)}/authorize"

    @property
    def token_endpoint(self) -> str:
        """Where tokens come from."""
        return str(self.metadata.token_endpoint) if self.metadata else f"{host_of(self.issuer)}/token"

    @property
    def registration_endpoint(self) -> str | None:
        """Where clients register, if they can. Who says nothing of itself may have it at the usual place."""
        if self.metadata is None:
            return f"{host_of(self.issuer)}/register"
        endpoint = self.metadata.registration_endpoint
        return None if endpoint is None else str(endpoint)

    @property
    def resource_name(self) -> str | None:
        """What tokens are asked for; ``None`` for a server that is older than the parameter (RFC 8707)."""
        if self.resource is None:
            return None
        own = resource_url_from_server_url(self.server_url)
        named = str(self.resource.resource)
        return named if check_resource_allowed(requested_resource=own, configured_resource=named) else own

    def binds(self, algorithm: str) -> bool:
        """Whether it binds tokens to a key that signs so (DPoP)."""
        return algorithm in ((self.metadata and self.metadata.dpop_signing_alg_values_supported) or ())

    @property
    def takes_bound(self) -> bool:
        """Whether the MCP server says in its metadata that it takes bound tokens."""
        one = self.resource
        return one is not None and bool(one.dpop_bound_access_tokens_required or one.dpop_signing_alg_values_supported)

    @property
    def scopes_offered(self) -> tuple[str, ...]:
        """The scopes that the authorization server has."""
        return tuple((self.metadata and self.metadata.scopes_supported) or ())

    def documents(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """What it says of itself, and what the server says, as JSON that can be kept."""
        return (
            None if self.metadata is None else self.metadata.model_dump(mode="json", exclude_none=True),
            None if self.resource is None else self.resource.model_dump(mode="json", exclude_none=True),
        )


def remembered(credentials: Credentials) -> Authority | None:
    """The authority that kept credentials belong to; ``None`` when it has to be found anew."""
    if credentials.issuer is None:
        return None
    try:
        return Authority(
            server_url=credentials.binding.server_url,
            issuer=credentials.issuer,
            metadata=None if credentials.metadata is None else Metadata.model_validate(dict(credentials.metadata)),
            resource=None
            if credentials.resource is None
            else ProtectedResourceMetadata.model_validate(dict(credentials.resource)),
        )
    except ValidationError:
        return None


async def discover(
    asker: Asker, server_url: str, *, resource_metadata: str | None = None, known_issuer: str | None = None
) -> Authority:
    """Find the authorization server of an MCP server.

    Args:
        asker: Asks.
        server_url: The MCP server's address.
        resource_metadata: Where it said that its metadata is.
        known_issuer: The one of before, which is kept when there are several.

    Raises:
        SignInFailed: What was found is not to be trusted, or somebody did not answer.
    """
    resource = await _resource(asker, server_url, resource_metadata)
    if resource is None:
        # The first revision had no such metadata: the server's own origin is the authority.
        issuer = f"{urlsplit(server_url).scheme}://{urlsplit(server_url).netloc.rpartition('@')[2]}"
        places = [
            *build_oauth_authorization_server_metadata_discovery_urls(None, issuer),
            f"{issuer}/.well-known/openid-configuration",
        ]
    else:
        listed = [str(one) for one in resource.authorization_servers]
        issuer = next((one for one in listed if known_issuer is not None and same_issuer(one, known_issuer)), listed[0])
        places = build_oauth_authorization_server_metadata_discovery_urls(issuer, server_url)
    metadata, named = await _metadata(asker, places, issuer)
    return Authority(server_url=server_url, issuer=named, metadata=metadata, resource=resource)


async def known_authority(asker: Asker, server_url: str, issuer: str) -> Authority:
    """The authority of this issuer; the MCP server is not asked, and its token endpoint is at the issuer's own origin.

    Raises:
        SignInFailed: It is not there, or sends us elsewhere.
    """
    places = build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer)
    metadata, named = await _metadata(asker, places, issuer)
    if metadata is None or host_of(str(metadata.token_endpoint)) != host_of(named):
        raise SignInFailed(
            f"the authorization server {one_line(issuer)} "
            + ("has no metadata" if metadata is None else "has its token endpoint somewhere else"),
            remedy="Correct 'issuer' in 'auth', or tell whoever runs it.",
        )
    return Authority(server_url=server_url, issuer=named, metadata=metadata)


async def _resource(asker: Asker, server_url: str, named: str | None) -> ProtectedResourceMetadata | None:
    if named is not None and urlsplit(named).scheme not in ("http", "https"):
        named = None
    broken: int | None = None
    own = resource_url_from_server_url(server_url)
    for place in build_protected_resource_metadata_discovery_urls(named, server_url):
        answer = await asker.get(place)
        if answer.status >= 500 or answer.status in _BROKEN:
            broken = answer.status
        if not answer.ok:
            continue
        try:
            found = ProtectedResourceMetadata.model_validate_json(answer.body)
        except ValidationError:
            continue
        if not check_resource_allowed(requested_resource=own, configured_resource=str(found.resource)):
            raise SignInFailed(
                f"its metadata is that of another resource: {one_line(str(found.resource))}, not {host_of(server_url)}",
                remedy="Tokens are not asked for on behalf of somebody else; correct 'url', or the server's metadata.",
            )
        return found
    if broken is not None:
        raise SignInFailed(
            f"{host_of(server_url)} failed when asked for its metadata (HTTP {broken})",
            remedy="See the server's own log.",
            transient=True,
        )
    return None


async def _metadata(asker: Asker, places: list[str], issuer: str) -> tuple[Metadata | None, str]:
    """What the authorization server says of itself, and its name as it writes it."""
    broken: int | None = None
    for place in places:
        answer = await asker.get(place)
        if answer.status >= 500 or answer.status in _BROKEN:
            broken = answer.status
        said = answer.json() if answer.ok else None
        if said is None or "token_endpoint" not in said:
            continue
        named = said.get("issuer")
        if not isinstance(named, str) or not same_issuer(named, issuer):
            raise SignInFailed(
                f"the authorization server {one_line(issuer)} says that it is "
                f"{one_line(named) if isinstance(named, str) else 'nobody'}",
                remedy="Its metadata has to name the issuer that the server names; tell whoever runs it.",
            )
        # Who gives tokens without a human has no page for one.
        said.setdefault("authorization_endpoint", f"{host_of(issuer)}/authorize")
        try:
            return Metadata.model_validate(said), named
        except ValidationError:
            continue
    if broken is not None:
        raise SignInFailed(
            f"the authorization server {host_of(issuer)} failed when asked for its metadata (HTTP {broken})",
            remedy="See its own log.",
            transient=True,
        )
    return None, issuer
