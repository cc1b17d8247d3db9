"""The parts of HTTP that need no server: what statuses mean, how long is waited, what is written at once and logged."""

from __future__ import annotations

import logging
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from openprogram_mcp.config import MCPServerConfig
from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.transports._http_answers import error_in, means_session_lost, retry_after, status_words
from openprogram_mcp.transports._http_client import (
    configured_credentials,
    open_client,
    origin,
    own_headers,
    unreachable,
)
from openprogram_mcp.transports._http_cork import _CorkedStream
from openprogram_mcp.transports._pauses import Pauses, Resumption
from tests._http_by_hand import listening


def response(status: int = 429, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


# Statuses.


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0), ("120", 120), ("-1", None), ("1.5", None), ("", None), ("soon", None)]
)
def test_retry_after_is_a_number_of_seconds(value: str, seconds: float | None) -> None:
    assert retry_after(response(retry_after=value)) == seconds


def test_retry_after_may_be_a_date() -> None:
    now = datetime.now(UTC)
    soon = retry_after(response(retry_after=format_datetime(now + timedelta(seconds=100), usegmt=True)))
    assert soon is not None
    assert 98 <= soon <= 101
    assert retry_after(response(retry_after=format_datetime(now - timedelta(days=1), usegmt=True))) == 0


def test_a_status_that_nobody_knows_has_its_number() -> None:
    assert status_words(404) == "HTTP 404 Not Found"
    assert status_words(599) == "HTTP 599"


@pytest.mark.parametrize(
    ("status", "body", "lost"),
    [
        (404, b"", True),
        (404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"x"}}', True),
        (404, b'{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"x"}}', False),
        (400, b"Session not found", False),
        (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"x"}}', True),
        (400, b'{"jsonrpc":"2.0","id":3,"error":{"code":-32000,"message":"x"}}', False),
        (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"x"}}', False),
        (410, b"", True),
        (500, b"", False),
    ],
)
def test_a_lost_session_is_told_by_status_and_code(status: int, body: bytes, lost: bool) -> None:
    assert means_session_lost(status, error_in(body)) is lost


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"error":"no"}', b'{"error":{}}', b'{"id":1,"result":{}}', b"\xff"]
)
def test_what_is_no_error_of_json_rpc_is_none(body: bytes) -> None:
    assert error_in(body) is None


# Waiting.


async def test_the_longest_wait_that_was_asked_for_holds_for_all(autojump_clock: trio.testing.MockClock) -> None:
    pauses = Pauses()
    assert await pauses.over(float("inf")) is None
    pauses.ask(429, 10)
    pauses.ask(429, 5)
    assert await pauses.over(trio.current_time() + 9) == pytest.approx(10)
    began = trio.current_time()
    assert await pauses.over(began + 11) is None
    assert trio.current_time() - began == pytest.approx(10)


async def test_without_a_time_the_waits_grow(autojump_clock: trio.testing.MockClock) -> None:
    pauses, waits = Pauses(), []
    for _ in range(10):
        pauses.ask(429, None)
        pauses.ask(429, None)  # others were told the same
        began = trio.current_time()
        await pauses.over(float("inf"))
        waits.append(trio.current_time() - began)
    assert waits[0] <= 1
    assert 2 <= waits[3] <= 8
    assert max(waits) <= 60


def test_a_stream_on_which_nothing_comes_is_taken_up_ever_more_slowly_net_01() -> None:
    resumption, waits = Resumption(), []
    for _ in range(8):
        waits.append(resumption.wait(0))
        resumption.ended(heard=False)
    assert waits[1:7] == [1, 2, 4, 8, 16, 32]
    assert 0 < waits[0] < 0.1
    assert not resumption.hopeless
    resumption.ended(heard=True)
    assert resumption.wait(0.5) == 0.5
    for _ in range(5):
        resumption.failed()
    assert resumption.hopeless


# The client.


def config(url: str = "https://h/mcp", **more: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict("far", {"url": url, **more})


def test_a_configured_authorization_header_is_never_replaced() -> None:
    both = config(headers={"authorization": "Basic x"}, auth={"kind": "bearer", "token": "t"})
    assert own_headers(both)["authorization"] == b"Basic x"
    assert own_headers(config(auth={"kind": "bearer", "token": "t"}))["authorization"] == b"Bearer t"
    assert configured_credentials(both)
    assert not configured_credentials(config(headers={"X-Key": "k"}))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host/path?key=secret", "https://host"),
        ("http://host:8080/x", "http://host:8080"),
        ("http://[::1]:1/", "http://[::1]:1"),
    ],
)
def test_an_address_is_named_by_its_origin_alone(url: str, shown: str) -> None:
    assert origin(httpx2.URL(url)) == shown


@pytest.mark.parametrize(
    ("cause", "said", "transient"),
    [
        (ConnectionRefusedError(), "nothing listens at https://h", True),
        (socket.gaierror(-2, "x"), "the host of https://h is not known", True),
        (ssl.SSLCertVerificationError(1, "x"), "is not trusted", False),
        (ssl.SSLError(1, "x"), "no TLS connection", True),
        (OSError(), "cannot be reached", True),
    ],
)
def test_why_a_server_is_unreachable_is_told_by_the_kind_of_the_failure(
    cause: Exception, said: str, transient: bool
) -> None:
    error = httpx2.ConnectError("secret")
    error.__cause__ = ExceptionGroup("several addresses", [cause])
    why = unreachable(error, httpx2.URL("https://u:secret@h/?k=secret"))
    assert said in why.message
    assert why.transient is transient
    assert "secret" not in why.message


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ca_file": "/no/such/file"}, "its ca_file cannot be read"),
        ({"client_cert_file": "/no/such/file"}, "its client certificate cannot be used"),
    ],
)
async def test_a_certificate_file_that_cannot_be_read_is_a_fault_of_the_configuration(
    more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServerFailed, match=said) as caught:
        await open_client(config(**more))
    assert caught.value.phase == "config"
    assert not caught.value.transient


async def test_the_log_of_the_http_client_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "httpx2")
    async with listening() as server, trio.open_nursery() as nursery:
        url = server.url.replace("//", "//me:sesame@") + "?key=sesame"
        client = await open_client(config(url))
        nursery.start_soon(client.get, url)
        request = await server.request()
        assert request.headers["authorization"].startswith("Basic ")
        await request.respond()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await client.aclose()
    assert "HTTP Request" in caplog.text
    assert "sesame" not in caplog.text


# Head and body in one write.


class Recorded:
    def __init__(self) -> None:
        self.writes: list[bytes] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.writes.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return b"answer"


async def test_head_and_body_are_one_write() -> None:
    stream = Recorded()
    corked = _CorkedStream(stream)
    await corked.write(b"POST / HTTP/1.1\r\n\r\n")
    assert stream.writes == []
    await corked.write(b"body\r\n\r\n")
    await corked.write(b"")
    assert stream.writes == [b"POST / HTTP/1.1\r\n\r\nbody\r\n\r\n", b""]
    await corked.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await corked.read(1) == b"answer"
    assert stream.writes[2:] == [b"GET / HTTP/1.1\r\n\r\n"]


async def test_the_client_writes_through_the_cork_and_the_system_asks_for_signs_of_life() -> None:
    async with listening() as server, trio.open_nursery() as nursery:
        client = await open_client(config(server.url))
        nursery.start_soon(client.post, server.url)
        request = await server.request()
        backend = client._transport._pool._network_backend  # type: ignore[attr-defined]  # what the cork is put into
        assert type(backend).__name__ == "_CorkingBackend"
        stream = await backend.connect_tcp("127.0.0.1", server.port)
        assert stream.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        await stream.aclose()
        await request.respond()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await client.aclose()


@pytest.mark.parametrize(
    "given", [{"headers": {"authorization": "Bearer mine"}}, {"auth": {"kind": "bearer", "token": "mine"}}]
)
async def test_a_user_in_the_url_never_takes_the_place_of_a_configured_authorization(given: dict[str, Any]) -> None:
    config = MCPServerConfig.from_dict("x", {"url": "http://user:word@127.0.0.1:9/mcp", **given})
    client = await open_client(config)
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"])
        return httpx2.Response(200)

    client._transport, client._mounts = httpx2.MockTransport(answer), {}
    async with client:
        await client.post(config.url or "", headers={name: text.decode() for name, text in own_headers(config).items()})
    assert seen == ["Bearer mine"]
