"""What remote servers get wrong about the protocol, what they ask of us, and what 2026-07-28 brought."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import trio

from openprogram_mcp import ServerState
from openprogram_mcp.errors import OpenProgramMCPError, ServerGone, UnknownTool
from openprogram_mcp.testing import FakeHttpServer, do
from tests.faults._host import hosting
from tests.faults._remote import AT_ONCE, ERAS, MANNERS, fake_of, remote

_S = ServerState
_MANNERS = pytest.mark.parametrize("manner", MANNERS)


def error(code: int, message: str = "no", id_: Any = "$id", **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message, **more}}


# PROTO-01: lists that are refused.

_REFUSALS = {
    "-32601": do.fail(-32601, "Method not found"),
    "-32603": do.fail(-32603, "Internal error"),
    "404 with -32601": do.respond(404, json=error(-32601)),
    "500": do.respond(500, "oops"),
    "cut": do.cut(),
    "no reply": do.hang(),
}


@_MANNERS
@pytest.mark.parametrize("refusal", _REFUSALS)
async def test_proto_01_lists_that_are_refused_cost_no_tools(refusal: str, manner: str) -> None:
    capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
    fake = fake_of(manner, capabilities=capabilities).tool("echo")
    for method in ("prompts/list", "resources/list", "resources/templates/list", "ping"):
        fake.on(method, _REFUSALS[refusal])
    async with remote(fake) as manager:
        assert manager.server("f").tools == ("f__echo",)
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert (manager.server("f").status, manager.server("f").generation) == (_S.CONNECTED, 1)


# PROTO-03: versions.


@pytest.mark.parametrize(
    "refusal",
    [
        do.fail(-32602, "Unsupported protocol version", {"supported": ["2024-11-05"], "requested": "x"}),
        do.respond(400, json=error(-32602, data={"supported": ["2024-11-05"]})),
        do.respond(400, json=error(-32602, id_=None, data={"supported": ["2024-11-05"]})),
    ],
    ids=["error", "400", "400 that names nobody"],
)
async def test_proto_03_a_refused_version_is_followed_by_one_that_the_server_names(refusal: Any) -> None:
    fake = FakeHttpServer(era="legacy", versions=["2024-11-05"]).tool("echo")
    fake.on("initialize", do.choose("$params.protocolVersion", {"2024-11-05": [do.standard()]}, [refusal]))
    async with remote(fake, type="http") as manager:
        assert manager.server("f").protocol_version == "2024-11-05"
        assert (await manager.call_tool("f__echo")).text == "{}"


async def test_proto_03_a_server_that_refuses_the_header_of_the_version_is_asked_without_it() -> None:
    # It knows no revision with that header, and says so in words.
    fake = FakeHttpServer(era="legacy", versions=["2025-03-26"], strict=False).tool("echo")
    refuse = [do.respond(400, "Bad Request: unsupported MCP-Protocol-Version", content_type="text/plain")]
    for method in ("POST", "GET"):
        fake.on(
            method,
            do.choose("$headers.mcp-protocol-version", {"$headers.mcp-protocol-version": [do.standard()]}, refuse),
        )
    async with remote(fake) as manager:
        row = manager.server("f")
        assert (row.status, row.protocol_version) == (_S.CONNECTED, "2025-03-26"), row.error
        assert (await manager.call_tool("f__echo")).text == "{}"


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_proto_03_the_version_that_the_server_answers_is_used_and_named_where_it_may_be(version: str) -> None:
    fake = FakeHttpServer(era="legacy", versions=[version]).tool("echo")
    async with remote(fake) as manager:
        assert manager.server("f").protocol_version == version
        assert (await manager.call_tool("f__echo")).text == "{}"
    named = {request.header("mcp-protocol-version") for request in fake.requests(rpc="tools/call")}
    assert named == {version if version >= "2025-06-18" else None}


async def test_proto_03_a_version_that_nobody_knows_fails_the_server_in_plain_words() -> None:
    fake = FakeHttpServer(era="legacy").on("initialize", do.standard({"protocolVersion": "2099-01-01"}))
    async with remote(fake, reconnect=AT_ONCE) as manager:
        row = manager.server("f")
        assert (row.status, row.error_kind, row.retry_at) == (_S.FAILED, "fatal", None)
        assert "2099-01-01" in (row.error or "")


# PROTO-04: an older server is asked about the newer era.


@pytest.mark.parametrize(
    "answer",
    [
        do.respond(400, json=error(-32600, id_=None)),
        do.respond(400, "Bad Request", content_type="text/plain"),
        do.respond(404, "<html>not found</html>", content_type="text/html"),
        do.respond(405),
        do.respond(500, "oops"),
        do.fail(-32601, "Method not found"),
        do.fail(-32602, "Invalid params"),
        do.fail(-32000, "Server not initialized"),
        do.respond(200, "garbage", content_type="application/json"),
        do.respond(202),
        do.respond(200, "<html>hello</html>", content_type="text/html"),
        do.cut(),
        do.cut(reset=True),
    ],
)
async def test_proto_04_an_older_server_is_recognised_whatever_it_says_to_the_probe(answer: Any) -> None:
    fake = FakeHttpServer(era="legacy", strict=False).tool("echo").on("server/discover", answer)
    async with remote(fake) as manager:
        row = manager.server("f")
        assert (row.status, row.protocol_version) == (_S.CONNECTED, "2025-11-25"), row.error
        assert (await manager.call_tool("f__echo")).text == "{}"
        await manager.restart("f")
        assert manager.server("f").status is _S.CONNECTED
    assert len(fake.requests(rpc="server/discover")) == 1, "what was found out is remembered"


async def test_proto_04_a_server_that_does_not_answer_the_probe_is_asked_the_old_way_before_the_limit() -> None:
    fake = FakeHttpServer(era="legacy", strict=False, sessions=False).tool("echo").on("server/discover")
    async with remote(fake, startup_timeout_seconds=15, seconds=20) as manager:
        assert (manager.server("f").status, manager.server("f").protocol_version) == (_S.CONNECTED, "2025-11-25")


async def test_proto_04_a_server_of_a_later_era_is_not_initialised() -> None:
    fake = FakeHttpServer(era="modern")
    fake.on(
        "server/discover", do.respond(400, json=error(-32022, data={"supported": ["2099-01-01"], "requested": "x"}))
    )
    async with remote(fake, reconnect=AT_ONCE) as manager:
        assert manager.server("f").status is _S.FAILED
        assert "2099-01-01" in (manager.server("f").error or "")
    assert fake.requests(rpc="initialize") == []


# PROTO-06: ids.


def result(text: str, id_: Any = "$id") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id_, "result": {"content": [{"type": "text", "text": text}]}}


@ERAS
@pytest.mark.parametrize(
    ("steps", "outcome"),
    [
        ([do.respond(json=result("as text", "${id}"))], "as text"),
        ([do.respond(json=error(-32001, "null"), content_type="application/json")], "error"),
        ([do.respond(json=error(-32001, "nobody", None))], "error"),
        ([do.stream(), do.event(error(-32001, "nobody", None))], "error"),
        ([do.stream(), do.event(result("twice")), do.event(result("again"))], "twice"),
        ([do.stream(), do.event(result("another's", 999)), do.event(result("mine"))], "mine"),
        ([do.respond(json=result("another's", 999))], "lost"),
        ([do.respond(json={"jsonrpc": "2.0", "id": "$id"})], "error"),
        ([do.respond(json={**result("both"), "error": {"code": 1, "message": "x"}})], "error"),
        ([do.respond(json={**result("old"), "jsonrpc": "1.0"})], "old"),
        ([do.respond(json={"id": "$id", "result": {"content": []}})], ""),
        ([do.respond(json=[result("in a batch")])], "in a batch"),
    ],
)
async def test_proto_06_odd_ids_and_answers_cost_their_own_call_at_most(steps: Any, outcome: str, era: Any) -> None:
    fake = FakeHttpServer(era=era).tool("t", *steps).tool("echo")
    async with remote(fake) as manager:
        try:
            answer = await manager.call_tool("f__t")
            found = "error" if answer.is_error else answer.text
        except ServerGone:
            found = "lost"
        assert found == outcome
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert (manager.server("f").status, manager.server("f").generation) == (_S.CONNECTED, 1)


# PROTO-08: a status that stays green.


@_MANNERS
async def test_proto_08_a_server_that_wants_a_sign_in_for_calls_alone_says_so(manner: str) -> None:
    fake = fake_of(manner).tool("echo")
    fake.on("tools/call", do.respond(401, headers={"WWW-Authenticate": "Bearer"}))
    async with remote(fake) as manager:
        with pytest.raises(OpenProgramMCPError):
            await manager.call_tool("f__echo")
        row = manager.server("f")
        assert row.status is _S.NEEDS_AUTH
        assert row.last_call is not None
        assert row.last_call.outcome != "ok"


# S2C: what servers ask of us.

_ASKED = {
    "ping": {"result": {}},
    "roots/list": -32601,
    "sampling/createMessage": -32601,
    "elicitation/create": -32601,
    "foo/bar": -32601,
}


@pytest.mark.parametrize("manner", ["legacy", "sse"])
@pytest.mark.parametrize("method", _ASKED)
@pytest.mark.parametrize("way", ["post", "get"])
async def test_s2c_01_a_server_that_asks_during_a_call_is_answered_at_once(way: str, method: str, manner: str) -> None:
    ask = do.request(method, {"messages": [], "maxTokens": 1, "message": "m", "requestedSchema": {}}, id="s1")
    fake = fake_of(manner).tool("t", ask if way == "post" else do.on_get(ask), do.reply("$answer"))
    async with remote(fake) as manager:
        with trio.fail_after(5):
            told = (await manager.call_tool("f__t")).text
        assert told == "{}" if method == "ping" else "-32601" in told
    if manner == "legacy":
        (answer,) = [request for request in fake.requests("POST") if (request.message or {}).get("id") == "s1"]
        assert answer.header("mcp-session-id") == answer.session
        assert answer.header("mcp-protocol-version") == "2025-11-25"


@pytest.mark.parametrize("manner", ["legacy", "sse"])
@pytest.mark.parametrize("request_id", [0, "", "x", 2**53])
async def test_s2c_03_a_request_before_the_handshake_has_ended_is_answered_whatever_its_id(
    request_id: Any, manner: str
) -> None:
    fake = fake_of(manner).tool("echo")
    fake.on("initialize", do.standard(), do.beside(do.on_get(do.request("ping", id=request_id), do.note("$answer"))))
    async with remote(fake) as manager:
        assert [record.facts["value"] for record in await fake.wait_for("note")] == [{}]
        assert (await manager.call_tool("f__echo")).text == "{}"


async def test_s2c_03_what_is_said_before_the_answer_to_initialize_costs_nothing() -> None:
    fake = FakeHttpServer(era="legacy").tool("echo")
    fake.on("initialize", do.log("starting"), do.standard())
    async with remote(fake) as manager:
        assert (await manager.call_tool("f__echo")).text == "{}"


# SPEC: 2026-07-28.


@pytest.mark.parametrize("cut", [[], [do.cut()], [do.cut(reset=True)]], ids=["end", "cut", "reset"])
async def test_spec_01_a_broken_stream_is_asked_anew_only_where_that_is_safe(cut: Any) -> None:
    broken = [do.progress(1, token="t"), *cut]
    fake = FakeHttpServer(era="modern", resumable=True, retry=10)
    fake.tool("send_mail", *broken).tool("read", do.turns(broken, [do.reply("read")]), read_only=True)
    async with remote(fake) as manager:
        with pytest.raises(ServerGone) as gone:
            await manager.call_tool("f__send_mail")
        assert gone.value.may_have_run
        assert (await manager.call_tool("f__read")).text == "read"
        assert manager.server("f").generation == 1
    assert [call.tool for call in fake.calls()] == ["send_mail", "read", "read"]
    first, second = [call.id for call in fake.calls("read")]
    assert first != second
    assert fake.requests("GET") == []
    assert {request.header("last-event-id") for request in fake.requests()} == {None}


async def test_spec_01_what_breaks_twice_is_not_asked_a_third_time() -> None:
    fake = FakeHttpServer(era="modern").tool("read", do.progress(1, token="t"), do.cut(), read_only=True)
    async with remote(fake) as manager:
        with pytest.raises(ServerGone):
            await manager.call_tool("f__read")
    assert len(fake.calls()) == 2


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ({"resultType": "partial", "content": [{"type": "text", "text": "secret"}]}, "error"),
        ({"resultType": 7, "content": []}, "error"),
        ({"content": [{"type": "text", "text": "ok"}]}, "ok"),
        ({"resultType": "complete", "content": [{"type": "text", "text": "ok"}], "inputRequests": {}}, None),
        ({"resultType": "input_required"}, "error"),
    ],
)
async def test_spec_04_a_result_of_an_unknown_kind_is_an_error_and_not_shown(value: Any, outcome: str | None) -> None:
    fake = FakeHttpServer(era="modern").tool("t", do.result(value)).tool("echo")
    async with remote(fake) as manager:
        answer = await manager.call_tool("f__t")
        if outcome is not None:
            assert ("error" if answer.is_error else answer.text) == outcome
        assert "secret" not in answer.text
        assert (await manager.call_tool("f__echo")).text == "{}"
        assert manager.server("f").generation == 1


async def test_spec_04_a_list_that_asks_for_input_is_refused() -> None:
    fake = FakeHttpServer(era="modern").on(
        "tools/list", do.result({"resultType": "input_required", "requestState": "x"})
    )
    async with remote(fake, reconnect=False) as manager:
        assert manager.server("f").status is _S.FAILED
        assert manager.server("f").phase == "list_tools"


def _with_header(name: Any, kind: str = "string") -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": name}}}


_BAD_SCHEMAS: dict[str, dict[str, Any]] = {
    "empty": _with_header(""),
    "blank": _with_header("a b"),
    "lines": _with_header("X\r\nEvil: 1"),
    "no_text": _with_header(7),
    "object": _with_header("Region", "object"),
    "number": _with_header("Region", "number"),
    "twice": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "x-mcp-header": "Region"},
            "b": {"type": "string", "x-mcp-header": "rEGION"},
        },
    },
    "items": {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "Region"}}},
    },
}


async def test_spec_06_a_tool_with_a_bad_annotation_is_left_out_and_it_alone() -> None:
    fake = FakeHttpServer(era="modern").tool("good", input_schema=_with_header("Region"))
    for name, schema in _BAD_SCHEMAS.items():
        fake.tool(f"bad_{name}", input_schema=schema)
    async with remote(fake) as manager:
        row = manager.server("f")
        assert row.tools == ("f__good",)
        for name in _BAD_SCHEMAS:
            assert any(f"bad_{name}" in warning for warning in row.warnings), name
        with pytest.raises(UnknownTool):
            await manager.call_tool("f__bad_lines", {})
        assert (await manager.call_tool("f__good", {"a": "eu"})).text == '{"a":"eu"}'
    (call,) = fake.requests(rpc="tools/call")
    assert call.header("mcp-param-region") == "eu"


@pytest.mark.parametrize(
    ("value", "header"),
    [
        ("plain", "plain"),
        ("ü", "=?base64?" + base64.b64encode("ü".encode()).decode() + "?="),
        (" lead", "=?base64?" + base64.b64encode(b" lead").decode() + "?="),
        ("a\r\nB: c", "=?base64?" + base64.b64encode(b"a\r\nB: c").decode() + "?="),
        ("=?base64?eA==?=", "=?base64?" + base64.b64encode(b"=?base64?eA==?=").decode() + "?="),
        ("", ""),
    ],
)
async def test_spec_06_any_value_is_carried_and_none_breaks_the_request(value: str, header: str) -> None:
    fake = FakeHttpServer(era="modern").tool("t", input_schema=_with_header("Region"))
    async with remote(fake) as manager:
        assert not (await manager.call_tool("f__t", {"a": value})).is_error
    (call,) = fake.requests(rpc="tools/call")
    assert call.header("mcp-param-region") == header
    assert call.header("b") is None


async def test_spec_06_whole_numbers_and_flags_are_carried_as_their_json() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "x-mcp-header": "N"},
            "b": {"type": "boolean", "x-mcp-header": "B"},
            "o": {"type": "string", "x-mcp-header": "O"},
        },
    }
    fake = FakeHttpServer(era="modern").tool("t", input_schema=schema)
    async with remote(fake) as manager:
        assert not (await manager.call_tool("f__t", {"n": 9007199254740991, "b": True})).is_error
    (call,) = fake.requests(rpc="tools/call")
    assert call.header("mcp-param-n") == "9007199254740991"
    assert call.header("mcp-param-b") == "true"
    assert call.header("mcp-param-o") is None


async def test_a_name_that_no_header_can_hold_is_carried_encoded() -> None:
    fake = FakeHttpServer(era="modern").tool("wetter für Köln")
    async with remote(fake) as manager:
        (tool,) = manager.server("f").tools
        assert (await manager.call_tool(tool)).text == "{}"


async def test_a_server_that_wants_other_headers_is_listed_anew_and_asked_once_more() -> None:
    # It has changed what it wants to see as a header, and did not say so.
    fake = FakeHttpServer(era="modern").tool("t", input_schema=_with_header("Old"))
    async with remote(fake) as manager:
        fake.tool("t", input_schema=_with_header("New"))
        mismatch = [do.respond(400, json=error(-32020, "Header mismatch"))]
        fake.on("tools/call", do.choose("$headers.mcp-param-new", {"eu": [do.standard()]}, mismatch))
        assert (await manager.call_tool("f__t", {"a": "eu"})).text == '{"a":"eu"}'
    assert len(fake.requests(rpc="tools/call")) == 2


@pytest.mark.parametrize("manner", ["legacy", "sse"])
async def test_two_servers_at_one_address_have_a_session_each(manner: str) -> None:
    fake = fake_of(manner).tool("t", do.reply("$session"))
    async with fake.serving(), hosting({"a": fake, "b": fake}) as manager:
        texts = [(await manager.call_tool(f"{name}__t")).text for name in ("a", "b", "a", "b")]
    assert texts[:2] == texts[2:]
    assert len(set(texts)) == 2
