"""Signing in, against a strict authorization server: what is asked, what is kept, and what is not believed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio
import trio.testing

from openprogram_mcp.auth._asking import SignInFailed
from openprogram_mcp.auth._listener import PORT_VARIABLE, callback_address
from openprogram_mcp.auth.flow import SignIn, returned
from openprogram_mcp.errors import CannotListen, InvalidArguments, TimedOut
from tests._authority import Authority, Protected, consent, get
from tests._signing import office, signed_in


def query_of(url: str | None) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url or "").query).items()}


async def location_of(url: str | None) -> str:
    status, headers, body = await get(url or "")
    assert status == 302, body
    return headers["location"]


async def test_a_human_signs_in_and_the_next_request_passes(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        assert (await place.post()).status_code == 401
        assert place.auth().state == "not_logged_in"
        page = await place.sign_in()
        assert "Signed in to x" in page
        assert "setTimeout" in page
        assert "2000" in page
        assert (await place.post()).status_code == 200
        assert place.auth().state == "logged_in"
        assert place.signed_in == ["x"]
        assert place.authority.count("/authorize") == place.authority.count("/register") == 1
        assert place.desk.pending() == ()
        kept = place.kept()
        assert kept.tokens is not None
        assert kept.tokens.refresh_token is not None
        assert kept.issuer == place.authority.issuer


async def test_the_address_has_pkce_a_state_of_this_instance_and_the_resource(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        query = query_of(sign_in.authorization_url)
        assert query["code_challenge_method"] == "S256"
        assert query["resource"] == place.server.address
        assert query["response_type"] == "code"
        secret, _, instance = query["state"].rpartition(".")
        assert instance == "instance"
        assert len(secret) >= 43  # 32 bytes
        client = place.authority.clients[query["client_id"]]
        assert client["application_type"] == "native"
        assert client["token_endpoint_auth_method"] == "none"
        assert client["redirect_uris"] == [query["redirect_uri"]]
        await consent(sign_in.authorization_url or "")
        await sign_in.result()
        assert sign_in._verifier is None
        assert sign_in._answer is None or sign_in._answer.code is None


# Where the metadata is.


@pytest.mark.parametrize("named", ["header", "path", "root"])
@pytest.mark.parametrize(
    ("metadata", "path"),
    [("oauth", ""), ("oidc", ""), ("path", "/tenant"), ("oidc-path", "/tenant"), ("", "")],
)
async def test_oauth_05_metadata_is_found_wherever_it_is(tmp_path: Path, named: str, metadata: str, path: str) -> None:
    server = Protected(named=named, authority=Authority(metadata=metadata, path=path))
    async with office(tmp_path, server) as place:
        await place.post()
        await place.sign_in()
        assert (await place.post()).status_code == 200


@pytest.mark.parametrize("metadata", ["oauth", "oidc", ""])
async def test_oauth_05_a_server_of_the_first_revision_is_its_own_authority(tmp_path: Path, metadata: str) -> None:
    authority = Authority(metadata=metadata)
    server = Protected(named="", authority=authority)
    # One site for both: what the server does not know, the authority answers.
    async with office(tmp_path, server) as place:
        for route, handler in authority.routes.items():
            server.routes.setdefault(route, handler)
        authority.base = server.url
        await place.post()
        await place.sign_in()
        assert (await place.post()).status_code == 200
        # It is older than the parameter.
        assert "resource" not in next(one for one in server.seen if one.path == "/authorize").query


async def test_oauth_05_a_page_of_html_is_no_metadata(tmp_path: Path) -> None:
    server = Protected(named="root", authority=Authority())

    async def html(seen: Any) -> Any:
        return 200, "<!doctype html><title>an application of one page</title>"

    server.routes["/.well-known/oauth-protected-resource/mcp"] = html
    async with office(tmp_path, server) as place:
        await place.sign_in()


async def test_a_server_that_fails_is_not_one_without_metadata(tmp_path: Path) -> None:
    server = Protected(authority=Authority())

    async def fails(seen: Any) -> Any:
        return 500, "<h1>oops</h1>"

    server.routes["/.well-known/oauth-protected-resource/mcp"] = fails
    async with office(tmp_path, server) as place:
        with pytest.raises(SignInFailed, match="HTTP 500") as caught:
            await place.desk.start(place.config())
        assert caught.value.transient
        assert place.authority.seen == []


async def test_metadata_of_another_resource_is_refused(tmp_path: Path) -> None:
    server = Protected(authority=Authority(), extra={"resource": "https://bank.example/mcp"})
    async with office(tmp_path, server) as place:
        with pytest.raises(SignInFailed, match=r"another resource: https://bank\.example"):
            await place.desk.start(place.config())
        assert place.authority.seen == []


# Whose metadata it is.


@pytest.mark.parametrize(
    ("path", "named", "issuer"),
    [("", "", "/"), ("", "/", ""), ("/tenant", "/tenant", "/tenant/"), ("/tenant", "/tenant/", "/tenant")],
)
async def test_oauth_10_a_slash_at_the_end_of_the_issuer_is_no_other_issuer(
    tmp_path: Path, path: str, named: str, issuer: str
) -> None:
    authority = Authority(path=path, metadata="path" if path else "oauth", iss=True)
    server = Protected(authority=authority)
    async with office(tmp_path, server) as place:
        server.extra["authorization_servers"] = [authority.url + named]
        authority.extra["issuer"] = authority.url + issuer
        await place.sign_in()
        assert (await place.post()).status_code == 200


@pytest.mark.parametrize("issuer", ["https://other.example", "{url}/elsewhere", None])
async def test_oauth_10_another_issuer_is_refused_and_both_are_named(tmp_path: Path, issuer: str | None) -> None:
    authority = Authority()
    async with office(tmp_path, Protected(authority=authority)) as place:
        authority.extra["issuer"] = named = None if issuer is None else issuer.format(url=authority.url)
        with pytest.raises(SignInFailed) as caught:
            await place.desk.start(place.config())
        assert authority.url in caught.value.message
        assert (named or "nobody") in caught.value.message
        assert authority.count("/register") == 0


# The client that we are.


@pytest.mark.parametrize("registers", ["absent", 403, 401, 404])
async def test_oauth_04_without_registration_it_is_said_how_to_give_a_client_id(
    tmp_path: Path, registers: str | int
) -> None:
    async with office(tmp_path, Protected(authority=Authority(registers=registers))) as place:
        with pytest.raises(SignInFailed) as caught:
            await place.desk.start(place.config())
        assert caught.value.registration
        assert "client_id" in (caught.value.remedy or "")
        assert "/mcp/oauth/callback" in (caught.value.remedy or "")
        if registers == 403:
            assert "no strangers here" in caught.value.message
        assert place.desk.pending() == ()
        assert place.desk._listener.ports == []


async def test_oauth_04_a_registration_that_fails_is_not_a_client_id_that_is_missing(tmp_path: Path) -> None:
    async with office(tmp_path, Protected(authority=Authority(registers=503))) as place:
        with pytest.raises(SignInFailed) as caught:
            await place.desk.start(place.config())
        assert caught.value.transient
        assert not caught.value.registration


@pytest.mark.parametrize("refused", ["token_endpoint_auth_method", "scope", "application_type"])
async def test_oauth_04_a_registration_that_refuses_a_part_is_tried_without_it(tmp_path: Path, refused: str) -> None:
    server = Protected(authority=Authority(refuses_in_registration=(refused,)), scope="r")
    async with office(tmp_path, server) as place:
        await place.post()
        await place.sign_in()
        assert len(place.authority.clients) == 1


async def test_oauth_04_a_given_client_id_comes_before_a_document_and_before_registration(tmp_path: Path) -> None:
    authority = Authority(extra={"client_id_metadata_document_supported": True})
    redirect = callback_address(20117)
    authority.clients["given"] = {"client_id": "given", "redirect_uris": [redirect], "client_secret": "hush"}
    auth = {"kind": "oauth", "client_id": "given", "client_secret": "hush", "redirect_port": 20117}
    auth["client_metadata_url"] = "https://me.example/client.json"
    async with office(tmp_path, Protected(authority=authority), auth=auth) as place:
        await place.sign_in()
        assert (await place.post()).status_code == 200
        assert authority.count("/register") == 0


async def test_oauth_04_a_metadata_document_comes_before_registration(tmp_path: Path) -> None:
    document = "https://me.example/client.json"
    authority = Authority(extra={"client_id_metadata_document_supported": True})
    auth = {"kind": "oauth", "client_metadata_url": document, "redirect_port": 20118}
    authority.clients[document] = {"client_id": document, "redirect_uris": [callback_address(20118)]}
    async with office(tmp_path, Protected(authority=authority), auth=auth) as place:
        await place.sign_in()
        assert authority.count("/register") == 0
        assert place.kept().registration is not None


async def test_a_secret_that_comes_with_a_registration_is_used(tmp_path: Path) -> None:
    authority = Authority(extra={"token_endpoint_auth_methods_supported": ["client_secret_post"]})
    async with office(tmp_path, Protected(authority=authority)) as place:
        await place.sign_in()
        assert place.kept().registration is not None
        assert (await place.post()).status_code == 200


async def test_a_registration_is_used_again_with_its_port(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        port = place.kept().registration.redirect_port  # type: ignore[union-attr]  # it has just signed in
        await place.sign_in()
        assert place.authority.count("/register") == 0
        assert place.kept().registration.redirect_port == port  # type: ignore[union-attr]  # as above


async def test_an_expired_registration_is_made_anew(tmp_path: Path) -> None:
    authority = Authority(
        extra={"token_endpoint_auth_methods_supported": ["client_secret_post"]},
        registration_answer={"client_secret_expires_at": 1},
    )
    async with signed_in(tmp_path, Protected(authority=authority)) as place:
        await place.sign_in()
        assert place.authority.count("/register") == 1


async def test_where_the_registered_port_is_taken_another_client_is_registered(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        port = place.kept().registration.redirect_port  # type: ignore[union-attr]  # it has just signed in
        assert port is not None
        taken = await trio.open_tcp_listeners(port, host="127.0.0.1")
        await place.sign_in()
        assert place.authority.count("/register") == 1
        assert place.kept().registration.redirect_port != port  # type: ignore[union-attr]  # as above
        for one in taken:
            await one.aclose()


async def test_a_client_that_the_authority_has_forgotten_is_registered_anew(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        place.authority.clients.clear()
        place.server.refused.add(place.kept().tokens.access_token)  # type: ignore[union-attr]  # it has just signed in
        assert (await place.post()).status_code == 401
        assert place.auth().state == "expired"
        await place.sign_in()
        assert place.authority.count("/register") == 1
        assert (await place.post()).status_code == 200


async def test_a_sign_in_that_was_given_up_costs_no_second_registration(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        sign_in.cancel()
        await sign_in.done.wait()
        await place.sign_in()
        assert place.authority.count("/register") == 1


# Ports.


async def test_the_port_is_the_variables_or_the_next_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = taken.socket.getsockname()[1]
    monkeypatch.setenv(PORT_VARIABLE, str(port))
    async with office(tmp_path) as place:
        await place.sign_in()
        found = place.kept().registration.redirect_port  # type: ignore[union-attr]  # it has just signed in
        assert found is not None
        assert found != port
        await taken.aclose()
    async with office(tmp_path / "other") as place:
        await place.sign_in()
        assert place.kept().registration.redirect_port == port  # type: ignore[union-attr]  # as above


async def test_a_configured_port_that_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    taken = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = taken.socket.getsockname()[1]
    async with office(tmp_path, auth={"kind": "oauth", "redirect_port": port}) as place:
        with pytest.raises(CannotListen, match=str(port)):
            await place.desk.start(place.config())
    await taken.aclose()


async def test_the_listener_is_there_from_the_first_sign_in_to_the_last(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        assert not place.desk._listener.ports
        one = await place.desk.start(place.config())
        other = await place.desk.start(place.config("y"))
        ports = place.desk._listener.ports
        assert len(ports) == 1
        assert one.redirect_uri == other.redirect_uri
        await consent(one.authorization_url or "")
        await one.result()
        assert place.desk._listener.ports == ports
        await consent(other.authorization_url or "")
        await other.result()
        assert not place.desk._listener.ports
        with pytest.raises(OSError, match="connect"):
            await get(one.redirect_uri or "")


# Two at once, and answers that are not the true one.


async def test_two_sign_ins_at_once_do_not_mix(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        one = await place.desk.start(place.config())
        other = await place.desk.start(place.config("y"))
        assert {sign_in.server for sign_in in place.desk.pending()} == {"x", "y"}
        _, page = await consent(other.authorization_url or "")
        assert "Signed in to y" in page
        await other.result()
        assert not one.done.is_set()
        _, page = await consent(one.authorization_url or "")
        assert "Signed in to x" in page
        await one.result()
        assert place.kept("x").tokens != place.kept("y").tokens


async def test_a_second_start_joins_the_sign_in_that_is_under_way(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        one = await place.desk.start(place.config())
        assert await place.desk.start(place.config()) is one


@pytest.mark.parametrize("state", ["wrong", None, "é", "\udcff"])
async def test_spec_07_a_foreign_state_is_not_believed_and_the_true_one_still_counts(
    tmp_path: Path, state: str | None
) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        back = f"{sign_in.redirect_uri}?code=stolen" + ("" if state is None else "&state=wrong%C3%A9")
        status, _, page = await get(back)
        assert status == 400
        assert "Nobody waits" in page
        with pytest.raises(InvalidArguments):
            await place.desk.finish("x", code="stolen", state=state or "")
        assert place.authority.count("/token") == 0
        await consent(sign_in.authorization_url or "")
        await sign_in.result()


async def test_spec_07_a_state_counts_once(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        back = await location_of(sign_in.authorization_url)
        assert (await get(back))[0] == 200
        await sign_in.result()
        again = await place.desk.start(place.config("y"))
        status, _, page = await get(back)
        assert status == 400
        assert "Nobody waits" in page
        assert place.authority.count("/token") == 1
        again.cancel()


async def test_spec_07_the_answer_of_another_authority_is_not_redeemed_and_the_true_one_still_counts(
    tmp_path: Path,
) -> None:
    async with office(tmp_path, Protected(authority=Authority(iss=True))) as place:
        sign_in = await place.desk.start(place.config())
        true = await location_of(sign_in.authorization_url)
        bare = true.partition("&iss=")[0]
        slash = f"{true}%2F"  # as texts they differ, and nothing is made equal (RFC 9207)
        for false in (f"{bare}&iss=https%3A%2F%2Fevil.example%2F%3Cb%3E", slash, bare):
            status, _, page = await get(false)
            assert status == 400
            assert "not the true one" in page
            assert "<b>" not in page
        assert place.authority.count("/token") == 0
        assert (await get(true))[0] == 200
        await sign_in.result()


async def test_spec_07_a_refusal_is_told_and_its_text_is_escaped(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        html = "%3Cscript%3Ealert(1)%3C%2Fscript%3E" + "x" * 2000
        back = f"{sign_in.redirect_uri}?error=access_denied&state={sign_in.state}&error_description={html}"
        status, headers, page = await get(back)
        assert status == 400
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page
        assert len(page) < 2500
        assert "default-src 'none'" in headers["content-security-policy"]
        with pytest.raises(SignInFailed, match="access_denied"):
            await sign_in.result()
        assert place.authority.count("/token") == 0


async def test_spec_07_what_belongs_to_one_authority_is_not_shown_to_another(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        old = place.authority
        new = Authority()
        from tests._authority import serving

        async with serving(new):
            place.server.authority = new
            held = place.kept()
            assert held.tokens is not None
            assert held.registration is not None
            assert (await place.post()).status_code == 401
            await place.sign_in()
            assert (await place.post()).status_code == 200
            told = repr([(one.query, one.headers, one.body) for one in new.seen])
            secrets = (held.tokens.access_token, held.tokens.refresh_token, held.registration.client_id)
            assert not any(secret in told for secret in secrets if secret)
            assert place.kept().issuer == new.issuer
            assert old.count("/token") == 1  # the renewal that was tried, with what is its own


async def test_spec_07_a_given_client_is_not_shown_to_another_authority(tmp_path: Path) -> None:
    auth = {"kind": "oauth", "client_id": "given", "client_secret": "hush-hush", "redirect_port": 20119}
    client = {"client_id": "given", "redirect_uris": [callback_address(20119)], "client_secret": "hush-hush"}
    server = Protected(authority=Authority(clients={"given": client}))
    async with signed_in(tmp_path, server, auth=auth) as place:
        from tests._authority import serving

        new = Authority(clients={"given": client})
        async with serving(new):
            place.server.authority = new
            with pytest.raises(SignInFailed, match="another authorization server") as caught:
                await place.desk.start(place.config())
            assert "--forget" in (caught.value.remedy or "")
            assert "hush-hush" not in repr([(one.headers, one.body) for one in new.seen])
            await place.desk.forget(place.config())
            await place.sign_in()


# By hand.


async def test_a_code_that_was_pasted_finishes_the_one_sign_in_that_waits(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        code = query_of(await location_of(sign_in.authorization_url))["code"]
        await place.desk.finish("x", code=code)
        assert (await place.post()).status_code == 200


async def test_a_whole_address_that_was_pasted_finishes_its_sign_in(tmp_path: Path) -> None:
    async with office(tmp_path, Protected(authority=Authority(iss=True))) as place:
        sign_in = await place.desk.start(place.config())
        back = await location_of(sign_in.authorization_url)
        with pytest.raises(InvalidArguments):
            await place.desk.finish("y", address=back)
        await place.desk.finish("x", address=back)
        assert (await place.post()).status_code == 200
        with pytest.raises(InvalidArguments):
            await place.desk.finish("x", address=back)


async def test_finishing_what_was_not_begun_is_refused(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        with pytest.raises(InvalidArguments, match="no sign-in"):
            await place.desk.finish("x", code="c")


def test_a_parameter_that_stands_twice_in_an_answer_is_not_there() -> None:
    assert returned("http://127.0.0.1/cb?code=a&code=b&state=s").code is None
    assert returned("/cb?code=a&state=s#code=b").code == "a"


# Its end.


async def test_a_cancelled_sign_in_closes_its_socket_and_wakes_who_waits(tmp_path: Path) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        failures: list[Exception] = []

        async def wait() -> None:
            try:
                await sign_in.result()
            except SignInFailed as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert place.desk.cancel("wrong") is False
            assert place.desk.cancel(sign_in.state) is True
        assert "cancelled" in str(failures[0])
        assert place.desk._listener.ports == []
        assert place.desk.pending() == ()
        assert place.authority.count("/token") == 0


async def test_a_sign_in_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        assert sign_in.expires_at - sign_in.opened_at == 300
        sign_in.cancel()
        await sign_in.done.wait()
        short = SignIn(place.auth(), "state", place.desk._listener, seconds=0.2)
        await short.run(lambda: None)
        assert isinstance(short.failure, TimedOut)
        assert short.failure.budget == "sign_in"


async def test_a_client_that_may_be_forgotten_is_registered_anew_after_a_sign_in_nobody_came_back_from(
    tmp_path: Path,
) -> None:
    async with signed_in(tmp_path) as place:
        place.authority.clients.clear()
        short = SignIn(place.auth(), "state", place.desk._listener, seconds=0.3)
        await short.run(lambda: None)
        assert isinstance(short.failure, TimedOut)
        assert place.kept().tokens is not None
        await place.sign_in()
        assert place.authority.count("/register") == 1


async def test_where_no_browser_can_be_opened_the_address_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office(tmp_path) as place:
        monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
        sign_in = await place.desk.start(place.config(), browser=True)
        [(told, hint)] = place.no_browser
        assert told is sign_in
        port = urlsplit(sign_in.redirect_uri or "").port
        assert f"ssh -L {port}:127.0.0.1:{port}" in (hint or "")


async def test_somebody_waits_before_the_browser_opens(tmp_path: Path) -> None:
    async with office(tmp_path) as place:

        async def browse(url: str) -> bool:
            # The quickest of all browsers.
            assert (await consent(url))[0] == 200
            return True

        place.desk.browse = browse
        sign_in = await place.desk.start(place.config(), browser=True)
        await sign_in.result()
        assert (await place.post()).status_code == 200


async def test_an_authority_that_lists_methods_without_s256_is_refused(tmp_path: Path) -> None:
    authority = Authority(extra={"code_challenge_methods_supported": ["plain"]})
    async with office(tmp_path, Protected(authority=authority)) as place:
        with pytest.raises(SignInFailed, match="PKCE"):
            await place.desk.start(place.config())


@pytest.mark.parametrize(
    ("configured", "challenge", "resource", "asked"),
    [
        (None, "r", ["r", "w"], "r offline_access"),
        (None, None, ["r", "w"], "r w offline_access"),
        (None, None, None, ""),
        ("mine", "r", ["r", "w"], "mine offline_access"),
    ],
)
async def test_the_scope_is_the_configured_the_asked_or_the_servers_and_offline_access_where_offered(
    tmp_path: Path, configured: str | None, challenge: str | None, resource: list[str] | None, asked: str
) -> None:
    authority = Authority(extra={"scopes_supported": ["admin", "offline_access"]})
    server = Protected(authority=authority, scope=challenge, extra={"scopes_supported": resource})
    auth = {"kind": "oauth", "scope": configured} if configured else None
    async with office(tmp_path, server, auth=auth) as place:
        await place.post()
        await place.sign_in()
        assert authority.scopes_asked == [asked]
        prompt = next(one for one in authority.seen if one.path == "/authorize").query.get("prompt")
        assert prompt == ("consent" if asked else None)


async def test_forgetting_takes_everything(tmp_path: Path) -> None:
    async with signed_in(tmp_path) as place:
        assert await place.desk.forget(place.config()) is True
        assert place.store().read() is None
        assert place.auth().state == "not_logged_in"
        assert (await place.post()).status_code == 401
        assert await place.desk.forget(place.config()) is False


async def test_secret_01_nothing_secret_is_in_logs_errors_and_pages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with office(tmp_path) as place:
        sign_in = await place.desk.start(place.config())
        # The authority quotes code and verifier in its refusal.
        back = f"{sign_in.redirect_uri}?code=canary-code-4711&state={sign_in.state}"
        verifier = sign_in._verifier or ""
        status, _, page = await get(back)
        assert status == 400
        with pytest.raises(SignInFailed) as caught:
            await sign_in.result()
        told = "\n".join([caplog.text, page, str(caught.value), repr(caught.value.to_problem()), repr(sign_in)])
        assert "invalid_grant" in told
        for secret in ("canary-code-4711", verifier, sign_in.state):
            assert secret not in told
