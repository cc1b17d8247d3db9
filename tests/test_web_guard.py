"""Who may ask: the token, the host, the origin; and requests that are made to be in the way."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from openprogram_mcp.web._guard import allowed_hosts

from ._web import TOKEN, Site, parse, serving

ANY = "0.0.0.0"  # noqa: S104 - a text that is compared
SERVERS = "/api/mcp/servers"


async def test_the_owner_is_let_in_and_the_answer_may_not_be_kept() -> None:
    async with serving() as site:
        reply = await site.get(SERVERS)
        assert reply.status == 200
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "server" not in reply.headers


@pytest.mark.parametrize(
    "credentials",
    [
        None,
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        "Bearer \xe9\xff",
        f"Bearer {TOKEN} {TOKEN}",
    ],
)
@pytest.mark.parametrize(
    "path", [SERVERS, "/api/mcp/events", "/api/openapi.json", "/nowhere", "/healthz/", "//healthz"]
)
async def test_without_the_token_nothing_is_told_not_even_what_exists(credentials: str | None, path: str) -> None:
    async with serving() as site:
        reply = await site.get(path, Authorization=credentials)
        assert reply.status == 401
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert reply.json["code"] == "unauthorized"
        assert TOKEN not in reply.body.decode()


async def test_two_authorization_headers_are_none() -> None:
    async with serving() as site, await site.connect() as stream:
        request = site.head("GET", SERVERS).replace(b"Connection", b"Authorization: Bearer other\r\nConnection")
        await stream.send_all(request)
        assert parse(await stream.receive_some()).status == 401


async def test_health_is_open_but_not_to_a_foreign_name() -> None:
    async with serving() as site:
        site.manager.put("a")
        site.manager.put("b")
        reply = await site.get("/healthz", Authorization=None)
        assert (reply.status, reply.json) == (200, {"status": "ok", "servers": {"connected": 2}})
        assert (await site.get("/healthz", Host="evil.example")).status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("localhost:8080", 200),
        ("LocalHost", 200),
        ("localhost.", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("evil.example:127.0.0.1", 403),
        ("10.0.0.1", 403),
        (ANY, 403),
        ("", 403),
        ("[::1].evil.example", 403),
        ("127.0.0.1:80@evil.example", 403),
        ("evil.example@127.0.0.1", 403),
    ],
)
async def test_a_request_for_another_host_is_refused_whatever_it_carries(host: str, status: int) -> None:
    async with serving() as site:
        reply = await site.get(SERVERS, Host=host)
        assert reply.status == status
        assert status == 200 or reply.json["code"] == "forbidden"


@pytest.mark.parametrize(
    "origin",
    ["null", "http://evil.example", "http://127.0.0.1", "https://127.0.0.1:{port}", "http://localhost:{port}", ""],
)
async def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    async with serving() as site:
        origin = origin.format(port=site.address.port)
        assert (await site.get(SERVERS, Origin=origin)).status == 403
        assert (await site.ask("OPTIONS", SERVERS, {"Origin": origin})).status == 403


async def test_our_own_page_is_let_in() -> None:
    async with serving() as site:
        assert (await site.get(SERVERS, Origin=f"http://127.0.0.1:{site.address.port}")).status == 200


@pytest.mark.parametrize(
    ("listening", "name", "allowed"),
    [
        (ANY, "192.168.1.5", True),
        (ANY, "localhost", True),
        (ANY, "evil.example", False),
        ("::", "fe80::1", True),
        ("192.168.1.5", "192.168.1.5", True),
        ("192.168.1.5", "localhost", False),
        ("127.0.0.2", "127.0.0.2", True),
        ("[::1]", "::1", True),
        ("box.lan", "box.lan", True),
        ("box.lan", "127.0.0.1", False),
    ],
)
def test_which_names_are_ours_depends_on_where_we_listen(listening: str, name: str, allowed: bool) -> None:
    assert allowed_hosts(listening)(name) is allowed


async def test_a_websocket_is_refused() -> None:
    async with serving() as site, await site.connect() as stream:
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        await stream.send_all(site.head("GET", SERVERS, dict(upgrade)))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("token", [None, f"Bearer {TOKEN}"])
@pytest.mark.parametrize("path", ["/api/mcp/servers/a/restart", "/nowhere", SERVERS])
async def test_a_body_that_nobody_reads_does_not_leave_a_connection_behind(path: str, token: str | None) -> None:
    """Hypercorn's queue of a request holds ten pieces; the next one would wait for ever, and with it the connection."""
    with trio.fail_after(10):
        async with serving(grace_seconds=60) as site, await site.connect() as stream:
            site.manager.put("a")
            head = site.head(
                "POST",
                path,
                {"Authorization": token, "Transfer-Encoding": "chunked", "Connection": "keep-alive"},
            )
            await stream.send_all(head + b"1\r\nx\r\n" * 1000)
            whole = b"".join([data async for data in stream])
            assert parse(whole).status in (200, 401, 404, 405)


async def test_headers_without_an_end_are_cut_off() -> None:
    async with serving() as site, await site.connect() as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000)
        assert b" 431 " in await stream.receive_some()


async def test_a_body_over_the_limit_is_refused() -> None:
    async with serving() as site:
        body = b'{"arguments": {"x": "' + b"y" * (17 * 1024 * 1024) + b'"}}'
        reply = await _ask_large(site, body)
        assert reply == 413


async def _ask_large(site: Site, body: bytes) -> int:
    async with await site.connect() as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            with suppress(trio.BrokenResourceError):  # it is refused before all of it was sent
                await stream.send_all(site.head("POST", "/api/mcp/tools/x/call", body=body))

        nursery.start_soon(send)
        status = parse(await stream.receive_some()).status
        nursery.cancel_scope.cancel()
    return status
