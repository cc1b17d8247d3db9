"""Who may ask: the token, the host, the origin; and requests that are made to be in the way."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from openprogram_mcp.web import _hosting
from openprogram_mcp.web._guard import allowed_hosts
from openprogram_mcp.web._sessions import LINK_SECONDS, SESSION_SECONDS, Sessions

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


@pytest.mark.parametrize("path", [SERVERS, "/healthz", "/mcp/enter", "/nowhere"])
async def test_what_asks_whether_a_foreign_page_may_come_in_is_refused_and_allows_nothing(path: str) -> None:
    async with serving() as site:
        for origin in (None, "http://evil.example", f"http://127.0.0.1:{site.address.port}"):
            reply = await site.ask("OPTIONS", path, {"Origin": origin, "Access-Control-Request-Method": "GET"})
            assert (reply.status, reply.json["code"]) == (403, "forbidden")
            assert [name for name in reply.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize(
    ("said", "status"),
    [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("", 403), ("else", 403)],
)
async def test_what_a_browser_says_of_a_request_counts_even_with_the_token(said: str, status: int) -> None:
    async with serving() as site:
        assert (await site.ask("GET", SERVERS, {"Sec-Fetch-Site": said})).status == status


async def test_no_page_can_be_put_into_a_frame_or_read_from_elsewhere() -> None:
    async with serving() as site:
        for path in (SERVERS, "/healthz", "/nowhere"):
            for reply in (await site.get(path), await site.get(path, Authorization=None)):
                assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
                assert reply.headers["x-frame-options"] == "DENY"
                assert reply.headers["cross-origin-resource-policy"] == "same-origin"
                assert [name for name in reply.headers if name.startswith("access-control")] == []


async def test_a_token_in_the_address_is_none() -> None:
    async with serving() as site:
        for query in (f"token={TOKEN}", f"access_token={TOKEN}", f"code={TOKEN}", f"authorization=Bearer%20{TOKEN}"):
            assert (await site.get(f"{SERVERS}?{query}", Authorization=None)).status == 401


# The link that lets a browser in


async def _link(site: Site) -> str:
    """The address of a new link, without the worker's."""
    url = str((await site.post("/api/mcp/link")).json["url"])
    base = f"http://127.0.0.1:{site.address.port}"
    assert url.startswith(f"{base}/mcp/enter?code=")
    return url.removeprefix(base)


async def _enter(site: Site) -> str:
    """Open a new link; the cookie."""
    reply = await site.get(await _link(site), Authorization=None)
    assert reply.status == 200
    return reply.headers["set-cookie"].partition(";")[0]


async def test_a_link_sets_a_cookie_that_lets_a_browser_in() -> None:
    async with serving() as site:
        link = await _link(site)
        reply = await site.get(link, Authorization=None, **{"Sec-Fetch-Site": "cross-site"})
        assert reply.headers["content-type"].startswith("text/html")
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["referrer-policy"] == "no-referrer"
        cookie, *marks = reply.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(marks)
        assert cookie.startswith(f"openprogram_mcp_{site.address.port}=")
        assert TOKEN not in reply.headers["set-cookie"]
        assert cookie.partition("=")[2] not in link
        for kept in (cookie, f"other=1; {cookie}", f"{cookie.partition('=')[0]}=guessed; {cookie}"):
            assert (await site.get(SERVERS, Authorization=None, Cookie=kept)).status == 200


async def test_a_link_works_once() -> None:
    async with serving() as site:
        link = await _link(site)
        assert (await site.get(link, Authorization=None)).status == 200
        again = await site.get(link, Authorization=None)
        assert (again.status, again.json["code"], "set-cookie" in again.headers) == (401, "unauthorized", False)
        for code in ("", "x", "%ED%A0%80"):
            assert (await site.get(f"/mcp/enter?code={code}", Authorization=None)).status == 401
        assert (await site.get("/mcp/enter", Authorization=None)).status == 401


async def test_a_link_is_made_for_the_owner_alone_and_not_for_a_foreign_name() -> None:
    async with serving() as site:
        assert (await site.post("/api/mcp/link", None, Authorization=None)).status == 401
        link = await _link(site)
        assert (await site.get(link, Host="evil.example", Authorization=None)).status == 403
        assert (await site.get(link, Authorization=None)).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://127.0.0.1:{port}", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_with_a_cookie_only_our_own_page_can_change_anything(
    method: str, headers: dict[str, str], status: int
) -> None:
    async with serving() as site:
        site.manager.put("a")
        sent = {name: value.format(port=site.address.port) for name, value in headers.items()}
        with_cookie = {"Cookie": await _enter(site), "Authorization": None, **sent}
        path = f"{SERVERS}/a/restart" if method == "POST" else f"{SERVERS}/a"
        reply = await site.ask(method, path, with_cookie)
        assert reply.status == (204 if (method, status) == ("DELETE", 200) else status)
        assert (site.manager.acts + site.manager.asked != []) is (status == 200)


@pytest.mark.parametrize(
    "cookie", ["", "openprogram_mcp_{port}=", "openprogram_mcp_{port}=x", "other={value}", "{value}"]
)
async def test_a_cookie_that_is_not_ours_lets_nobody_in(cookie: str) -> None:
    async with serving() as site:
        value = (await _enter(site)).partition("=")[2]
        sent = cookie.format(port=site.address.port, value=value)
        assert (await site.get(SERVERS, Authorization=None, Cookie=sent)).status == 401
        assert (await site.get(SERVERS, Authorization=f"Bearer {value}")).status == 401


async def test_a_wrong_token_is_not_made_good_by_a_cookie() -> None:
    async with serving() as site:
        assert (await site.get(SERVERS, Authorization="Bearer other", Cookie=await _enter(site))).status == 401


def test_links_and_cookies_end_and_are_not_kept_for_ever() -> None:
    now = 0.0
    sessions = Sessions(8080, lambda: now)
    late = sessions.new_link()
    now += LINK_SECONDS
    assert sessions.enter(late) is None
    header = sessions.enter(sessions.new_link())
    assert header is not None
    cookie = header.partition(";")[0]
    now += SESSION_SECONDS - 1
    assert sessions.knows([cookie])
    now += 1
    assert not sessions.knows([cookie])
    codes = [sessions.new_link() for _ in range(1000)]
    assert sessions.enter(codes[0]) is None
    cookies = [header.partition(";")[0] for code in codes if (header := sessions.enter(code))]
    assert 0 < len(cookies) < 100
    for _ in range(1000):
        sessions.enter(sessions.new_link())
    assert not any(sessions.knows([one]) for one in cookies)
    assert str(codes[-1]) not in repr(sessions)


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
@pytest.mark.parametrize("path", ["/api/mcp/servers/a/restart", "/nowhere", "/api/mcp/config-path"])
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


@pytest.mark.parametrize("path", [SERVERS, "/api/mcp/tools/x/call"])
async def test_a_body_that_does_not_come_in_time_is_cut_off(path: str) -> None:
    async with serving(body_seconds=0.05, grace_seconds=60) as site, await site.connect() as stream:
        await stream.send_all(site.head("POST", path, {"Content-Length": "100", "Connection": "keep-alive"}) + b"{")
        whole = b"".join([data async for data in stream])
        assert (parse(whole).status, parse(whole).json["code"]) == (408, "too_slow")
        assert (site.manager.asked, site.manager.calls) == ([], [])


async def test_a_connection_that_asks_for_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hosting, "_IDLE_SECONDS", 0.05)
    for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: y"):
        async with serving(grace_seconds=60) as site, await site.connect() as stream:
            await stream.send_all(begun)
            assert await stream.receive_some() in (b"", b"HTTP/1.1 408 \r\n")


async def test_headers_that_trickle_in_are_cut_off_in_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hosting, "_IDLE_SECONDS", 0.2)
    async with serving(grace_seconds=60) as site, await site.connect() as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            while True:  # ended by the test's own limit, if never
                await stream.send_all(b"y")
                await trio.sleep(0.02)


async def _whole(stream: trio.SocketStream) -> int:
    """Read one response to its end; its status."""
    data = b""
    while b"\r\n\r\n" not in data or len(parse(data).body) < int(parse(data).headers["content-length"]):
        data += await stream.receive_some()
    return parse(data).status


async def test_a_connection_beyond_the_limit_is_closed_and_the_others_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hosting, "_MAX_CONNECTIONS", 2)
    async with serving() as site, await site.connect() as first, await site.connect() as second:
        for stream in (first, second):
            await stream.send_all(site.head("GET", SERVERS, {"Connection": "keep-alive"}))
            assert await _whole(stream) == 200
        async with await site.connect() as third:
            with suppress(trio.BrokenResourceError):
                assert await third.receive_some() == b""
        await first.send_all(site.head("GET", SERVERS))
        assert await _whole(first) == 200


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
