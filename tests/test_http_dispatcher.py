"""Streamable HTTP: what the dispatcher owes its callers, whatever the server answers and however connections break."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, REQUEST_TIMEOUT

from openprogram_mcp.errors import AuthRequired
from openprogram_mcp.transports._http_answers import HttpRefused
from openprogram_mcp.transports._outbox import Fate, FateState
from openprogram_mcp.transports._requests import ConnectionClosed, RequestLost, SessionLost
from tests._http_by_hand import MODERN, HandServer, Online, listening, online

QUEUED, WRITTEN, ANSWERED = FateState.QUEUED, FateState.WRITTEN, FateState.ANSWERED


@pytest.fixture
async def server() -> AsyncIterator[HandServer]:
    async with listening() as server:
        yield server


@pytest.fixture
async def it(server: HandServer) -> AsyncIterator[Online]:
    async with online(server.url) as it:
        yield it


# Answers.


async def test_a_request_is_a_post_and_its_answer_may_be_json(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("tools/list", {"cursor": "x"}, fate=fate)
    request = await server.request()
    assert (request.method, request.target) == ("POST", "/mcp")
    assert request.headers["accept"] == "application/json, text/event-stream"
    assert request.headers["content-type"] == "application/json"
    assert request.message == {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "x"}}
    assert fate.state is WRITTEN
    await request.answer({"tools": []})
    assert await pending.result() == {"tools": []}
    assert fate.state is ANSWERED


async def test_an_answer_may_be_an_event_after_progress_that_is_told_in_order(server: HandServer, it: Online) -> None:
    told: list[Any] = []

    async def on_progress(*progress: Any) -> None:
        told.append((*progress, trio.lowlevel.current_task().name))

    pending = it.start_call("m", None, on_progress=on_progress)
    request = await server.request()
    token = request.message["params"]["_meta"]["progressToken"]
    await request.stream(b": hello\n\n")
    for step in (1, 2):
        await request.event(
            {"method": "notifications/progress", "params": {"progressToken": token, "progress": step, "total": 2}}
        )
    await request.event({"id": token, "result": {"ok": True}})
    await request.end()
    assert await pending.result() == {"ok": True}
    assert [one[:2] for one in told] == [(1, 2), (2, 2)]
    assert all("wait_for" in one[3] for one in told)


async def test_progress_on_another_stream_is_told_while_its_caller_waits(server: HandServer, it: Online) -> None:
    told: list[Any] = []
    arrived = trio.Event()

    async def on_progress(*progress: Any) -> None:
        told.append(progress)
        arrived.set()

    await server.initialize(it, get=None)
    stream = await server.request("GET")
    await stream.stream()
    pending = it.start_call("m", None, on_progress=on_progress)
    request = await server.request("POST")
    token = request.message["id"]
    await stream.event({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
    with trio.fail_after(5):
        await arrived.wait()
    await request.answer({"ok": True})
    assert await pending.result() == {"ok": True}
    assert told == [(1, None, None)]


async def test_answers_on_each_others_streams_find_their_requests_conc_02(server: HandServer, it: Online) -> None:
    one, two = it.start_call("one"), it.start_call("two")
    requests = {request.message["method"]: request for request in [await server.request(), await server.request()]}
    await requests["one"].stream()
    await requests["two"].stream()
    await requests["one"].event({"id": requests["two"].message["id"], "result": {"of": "two"}})
    assert await two.result() == {"of": "two"}
    await requests["one"].event({"id": requests["one"].message["id"], "result": {"of": "one"}})
    assert await one.result() == {"of": "one"}


async def test_a_stream_that_ends_after_its_answer_leaves_its_connection_for_the_next(
    server: HandServer, it: Online
) -> None:
    for _ in range(3):
        pending = it.start_call()
        request = await server.request()
        await request.stream()
        await request.event({"id": request.message["id"], "result": {}})
        await request.end()
        await pending.result()
        await trio.testing.wait_all_tasks_blocked(0.05)
    assert server.connections == 1


async def test_an_error_in_a_refusal_is_the_requests_own(server: HandServer, it: Online) -> None:
    pending = it.start_call()
    await (await server.request()).refuse(404, METHOD_NOT_FOUND, "what?", id_=None)
    with pytest.raises(MCPError, match="what") as caught:
        await pending.result()
    assert caught.value.code == METHOD_NOT_FOUND
    assert not it.dispatcher.closed


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (200, "text/html", "text/html"),
        (404, "text/html", "no MCP server"),
        (500, "text/plain", "it failed"),
        (403, None, "refuses us"),
        (202, None, "answers nothing"),
    ],
)
async def test_what_is_no_answer_fails_its_request_alone(
    server: HandServer, it: Online, status: int, kind: str | None, said: str
) -> None:
    pending = it.start_call()
    await (await server.request()).respond(status, b"<html>", kind)
    with pytest.raises(MCPError, match=said):
        await pending.result()
    again = it.start_call()
    await (await server.request()).answer({"fine": 1})
    assert await again.result() == {"fine": 1}


async def test_an_answer_over_the_limit_fails_its_request_alone(server: HandServer) -> None:
    async with online(server.url, max_frame_bytes=1000) as it:
        for stream in (False, True):
            pending = it.start_call()
            request = await server.request()
            if stream:
                await request.stream()
                await request.event({"id": request.message["id"], "result": {"x": "y" * 2000}})
            else:
                await request.answer({"x": "y" * 2000})
            with pytest.raises(MCPError, match="over the size limit"):
                await pending.result()
        pending = it.start_call()
        await (await server.request()).answer({})
        assert await pending.result() == {}


# Fates.


async def test_what_could_not_connect_was_never_sent_and_ends_the_connection() -> None:
    async with listening() as server:
        url = server.url
    async with online(url) as it:
        fate = Fate()
        with pytest.raises(ConnectionClosed):
            await it.call(fate=fate)
        assert fate.state is QUEUED
        failure = it.dispatcher.failure
        assert failure is not None
        assert failure.transient
        assert failure.phase == "connect"
        assert "nothing listens at http://127.0.0.1:" in failure.message
        with trio.fail_after(5):
            await it.ended.wait()


async def test_what_was_sent_and_lost_may_have_run_and_is_lost_alone(server: HandServer, it: Online) -> None:
    fate, other = Fate(), it.start_call("other")
    waiting = await server.request()
    pending = it.start_call("m", None, fate=fate)
    await (await server.request()).cut()
    with pytest.raises(RequestLost):
        await pending.result()
    assert fate.state is WRITTEN
    await waiting.answer({"ok": 1})
    assert await other.result() == {"ok": 1}


async def test_what_is_on_its_way_comes_to_its_end_when_nothing_new_can_be_sent(it: Online, server: HandServer) -> None:
    pending = it.start_call("m")
    request = await server.request()
    refused = it.start_call("n")
    await (await server.request()).respond(401, www_authenticate="Bearer")
    with pytest.raises(ConnectionClosed):
        await refused.result()
    assert it.dispatcher.ended.is_set()
    assert not it.dispatcher.over.is_set()
    await request.answer({"ok": 1})
    assert await pending.result() == {"ok": 1}
    with trio.fail_after(5):
        await it.dispatcher.over.wait()


async def test_a_request_for_a_sign_in_keeps_the_challenge(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("m", None, fate=fate)
    await (await server.request()).respond(401, www_authenticate='Bearer resource_metadata="https://x/y"')
    with pytest.raises(ConnectionClosed):
        await pending.result()
    failure = it.dispatcher.failure
    assert isinstance(failure, AuthRequired)
    assert failure.challenges == ('Bearer resource_metadata="https://x/y"',)
    assert not failure.rejected
    assert fate.state is QUEUED


@pytest.mark.parametrize(
    "config", [{"headers": {"Authorization": "Basic eDp5"}}, {"auth": {"kind": "bearer", "token": "sesame"}}]
)
async def test_configured_credentials_go_out_and_are_told_to_be_rejected(
    server: HandServer, config: dict[str, Any]
) -> None:
    async with online(server.url, **config) as it:
        pending = it.start_call()
        request = await server.request()
        assert request.headers["authorization"] in ("Basic eDp5", "Bearer sesame")
        await request.respond(401)
        with pytest.raises(ConnectionClosed):
            await pending.result()
        assert isinstance(it.dispatcher.failure, AuthRequired)
        assert it.dispatcher.failure.rejected


# Limits and cancellation.


async def test_a_limit_that_moves_with_progress_and_one_that_does_not(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("m", None, fate=fate, timeout=0.3, wants_progress=True)
    request = await server.request()
    await request.stream()
    for step in range(4):
        await trio.sleep(0.15)  # half of the limit, more than once
        progress = {"progressToken": request.message["id"], "progress": step}
        await request.event({"method": "notifications/progress", "params": progress})
    with pytest.raises(MCPError) as caught:
        await pending.result()
    assert caught.value.code == REQUEST_TIMEOUT
    assert fate.expired == "idle"
    await request.closed_by_client()
    fate = Fate()
    pending = it.start_call("m", None, fate=fate, timeout=100, hard_timeout=0.1)
    with pytest.raises(MCPError):
        await pending.result()
    assert fate.expired == "hard"


async def test_cancelling_a_modern_request_closes_its_response_and_says_nothing_spec_02(
    server: HandServer, it: Online
) -> None:
    pending = it.start_call("tools/call", {"name": "x", **MODERN})
    request = await server.request()
    await request.stream()
    pending.scope.cancel()
    await request.closed_by_client()
    again = it.start_call("m")
    assert (await server.request()).message["method"] == "m"
    again.scope.cancel()


async def test_cancelling_a_legacy_request_is_told_in_a_notification_spec_02(server: HandServer, it: Online) -> None:
    await server.initialize(it)
    pending = it.start_call("tools/call", {"name": "x"})
    request = await server.request()
    pending.scope.cancel()
    told = await server.request()
    assert told.message["method"] == "notifications/cancelled"
    assert told.message["params"] == {"requestId": request.message["id"]}
    assert told.headers["mcp-session-id"] == "s1"


# Eras.


async def test_a_modern_request_says_in_headers_what_it_is_spec_06(server: HandServer, it: Online) -> None:
    listing = it.start_call("tools/list", MODERN)
    request = await server.request()
    assert request.headers["mcp-protocol-version"] == "2026-07-28"
    assert request.headers["mcp-method"] == "tools/list"
    assert "mcp-name" not in request.headers

    def schema(header: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": header}}}

    tools = [{"name": "gut", "inputSchema": schema("Region")}] + [
        {"name": f"bad{n}", "inputSchema": schema(header)} for n, header in enumerate(["", "a b", "X\r\nEvil: 1", 7])
    ]
    await request.answer({"tools": tools})
    assert [tool["name"] for tool in (await listing.result())["tools"]] == ["gut"]
    warnings = it.dispatcher.warnings  # type: ignore[attr-defined]  # of this transport
    assert len(warnings) == 4
    for value, sent in [
        ("eu", "eu"),
        ("ü", "=?base64?w7w=?="),
        (" lead", "=?base64?IGxlYWQ=?="),
        ("a\r\nB: c", "=?base64?YQ0KQjogYw==?="),
        (None, None),
    ]:
        call = it.start_call("tools/call", {"name": "gut", "arguments": {"region": value}, **MODERN})
        request = await server.request()
        assert request.headers["mcp-name"] == "gut"
        assert request.headers.get("mcp-param-region") == sent
        assert "b" not in request.headers
        await request.answer({})
        await call.result()


async def test_a_session_is_named_in_every_request_and_ended_at_the_end(server: HandServer) -> None:
    async with online(server.url) as it:
        await server.initialize(it)
        pending = it.start_call("m")
        request = await server.request()
        assert request.headers["mcp-session-id"] == "s1"
        assert request.headers["mcp-protocol-version"] == "2025-11-25"
        await request.answer({})
        await pending.result()
        it.running.cancel()
        farewell = await server.request()
        assert (farewell.method, farewell.headers["mcp-session-id"]) == ("DELETE", "s1")
        await farewell.respond(405, kind=None)
        with trio.fail_after(2):
            await it.ended.wait()


async def test_a_server_that_does_not_answer_the_end_of_a_session_holds_nobody_up(server: HandServer) -> None:
    async with online(server.url) as it:
        await server.initialize(it)
        it.running.cancel()
        await server.request("DELETE")
        with trio.fail_after(3):
            await it.ended.wait()


@pytest.mark.parametrize(("status", "code"), [(404, None), (404, -32600), (400, -32000), (410, None)])
async def test_a_forgotten_session_is_the_end_and_nothing_was_run_recon_01(
    server: HandServer, it: Online, status: int, code: int | None
) -> None:
    await server.initialize(it)
    fate = Fate()
    pending = it.start_call("tools/call", {"name": "x"}, fate=fate)
    request = await server.request()
    if code is None:
        await request.respond(status, b"gone", "text/plain")
    else:
        await request.refuse(status, code)
    with pytest.raises(SessionLost):
        await pending.result()
    assert fate.state is QUEUED
    assert it.dispatcher.forgotten
    assert it.dispatcher.failure is not None
    assert it.dispatcher.failure.transient


async def test_an_unknown_method_in_a_session_is_no_lost_session_proto_01(server: HandServer, it: Online) -> None:
    await server.initialize(it)
    pending = it.start_call("prompts/list")
    await (await server.request()).refuse(404, METHOD_NOT_FOUND)
    with pytest.raises(MCPError):
        await pending.result()
    assert not it.dispatcher.closed


# Patience.


async def test_who_is_told_to_wait_waits_and_so_do_all_others(server: HandServer, it: Online) -> None:
    one = it.start_call("one")
    await (await server.request()).respond(429, retry_after="1", kind=None)
    began = trio.current_time()
    await trio.testing.wait_all_tasks_blocked(0.05)
    two = it.start_call("two")
    methods = set()
    for _ in range(2):
        request = await server.request()
        methods.add(request.message["method"])
        await request.answer({})
    assert methods == {"one", "two"}
    assert trio.current_time() - began >= 0.9
    await one.result()
    await two.result()


async def test_who_is_told_to_wait_longer_than_it_may_is_told_so_at_once(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("m", None, timeout=5, fate=fate)
    await (await server.request()).respond(503, retry_after="3600", kind=None)
    with pytest.raises(HttpRefused, match="asks us to wait 3600 s"):
        await pending.result()


async def test_a_server_that_is_unavailable_has_run_nothing_and_is_left(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("m", None, fate=fate)
    await (await server.request()).respond(503, b"<html>", "text/html")
    with pytest.raises(ConnectionClosed):
        await pending.result()
    assert fate.state is QUEUED
    assert it.dispatcher.failure is not None


# Broken streams.


async def test_a_legacy_stream_that_breaks_is_taken_up_where_it_was(server: HandServer, it: Online) -> None:
    await server.initialize(it)
    pending = it.start_call("tools/call", {"name": "x"})
    request = await server.request()
    await request.stream(b"retry: 10\nid: e1\ndata:\n\n")
    await request.cut()
    resumed = await server.request()
    assert (resumed.method, resumed.headers["last-event-id"]) == ("GET", "e1")
    assert resumed.headers["mcp-session-id"] == "s1"
    await resumed.stream()
    await resumed.event({"id": request.message["id"], "result": {"late": True}}, id_="e2")
    assert await pending.result() == {"late": True}


async def test_a_modern_stream_that_breaks_is_lost_spec_01(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("tools/call", {"name": "x", **MODERN}, fate=fate)
    request = await server.request()
    await request.stream(b"retry: 10\nid: e1\ndata:\n\n")
    await request.end()
    with pytest.raises(RequestLost):
        await pending.result()
    assert fate.state is WRITTEN


@pytest.mark.parametrize("status", [405, 404, 406, 400])
async def test_a_get_stream_that_is_refused_is_not_asked_for_again_net_01(
    server: HandServer, it: Online, status: int
) -> None:
    await server.initialize(it, get=status)
    await trio.testing.wait_all_tasks_blocked(0.1)
    pending = it.start_call()
    request = await server.request()
    assert request.method == "POST"
    await request.answer({})
    await pending.result()


async def test_requests_of_the_server_are_answered_on_a_post_of_their_own_s2c_01(server: HandServer) -> None:
    async def on_request(_context: Any, method: str, _params: Any) -> dict[str, Any]:
        return {"asked": method}

    async with online(server.url, on_request=on_request) as it:
        await server.initialize(it, get=None)
        stream = await server.request("GET")
        await stream.stream()
        pending = it.start_call("tools/call", {"name": "x"})
        request = await server.request("POST")
        await request.stream()
        await request.event({"id": "s1", "method": "ping"})
        await stream.event({"id": 0, "method": "roots/list"})
        answers = {}
        for _ in range(2):
            answer = await server.request("POST")
            answers[answer.message["id"]] = answer.message["result"]
            await answer.respond(202, kind=None)
        assert answers == {"s1": {"asked": "ping"}, 0: {"asked": "roots/list"}}
        await request.event({"id": request.message["id"], "result": {}})
        assert await pending.result() == {}


# Redirects.


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_within_the_origin_keeps_method_and_body(server: HandServer, status: int) -> None:
    async with online(server.url, headers={"Authorization": "Bearer x"}) as it:
        pending = it.start_call("m", {"a": 1})
        first = await server.request()
        await first.respond(status, location="/mcp/", kind=None)
        second = await server.request()
        assert (second.method, second.target, second.body) == ("POST", "/mcp/", first.body)
        assert second.headers["authorization"] == "Bearer x"
        await second.answer({})
        await pending.result()


async def test_a_redirect_to_another_origin_is_not_followed(server: HandServer) -> None:
    async with listening() as other, online(server.url, headers={"Authorization": "Bearer x"}) as it:
        pending = it.start_call()
        await (await server.request()).respond(307, location=other.url + "?secret=1", kind=None)
        with pytest.raises(HttpRefused) as caught:
            await pending.result()
        assert f"127.0.0.1:{server.port}" in caught.value.message
        assert f"127.0.0.1:{other.port}" in caught.value.message
        assert "secret" not in caught.value.message
        assert other.connections == 0
