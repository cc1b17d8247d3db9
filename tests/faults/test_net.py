"""HTTP, SSE, TLS and the network, as reports have found them, each seen from a manager."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from openprogram_mcp import ServerState
from openprogram_mcp.errors import ServerGone
from openprogram_mcp.testing import FakeHttpServer, do
from tests.faults._host import hosting, well_behaved
from tests.faults._remote import AT_ONCE, ERAS, MANNERS, answering, fake_of, remote

_S = ServerState

# NET-01: a server that has no GET stream.

REFUSALS = {
    "405": do.respond(405, headers={"Allow": "POST"}),
    "404": do.respond(404),
    "406": do.respond(406),
    "400": do.respond(400, "No sessionId", content_type="text/plain"),
    "200 text": do.respond(200, "use POST", content_type="text/plain"),
    "501": do.respond(501),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("sessions", [True, False])
async def test_net_01_a_server_without_a_stream_of_its_own_is_asked_for_it_once_and_works(
    refusal: str, sessions: bool
) -> None:
    fake = FakeHttpServer(era="legacy", sessions=sessions).tool("echo").on("GET", REFUSALS[refusal])
    async with remote(fake) as manager:
        await fake.wait_for("response", count=4)
        for _ in range(3):
            assert (await manager.call_tool("f__echo", {"a": 1})).text == '{"a":1}'
        row = manager.server("f")
        assert (row.status, row.error, row.generation, row.warnings) == (_S.CONNECTED, None, 1, ())
    assert len(fake.requests("GET")) == 1


async def test_net_01_a_stream_that_closes_at_once_each_time_is_opened_ever_more_slowly() -> None:
    fake = FakeHttpServer(era="legacy").tool("echo").on("GET", do.stream(), do.event("", retry=1))
    async with remote(fake) as manager:
        gets = await fake.wait_for("request", method="GET", count=3)
        first, second, third = (record.time for record in gets)
        assert third - second > 1.5 * (second - first) > 0
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").generation == 1


# NET-03: where messages go.


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("/v1/messages?s=${session}", "/v1/messages"),
        ("messages?s=${session}", "/gw/v1/messages"),
        ("?s=${session}", "/gw/v1/sse"),
        ("http://127.0.0.1:${port}/abs?s=${session}", "/abs"),
        ("//127.0.0.1:${port}/abs?s=${session}", "/abs"),
    ],
)
async def test_net_03_an_address_for_messages_is_read_relative_to_the_stream(endpoint: str, path: str) -> None:
    fake = FakeHttpServer(transport="sse", path="/gw/v1/sse").tool("echo")
    async with fake.serving():
        fake.endpoint = endpoint.replace("${port}", str(fake.port))
        async with hosting({"f": fake.config(type="sse")}) as manager:
            assert (await manager.call_tool("f__echo")).text == "{}"
    assert {request.path for request in fake.requests("POST")} == {path}


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ("http://0.0.0.0:3001/m?s=1", "http://0.0.0.0:3001"),
        ("https://evil.example/m", "https://evil.example"),
        ("//evil.example/m", "http://evil.example"),
        ("http://127.0.0.1:${other}/m", "http://127.0.0.1:${other}"),
        ("http://127.0.0.1:${port}@evil.example/m", "http://evil.example"),
        ("https://127.0.0.1:${port}/m", "https://127.0.0.1:${port}"),
        ("javascript:x", None),
        ("http://[", None),
    ],
)
async def test_net_03_an_address_at_another_origin_gets_nothing_and_both_origins_are_named(
    endpoint: str, named: str | None
) -> None:
    fake, other = FakeHttpServer(transport="sse"), FakeHttpServer(transport="sse")
    async with fake.serving(), other.serving():
        ports = {"${port}": str(fake.port), "${other}": str(other.port)}
        for name, port in ports.items():
            endpoint = endpoint.replace(name, port)
            named = named and named.replace(name, port)
        fake.endpoint = endpoint
        async with hosting({"f": fake.config(type="sse", headers={"X-Key": "k1-secret"})}) as manager:
            row = manager.server("f")
            assert (row.status, row.error_kind, row.phase) == (_S.FAILED, "fatal", "connect")
            assert row.error is not None
            if named is not None:
                assert named in row.error
                assert f"http://127.0.0.1:{fake.port}" in row.error
            assert row.remedy
    assert fake.requests("POST") == []
    assert other.connections == 0


# NET-05: TLS and proxies.


def _certified(*names: str) -> tuple[trustme.CA, ssl.SSLContext]:
    """An authority that nobody knows, and what a server shows that it signed for these names."""
    ca = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert(*names).configure_cert(context)
    return ca, context


def _file(ca: trustme.CA, path: Path) -> str:
    ca.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.mark.parametrize("manner", MANNERS)
async def test_net_05_the_authority_of_ca_file_is_trusted_for_every_request(manner: str, tmp_path: Path) -> None:
    ca, context = _certified("127.0.0.1")
    fake = fake_of(manner, tls=context).tool("echo")
    async with remote(fake, ca_file=_file(ca, tmp_path / "ca.pem")) as manager:
        assert (await manager.call_tool("f__echo")).text == "{}"


async def test_net_05_ca_file_is_trusted_beside_the_systems_and_not_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (system, theirs), (own, ours) = _certified("127.0.0.1"), _certified("127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", _file(system, tmp_path / "system.pem"))
    ca_file = _file(own, tmp_path / "own.pem")
    public, private = FakeHttpServer(tls=theirs).tool("t"), FakeHttpServer(tls=ours).tool("t")
    async with public.serving(), private.serving():
        entries = {"public": public.config(ca_file=ca_file), "private": private.config(ca_file=ca_file)}
        async with hosting(entries) as manager:
            for name in entries:
                assert (await manager.call_tool(f"{name}__t")).text == "{}"


async def test_net_05_an_unknown_authority_is_said_with_the_reason_and_is_not_tried_again() -> None:
    _, context = _certified("127.0.0.1")
    fake = FakeHttpServer(tls=context)
    async with remote(fake, reconnect=AT_ONCE) as manager:
        row = manager.server("f")
        assert (row.status, row.error_kind, row.retry_at, row.phase) == (_S.FAILED, "fatal", None, "connect")
        assert "certificate" in (row.error or "")
        assert "ca_file" in (row.remedy or "")
    assert fake.requests() == []
    assert fake.connections == 1


async def test_net_05_a_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    ca, context = _certified("other.example")
    fake = FakeHttpServer(tls=context)
    async with remote(fake, ca_file=_file(ca, tmp_path / "ca.pem")) as manager:
        assert "certificate" in (manager.server("f").error or "")
    assert fake.requests() == []


async def test_net_05_verify_false_is_for_that_server_alone_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _, context = _certified("elsewhere.example")
    fake, other = FakeHttpServer(tls=context).tool("t"), FakeHttpServer(tls=context)
    caplog.set_level(logging.WARNING)
    async with (
        fake.serving(),
        other.serving(),
        hosting({"loose": fake.config(verify=False), "strict": other.config()}) as manager,
    ):
        assert (await manager.call_tool("loose__t")).text == "{}"
        assert manager.server("strict").status is _S.FAILED
    warned = [record.getMessage() for record in caplog.records if "verif" in record.getMessage()]
    assert len(warned) == 1
    assert "loose" in warned[0]
    assert other.requests() == []


async def test_net_05_a_client_certificate_is_shown(tmp_path: Path) -> None:
    ca, context = _certified("127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(context)
    mine = ca.issue_cert("client.example")
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    fake = FakeHttpServer(tls=context).tool("t")
    trusted = {"ca_file": _file(ca, tmp_path / "ca.pem")}
    shown = {"client_cert_file": str(tmp_path / "cert.pem"), "client_key_file": str(tmp_path / "key.pem")}
    async with fake.serving(), hosting({"f": fake.config(**trusted, **shown), "g": fake.config(**trusted)}) as manager:
        assert (await manager.call_tool("f__t")).text == "{}"
        assert manager.server("g").status is _S.FAILED


@pytest.mark.parametrize("manner", MANNERS)
async def test_net_05_every_request_goes_through_the_proxy(manner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # To a proxy a request names the whole address; the name is known to nobody else.
    fake = fake_of(manner, path="http://tickets.invalid/mcp", endpoint="/m?s=${session}").tool("t")
    async with fake.serving():
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{fake.port}")
        async with hosting({"f": {"url": "http://tickets.invalid/mcp"}}) as manager:
            assert (await manager.call_tool("f__t")).text == "{}"
    asked = {"legacy": {"POST", "GET", "DELETE"}, "modern": {"POST"}, "sse": {"POST", "GET"}}
    assert {request.method for request in fake.requests()} == asked[manner]


async def test_net_05_https_is_tunnelled_and_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FakeHttpServer().on("CONNECT", do.respond(403))
    async with proxy.serving():
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with hosting({"f": {"url": "https://tickets.invalid/mcp"}}) as manager:
            row = manager.server("f")
            assert (row.status, row.phase) == (_S.FAILED, "connect")
            assert "proxy" in (row.error or "")
    assert [request.method for request in proxy.requests()] == ["CONNECT"]


async def test_net_05_what_no_proxy_names_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    fake = FakeHttpServer().tool("t")
    async with remote(fake) as manager:
        assert (await manager.call_tool("f__t")).text == "{}"


class _Resolver(trio.abc.HostnameResolver):
    """Knows ``localhost`` by both addresses, as most machines do."""

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,  # noqa: A002 - as the interface names it
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        where: list[Any] = [(socket.AF_INET6, ("::1", port, 0, 0)), (socket.AF_INET, ("127.0.0.1", port))]
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for family, address in where]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise NotImplementedError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_localhost_is_found_on_either_address(host: str) -> None:
    trio.socket.set_custom_hostname_resolver(_Resolver())
    fake = FakeHttpServer(host=host).tool("t")
    async with fake.serving(), hosting({"f": {"url": fake.url_at("localhost")}}) as manager:
        assert (await manager.call_tool("f__t")).text == "{}"


# NET-06: streams of events, to the letter.

_REPLY = '"result":{"content":[{"type":"text","text":"got it"}]}}'

STREAMS: dict[str, Any] = {
    "keep-alives, ids, CRLF, two data lines": [
        do.stream(),
        do.write(':keepalive\r\n\r\nid: 1\r\nevent: message\r\ndata: {"jsonrpc":"2.0","id":$id,\r\n'),
        do.write(f"data: {_REPLY}\r\n\r\n"),
    ],
    "CR alone": [do.stream(line_end="\r", indent=True), answering("got it")],
    "CR, byte by byte": [do.stream(line_end="\r", chunk=1, indent=True), answering("got it")],
    "CRLF, byte by byte": [do.stream(line_end="\r\n", chunk=1, indent=True), answering("got it")],
    "a byte order mark": [do.stream(bom=True), answering("got it")],
    "no blank after the colon": [do.stream(), do.write('data:{"jsonrpc":"2.0","id":$id,' + _REPLY + "\n\n")],
    "other events": [
        do.stream(),
        do.event('{"jsonrpc":"2.0","id":1,"result":{}}', event="heartbeat"),
        do.event("no JSON", event="ping"),
        do.event({"jsonrpc": "2.0", "id": "$id", "result": {"content": []}}, event="Message"),
        do.write("dat: x\nwhatever\nretry: soon\nid: a\x00b\n\n"),
        answering("got it"),
    ],
    "an event without data": [do.stream(), do.event("", id="1"), do.event(None, event="message"), answering("got it")],
    "what is no JSON": [do.stream(), do.event("{no json"), do.event("[]"), do.event("7"), answering("got it")],
    "a big event, in pieces": [
        do.stream(chunk=4096),
        do.notify("notifications/message", {"level": "info", "data": "ü" * 300_000}),
        answering("got it"),
    ],
    "no end of the stream": [do.stream(), answering("got it"), do.hang()],
    "an end with the connection": [do.stream(framing="close"), answering("got it")],
    "a content type with parameters": [
        do.head(200, {"content-type": "Text/Event-Stream; charset=utf-8"}),
        answering("got it"),
    ],
    "a line separator that ends no line": [
        do.stream(),
        do.notify("notifications/message", {"level": "info", "data": "a\u2028b\x85c\x0bd"}),
        answering("got it"),
    ],
}


@pytest.mark.parametrize("stream", STREAMS)
@ERAS
async def test_net_06_a_stream_is_read_to_the_letter(stream: str, era: Any) -> None:
    fake = FakeHttpServer(era=era).tool("t", *STREAMS[stream]).tool("echo")
    async with remote(fake) as manager:
        with trio.fail_after(5):
            assert (await manager.call_tool("f__t")).text == "got it"
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").generation == 1
    assert len(fake.calls("t")) == 1


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_net_06_the_older_transport_reads_its_stream_by_the_same_rules(line_end: str) -> None:
    fake = FakeHttpServer(transport="sse").tool("echo")
    fake.on("GET", do.stream(line_end=line_end, chunk=1, bom=True, indent=True), do.standard())
    async with remote(fake, type="sse") as manager:
        assert (await manager.call_tool("f__echo", {"a": "ü\u2028"})).text == '{"a":"ü\u2028"}'


@ERAS
async def test_an_event_without_its_blank_line_is_none(era: Any) -> None:
    # It may be the half of one; the specification of event streams says to drop it.
    fake = FakeHttpServer(era=era).tool("echo")
    fake.tool("half", do.stream(), do.write('data: {"jsonrpc":"2.0","id":$id,' + _REPLY + "\n"), do.cut())
    async with remote(fake) as manager:
        with pytest.raises(ServerGone) as gone:
            await manager.call_tool("f__half")
        assert gone.value.may_have_run
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").generation == 1
    assert len(fake.calls("half")) == 1


@ERAS
@pytest.mark.parametrize(
    "steps",
    [
        [do.stream(), do.event("{no json")],
        [do.respond(200, "{no json", content_type="application/json")],
        [do.respond(200, "", content_type="application/json")],
        [do.respond(200, json=[])],
    ],
)
async def test_an_answer_that_is_no_message_fails_its_call_alone(steps: Any, era: Any) -> None:
    fake = FakeHttpServer(era=era).tool("echo").tool("t", *steps)
    async with remote(fake) as manager:
        result = await manager.call_tool("f__t")
        assert result.is_error
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").generation == 1
    assert len(fake.calls("t")) == 1


# What comes instead of MCP.


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (do.respond(200, "<html>hello</html>", content_type="text/html"), "text/html"),
        (do.respond(200, b"\x00\x01", content_type="application/octet-stream"), "application/octet-stream"),
        (do.respond(200), "no content type"),
        (do.respond(500, "<html>oops</html>", content_type="text/html"), "500"),
        (do.respond(403, "<html>no</html>", content_type="text/html"), "403"),
        (do.respond(202), "202"),
    ],
)
async def test_what_is_no_mcp_is_said_once_and_harms_nobody(page: Any, said: str) -> None:
    fake = FakeHttpServer().on("POST", page)
    async with fake.serving(), hosting({"f": fake.config(reconnect=False), "good": well_behaved()}) as manager:
        row = manager.server("f")
        assert row.status is _S.FAILED
        assert said in (row.error or "")
        assert row.remedy
        assert (await manager.call_tool("good__echo", {})).text == "{}"


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_keeps_method_and_body(status: int) -> None:
    fake = FakeHttpServer(path="/moved").tool("echo")
    fake.on("POST /mcp", do.respond(status, headers={"Location": "/moved"}))
    fake.on("GET /mcp", do.respond(status, headers={"Location": "/moved"}))
    async with fake.serving():
        entry = {"url": fake.url_at("127.0.0.1", "/mcp"), "headers": {"Authorization": "Bearer k1-secret"}}
        async with hosting({"f": entry}) as manager:
            assert (await manager.call_tool("f__echo", {"a": 1})).text == '{"a":1}'
    assert {request.header("authorization") for request in fake.requests()} == {"Bearer k1-secret"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_gets_nothing_and_is_named(status: int) -> None:
    other, fake = FakeHttpServer(), FakeHttpServer()
    async with other.serving(), fake.serving():
        fake.on("POST", do.respond(status, headers={"Location": other.url}))
        async with hosting({"f": fake.config(headers={"Authorization": "Bearer k1-secret"})}) as manager:
            row = manager.server("f")
            assert row.status is _S.FAILED
            assert f"http://127.0.0.1:{other.port}" in (row.error or "")
            assert "k1-secret" not in repr(row)
    assert other.connections == 0


async def test_a_redirect_without_an_end_is_given_up() -> None:
    fake = FakeHttpServer().on("POST", do.respond(307, headers={"Location": "/mcp"}))
    async with remote(fake, reconnect=False) as manager:
        assert manager.server("f").status is _S.FAILED
    assert len(fake.requests("POST")) < 20
