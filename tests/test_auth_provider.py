"""Signing requests and renewing tokens, against an authority that revokes a family when a refresh token comes twice."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from openprogram_mcp.auth.tokens import Credentials, Tokens
from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.transports._http_client import NotSigned, open_client
from tests._authority import Authority, Protected
from tests._signing import PING, WRITE, Office, make_desk, office, signed_in


def expire(place: Office, *, seconds: float = -1.0) -> Credentials:
    """Let the kept access token have expired, and nobody in this process know another."""
    kept = place.kept()
    assert kept.tokens is not None
    kept = evolve(kept, tokens=evolve(kept.tokens, expires_at=time.time() + seconds))
    place.store().write(kept)
    place.auth()._loaded = False
    place.auth()._credentials = None
    return kept


async def test_oauth_02_an_expired_token_is_renewed_after_a_restart_without_a_browser(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        old = expire(place)
        again = make_desk(tmp_path)
        async with trio.open_nursery() as nursery:
            await nursery.start(again.run)
            auth = again.auth_of(place.config())
            assert auth is not None
            assert (await place.post(auth=auth)).status_code == 200
            nursery.cancel_scope.cancel()
        assert place.authority.counts() == Counter({"/token": 1})
        assert place.authority.grants == ["refresh_token"]
        # The old token is not even shown.
        assert [place.server.bearer(one) for one in place.server.seen] != [old.tokens and old.tokens.access_token]
        assert len(place.server.seen) == 1
        kept = place.kept().tokens
        assert kept is not None
        assert kept.expires_at is not None
        assert kept.expires_at > time.time() + 3000


async def test_oauth_02_a_token_that_the_server_does_not_take_is_renewed_before_anybody_is_asked(
    tmp_path: Path,
) -> None:
    async with signed_in(tmp_path) as place:
        kept = place.kept().tokens
        assert kept is not None
        place.server.refused.add(kept.access_token)
        assert (await place.post()).status_code == 200
        assert place.authority.counts() == Counter({"/token": 1})
        assert place.auth().state == "logged_in"


async def test_calls_go_side_by_side_while_the_token_is_valid(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        inside = 0
        together = trio.Event()
        mcp = place.server.routes["/mcp"]

        async def slowly(seen: Any) -> Any:
            nonlocal inside
            inside += 1
            if inside == 16:
                together.set()
            await together.wait()
            return await mcp(seen)

        place.server.routes["/mcp"] = slowly
        async with await open_client(place.config(), auth=place.auth()) as client, trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(lambda: client.post(place.server.address, json=PING))


async def test_64_calls_at_expiry_renew_once(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        expire(place)
        statuses = Counter[int]()
        async with await open_client(place.config(), auth=place.auth()) as client, trio.open_nursery() as nursery:

            async def call() -> None:
                statuses[(await client.post(place.server.address, json=PING)).status_code] += 1

            for _ in range(64):
                nursery.start_soon(call)
        assert statuses == {200: 64}
        assert place.authority.grants == ["refresh_token"]


_CALLER = """
import sys, trio
from pathlib import Path
from openprogram_mcp.transports._http_client import open_client
from tests._signing import PING, make_desk
from openprogram_mcp.config import MCPServerConfig

async def main():
    config = MCPServerConfig.from_dict("x", {"type": "http", "url": sys.argv[2]})
    desk = make_desk(Path(sys.argv[1]))
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.run)
        auth = desk.auth_of(config)
        print(end="u", flush=True)
        sys.stdin.readline()
        statuses = []
        async with await open_client(config, auth=auth) as client:
            async with trio.open_nursery() as calls:
                async def call():
                    statuses.append((await client.post(config.url, json=PING)).status_code)
                for _ in range(8):
                    calls.start_soon(call)
        print(sorted(set(statuses)), len(statuses))
        nursery.cancel_scope.cancel()

trio.run(main)
"""


async def test_eight_processes_with_64_calls_at_expiry_renew_once(tmp_path: Path) -> None:
    async with signed_in(tmp_path, seconds=90) as place:
        expire(place)
        processes: list[trio.Process] = []
        said: list[bytes] = []
        root = str(Path(__file__).parent.parent)
        ready, go = 0, trio.Event()

        async def run() -> None:
            import subprocess

            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", _CALLER, str(tmp_path), place.server.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=root,
            )
            nonlocal ready
            processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            assert await process.stdout.receive_some() == b"u"
            ready += 1
            if ready == 8:
                go.set()
            await go.wait()
            await process.stdin.send_all(b"\n")
            heard = b""
            while chunk := await process.stdout.receive_some():
                heard += chunk
            said.append(heard)
            await process.wait()

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(run)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
        assert said == [b"[200] 8\n"] * 8
        assert place.authority.grants == ["refresh_token"]
        assert place.authority.revoked == set()
        assert place.authority.count("/authorize") == 0


async def test_a_caller_that_is_cancelled_during_the_renewal_loses_no_token(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        expire(place)
        place.authority.hold = trio.Event()
        with trio.move_on_after(0.3) as scope:
            await place.post()
        assert scope.cancelled_caught
        place.authority.hold.set()
        assert (await place.post()).status_code == 200
        assert place.authority.grants == ["refresh_token"]
        assert place.authority.revoked == set()


async def test_the_end_of_the_program_waits_a_moment_for_the_token_that_is_on_its_way(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        old = expire(place)
        place.authority.hold = trio.Event()
        desk = make_desk(tmp_path)
        async with trio.open_nursery() as nursery:
            await nursery.start(desk.run)
            auth = desk.auth_of(place.config())
            nursery.start_soon(lambda: place.post(auth=auth))
            while not place.authority.count("/token"):
                await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
            place.authority.hold.set()
        kept = place.kept().tokens
        assert kept is not None
        assert kept != old.tokens


async def test_an_authority_that_does_not_answer_revokes_nothing(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        old = expire(place)
        place.authority.down = True
        with pytest.raises(NotSigned) as caught:
            await place.post()
        assert isinstance(caught.value.failure, ServerFailed)
        assert caught.value.failure.transient
        assert place.server.seen == []
        assert place.kept() == old
        assert place.auth().state == "logged_in"
        place.authority.down = False
        assert (await place.post()).status_code == 200


@pytest.mark.parametrize("page", [(403, "<h1>sign in to the airport</h1>"), (200, "<h1>hello</h1>")])
async def test_a_page_of_somebody_in_between_revokes_nothing(tmp_path: Path, page: Any) -> None:
    async with signed_in(tmp_path) as place:
        old = expire(place)
        token = place.authority.routes["/token"]

        async def portal(seen: Any) -> Any:
            return page

        place.authority.routes["/token"] = portal
        with pytest.raises(NotSigned):
            await place.post()
        assert place.kept() == old
        place.authority.routes["/token"] = token
        assert (await place.post()).status_code == 200


async def test_an_answer_without_a_new_refresh_token_keeps_the_old_one(tmp_path: Path) -> None:
    async with signed_in(tmp_path, Protected(authority=Authority(rotates=False))) as place:
        first = place.kept().tokens
        assert first is not None
        for _ in range(2):
            expire(place)
            assert (await place.post()).status_code == 200
            kept = place.kept().tokens
            assert kept is not None
            assert kept.refresh_token == first.refresh_token


async def test_a_rejected_refresh_token_ends_the_sign_in_and_is_not_tried_again(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        expire(place)
        place.authority.refresh.clear()
        assert (await place.post()).status_code == 401
        assert place.auth().state == "expired"
        assert place.kept().rejected
        assert (await place.post()).status_code == 401
        assert place.authority.grants == ["refresh_token"]
        await place.sign_in()
        assert place.auth().state == "logged_in"
        assert (await place.post()).status_code == 200


async def test_a_rejected_refresh_token_never_deletes_a_newer_one(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        expire(place)
        # Another process has renewed in the meantime; what this one remembers is spent.
        auth = place.auth()
        await auth.load()
        newer = place.kept()
        tokens = place.authority.issue(newer.registration.client_id, "")  # type: ignore[union-attr]  # signed in
        fresh = evolve(
            newer,
            tokens=Tokens(
                access_token=tokens["access_token"],
                refresh_token=tokens["refresh_token"],
                expires_at=time.time() + 3600,
                lifetime=3600.0,
            ),
        )
        place.store().write(fresh)
        assert (await place.post()).status_code == 200
        assert place.kept() == fresh
        assert place.authority.grants == []


async def test_before_it_expires_the_token_is_renewed_beside_the_requests(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        old = expire(place, seconds=30)
        place.authority.hold = trio.Event()
        assert (await place.post()).status_code == 200
        assert (await place.post()).status_code == 200
        place.authority.hold.set()
        while place.auth()._renewal is not None:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert place.authority.grants == ["refresh_token"]
        assert place.kept().tokens != old.tokens
        assert (await place.post()).status_code == 200


async def test_a_renewal_beside_the_requests_that_fails_fails_nobody(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        expire(place, seconds=30)
        place.authority.down = True
        for _ in range(5):
            assert (await place.post()).status_code == 200
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert place.authority.count("/token") == 1


async def test_oauth_09_another_address_gets_nothing_of_the_first(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        held = place.kept()
        assert held.tokens is not None
        elsewhere = place.config(url=f"{place.server.url}/other")
        await place.post(config=elsewhere)
        [seen] = [one for one in place.server.seen if one.path == "/other"]
        assert "authorization" not in seen.headers
        assert place.authority.seen == []


@pytest.mark.parametrize(
    "entry",
    [
        {"headers": {"authorization": "Bearer old"}},
        {"headers": {"AUTHORIZATION": "Bearer old"}},
        {"auth": {"kind": "bearer", "token": "old"}},
        {"auth": {"kind": "none"}},
        {"url": "http://me:old@127.0.0.1:1/mcp"},
        {"type": "local", "command": "x", "url": None},
    ],
)
async def test_oauth_12_where_credentials_are_configured_nobody_signs_in(tmp_path: Path, entry: dict[str, Any]) -> None:
    from openprogram_mcp.config import MCPServerConfig

    desk = make_desk(tmp_path)
    data = {"type": "http", "url": "http://127.0.0.1:1/mcp"} | entry
    data = {name: value for name, value in data.items() if value is not None}
    assert desk.auth_of(MCPServerConfig.from_dict("x", data)) is None


# Without a human.


async def test_a_client_gets_its_own_token_with_a_secret_and_again_when_it_expires(tmp_path: Path) -> None:
    authority = Authority(extra={"token_endpoint_auth_methods_supported": ["client_secret_basic"]})
    authority.clients["robot"] = {"client_id": "robot", "client_secret": "h u:sh"}
    auth = {"kind": "client_credentials", "client_id": "robot", "client_secret": "h u:sh", "scope": "s"}
    async with office(tmp_path, Protected(authority=authority), auth=auth) as place:
        assert (await place.post()).status_code == 200
        assert (await place.post()).status_code == 200
        assert authority.grants == ["client_credentials"]
        assert authority.count("/authorize") == 0
        expire(place)
        assert (await place.post()).status_code == 200
        assert authority.grants == ["client_credentials"] * 2
        assert place.auth().state == "logged_in"
        assert "h u:sh" not in place.store().path.read_text()


async def test_a_client_signs_with_a_key(tmp_path: Path) -> None:
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    auth = {"kind": "client_credentials", "client_id": "robot", "private_key_file": str(path)}
    auth["signing_algorithm"] = "ES256"
    async with office(tmp_path, auth=auth) as place:
        assert (await place.post()).status_code == 200
        [seen] = [one for one in place.authority.seen if one.path == "/token"]
        form = seen.form
        claims = jwt.decode(
            form["client_assertion"], key.public_key(), algorithms=["ES256"], audience=place.authority.issuer
        )
        assert claims["iss"] == claims["sub"] == "robot"
        assert form["client_assertion_type"].endswith("jwt-bearer")


@pytest.mark.parametrize("content", [None, "no key at all"])
async def test_a_key_that_cannot_be_used_is_told_without_a_browser(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key.pem"
    if content is not None:
        path.write_text(content)
    auth = {"kind": "client_credentials", "client_id": "robot", "private_key_file": str(path)}
    async with office(tmp_path, auth=auth) as place:
        with pytest.raises(NotSigned) as caught:
            await place.post()
        assert "private_key_file" in caught.value.failure.message


# A token that does not reach far enough.


async def test_oauth_07_a_client_steps_up_by_itself_to_the_union_and_once(tmp_path: Path) -> None:
    authority = Authority()
    authority.clients["robot"] = {"client_id": "robot", "client_secret": "hush"}
    auth = {"kind": "client_credentials", "client_id": "robot", "client_secret": "hush", "scope": "r"}
    async with office(tmp_path, Protected(authority=authority, write_scope="w"), auth=auth) as place:
        assert (await place.post(WRITE)).status_code == 200
        asked = [one.form.get("scope") for one in authority.seen if one.path == "/token"]
        assert asked == ["r", "r w"]
        # One that says so whatever it gets is not believed for ever.
        place.server.write_scope = authority.withholds = "never"
        before = len(authority.grants)
        for _ in range(10):
            assert (await place.post(WRITE)).status_code == 403
        assert 0 < len(authority.grants) - before <= 3


async def test_oauth_07_the_next_sign_in_asks_for_the_union(tmp_path: Path) -> None:
    server = Protected(authority=Authority(), scope="r", write_scope="w")
    async with signed_in(tmp_path, server) as place:
        assert (await place.post(WRITE)).status_code == 403
        assert (await place.post()).status_code == 200
        assert place.authority.grants == []
        await place.sign_in()
        assert set(place.authority.scopes_asked[-1].split()) == {"r", "w"}
        assert (await place.post(WRITE)).status_code == 200
        # And a later sign-in for something else does not take it back.
        await place.sign_in()
        assert set(place.authority.scopes_asked[-1].split()) == {"r", "w"}


async def test_an_organisations_consent_is_exchanged_with_its_issuer_alone(tmp_path: Path) -> None:
    authority = Authority(consent="first-assertion")
    authority.clients["agent"] = {"client_id": "agent", "client_secret": "hush"}
    server = Protected(authority=authority, named="header", extra={"authorization_servers": ["https://evil.example"]})
    file = tmp_path / "jag"
    file.write_text("first-assertion\n")
    async with office(tmp_path / "tokens", server) as place:
        place.auth_config = {
            "kind": "enterprise",
            "client_id": "agent",
            "client_secret": "hush",
            "issuer": authority.url,
            "assertion_file": str(file),
            "scope": "r",
        }
        assert (await place.post()).status_code == 200
        [seen] = [one for one in authority.seen if one.path == "/token"]
        assert seen.form["resource"] == server.address
        assert seen.form["scope"] == "r"
        assert server.count("/metadata") == 0
        # Each token takes the assertion of its time; what is said about a wrong one does not hold it.
        authority.consent = "second-assertion"
        expire(place)
        with pytest.raises(NotSigned) as caught:
            await place.post()
        assert "invalid_grant" in caught.value.failure.message
        assert "first-assertion" not in caught.value.failure.message
        file.write_text("second-assertion")
        assert (await place.post()).status_code == 200
        file.unlink()
        expire(place)
        with pytest.raises(NotSigned, match="assertion_file"):
            await place.post()


async def test_what_a_platform_says_of_a_workload_is_exchanged_without_a_secret_and_not_again_when_refused(
    tmp_path: Path,
) -> None:
    authority = Authority(consent="workload-jwt")
    authority.clients["agent"] = {"client_id": "agent"}
    file = tmp_path / "jwt"
    file.write_text("workload-jwt")
    async with office(tmp_path / "tokens", Protected(authority=authority)) as place:
        place.auth_config = {"kind": "workload", "client_id": "agent", "issuer": authority.url}
        place.auth_config |= {"assertion_file": str(file)}
        assert (await place.post()).status_code == 200
        [seen] = [one for one in authority.seen if one.path == "/token"]
        assert seen.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
        assert (seen.form["assertion"], seen.form["client_id"]) == ("workload-jwt", "agent")
        assert "client_secret" not in seen.form
        assert "authorization" not in seen.headers
        authority.consent = "another"
        expire(place)
        with pytest.raises(NotSigned) as caught:
            await place.post()
        assert "invalid_grant" in caught.value.failure.message
        assert "workload-jwt" not in caught.value.failure.message
        assert authority.count("/token") == 2


async def test_an_issuer_whose_tokens_come_from_elsewhere_gets_no_assertion(tmp_path: Path) -> None:
    other = Authority()
    authority = Authority(consent="a", extra={"token_endpoint": "https://evil.example/token"})
    file = tmp_path / "jag"
    file.write_text("a")
    async with office(tmp_path / "tokens", Protected(authority=authority)) as place:
        place.auth_config = {"kind": "enterprise", "client_id": "agent", "client_secret": "hush"}
        place.auth_config |= {"issuer": authority.url, "assertion_file": str(file)}
        with pytest.raises(NotSigned, match="somewhere else"):
            await place.post()
        assert other.seen == []
        assert authority.count("/token") == 0
