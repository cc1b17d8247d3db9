"""The fake server over HTTP: what its script can say, and what it can be asked."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trustme

from openprogram_mcp.testing import FakeHttpServer, do
from tests._http_peer import HttpPeer, connected


@asynccontextmanager
async def talking(fake: FakeHttpServer) -> AsyncIterator[HttpPeer]:
    async with fake.serving(), connected(fake) as peer:
        yield peer


# A well-behaved server.


async def test_a_legacy_client_gets_a_session_and_must_bring_it_back() -> None:
    fake = FakeHttpServer().tool("echo")
    async with talking(fake) as peer:
        first = await peer.initialize()
        assert first.headers["content-type"] == "application/json"
        assert first.json["result"]["protocolVersion"] == "2025-11-25"
        assert (await peer.notify("notifications/initialized")).status == 202
        await peer.post("tools/call", {"name": "echo", "arguments": {"a": "ü"}})
        assert (await peer.response()).json["result"]["content"][0]["text"] == '{"a":"ü"}'
        peer.session, known = None, peer.session
        await peer.post("tools/list")
        assert (await peer.response()).status == 400
        peer.session = "another"
        await peer.post("tools/list")
        assert (await peer.response()).status == 404
        peer.session = known
        await peer.send("DELETE")
        assert (await peer.response()).status == 200
        await peer.post("tools/list")
        assert (await peer.response()).status == 404
    assert [request.rpc for request in fake.requests("POST")][:3] == [
        "initialize",
        "notifications/initialized",
        "tools/call",
    ]
    assert fake.requests(rpc="tools/call")[0].session == known
    assert [call.arguments for call in fake.calls("echo")] == [{"a": "ü"}]


async def test_a_modern_request_stands_alone_and_its_headers_say_what_its_body_says() -> None:
    async with talking(FakeHttpServer(era="modern").tool("echo")) as peer:
        await peer.modern("server/discover")
        assert (await peer.response()).json["result"]["supportedVersions"] == ["2026-07-28"]
        await peer.modern("tools/call", {"name": "echo"})
        assert (await peer.response()).json["result"]["resultType"] == "complete"
        await peer.modern("tools/call", {"name": "echo"}, Mcp_Name="other")
        wrong = await peer.response()
        assert (wrong.status, wrong.json["error"]["code"], wrong.json["id"]) == (400, -32020, 3)
        await peer.modern("tools/nonsense")
        assert (await peer.response()).status == 404
        await peer.post("initialize", {"protocolVersion": "2025-11-25"})
        old = await peer.response()
        assert (old.status, old.json["error"]["code"]) == (400, -32022)
        await peer.send("GET")
        assert (await peer.response()).status == 405


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Accept": "application/json"}, 406),
        ({"Content-Type": "text/plain"}, 415),
        ({"MCP-Protocol-Version": "1"}, 400),
    ],
)
async def test_what_the_specification_says_to_refuse_is_refused(headers: dict[str, str], status: int) -> None:
    async with talking(FakeHttpServer(sessions=False)) as peer:
        await peer.send("POST", b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', headers)
        assert (await peer.response()).status == status
        await peer.send("POST", b"{")
        assert (await peer.response()).json["error"]["code"] == -32700
        await peer.send("GET", path="/elsewhere")
        assert (await peer.response()).status == 404


async def test_an_answer_is_json_and_a_stream_where_something_is_sent_before_it() -> None:
    fake = FakeHttpServer(sessions=False).tool("slow", do.progress(1, token="t"), do.reply("done"))
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "slow"})
        response = await peer.response()
        assert response.headers["content-type"] == "text/event-stream"
        assert [message.get("method", "answer") for message in response.data] == ["notifications/progress", "answer"]
        fake.answers = "sse"
        await peer.post("ping")
        assert (await peer.response()).data == [{"jsonrpc": "2.0", "id": 2, "result": {}}]


async def test_a_question_goes_on_the_response_or_on_the_stream_of_get_and_is_answered_by_post() -> None:
    fake = FakeHttpServer()
    fake.tool("ask", do.request("roots/list", id="q1"), do.reply("$answer"))
    fake.tool("ask_on_get", do.on_get(do.request("roots/list", id="q2")), do.reply("$answer"))
    async with talking(fake) as peer, connected(fake) as other, connected(fake) as listener:
        await peer.initialize()
        other.session = listener.session = peer.session
        await peer.post("tools/call", {"name": "ask"})
        assert (await peer.head())[0] == 200
        assert b'"id":"q1"' in await peer.chunk()
        await other.send("POST", b'{"jsonrpc":"2.0","id":"q1","result":{"roots":[]}}')
        assert (await other.response()).status == 202
        assert b'{\\"roots\\":[]}' in await peer.chunk()
        await peer.chunk()
        await peer.post("tools/call", {"name": "ask_on_get"})
        await listener.send("GET")  # opened later than it was asked: the question waits for it
        assert (await listener.head())[0] == 200
        assert b'"id":"q2"' in await listener.chunk()
        await other.send("POST", b'{"jsonrpc":"2.0","id":"q2","result":1}')
        assert (await other.response()).status == 202
        assert (await peer.response()).json["result"]["content"][0]["text"] == "1"


async def test_changes_go_on_the_stream_of_get_or_to_those_who_listen() -> None:
    fake = FakeHttpServer().tool("hidden", hidden=True)
    async with talking(fake) as peer, connected(fake) as listener, connected(fake) as modern:
        await peer.initialize()
        listener.session = peer.session
        await listener.send("GET")
        await listener.head()
        fake.play(do.show("hidden"), do.changed())
        assert b"notifications/tools/list_changed" in await listener.chunk()
        request_id = await modern.modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await modern.head()
        assert b"acknowledged" in await modern.chunk()
        fake.play(do.changed())
        told = await modern.chunk()
        assert b"list_changed" in told
        assert f'"io.modelcontextprotocol/subscriptionId":{request_id}'.encode() in told
        fake.play(do.end_listening())
        assert b'"result"' in await modern.chunk()
        assert await modern.chunk() == b""


async def test_the_older_transport_names_its_address_and_answers_on_its_one_stream() -> None:
    fake = FakeHttpServer(transport="sse", endpoint="messages?s=${session}").tool("echo")
    async with talking(fake) as peer, connected(fake) as sender:
        await peer.send("GET")
        assert (await peer.head())[0] == 200
        event = (await peer.chunk()).decode()
        assert event.startswith("event: endpoint\ndata: messages?s=session-")
        path = "/" + event.split("data: ")[1].strip()
        await sender.send("POST", b'{"jsonrpc":"2.0","id":1,"method":"ping"}', path=path)
        assert (await sender.response()).status == 202
        assert b'{"jsonrpc":"2.0","id":1,"result":{}}' in await peer.chunk()
        await peer.stream.aclose()
        await fake.wait_for("ended", count=2)
        await sender.send("POST", b'{"jsonrpc":"2.0","id":2,"method":"ping"}', path=path)
        assert (await sender.response()).status == 404
        await sender.send("POST", b'{"jsonrpc":"2.0","id":2,"method":"ping"}')
        assert (await sender.response()).status == 405


# What scripts say.


async def test_a_script_for_a_whole_request_stands_before_what_the_server_does() -> None:
    fake = FakeHttpServer(sessions=False)
    refused = do.respond(401, headers={"WWW-Authenticate": 'Bearer resource="${path}"'})
    fake.on("POST", do.choose("$headers.authorization", {"Bearer x": [do.standard()]}, [refused]))
    fake.on("GET /mcp", do.turns([do.respond(503, "soon", headers={"Retry-After": "2"})], [do.standard()]))
    async with talking(fake) as peer:
        await peer.post("ping")
        response = await peer.response()
        assert (response.status, response.headers["www-authenticate"]) == (401, 'Bearer resource="/mcp"')
        await peer.send("POST", b'{"jsonrpc":"2.0","id":7,"method":"ping"}', {"Authorization": "Bearer x"})
        assert (await peer.response()).json == {"jsonrpc": "2.0", "id": 7, "result": {}}
        await peer.send("GET")
        response = await peer.response()
        assert (response.status, response.body, response.headers["retry-after"]) == (503, b"soon", "2")
        await peer.send("GET")
        assert (await peer.head())[0] == 200
    assert [request.status for request in fake.requests()] == [401, 200, 503, 200]


async def test_a_server_that_runs_is_changed_and_plays_what_was_said_last() -> None:
    fake = FakeHttpServer(sessions=False).tool("a", do.reply("1"))
    async with talking(fake) as peer:
        fake.on("POST", do.respond(503))
        await peer.post("ping")
        assert (await peer.response()).status == 503
        fake.off("POST").tool("a", do.reply("2")).tool("b")
        await peer.post("tools/call", {"name": "a"})
        assert (await peer.response()).json["result"]["content"][0]["text"] == "2"
        await peer.post("tools/list")
        assert len((await peer.response()).json["result"]["tools"]) == 2


async def test_what_stands_behind_the_standard_in_a_script_for_a_whole_request_comes_after_the_answer() -> None:
    fake = FakeHttpServer(sessions=False).tool("slow", do.sleep(0.01), do.reply("done"))
    fake.on("POST", do.standard(), do.cut())
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "slow"})
        assert (await peer.response()).json["result"]["content"][0]["text"] == "done"
        assert await peer.rest() == b""


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_events_are_written_as_the_script_frames_them(line_end: str) -> None:
    fake = FakeHttpServer(sessions=False)
    fake.tool(
        "events",
        do.stream(line_end=line_end, bom=True, indent=True),
        do.write(f": hello{line_end}"),
        do.event("two\nlines", event="heartbeat", id="7", retry=10),
        do.reply("x"),
    )
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "events"})
        body = (await peer.response()).body.decode("utf-8-sig")
    lines = body.split(line_end)
    heartbeat = ["event: heartbeat", "id: 7", "retry: 10", "data: two", "data: lines", ""]
    assert lines[:9] == [": hello", *heartbeat, "event: message", "data: {"]
    assert not set("\r\n") & set("".join(lines))


async def test_a_stream_may_come_byte_by_byte_and_an_event_without_its_end() -> None:
    fake = FakeHttpServer(sessions=False)
    fake.tool("drip", do.stream(chunk=1), do.event({"id": "$id"}, blank=False))
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "drip"})
        await peer.head()
        pieces = []
        while piece := await peer.chunk():
            pieces.append(piece)
    assert b"".join(pieces) == b'data: {"id":1}\n'
    assert {len(piece) for piece in pieces} == {1}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([do.cut()], b""),
        ([do.tcp("HTTP/1.1 200 OK\r\nCont"), do.cut()], b"HTTP/1.1 200 OK\r\nCont"),
        (
            [do.head(200, {"Content-Length": "99"}, framing="none"), do.write('{"id":'), do.cut()],
            b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"id":',
        ),
        (
            [do.head(200, {"X": "${params.name}"}, framing="close"), do.write("all")],
            b"HTTP/1.1 200 OK\r\nX: cut\r\nConnection: close\r\n\r\nall",
        ),
        ([do.respond(299, "x", reason="Odd")], b"HTTP/1.1 299 Odd\r\n"),
    ],
)
async def test_every_byte_is_the_scripts_and_a_connection_may_be_cut_at_any(steps: Any, expected: bytes) -> None:
    fake = FakeHttpServer(sessions=False).tool("cut", *steps)
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "cut"})
        if expected.endswith(b"Odd\r\n"):
            assert await peer.until(b"\r\n") == expected
        else:
            assert await peer.rest() == expected


async def test_a_connection_is_reset_where_the_script_says_so() -> None:
    fake = FakeHttpServer(sessions=False).tool("cut", do.cut(reset=True))
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "cut"})
        with pytest.raises(trio.BrokenResourceError):
            await peer.stream.receive_some()
    assert [request.ended_by for request in fake.requests()] == ["server"]


async def test_a_lost_stream_goes_on_behind_the_last_event_that_came() -> None:
    fake = FakeHttpServer(resumable=True, retry=250)
    fake.tool("work", do.progress(1, token="t"), do.cut(), do.progress(2, token="t"), do.wait("go"), do.reply("done"))
    async with talking(fake) as peer, connected(fake) as again:
        await peer.initialize()
        again.session = peer.session
        await peer.post("tools/call", {"name": "work"})
        lost = (await peer.rest()).decode()
        assert "retry: 250" in lost
        assert '"progress":1' in lost
        last = lost.split("id: ")[-1].split("\n")[0]
        await again.send("GET", headers={"Last-Event-ID": last})
        assert (await again.head())[0] == 200
        assert b'"progress":2' in await again.chunk()
        fake.play(do.wake("go"))
        assert b'"done"' in await again.chunk()
        assert await again.chunk() == b""


async def test_sessions_are_forgotten_after_so_many_requests_or_when_it_is_said() -> None:
    fake = FakeHttpServer(session_requests=1).on("no session", do.respond(400, "No valid session"))
    async with talking(fake) as peer:
        await peer.initialize()
        for status in (200, 400):
            await peer.post("ping")
            assert (await peer.response()).status == status
        fake.session_requests = None
        fake.off("no session")
        peer.session = None
        await peer.initialize()
        await peer.post("ping")
        assert (await peer.response()).status == 200
        fake.forget_sessions()
        await peer.post("ping")
        assert (await peer.response()).status == 404


async def test_a_connection_may_be_scripted_before_anything_is_read() -> None:
    fake = FakeHttpServer(sessions=False).on("connect", do.turns([do.cut()], [do.sleep(0.01)]))
    async with fake.serving():
        async with connected(fake) as peer:
            assert await peer.rest() == b""
        async with connected(fake) as peer:
            await peer.post("ping")
            assert (await peer.response()).status == 200
        fake.on("connect")
        async with connected(fake) as peer:
            await peer.post("ping")
            with trio.move_on_after(0.05) as scope:
                await peer.response()
            assert scope.cancelled_caught
    assert len(fake.requests()) == 1


# What it can be asked, and how it lives.


async def test_who_leaves_a_modern_request_has_withdrawn_it_and_the_time_is_known() -> None:
    fake = FakeHttpServer().tool("hang", do.hang())
    async with fake.serving():
        async with connected(fake) as peer:
            await peer.modern("tools/call", {"name": "hang"})
            await fake.wait_for("begin")
            before = trio.current_time()
        await fake.wait_for("end")
        async with connected(fake) as peer:
            await peer.initialize()
            await peer.post("tools/call", {"name": "hang"})
            await fake.wait_for("begin", count=3)
        await fake.wait_for("ended", count=3)
        modern, legacy = fake.calls()
        assert (modern.outcome, legacy.outcome) == ("cancelled", None)
    request = fake.requests(rpc="tools/call")[0]
    assert request.ended_by == "client"
    assert before <= (request.ended or 0) <= trio.current_time()


async def test_it_is_stopped_and_comes_back_at_the_same_port_without_its_sessions() -> None:
    fake = FakeHttpServer()
    async with trio.open_nursery() as nursery:
        await fake.start(nursery)
        port = fake.port
        async with connected(fake) as peer:
            session = (await peer.initialize()).headers["mcp-session-id"]
            await fake.stop()
            assert await peer.rest() == b""
        with pytest.raises(OSError, match="all attempts"):
            await trio.open_tcp_stream("127.0.0.1", port)
        await fake.start(nursery)
        assert fake.port == port
        with pytest.raises(RuntimeError):
            await fake.start(nursery)
        async with connected(fake) as peer:
            peer.session = session
            await peer.post("ping")
            assert (await peer.response()).status == 404
        nursery.cancel_scope.cancel()
    assert len(fake.records("start")) == 2
    assert [request.number for request in fake.requests()] == [1, 2]
    with pytest.raises(RuntimeError):
        fake.play()


async def test_a_script_ends_it_and_its_connections_are_reset() -> None:
    fake = FakeHttpServer(sessions=False).tool("die", do.die())
    async with talking(fake) as peer:
        await peer.post("tools/call", {"name": "die"})
        with pytest.raises(trio.BrokenResourceError):
            await peer.stream.receive_some()
        with pytest.raises(OSError, match="all attempts"):
            await trio.open_tcp_stream("127.0.0.1", fake.port)
    assert [record.facts["signal"] for record in fake.records("exit")] == ["SIGKILL"]


async def test_it_speaks_tls_and_listens_on_ipv6() -> None:
    ca = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("::1", "localhost").configure_cert(server)
    ca.configure_trust(client)
    fake = FakeHttpServer(host="::1", tls=server, sessions=False)
    async with fake.serving(), connected(fake, "::1", client) as peer:
        assert fake.url == f"https://[::1]:{fake.port}/mcp"
        assert fake.url_at("localhost", "/x") == f"https://localhost:{fake.port}/x"
        await peer.post("ping")
        assert (await peer.response()).status == 200


async def test_a_body_in_chunks_is_read_and_what_is_no_http_closes_the_connection() -> None:
    fake = FakeHttpServer(sessions=False)
    async with fake.serving():
        async with connected(fake) as peer:
            body = b'7\r\n{"id":1\r\n14\r\n,"method":"ping"    \r\n1;x=y\r\n}\r\n0\r\n\r\n'
            head = b"POST /mcp HTTP/1.1\r\nAccept: application/json, text/event-stream\r\n"
            head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            for at in range(0, len(head + body), 5):
                await peer.stream.send_all((head + body)[at : at + 5])
            assert (await peer.response()).json["result"] == {}
        async with connected(fake) as peer:
            await peer.stream.send_all(b"hello\r\n\r\n")
            assert await peer.rest() == b""
    assert len(fake.records("garbled")) == 1


async def test_a_step_of_processes_says_that_it_is_none_of_http() -> None:
    fake = FakeHttpServer(sessions=False).tool("spawn", do.spawn())
    with pytest.RaisesGroup(NotImplementedError, flatten_subgroups=True):
        async with talking(fake) as peer:
            await peer.post("tools/call", {"name": "spawn"})
            await peer.response()
