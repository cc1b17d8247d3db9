"""Remote servers that forget us, go away and come back, as reports have found them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from openprogram_mcp import ServerState
from openprogram_mcp.errors import NotConnected, OpenProgramMCPError, ServerGone, TimedOut
from openprogram_mcp.events import ServerLog, StatusChanged, ToolsChanged
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeHttpServer, do
from tests._living import events_of, until
from tests.faults._host import hosting
from tests.faults._remote import AT_ONCE, LATE, MANNERS, fake_of, remote

_S = ServerState
_MANNERS = pytest.mark.parametrize("manner", MANNERS)

FORGOTTEN = {
    "404": [
        do.respond(404, json={"jsonrpc": "2.0", "error": {"code": -32001, "message": "Session not found"}, "id": None})
    ],
    "404 without a word": [do.respond(404)],
    "404 with a page": [do.respond(404, "<html>not found</html>", content_type="text/html")],
    "400 of the TypeScript SDK": [
        do.respond(400, json={"jsonrpc": "2.0", "error": {"code": -32000, "message": "No valid session"}, "id": None})
    ],
    "410": [do.respond(410)],
}


# RECON-01: a session that is not known any more.


@pytest.mark.parametrize("answer", FORGOTTEN)
async def test_recon_01_a_forgotten_session_is_made_anew_and_the_call_is_sent_again(answer: str) -> None:
    fake = FakeHttpServer(era="legacy").tool("write").on("no session", *FORGOTTEN[answer])
    async with remote(fake, reconnect=LATE) as manager:
        assert (await manager.call_tool("f__write", {"n": 1})).text == '{"n":1}'
        fake.tool("new").forget_sessions()
        assert (await manager.call_tool("f__write", {"n": 2})).text == '{"n":2}'
        row = manager.server("f")
        assert (row.status, row.generation, row.error) == (_S.CONNECTED, 2, None)
        assert row.tools == ("f__new", "f__write"), "the tools were read again"
    first, second = fake.requests(rpc="initialize")
    assert first.header("mcp-session-id") is second.header("mcp-session-id") is None
    assert first.session != second.session
    assert [call.arguments for call in fake.calls()] == [{"n": 1}, {"n": 2}], "each ran once"


async def test_recon_01_calls_that_find_it_out_together_share_one_new_session() -> None:
    fake = FakeHttpServer(era="legacy").tool("read", read_only=True)
    texts: list[str] = []

    async def call(manager: MCPManager, n: int) -> None:
        texts.append((await manager.call_tool("f__read", {"n": n})).text)

    async with remote(fake, reconnect=LATE, max_concurrency=20) as manager:
        fake.forget_sessions()
        async with trio.open_nursery() as nursery:
            for n in range(10):
                nursery.start_soon(call, manager, n)
        assert manager.server("f").generation == 2
    assert sorted(texts) == sorted(f'{{"n":{n}}}' for n in range(10))
    assert len(fake.requests(rpc="initialize")) == 2
    assert len(fake.calls()) == 10


async def test_recon_01_a_call_that_is_under_way_when_the_session_is_lost_is_not_sent_again() -> None:
    fake = FakeHttpServer(era="legacy").tool("write", do.hang()).tool("echo", read_only=True)
    gone: list[ServerGone] = []

    async def write(manager: MCPManager) -> None:
        with pytest.raises(ServerGone) as raised:
            await manager.call_tool("f__write")
        gone.append(raised.value)

    async with remote(fake, serialize="none") as manager, trio.open_nursery() as nursery:
        nursery.start_soon(write, manager)
        await fake.wait_for("begin", method="tools/call")
        fake.forget_sessions()
        assert (await manager.call_tool("f__echo")).text == "{}"
    assert gone[0].may_have_run
    assert len(fake.calls("write")) == 1


async def test_recon_01_a_call_that_is_under_way_may_come_to_its_end_on_the_lost_session() -> None:
    fake = FakeHttpServer(era="legacy").tool("write", do.wait("go"), do.reply("done")).tool("echo", read_only=True)
    texts: list[str] = []

    async def write(manager: MCPManager) -> None:
        texts.append((await manager.call_tool("f__write")).text)

    async with remote(fake, serialize="none") as manager, trio.open_nursery() as nursery:
        nursery.start_soon(write, manager)
        await fake.wait_for("begin", method="tools/call")
        fake.forget_sessions()
        nursery.start_soon(manager.call_tool, "f__echo")
        await fake.wait_for("refused", count=1)
        fake.play(do.wake("go"))
    assert texts == ["done"]
    assert [call.tool for call in fake.calls()] == ["write", "echo"]


async def test_recon_01_a_server_that_forgets_at_once_each_time_ends_the_call_and_is_not_asked_for_ever() -> None:
    fake = FakeHttpServer(era="legacy").tool("echo")
    fake.on("tools/call", do.respond(404))
    async with remote(fake, reconnect=AT_ONCE) as manager:
        with pytest.raises(OpenProgramMCPError) as failed:
            await manager.call_tool("f__echo")
        assert not getattr(failed.value, "may_have_run", False)
    assert len(fake.requests(rpc="tools/call")) == 2


async def test_recon_01_a_call_that_may_have_run_before_its_sessions_were_forgotten_is_not_said_not_to_have_run() -> (
    None
):
    # It runs, and its connection breaks; then the session is forgotten, and the next one at once.
    lost = do.turns([do.cut()], [do.forget(), do.respond(404)], [do.forget(), do.respond(404)], [do.standard()])
    fake = FakeHttpServer(era="legacy").tool("read", lost, read_only=True)
    async with remote(fake, reconnect=AT_ONCE) as manager:
        with pytest.raises(ServerGone) as caught:
            await manager.call_tool("f__read")
        assert caught.value.may_have_run
        assert len(fake.requests(rpc="tools/call")) == 3


async def test_a_session_that_is_forgotten_after_each_few_calls_is_made_anew_as_often() -> None:
    fake = FakeHttpServer(era="legacy", session_requests=6).tool("write")
    async with remote(fake, reconnect=AT_ONCE) as manager:
        for n in range(12):
            assert (await manager.call_tool("f__write", {"n": n})).text == f'{{"n":{n}}}'
    assert [call.arguments["n"] for call in fake.calls()] == list(range(12))


async def test_a_session_that_ends_with_its_stream_is_told_to_the_server_at_the_end() -> None:
    fake = FakeHttpServer(era="legacy").tool("echo")
    async with remote(fake) as manager:
        await manager.call_tool("f__echo")
    assert [request.status for request in fake.requests("DELETE")] == [200]


@pytest.mark.parametrize("steps", [[do.respond(405)], [do.respond(500)], [do.cut()], []])
async def test_a_server_that_does_not_take_the_farewell_holds_nobody_up(steps: Any) -> None:
    fake = FakeHttpServer(era="legacy").on("DELETE", *steps)
    async with fake.serving():
        async with hosting({"f": fake}):
            began = trio.current_time()
        assert trio.current_time() - began < 3


# RECON-03: an address where no MCP is.


@pytest.mark.parametrize("kind", ["auto", "http"])
async def test_recon_03_an_address_without_mcp_is_said_once_and_there_is_no_loop(kind: str) -> None:
    page = do.respond(404, "<html>not here</html>", content_type="text/html")
    fake = FakeHttpServer().on("POST", page).on("GET", page)
    async with remote(fake, type=kind, reconnect=AT_ONCE) as manager:
        row = manager.server("f")
        assert (row.status, row.error_kind, row.retry_at) == (_S.FAILED, "fatal", None)
        assert "404" in (row.error or "")
        assert "url" in (row.remedy or "")
        with trio.move_on_after(0.2):
            await fake.wait_for("request", count=len(fake.requests()) + 1)
        errors = [event for event in events_of(manager.events, StatusChanged) if event.status.status is _S.FAILED]
        assert len(errors) == 1
    assert len(fake.requests("POST")) <= 2, "one for each era"
    assert len(fake.requests("GET")) == (1 if kind == "auto" else 0)


@pytest.mark.parametrize("status", [400, 404, 405])
@pytest.mark.parametrize("word", ["page", "error"])
async def test_recon_03_what_refuses_post_may_be_a_server_of_the_older_transport(status: int, word: str) -> None:
    error = {"jsonrpc": "2.0", "error": {"code": -32000, "message": "Method not allowed."}, "id": None}
    refusal = do.respond(status, "Cannot POST /sse") if word == "page" else do.respond(status, json=error)
    fake = FakeHttpServer(transport="sse").tool("echo").on("POST /sse", refusal)
    async with remote(fake) as manager:
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").protocol_version == "2025-11-25"


async def test_the_transport_that_was_found_is_remembered_as_long_as_the_server_has_it() -> None:
    refusal = do.respond(405, "Cannot POST /sse")
    fake = FakeHttpServer(transport="sse").tool("echo").on("POST /sse", refusal)
    async with fake.serving():
        # It moves on while we are away.
        moved = FakeHttpServer(path="/sse", port=fake.port).tool("new")
        async with hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
            asked = [request.path for request in fake.requests("POST")].count("/sse")
            assert asked > 0
            fake.forget_sessions()
            await until(manager, "f", _S.CONNECTED, where=lambda row: row.generation == 2)
            assert [request.path for request in fake.requests("POST")].count("/sse") == asked
            await fake.stop()
            await until(manager, "f", _S.RECONNECTING)
            async with moved.serving():
                await until(manager, "f", _S.CONNECTED)
                assert manager.server("f").tools == ("f__new",)


async def test_a_server_that_has_moved_on_from_the_older_transport_is_found_without_a_pause() -> None:
    fake = FakeHttpServer(transport="sse").tool("old").on("POST /sse", do.respond(405))
    async with fake.serving(), hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
        fake.on("GET /sse", do.respond(405)).off("POST /sse")
        fake.transport, before = "http", len(fake.requests())
        fake.forget_sessions()
        await until(manager, "f", _S.CONNECTED, where=lambda row: row.generation == 2)
        assert [request.method for request in fake.requests()[before:]][:2] == ["GET", "POST"]
        states = [event.status.status for event in events_of(manager.events, StatusChanged)]
        assert states.count(_S.RECONNECTING) == 1, "the first try has found it"


@pytest.mark.parametrize("blip", [do.cut(), do.cut(reset=True), do.respond(503), do.respond(429)])
async def test_a_blip_while_the_older_transport_is_tried_does_not_end_the_server_for_ever(blip: Any) -> None:
    fake = FakeHttpServer(transport="sse").tool("echo").on("GET", do.turns([blip], [do.standard()]))
    async with remote(fake, reconnect=AT_ONCE) as manager:
        await until(manager, "f", _S.CONNECTED)
        assert (await manager.call_tool("f__echo")).text == "{}"
    assert len(fake.requests("GET")) == 2


# RECON-04: the older transport loses its stream.


async def test_recon_04_the_loss_of_an_idle_stream_is_noticed_at_once_and_the_server_comes_back() -> None:
    fake = FakeHttpServer(transport="sse").tool("write")
    async with remote(fake, reconnect=AT_ONCE) as manager:
        assert (await manager.call_tool("f__write")).text == "{}"
        last = manager.events.last_id
        fake.forget_sessions()
        states: list[ServerState] = []
        with manager.events.subscribe(last) as events:
            while _S.CONNECTED not in states:
                event = (await anext(events)).event
                if isinstance(event, StatusChanged):
                    states.append(event.status.status)
        assert states[0] is _S.RECONNECTING, "before anybody called"
        assert (await manager.call_tool("f__write")).text == "{}"
        assert manager.server("f").generation == 2
    assert len(fake.calls()) == 2


async def test_recon_04_a_message_to_a_forgotten_session_is_sent_again_on_the_next() -> None:
    fake = FakeHttpServer(transport="sse").tool("write")
    # Its stream stays open, as a balancer's does, while the server behind it is another one.
    fake.on("POST /messages", do.turns(*[[do.standard()]] * 4, [do.respond(404, "Session not found")], [do.standard()]))
    async with remote(fake, reconnect=AT_ONCE) as manager:
        for n in range(3):
            assert (await manager.call_tool("f__write", {"n": n})).text == f'{{"n":{n}}}'
    assert [call.arguments["n"] for call in fake.calls()] == [0, 1, 2]


async def test_recon_04_a_call_whose_stream_is_lost_is_not_sent_again_where_it_may_have_run() -> None:
    fake = FakeHttpServer(transport="sse").tool("write", do.forget(), do.hang()).tool("echo")
    async with remote(fake, reconnect=AT_ONCE) as manager:
        with pytest.raises(ServerGone) as gone:
            await manager.call_tool("f__write")
        assert gone.value.may_have_run
        assert (await manager.call_tool("f__echo")).text == "{}"
    assert len(fake.calls("write")) == 1


# RECON-06: nothing is tried any more once a server is put away.


@pytest.mark.parametrize("verb", ["disconnect", "disable", "remove"])
async def test_recon_06_a_server_that_is_put_away_while_its_stream_waits_is_not_asked_again(verb: str) -> None:
    fake = FakeHttpServer(era="legacy").tool("echo").on("GET", do.stream(), do.event("", retry=50))
    async with remote(fake) as manager:
        await fake.wait_for("ended", count=3)
        await getattr(manager, verb)("f")
        seen = len(fake.requests())
        with trio.move_on_after(1.5):
            await fake.wait_for("request", count=seen + 1)
        assert len(fake.requests()) == seen


@_MANNERS
@pytest.mark.parametrize("verb", ["disconnect", "disable", "remove"])
async def test_recon_06_a_server_that_is_put_away_while_it_is_tried_again_is_not_tried_any_more(
    verb: str, manner: str
) -> None:
    fake = fake_of(manner).tool("echo")
    async with trio.open_nursery() as nursery:
        await fake.start(nursery)
        async with hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
            await fake.stop()
            with pytest.raises(OpenProgramMCPError):
                await manager.call_tool("f__echo", timeout=0.2)
            await getattr(manager, verb)("f")
            await fake.start(nursery)
            with trio.move_on_after(0.3):
                await fake.wait_for("connection", count=fake.connections + 1)
            assert fake.requests()[-1].time < fake.records("start")[-1].time
        nursery.cancel_scope.cancel()


# RECON-08 and RECON-09: outages.


@_MANNERS
async def test_recon_08_a_server_that_was_down_is_there_again_when_it_is_up_again(manner: str) -> None:
    fake = fake_of(manner).tool("write")
    async with trio.open_nursery() as nursery:
        await fake.start(nursery)
        async with hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
            for n in range(4):
                await fake.stop(reset=n % 2 == 1)
                with pytest.raises((NotConnected, TimedOut, ServerGone)) as failed:
                    await manager.call_tool("f__write", {"down": n}, timeout=0.15)
                assert not getattr(failed.value, "may_have_run", False)
                await fake.start(nursery)
                assert (await manager.call_tool("f__write", {"up": n})).text == f'{{"up":{n}}}'
                row = await until(manager, "f", _S.CONNECTED)
                assert (row.attempt, row.retry_at, row.error) == (0, None, None)
        nursery.cancel_scope.cancel()
    assert [call.arguments for call in fake.calls()] == [{"up": n} for n in range(4)]


@_MANNERS
async def test_recon_08_a_call_to_a_server_that_is_down_hastens_one_try(manner: str) -> None:
    fake = fake_of(manner).tool("write")
    async with trio.open_nursery() as nursery:
        await fake.start(nursery)
        async with hosting({"f": fake.config(reconnect=LATE)}) as manager:
            await fake.stop()
            with pytest.raises(OpenProgramMCPError):
                await manager.call_tool("f__write", {"down": 1}, timeout=0.3)
            await until(manager, "f", _S.RECONNECTING)
            await fake.start(nursery)
            with trio.fail_after(5):
                assert (await manager.call_tool("f__write", {"up": 1})).text == '{"up":1}'
        nursery.cancel_scope.cancel()


async def test_recon_08_a_server_that_never_worked_is_tried_again_and_said_once_a_state() -> None:
    fake = FakeHttpServer()
    async with fake.serving():
        entry = fake.config(reconnect={"initial_seconds": 0.01, "max_seconds": 0.02, "max_attempts": 4})
    async with hosting({"f": entry}) as manager:
        row = await until(manager, "f", _S.FAILED, where=lambda row: row.retry_at is None)
        assert "nothing listens" in (row.error or "")
        assert row.phase == "connect"
        logged = [event for event in events_of(manager.events, ServerLog) if event.logger != "stderr"]
        assert len(logged) <= 1


@pytest.mark.parametrize(
    "answer", [do.respond(503), do.respond(502, "<html>Bad Gateway</html>", content_type="text/html")]
)
@pytest.mark.parametrize("manner", ["legacy", "modern"])
async def test_recon_09_the_tools_stay_through_a_short_outage_and_a_call_waits_for_its_end(
    answer: Any, manner: str
) -> None:
    fake = fake_of(manner).tool("read", read_only=True)
    async with remote(fake, reconnect=AT_ONCE) as manager, trio.open_nursery() as nursery:
        version = manager.registry.version
        fake.on("POST", answer)
        texts: list[str] = []

        async def call() -> None:
            texts.append((await manager.call_tool("f__read")).text)

        nursery.start_soon(call)
        await until(manager, "f", _S.RECONNECTING)
        assert manager.registry.names() == ["f__read"]
        fake.off("POST")
        with trio.fail_after(1.5):  # the stream on which a modern client listens is not waited for
            await until(manager, "f", _S.CONNECTED)
        nursery.cancel_scope.deadline = trio.current_time() + 5
        while not texts:
            await trio.testing.wait_all_tasks_blocked()
            await trio.lowlevel.checkpoint()
        assert texts == ["{}"]
        assert manager.registry.version == version
        assert not any(event.removed for event in events_of(manager.events, ToolsChanged))


async def test_recon_09_a_call_that_waits_in_vain_says_that_the_server_is_being_reached_again() -> None:
    fake = FakeHttpServer().tool("write")
    async with remote(fake, reconnect=AT_ONCE) as manager:
        fake.on("POST", do.respond(503))
        with pytest.raises(OpenProgramMCPError) as failed:
            await manager.call_tool("f__write", timeout=0.3)
        assert "f" in str(failed.value)
        assert not getattr(failed.value, "may_have_run", False)
        assert manager.server("f").status in (_S.RECONNECTING, _S.STARTING)
    assert fake.calls() == []


@_MANNERS
@pytest.mark.parametrize("status", [502, 504])
async def test_what_a_gateway_has_lost_may_have_run_and_is_no_answer_of_the_server(status: int, manner: str) -> None:
    gateway = [do.respond(status, "<html>gateway</html>", content_type="text/html")]
    fake = fake_of(manner).tool("write").tool("read", read_only=True)
    fake.on("tools/call", do.turns(gateway, [do.standard()], gateway, [do.standard()]))
    async with remote(fake, reconnect=AT_ONCE) as manager:
        with pytest.raises(ServerGone) as gone:
            await manager.call_tool("f__write")
        assert gone.value.may_have_run
        assert (await manager.call_tool("f__write")).text == "{}"
        assert (await manager.call_tool("f__read")).text == "{}", "it was sent once more, which does no harm"
    assert len(fake.requests(rpc="tools/call")) == 4


# A server that wants to be left alone.


@pytest.mark.parametrize("status", [429, 503])
@_MANNERS
async def test_all_calls_of_a_server_wait_as_long_as_it_says(status: int, manner: str) -> None:
    fake = fake_of(manner).tool("write")
    busy = [do.respond(status, headers={"Retry-After": "1"})]
    fake.on("tools/call", do.turns(busy, [do.standard()]))
    async with remote(fake, serialize="none") as manager:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.call_tool, "f__write", {"n": 1})
            await fake.wait_for("begin", method="tools/call")
            await trio.testing.wait_all_tasks_blocked(0.05)  # the refusal has been read
            for n in range(2, 5):
                nursery.start_soon(manager.call_tool, "f__write", {"n": n})
        row = manager.server("f")
        assert (row.status, row.generation) == (_S.CONNECTED, 1)
    first, *others = fake.requests(rpc="tools/call")
    assert first.status == status
    assert len(others) == 4
    assert all(1 <= other.time - first.time < 3 for other in others)


async def test_a_call_that_may_not_wait_so_long_says_so_at_once() -> None:
    fake = FakeHttpServer().tool("write").on("tools/call", do.respond(429, headers={"Retry-After": "3600"}))
    async with remote(fake, call_timeout_seconds=2) as manager:
        with trio.fail_after(1):
            result = await manager.call_tool("f__write")
        assert result.is_error
        assert "3600" in result.text
    assert len(fake.requests(rpc="tools/call")) == 1


# Who asks for credentials.


@_MANNERS
async def test_a_server_that_wants_a_sign_in_says_so_and_takes_the_given_token(manner: str) -> None:
    challenge = do.respond(401, headers={"WWW-Authenticate": 'Bearer resource_metadata="https://x.example/prm"'})
    fake = fake_of(manner).tool("echo")
    for method in ("POST", "GET"):
        fake.on(method, do.choose("$headers.authorization", {"Bearer k1-secret": [do.standard()]}, [challenge]))
    async with fake.serving():
        entries = {
            "none": fake.config(),
            "right": fake.config(auth={"kind": "bearer", "token": "k1-secret"}),
            "wrong": fake.config(headers={"Authorization": "Bearer k2-secret"}),
        }
        async with hosting(entries) as manager:
            assert manager.server("none").status is _S.NEEDS_AUTH
            assert (await manager.call_tool("right__echo")).text == "{}"
            row = manager.server("wrong")
            assert row.status in (_S.FAILED, _S.NEEDS_AUTH)
            assert "k2-secret" not in repr(row)
    assert {request.header("authorization") for request in fake.requests()} == {
        None,
        "Bearer k1-secret",
        "Bearer k2-secret",
    }
