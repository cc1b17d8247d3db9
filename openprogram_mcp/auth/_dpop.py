"""Tokens that are bound to a key of ours, so that nobody can use one that they have come by (DPoP, RFC 9449).

Owns the proofs: which key signs them, what they say, and the nonces that servers want to see in them. A key lives as
long as the tokens that are bound to it, and is kept with them. Tokens are bound where the MCP server has said that it
knows of this, and the authority that it can: a server that does not know of it would not take them.
"""

from __future__ import annotations

import base64
import hashlib
import time
from functools import lru_cache
from typing import Any, Final
from uuid import uuid4

import httpx2
import jwt
from attrs import define, field
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from mcp.client.auth.utils import extract_field_from_www_auth

__all__ = ["ALGORITHM", "Prover", "asks_for_dpop", "asks_for_nonce", "new_key", "nonce_in", "proof"]

ALGORITHM: Final = "ES256"
_MAX_NONCE: Final = 1024


def new_key() -> str:
    """A private key, in the form in which it is kept."""
    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


@lru_cache(maxsize=64)
def _read(key: str) -> tuple[ec.EllipticCurvePrivateKey, dict[str, Any]]:
    private = serialization.load_pem_private_key(key.encode(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise TypeError("not a key that new_key has made")
    return private, ECAlgorithm.to_jwk(private.public_key(), as_dict=True)


def proof(key: str, method: str, url: str, *, token: str | None = None, nonce: str | None = None) -> str:
    """The proof of one request; no other request may carry it (RFC 9449 section 4.2).

    Args:
        key: What :func:`new_key` has made.
        method: The request's method.
        url: Where it goes.
        token: The access token that it carries.
        nonce: What its receiver wants to see.
    """
    private, public = _read(key)
    claims: dict[str, Any] = {
        "jti": uuid4().hex,
        "htm": method,
        "htu": str(httpx2.URL(url).copy_with(query=None, fragment=None)),
        "iat": int(time.time()),
    }
    if token is not None:
        claims["ath"] = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).decode().rstrip("=")
    if nonce is not None:
        claims["nonce"] = nonce
    return jwt.encode(claims, private, algorithm=ALGORITHM, headers={"typ": "dpop+jwt", "jwk": public})


def nonce_in(headers: httpx2.Headers) -> str | None:
    """The nonce that a receiver wants to see in the next proof."""
    found = headers.get("dpop-nonce")
    return found if found and len(found) <= _MAX_NONCE else None


def asks_for_dpop(response: httpx2.Response) -> bool:
    """Whether a refusal says that bound tokens are wanted."""
    return any(one.strip().lower().startswith("dpop") for one in response.headers.get_list("www-authenticate"))


def asks_for_nonce(response: httpx2.Response) -> bool:
    """Whether a proof was refused for its nonce alone (RFC 9449 section 9)."""
    return response.status_code == 401 and extract_field_from_www_auth(response, "error") == "use_dpop_nonce"


@define(eq=False)
class Prover:
    """Proves the requests to one MCP server, with the nonce it has given last."""

    _nonce: str | None = field(default=None, init=False)

    def sign(self, request: httpx2.Request, token: str, key: str) -> None:
        """Let a request carry a bound token, and the proof that it is ours."""
        request.headers["Authorization"] = f"DPoP {token}"
        request.headers["DPoP"] = proof(key, request.method, str(request.url), token=token, nonce=self._nonce)

    def learn(self, response: httpx2.Response) -> bool:
        """Take the nonce that a response has, and say whether it is another one than before."""
        found = nonce_in(response.headers)
        if found is None or found == self._nonce:
            return False
        self._nonce = found
        return True
