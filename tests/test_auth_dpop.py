"""Tokens that are bound to a key: against an authority that binds them, and a server that wants to see each proof."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jwt
import pytest
from attrs import define, field

from openprogram_mcp.auth._dpop import new_key
from openprogram_mcp.auth._dpop import proof as made
from tests._authority import Authority, Protected, Reply, Seen
from tests._signing import Office, office
from tests.test_auth_provider import expire


def read(proof: str, seen: Seen, address: str) -> dict[str, Any]:
    """What a proof says; it is one, and it is that of this request."""
    header = jwt.get_unverified_header(proof)
    assert header["typ"] == "dpop+jwt"
    assert "d" not in header["jwk"]
    claims: dict[str, Any] = jwt.decode(proof, jwt.PyJWK(header["jwk"]), algorithms=["ES256"])
    assert (claims["htm"], claims["htu"]) == (seen.method, address)
    return {**claims, "key": header["jwk"]}


@define(eq=False)
class Binding(Authority):
    """An authority that binds tokens to the key of a proof, if there is one."""

    nonce: str | None = None
    binds: bool = True
    proofs: list[dict[str, Any]] = field(factory=list)

    async def _token(self, seen: Seen) -> Reply:
        proof = seen.headers.get("dpop")
        if proof is None:
            return await Authority._token(self, seen)
        claims = read(proof, seen, f"{self.url}/token")
        self.proofs.append(claims)
        if claims.get("nonce") != self.nonce:
            assert self.nonce is not None
            return 400, {"error": "use_dpop_nonce"}, {"dpop-nonce": self.nonce}
        answer = await Authority._token(self, seen)
        return (200, {**answer[1], "token_type": "DPoP"}) if self.binds and answer[0] == 200 else answer


@define(eq=False)
class Demanding(Protected):
    """A server that wants bound tokens, each request with a proof of its own."""

    nonce: str | None = None
    restless: bool = False
    proofs: list[dict[str, Any]] = field(factory=list)
    schemes: list[str] = field(factory=list)

    async def _mcp(self, seen: Seen) -> Reply:
        scheme, _, token = seen.headers.get("authorization", "").partition(" ")
        self.schemes.append(scheme)
        if scheme == "DPoP":
            claims = read(seen.headers["dpop"], seen, self.address)
            digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).decode().rstrip("=")
            assert claims["ath"] == digest
            self.proofs.append(claims)
            if self.restless:
                self.nonce = f"nonce-{len(self.proofs)}"
            if claims.get("nonce") != self.nonce:
                asks = {"www-authenticate": 'DPoP error="use_dpop_nonce"', "dpop-nonce": self.nonce or ""}
                return 401, {"error": "use_dpop_nonce"}, asks
        answer = await Protected._mcp(self, seen)
        return (401, answer[1], {"www-authenticate": "DPoP"}) if answer[0] == 401 else answer

    def bearer(self, seen: Seen) -> str | None:
        return seen.headers.get("authorization", "").removeprefix("DPoP ") or None


def demanding(**changes: Any) -> Demanding:
    authority = Binding(extra={"dpop_signing_alg_values_supported": ["RS256", "ES256"]}, **changes)
    return Demanding(authority=authority)


def authority_of(place: Office) -> Binding:
    assert isinstance(place.authority, Binding)
    return place.authority


async def sign_in(place: Office) -> None:
    assert (await place.post()).status_code == 401
    await place.sign_in()


async def test_where_the_server_asks_for_it_tokens_are_bound_and_each_request_has_a_proof_of_its_own(
    tmp_path: Path,
) -> None:
    server = demanding()
    async with office(tmp_path, server) as place:
        await sign_in(place)
        for _ in range(3):
            assert (await place.post()).status_code == 200
        assert server.schemes[-3:] == ["DPoP"] * 3
        assert len({one["jti"] for one in server.proofs}) == len(server.proofs)
        [asked] = authority_of(place).proofs
        assert {str(one["key"]) for one in server.proofs} == {str(asked["key"])}


async def test_a_bound_token_is_renewed_with_its_own_key_after_a_restart(tmp_path: Path) -> None:
    server = demanding()
    async with office(tmp_path, server) as place:
        await sign_in(place)
        expire(place)
        assert (await place.post()).status_code == 200
        first, second = authority_of(place).proofs
        assert first["key"] == second["key"]
        kept = place.kept().tokens
        assert kept is not None
        assert kept.dpop_key is not None
        assert kept.dpop_key not in repr(place.kept())


async def test_the_nonces_of_both_are_answered_once_and_the_servers_is_kept(tmp_path: Path) -> None:
    server = demanding(nonce="of-the-authority")
    server.nonce = "of-the-server"
    async with office(tmp_path, server) as place:
        await sign_in(place)
        assert [one.get("nonce") for one in authority_of(place).proofs] == [None, "of-the-authority"]
        server.proofs.clear()
        place.auth()._prover._nonce = None
        assert (await place.post()).status_code == 200
        assert (await place.post()).status_code == 200
        assert [one.get("nonce") for one in server.proofs] == [None, "of-the-server", "of-the-server"]
        server.nonce = "another"
        assert (await place.post()).status_code == 200
        assert [one.get("nonce") for one in server.proofs[-2:]] == ["of-the-server", "another"]
        assert place.authority.grants == ["authorization_code"]  # nothing was renewed for a nonce
        assert place.auth().state == "logged_in"


async def test_a_server_that_never_is_content_with_a_nonce_is_not_asked_for_ever(tmp_path: Path) -> None:
    server = demanding()
    async with office(tmp_path, server) as place:
        await sign_in(place)
        server.restless = True
        before = len(server.seen)
        assert (await place.post()).status_code == 401
        assert len(server.seen) - before <= 4


@pytest.mark.parametrize("algorithms", [None, [], ["RS256"]])
async def test_where_the_authority_binds_nothing_that_we_sign_tokens_are_not_bound(
    tmp_path: Path, algorithms: list[str] | None
) -> None:
    server = Demanding(authority=Binding(extra={"dpop_signing_alg_values_supported": algorithms}))
    async with office(tmp_path, server) as place:
        await sign_in(place)
        await place.post()
        assert server.schemes[-1] == "Bearer"
        assert authority_of(place).proofs == []


async def test_where_the_server_says_nothing_of_it_tokens_are_not_bound_though_they_could_be(tmp_path: Path) -> None:
    authority = Binding(extra={"dpop_signing_alg_values_supported": ["ES256"]})
    async with office(tmp_path, Protected(authority=authority)) as place:
        await sign_in(place)
        assert (await place.post()).status_code == 200
        assert authority.proofs == []


async def test_the_servers_metadata_is_enough_to_ask_for_it(tmp_path: Path) -> None:
    authority = Binding(extra={"dpop_signing_alg_values_supported": ["ES256"]})
    server = Protected(authority=authority, extra={"dpop_bound_access_tokens_required": True})
    async with office(tmp_path, server) as place:
        await sign_in(place)
        assert len(authority.proofs) == 1


async def test_a_token_that_came_unbound_is_sent_as_what_it_is(tmp_path: Path) -> None:
    server = demanding(binds=False)
    async with office(tmp_path, server) as place:
        await sign_in(place)
        await place.post()
        assert server.schemes[-1] == "Bearer"
        kept = place.kept().tokens
        assert kept is not None
        assert kept.dpop_key is None


def test_a_proof_is_for_an_address_without_its_query() -> None:
    said = jwt.decode(made(new_key(), "POST", "https://x.example/mcp?a=1#b"), options={"verify_signature": False})
    assert said["htu"] == "https://x.example/mcp"
    assert {"ath", "nonce"} & set(said) == set()
