"""Requests to the token endpoint, and their answers.

MCP specification: basic/authorization; RFC 6749 sections 4.1, 4.4, 5 and 6; RFC 7523; RFC 7636; RFC 8707; RFC 9449.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from attrs import evolve
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthToken
from pydantic import ValidationError

from ._asking import Answer, Asker, SignInFailed, host_of, refused
from ._discovery import Authority
from ._dpop import nonce_in, proof
from .tokens import Registration, Tokens

__all__ = ["ask_without_human", "exchange", "redeem", "renew", "scope_to_ask", "united"]

_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

Assertion = Callable[[str], Awaitable[str]]
"""Gives a signed assertion for an audience (the issuer)."""


async def redeem(
    asker: Asker,
    authority: Authority,
    client: Registration,
    *,
    code: str,
    verifier: str,
    redirect_uri: str,
    scope: str | None,
) -> Tokens:
    """Tokens for an authorization code.

    Raises:
        SignInFailed: There are none.
    """
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
    }
    tokens = await _tokens(asker, authority, client, form, "did not take the code", (code, verifier))
    return _with_scope(tokens, scope)


async def renew(asker: Asker, authority: Authority, client: Registration, tokens: Tokens) -> Tokens:
    """Tokens for a refresh token; where no new refresh token comes, the old one stays.

    Raises:
        SignInFailed: There are none; ``error`` says whether the refresh token is done with.
    """
    refresh_token = tokens.refresh_token or ""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    secrets = (refresh_token, tokens.access_token)
    new = await _tokens(asker, authority, client, form, "did not renew the sign-in", secrets)
    return evolve(
        new,
        refresh_token=new.refresh_token or refresh_token,
        scope=new.scope if new.scope is not None else tokens.scope,
    )


async def ask_without_human(
    asker: Asker, authority: Authority, client: Registration, *, scope: str | None, assertion: Assertion | None = None
) -> Tokens:
    """Tokens for the client itself (``client_credentials``).

    Raises:
        SignInFailed: There are none.
    """
    form = {"grant_type": "client_credentials"}
    if scope:
        form["scope"] = scope
    if assertion is not None:
        form["client_assertion_type"] = _ASSERTION
        form["client_assertion"] = await assertion(authority.issuer)
    tokens = await _tokens(
        asker,
        authority,
        client,
        form,
        "gave no token",
        (form.get("client_assertion", ""),),
        signed=assertion is not None,
    )
    return _with_scope(tokens, scope)


async def _tokens(
    asker: Asker,
    authority: Authority,
    client: Registration,
    form: dict[str, str],
    failed: str,
    secrets: tuple[str, ...],
    *,
    signed: bool = False,
) -> Tokens:
    headers: dict[str, str] = {}
    secret = client.client_secret
    if not signed:
        # Beside a header that says the same: some look for it here alone.
        form["client_id"] = client.client_id
        if client.method == "client_secret_basic" and secret:
            pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif client.method == "client_secret_post" and secret:
            form["client_secret"] = secret
    if authority.resource_name is not None:
        form["resource"] = authority.resource_name
    answer = await _asked(asker, authority, form, headers)
    where = host_of(authority.token_endpoint)
    said = answer.json()
    if not answer.ok or said is None or "error" in said:
        # What is no answer of OAuth at all (a page of a gateway) says nothing about the token.
        failure = refused(f"{where} {failed}", answer, secrets=(*secrets, secret or ""))
        failure.transient = failure.transient or (answer.ok and said is None)
        raise failure
    return _read(said, where, authority.key)


async def _asked(asker: Asker, authority: Authority, form: dict[str, str], headers: dict[str, str]) -> Answer:
    """The answer of the token endpoint; with a proof, and with one more for the nonce that it asks for."""
    place, key = authority.token_endpoint, authority.key
    if key is None:
        return await asker.post(place, form=form, headers=headers)
    answer = await asker.post(place, form=form, headers={**headers, "dpop": proof(key, "POST", place)})
    nonce = nonce_in(answer.headers)
    if answer.ok or nonce is None or (answer.json() or {}).get("error") != "use_dpop_nonce":
        return answer
    return await asker.post(place, form=form, headers={**headers, "dpop": proof(key, "POST", place, nonce=nonce)})


def _read(said: dict[str, Any], where: str, key: str | None) -> Tokens:
    kind = said.get("token_type")
    bound = key is not None and isinstance(kind, str) and kind.lower() == "dpop"
    try:
        # The SDK knows of one kind only.
        got = OAuthToken.model_validate({**said, "token_type": "Bearer"} if bound else said)
    except ValidationError:
        raise SignInFailed(
            f"{where} answered with what is no bearer token",
            remedy="Tell whoever runs the authorization server.",
        ) from None  # pydantic quotes what it was given
    # Some say 0 for what does not expire.
    lives = got.expires_in if got.expires_in and got.expires_in > 0 else None
    return Tokens(
        access_token=got.access_token,
        refresh_token=got.refresh_token or None,
        expires_at=None if lives is None else time.time() + lives,
        lifetime=None if lives is None else float(lives),
        scope=got.scope,
        dpop_key=key if bound else None,
    )


def _with_scope(tokens: Tokens, scope: str | None) -> Tokens:
    """RFC 6749 section 5.1: a scope that is not named is the one that was asked for."""
    return tokens if tokens.scope is not None else evolve(tokens, scope=scope)


async def exchange(
    asker: Asker, authority: Authority, client: Registration, *, assertion: str, resource: str, scope: str | None
) -> Tokens:
    """Tokens for an organisation's consent (RFC 7523, with an ID-JAG).

    Raises:
        SignInFailed: There are none.
    """
    form = {"grant_type": JWT_BEARER_GRANT_TYPE, "assertion": assertion, "resource": resource}
    if scope:
        form["scope"] = scope
    return _with_scope(await _tokens(asker, authority, client, form, "did not take the assertion", (assertion,)), scope)


def united(*scopes: str | None) -> str | None:
    """All that the scopes name, each once, in the order in which they come."""
    names = dict.fromkeys(name for scope in scopes if scope for name in scope.split())
    return " ".join(names) or None


def scope_to_ask(
    authority: Authority, *, configured: str | None, challenged: str | None, before: str | None
) -> str | None:
    """The scope of a sign-in.

    What the configuration says; else what the server has just asked for; else what its metadata names; else nothing,
    and the authorization server decides. To this, what was granted or wanted before, so that one step up does not take
    another back; and ``offline_access`` where it is offered, which brings the refresh token.
    """
    own = authority.resource.scopes_supported if authority.resource is not None else None
    scope = united(configured or challenged or " ".join(own or ()), before)
    if scope is not None and "offline_access" in authority.scopes_offered:
        return united(scope, "offline_access")
    return scope
