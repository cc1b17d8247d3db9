"""HTTP+SSE, the older transport: one stream brings everything, and an address for messages that may be no other's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from mcp.shared.exceptions import MCPError
from mcp_types import REQUEST_TIMEOUT

from openprogram_mcp.errors import AuthRequired
from openprogram_mcp.transports._outbox import Fate, FateState
from openprogram_mcp.transports._requests import ConnectionClosed, SessionLost
from openprogram_mcp.transports._sse import SseDispatcher
from tests._http_by_hand import HandServer, Online, Request, listening, online


@pytest.fixture
async def server() -> AsyncIterator[HandServer]:
    async with listening() as server:
        yield server


@pytest.fixture
async def it(server: HandServer) -> AsyncIterator[Online]:
    async with online(server.url, SseDispatcher) as it:
        yield it


async def opened(server: HandServer, endpoint: str = "/messages?s=1") -> Request:
    stream = await server.request("GET")
    await stream.stream(f"event: endpoint\ndata: {endpoint}\n\n".encode())
    return stream


async def test_a_request_is_posted_and_its_answer_comes_by_the_stream(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("m", {"a": 1}, fate=fate)
    stream = await opened(server)
    assert stream.headers["accept"] == "text/event-stream"
    request = await server.request()
    assert (request.method, request.target) == ("POST", "/messages?s=1")
    assert request.message["params"] == {"a": 1}
    await request.respond(202, b"Accepted", "text/plain")
    await stream.event({"id": request.message["id"], "result": {"ok": 1}})
    assert await pending.result() == {"ok": 1}
    assert fate.state is FateState.ANSWERED


async def test_an_answer_may_overtake_the_end_of_its_post(server: HandServer, it: Online) -> None:
    pending = it.start_call("m")
    stream = await opened(server)
    request = await server.request()
    await stream.event({"id": request.message["id"], "result": {"ok": 1}})
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert not pending.done.is_set()
    await request.respond(202, kind=None)
    assert await pending.result() == {"ok": 1}
    again = it.start_call("m")
    request = await server.request()
    assert server.connections == 2  # the stream's, and one for all POSTs
    await stream.event({"id": request.message["id"], "result": {}})
    assert await again.result() == {}  # though its POST never ends


async def test_an_answer_in_the_post_is_taken(server: HandServer, it: Online) -> None:
    pending = it.start_call("m")
    await opened(server)
    await (await server.request()).answer({"here": 1})
    assert await pending.result() == {"here": 1}


async def test_progress_moves_the_limit_and_is_told(server: HandServer, it: Online) -> None:
    told: list[Any] = []

    async def on_progress(*progress: Any) -> None:
        told.append(progress[0])

    fate = Fate()
    pending = it.start_call("m", None, timeout=0.4, on_progress=on_progress, fate=fate)
    stream = await opened(server)
    request = await server.request()
    await request.respond(202, kind=None)
    for step in range(4):
        await trio.sleep(0.2)  # half of the limit, more than once
        params = {"progressToken": request.message["id"], "progress": step}
        await stream.event({"method": "notifications/progress", "params": params})
    with pytest.raises(MCPError) as caught:
        await pending.result()
    assert caught.value.code == REQUEST_TIMEOUT
    assert told == [0, 1, 2, 3]
    cancelled = await server.request()
    assert cancelled.message["method"] == "notifications/cancelled"
    late: list[bool] = []
    fate.on_late_answer = lambda: late.append(True)
    await cancelled.respond(202, kind=None)
    await stream.event({"id": request.message["id"], "result": {}})
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert late == [True]


async def test_the_end_of_the_stream_is_the_end_of_all_recon_04(server: HandServer, it: Online) -> None:
    sent, held = Fate(), Fate()
    pending = it.start_call("m", None, fate=sent)
    stream = await opened(server)
    await (await server.request()).respond(202, kind=None)
    waiting = it.start_call("n", None, fate=held)
    request = await server.request()
    await request.respond(429, retry_after="100", kind=None)
    await trio.testing.wait_all_tasks_blocked(0.05)
    await stream.end()
    for one in (pending, waiting):
        with pytest.raises(ConnectionClosed):
            await one.result()
    assert (sent.state, held.state) == (FateState.WRITTEN, FateState.QUEUED)
    assert it.dispatcher.failure is not None
    assert it.dispatcher.failure.transient
    with trio.fail_after(2):
        await it.ended.wait()


async def test_a_post_that_meets_no_session_is_the_end_and_has_not_run_recon_04(server: HandServer, it: Online) -> None:
    fate = Fate()
    pending = it.start_call("m", None, fate=fate)
    await opened(server)
    await (await server.request()).respond(404, b"no", "text/plain")
    with pytest.raises(SessionLost):
        await pending.result()
    assert fate.state is FateState.QUEUED
    assert it.dispatcher.forgotten


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [("/v1/messages?s=1", "/v1/messages?s=1"), ("messages?s=1", "/messages?s=1"), ("?s=1", "/mcp?s=1")],
)
async def test_the_address_for_messages_is_joined_as_the_standard_says_net_03(
    server: HandServer, it: Online, endpoint: str, target: str
) -> None:
    pending = it.start_call("m")
    await opened(server, endpoint)
    assert (await server.request()).target == target
    pending.scope.cancel()


@pytest.mark.parametrize("endpoint", ["http://0.0.0.0:3001/m?s=1", "https://evil/m", "//evil/m", "javascript:x"])
async def test_an_address_of_another_origin_gets_nothing_net_03(server: HandServer, endpoint: str) -> None:
    async with online(server.url, SseDispatcher, headers={"Authorization": "Bearer x"}) as it:
        pending = it.start_call("m")
        await opened(server, endpoint)
        with pytest.raises(ConnectionClosed):
            await pending.result()
        failure = it.dispatcher.failure
        assert failure is not None
        assert not failure.transient
        if "evil" in endpoint:
            assert "://evil" in failure.message
            assert f"http://127.0.0.1:{server.port}" in failure.message


@pytest.mark.parametrize(("status", "kind"), [(404, None), (200, "text/html"), (500, None)])
async def test_what_is_no_stream_is_told(server: HandServer, it: Online, status: int, kind: str | None) -> None:
    pending = it.start_call("m")
    await (await server.request()).respond(status, b"<html>", kind)
    with pytest.raises(ConnectionClosed):
        await pending.result()
    assert it.dispatcher.failure is not None
    assert it.dispatcher.failure.transient == (status == 500)


async def test_a_stream_that_wants_a_sign_in_is_told(server: HandServer, it: Online) -> None:
    pending = it.start_call("m")
    await (await server.request()).respond(401, www_authenticate="Bearer", kind=None)
    with pytest.raises(ConnectionClosed):
        await pending.result()
    assert isinstance(it.dispatcher.failure, AuthRequired)


async def test_what_the_server_asks_is_answered_by_a_post_s2c_01(server: HandServer) -> None:
    async def on_request(_context: Any, method: str, _params: Any) -> dict[str, Any]:
        return {"asked": method}

    async with online(server.url, SseDispatcher, on_request) as it:
        stream = await opened(server)
        await stream.event({"id": "q", "method": "ping"})
        await stream.event({"method": "notifications/message", "params": {"data": "x"}})
        answer = await server.request("POST")
        assert json.loads(answer.body) == {"jsonrpc": "2.0", "id": "q", "result": {"asked": "ping"}}
        await answer.respond(202, kind=None)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert it.heard == [("notifications/message", {"data": "x"})]
