"""The client that we are to an authorization server: given, a metadata document, or registered for the purpose.

In this order, as the specification has it: the client id that the configuration gives; the document at
``client_metadata_url``, where the authorization server reads such documents; dynamic registration.

MCP specification: basic/authorization, client registration approaches; RFC 7591.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from attrs import frozen
from mcp.client.auth.utils import is_valid_client_metadata_url
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl, ValidationError

from ._asking import Answer, Asker, SignInFailed, host_of, refused
from ._discovery import Authority
from .tokens import Registration

__all__ = ["Client", "registered"]

_METHODS: Final = ("none", "client_secret_basic", "client_secret_post")


@frozen(kw_only=True)
class Client:
    """Who the configuration says that we are."""

    client_name: str = "OpenProgram MCP"
    client_id: str | None = None
    client_secret: str | None = None
    metadata_url: str | None = None

    def fixed(self, authority: Authority, redirect_uri: str | None) -> Registration | None:
        """The client that needs no registering, if there is one."""
        offered = (authority.metadata and authority.metadata.token_endpoint_auth_methods_supported) or ()
        if self.client_id is not None:
            method = "none"
            if self.client_secret:
                # RFC 8414: what is not said is client_secret_basic.
                method = next((one for one in offered if one in _METHODS[1:]), "client_secret_basic")
            return Registration(
                client_id=self.client_id,
                client_secret=self.client_secret,
                method=method,
                redirect_uri=redirect_uri,
                way="given",
            )
        if self.metadata_url is None or authority.metadata is None:
            return None
        reads = authority.metadata.client_id_metadata_document_supported
        if reads and is_valid_client_metadata_url(self.metadata_url):
            return Registration(client_id=self.metadata_url, redirect_uri=redirect_uri, way="document")
        return None

    def can_be_had(self, authority: Authority) -> bool:
        """Whether there is a client, or one can be registered, as far as can be told without trying."""
        return self.fixed(authority, None) is not None or authority.registration_endpoint is not None


async def registered(
    asker: Asker, authority: Authority, client: Client, *, redirect_uri: str, scope: str | None
) -> Registration:
    """The client that we are to ``authority``, registered if need be.

    Args:
        asker: Asks.
        authority: The authorization server.
        client: What the configuration says.
        redirect_uri: Where the browser is sent back to.
        scope: What will be asked for.

    Raises:
        SignInFailed: With ``registration``, when a client id has to be given.
    """
    fixed = client.fixed(authority, redirect_uri)
    if fixed is not None:
        return fixed
    endpoint = authority.registration_endpoint
    if endpoint is None:
        raise SignInFailed(
            f"{host_of(authority.issuer)} registers no clients",
            remedy=how_to_give_a_client(authority, redirect_uri),
            registration=True,
        )
    answer: Answer | None = None
    for document in _documents(authority, client, redirect_uri, scope):
        answer = await asker.post(endpoint, document=document)
        if answer.ok:
            return _taken(answer, endpoint, redirect_uri)
        if answer.status != 400:
            break
    if answer is None:
        raise AssertionError("there is always a document to send")
    failure = refused(
        f"{host_of(endpoint)} did not register us as a client",
        answer,
        remedy=how_to_give_a_client(authority, redirect_uri),
        registration=True,
    )
    # A failing server says nothing about what it would have said.
    failure.registration = not failure.transient
    raise failure


def how_to_give_a_client(authority: Authority, redirect_uri: str) -> str:
    """What to do where no client can be registered."""
    return (
        f"Register a client at {host_of(authority.issuer)} by hand, with the redirect address {redirect_uri}, and give "
        'its id in \'auth\': {"kind": "oauth", "client_id": "…"} (and \'client_secret\', where it has one).'
    )


def _documents(authority: Authority, client: Client, redirect_uri: str, scope: str | None) -> Iterator[dict[str, Any]]:
    """What to register with; what comes later is for servers that refuse a part of it."""
    offered = (authority.metadata and authority.metadata.token_endpoint_auth_methods_supported) or ("none",)
    method = next((one for one in _METHODS if one in offered), "none")
    grants = (authority.metadata and authority.metadata.grant_types_supported) or ("refresh_token",)
    whole = OAuthClientMetadata(
        client_name=client.client_name,
        redirect_uris=[AnyUrl(redirect_uri)],
        token_endpoint_auth_method=method,  # type: ignore[arg-type]  # one of _METHODS, which are literals
        grant_types=["authorization_code", *(["refresh_token"] if "refresh_token" in grants else [])],
        response_types=["code"],
        scope=scope,
        application_type="native",
    ).model_dump(mode="json", exclude_none=True)
    yield whole
    yield {name: value for name, value in whole.items() if name != "token_endpoint_auth_method"}
    # Some know of no native applications, some refuse a scope that they would grant.
    yield {name: value for name, value in whole.items() if name not in ("application_type", "scope")}


def _taken(answer: Answer, endpoint: str, redirect_uri: str) -> Registration:
    said = answer.json()
    try:
        if said is None:
            raise ValueError
        got = OAuthClientInformationFull.model_validate(said)
    except (ValidationError, ValueError):
        raise SignInFailed(
            f"{host_of(endpoint)} answered the registration with what is none",
            remedy="Tell whoever runs the authorization server.",
        ) from None  # pydantic quotes what it was given
    method = got.token_endpoint_auth_method or ("client_secret_basic" if got.client_secret else "none")
    if method not in _METHODS or (method != "none" and not got.client_secret):
        raise SignInFailed(
            f"{host_of(endpoint)} registered a client that we cannot be (token_endpoint_auth_method "
            f"{method[:40]!r}{'' if got.client_secret else ', no secret'})",
            remedy="Register a client by hand and give its 'client_id' in 'auth'.",
            registration=True,
        )
    # 0 is for ever; RFC 7591 section 3.2.1.
    expires = got.client_secret_expires_at if got.client_secret else None
    return Registration(
        client_id=got.client_id,
        client_secret=got.client_secret if method != "none" else None,
        secret_expires_at=float(expires) if expires else None,
        method=method,
        redirect_uri=redirect_uri,
        way="dynamic",
    )
