"""What remote servers send too much of, connections that are not what they seem, and secrets on all these ways."""

from __future__ import annotations

import gzip
import logging
import tracemalloc
from typing import Any

import pytest
import trio
import trio.testing

from openprogram_mcp import ServerState
from openprogram_mcp.errors import OpenProgramMCPError
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeHttpServer, do
from tests.faults._host import hosting
from tests.faults._remote import AT_ONCE, ERAS, MANNERS, answering, fake_of, remote

_S = ServerState
_MANNERS = pytest.mark.parametrize("manner", MANNERS)
_MB = 1024 * 1024


async def outcome(manager: MCPManager, tool: str) -> str:
    """What becomes of a call, in a word."""
    try:
        result = await manager.call_tool(tool)
    except OpenProgramMCPError as error:
        return type(error).__name__
    return "error" if result.is_error else "ok"


# Too much.

_TOO_MUCH: dict[str, Any] = {
    "an answer": [do.bulk(2 * _MB)],
    "an event": [do.stream(), do.bulk(2 * _MB)],
    "a body without a length": [
        do.head(200, {"Content-Type": "application/json"}),
        do.repeat(do.write(b"x" * 65536), times=64),
    ],
    "a line without an end": [do.stream(), do.repeat(do.write(b"data: x" * 9000), times=64)],
    "an event without an end": [do.stream(), do.repeat(do.write(b"data: x\n" * 9000), times=64)],
    "headers": [do.tcp("HTTP/1.1 200 OK\r\n"), do.repeat(do.tcp("X-A: " + "a" * 4000 + "\r\n"), times=400), do.cut()],
    "one header": [do.tcp("HTTP/1.1 200 OK\r\nX: "), do.repeat(do.tcp(b"a" * 65536), times=32), do.cut()],
    "a refusal": [do.head(500, {"Content-Type": "text/html"}), do.repeat(do.write(b"<br>" * 16384), times=64)],
}


@ERAS
@pytest.mark.parametrize("what", _TOO_MUCH)
async def test_too_much_of_anything_fails_its_call_alone_and_is_not_kept(what: str, era: Any) -> None:
    fake = FakeHttpServer(era=era).tool("t", *_TOO_MUCH[what]).tool("echo")
    async with remote(fake, max_frame_bytes=_MB, call_timeout_seconds=20) as manager:
        assert await outcome(manager, "f__t") in ("error", "ServerGone")
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert (manager.server("f").status, manager.server("f").generation) == (_S.CONNECTED, 1)


@ERAS
async def test_a_small_body_that_becomes_a_huge_one_is_given_up_on_the_way(era: Any) -> None:
    bomb = gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":{}}' + b" " * (200 * _MB), 1)
    fake = FakeHttpServer(era=era).tool("echo")
    fake.tool("t", do.respond(200, bomb, headers={"Content-Encoding": "gzip"}, content_type="application/json"))
    async with remote(fake, max_frame_bytes=_MB, call_timeout_seconds=20) as manager:
        tracemalloc.start()
        try:
            assert await outcome(manager, "f__t") in ("error", "ServerGone")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 40 * _MB
        assert (await manager.call_tool("f__echo")).text == "{}"


@_MANNERS
async def test_an_answer_as_large_as_allowed_comes_whole(manner: str) -> None:
    fake = fake_of(manner).tool("t", do.bulk(8 * _MB, "üx"))
    async with remote(fake, max_result_chars=20 * _MB) as manager:
        assert (await manager.call_tool("f__t")).text == "üx" * (4 * _MB)


# Connections that are not what they seem.


@ERAS
async def test_a_server_that_closes_after_each_answer_and_does_not_say_so_is_called_all_the_same(era: Any) -> None:
    fake = FakeHttpServer(era=era).tool("write").on("tools/call", do.standard(), do.cut())
    async with remote(fake) as manager:
        for number in range(10):
            await trio.testing.wait_all_tasks_blocked(0.01)  # it has closed: that it will could not be known
            assert (await manager.call_tool("f__write", {"n": number})).text == f'{{"n":{number}}}'
        assert manager.server("f").generation == 1
    assert [call.arguments["n"] for call in fake.calls()] == list(range(10))


@_MANNERS
async def test_connections_that_were_closed_while_nobody_looked_cost_no_call(manner: str) -> None:
    fake = fake_of(manner, resumable=manner == "legacy", retry=10).tool("write")
    async with remote(fake, reconnect=AT_ONCE) as manager:
        for number in range(6):
            assert (await manager.call_tool("f__write", {"n": number})).text == f'{{"n":{number}}}'
            if manner != "sse":  # whose stream is the connection
                fake.cut(reset=number % 2 == 1)
                await trio.testing.wait_all_tasks_blocked(0.01)
    assert [call.arguments["n"] for call in fake.calls()] == list(range(6))


@_MANNERS
async def test_answers_that_come_in_another_order_find_their_callers(manner: str) -> None:
    fake = fake_of(manner).tool("t", do.sleep("$args.seconds"), do.echo())
    texts: dict[int, str] = {}

    async def call(manager: MCPManager, number: int) -> None:
        texts[number] = (await manager.call_tool("f__t", {"n": number, "seconds": (20 - number) * 0.01})).text

    async with remote(fake, serialize="none", max_concurrency=20) as manager, trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, manager, number)
    assert all(f'"n":{number}' in text for number, text in texts.items())
    assert fake.most_at_once() > 10


@ERAS
async def test_an_answer_that_comes_on_the_stream_of_another_call_finds_its_own(era: Any) -> None:
    # Against the specification, and seen behind balancers.
    fake = FakeHttpServer(era=era).tool("first", do.stream(), do.note("$id"), do.wait("told"), answering("first"))
    fake.tool("echo")
    async with remote(fake, serialize="none") as manager, trio.open_nursery() as nursery:
        texts: list[str] = []

        async def first() -> None:
            texts.append((await manager.call_tool("f__first")).text)

        nursery.start_soon(first)
        await fake.wait_for("note")
        number = fake.records("note")[0].facts["value"]
        answer = {"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": "from elsewhere"}]}}
        second = [do.stream(), do.event(answer), do.reply("second")]
        fake.on("tools/call", do.choose("$params.name", {"echo": second}, [do.standard()]))
        assert (await manager.call_tool("f__echo")).text == "second"
        fake.play(do.wake("told"))
    assert texts == ["from elsewhere"]


# Secrets.


@_MANNERS
async def test_no_secret_of_a_remote_server_is_told_whatever_goes_wrong(
    manner: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("k1-secret", "k2-secret", "k3-secret", "k4-secret")
    refusals = {
        "refused": do.respond(403, "no: ${headers.authorization} ${query}"),
        "gone": do.cut(),
        "sign_in": do.respond(401, headers={"WWW-Authenticate": 'Bearer realm="${headers.authorization}"'}),
        "moved": do.respond(307, headers={"Location": "http://elsewhere.invalid/?token=k4-secret"}),
        "page": do.respond(200, "<html>${headers.x-key}</html>", content_type="text/html"),
        "error": do.respond(
            400, json={"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "$headers.x-key"}}
        ),
    }
    fakes = {name: fake_of(manner).on("POST", step).on("GET", step) for name, step in refusals.items()}
    fakes["works"] = fake_of(manner).tool("t", do.fail(1, "${headers.authorization}"))
    entries: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        for name, fake in fakes.items():
            await fake.start(nursery)
            url = f"{fake.url}?api_key=k2-secret"
            headers = {"Authorization": "Bearer k1-secret", "X-Key": "k3-secret"}
            entries[name] = {"url": url, "headers": headers, "reconnect": False}
        async with hosting(entries) as manager:
            told = [await outcome(manager, "works__t"), repr((await manager.call_tool("works__t")).content)]
            told += [repr(row) for row in manager.status().values()]
            told += [repr(record.event) for record in manager.events.since(0)[0]]
        nursery.cancel_scope.cancel()
    told += [record.getMessage() for record in caplog.records if record.name.startswith(("openprogram", "httpx"))]
    for secret in secrets:
        assert [text for text in told if secret in text] == []
    assert {request.header("authorization") for request in fakes["works"].requests()} == {"Bearer k1-secret"}
