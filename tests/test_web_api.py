"""The routes of the management API, over a manager whose answers are given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

import attrs
import pytest
import trio

from openprogram_mcp import paths
from openprogram_mcp.adapter import AgentToolResult, error_result
from openprogram_mcp.errors import InvalidArguments, NotConnected, ServerGone, TimedOut
from openprogram_mcp.events import EventBus, ServerLog, StatusChanged
from openprogram_mcp.status import LastCall, ServerState, ServerStatus
from openprogram_mcp.web import _schemas

from ._fake_manager import FakeManager, remote_tool
from ._web import serving


async def test_servers_are_listed_in_the_order_of_the_file() -> None:
    async with serving() as site:
        site.manager.put("z", remote_tool("one"))
        site.manager.put("a", status=ServerState.FAILED, error="It broke", phase="spawn")
        found = (await site.get("/api/mcp/servers")).json
        assert found["version"] == 7
        assert [(row["name"], row["status"], row["tools"]) for row in found["servers"]] == [
            ("z", "connected", ["z__one"]),
            ("a", "failed", []),
        ]


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("with space", "with%20space"),
        ("100%", "100%25"),
        ("a%2Fb", "a%252Fb"),
        ("ünïcode ☃", "%C3%BCn%C3%AFcode%20%E2%98%83"),
        ("what?", "what%3F"),
        ("a#b", "a%23b"),
        ("a+b&c=d", "a+b&c=d"),
        ("{name}", "%7Bname%7D"),
        ("..", "%2E%2E"),
        (" ", "%20"),
        ("restart", "restart"),
    ],
)
async def test_any_server_name_can_stand_in_a_route_percent_encoded(name: str, encoded: str) -> None:
    async with serving() as site:
        site.manager.put(name)
        assert (await site.get(f"/api/mcp/servers/{encoded}")).json["name"] == name
        assert (await site.post(f"/api/mcp/servers/{encoded}/restart")).json["generation"] == 1


async def test_a_server_is_shown_with_its_tools_and_without_what_it_does_not_have() -> None:
    async with serving() as site:
        tool = remote_tool("one", annotations={"readOnlyHint": True}, output_schema={"type": "object"})
        site.manager.put("a", tool)
        shown = (await site.get("/api/mcp/servers/a")).json
        assert shown["config"] is None
        assert shown["tool_schemas"] == [
            {
                "name": "a__one",
                "wire_name": "one",
                "description": "Does one",
                "input_schema": tool.input_schema,
                "output_schema": {"type": "object"},
                "annotations": {"readOnlyHint": True},
                "action": "allow",
            }
        ]


async def test_what_is_not_there_is_a_problem_with_a_code() -> None:
    async with serving() as site:
        for method, path, status, code in [
            ("GET", "/api/mcp/servers/ghost", 404, "unknown_server"),
            ("POST", "/api/mcp/servers/ghost/restart", 404, "unknown_server"),
            ("POST", "/api/mcp/tools/ghost/call", 404, "unknown_tool"),
            ("GET", "/api/mcp/nothing", 404, "not_found"),
            ("GET", "/", 404, "not_found"),
            ("DELETE", "/api/mcp/servers", 405, "method_not_allowed"),
        ]:
            reply = await site.ask(method, path)
            problem = reply.json
            assert (reply.status, problem["code"], problem["status"]) == (status, code, status), path
            assert reply.headers["content-type"] == "application/problem+json"
            assert {"type", "title", "detail", "remedy", "path", "server"} <= set(problem)


@pytest.mark.parametrize("verb", ["restart", "connect", "disconnect"])
async def test_a_server_is_started_and_stopped(verb: str) -> None:
    async with serving() as site:
        site.manager.put("a")
        reply = await site.post(f"/api/mcp/servers/a/{verb}")
        assert (reply.status, reply.json["name"]) == (200, "a")
        assert site.manager.acts == [(verb, "a")]


async def test_a_read_only_worker_changes_nothing_and_calls_only_what_says_that_it_reads() -> None:
    async with serving(read_only=True) as site:
        site.manager.put("a", remote_tool("look", annotations={"readOnlyHint": True}), remote_tool("write"))
        actions = ("restart", "connect", "disconnect", "enable", "disable")
        for method, path in [
            *(("POST", f"servers/a/{verb}") for verb in actions),
            ("POST", "tools/a__write/call"),
            ("POST", "servers"),
            ("PATCH", "servers/a"),
            ("DELETE", "servers/a"),
            ("POST", "test"),
            ("PUT", "roots"),
        ]:
            reply = await site.ask(method, f"/api/mcp/{path}", None, {"roots": []} if path == "roots" else {})
            assert (reply.status, reply.json["code"]) == (403, "read_only"), path
        assert (site.manager.acts, site.manager.asked) == ([], [])
        assert (await site.post("/api/mcp/tools/a__look/call", {})).status == 200
        assert [call[0] for call in site.manager.calls] == ["a__look"]
        assert (await site.post("/api/mcp/tools/ghost/call", {})).json["code"] == "unknown_tool"


async def test_tools_are_listed_by_name() -> None:
    async with serving() as site:
        site.manager.put("z", remote_tool("b"), remote_tool("a"))
        site.manager.put("y", remote_tool("c"))
        found = (await site.get("/api/mcp/tools")).json
        assert [tool["name"] for tool in found["tools"]] == ["y__c", "z__a", "z__b"]
        assert found["tools"][0] == {
            "name": "y__c",
            "server": "y",
            "wire_name": "c",
            "description": "Does c",
            "input_schema": found["tools"][0]["input_schema"],
            "annotations": {},
            "deferred": False,
            "waiting": False,
            "action": "allow",
        }


# Calls


async def test_a_tool_whose_server_is_away_for_a_moment_says_that_it_waits() -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        site.manager.put("b", remote_tool("t"), status=ServerState.RECONNECTING)
        waiting = {tool["name"]: tool["waiting"] for tool in (await site.get("/api/mcp/tools")).json["tools"]}
        assert waiting == {"a__t": False, "b__t": True}


async def test_a_call_passes_arguments_limit_and_id_and_gives_the_answer() -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        body = {"arguments": {"x": [1, None]}, "timeout_seconds": 2.5, "call_id": "mine"}
        reply = await site.post("/api/mcp/tools/a__t/call", body)
        assert site.manager.calls == [("a__t", {"x": [1, None]}, 2.5, "mine")]
        assert reply.json == {
            "call_id": "mine",
            "content": [{"type": "text", "text": "{'x': [1, None]}"}],
            "text": "{'x': [1, None]}",
            "is_error": False,
            "details": {"is_error": False},
        }


@pytest.mark.parametrize("body", [None, b"", b"{}", b'{"arguments": {}}', b'{"call_id": null}'])
async def test_a_call_without_arguments_may_be_short(body: bytes | None) -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        reply = await site.ask("POST", "/api/mcp/tools/a__t/call", body=body)
        assert reply.status == 200
        assert reply.json["call_id"]
        assert site.manager.calls[0][1] == {}


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        (b"{", "bad_request", None),
        (b"[]", "invalid_arguments", None),
        (b'{"arguments": []}', "invalid_arguments", "arguments"),
        (b'{"arguments": null}', "invalid_arguments", "arguments"),
        (b'{"timeout_seconds": 0}', "invalid_arguments", "timeout_seconds"),
        (b'{"timeout_seconds": -1}', "invalid_arguments", "timeout_seconds"),
        (b'{"timeout_seconds": 1e999}', "bad_request", None),
        (b'{"timeout_seconds": true}', "invalid_arguments", "timeout_seconds"),
        (b'{"call_id": ""}', "invalid_arguments", "call_id"),
        (b'{"call_id": "' + b"x" * 129 + b'"}', "invalid_arguments", "call_id"),
        (b'{"call_id": 5}', "invalid_arguments", "call_id"),
        (b"\xff\xfe", "bad_request", None),
    ],
)
async def test_a_call_that_is_not_well_formed_is_refused_by_its_place(body: bytes, code: str, path: str | None) -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        reply = await site.ask("POST", "/api/mcp/tools/a__t/call", body=body)
        assert (reply.json["code"], reply.json["path"]) == (code, path)
        assert reply.status in (400, 422)
        assert site.manager.calls == []


async def test_an_error_of_the_tool_is_an_answer() -> None:
    async def fail(*_: Any) -> AgentToolResult:
        return error_result("no such city", server="a", tool="t")

    async with serving(FakeManager(answer=fail)) as site:
        site.manager.put("a", remote_tool("t"))
        reply = await site.post("/api/mcp/tools/a__t/call", {})
        assert (reply.status, reply.json["is_error"], reply.json["text"]) == (200, True, "no such city")


@pytest.mark.parametrize(
    ("error", "status", "code", "more"),
    [
        (InvalidArguments("x: expected text", path="x"), 422, "invalid_arguments", {"path": "x"}),
        (NotConnected("down", server="a", remedy="Start it"), 503, "not_connected", {"remedy": "Start it"}),
        (TimedOut("slow", budget="call", seconds=3), 504, "timeout", {"budget": "call"}),
        (ServerGone("lost", may_have_run=True), 502, "server_gone", {"may_have_run": True}),
        (RuntimeError("a secret: hunter2"), 500, "internal", {}),
    ],
)
async def test_a_call_that_fails_is_a_problem_in_both_forms(
    error: Exception, status: int, code: str, more: dict[str, Any]
) -> None:
    async def fail(*_: Any) -> AgentToolResult:
        raise error

    async with serving(FakeManager(answer=fail)) as site:
        site.manager.put("a", remote_tool("t"))
        reply = await site.post("/api/mcp/tools/a__t/call", {})
        assert (reply.status, reply.json["code"]) == (status, code)
        assert more.items() <= reply.json.items()
        assert b"hunter2" not in reply.body
        async with site.stream("POST", "/api/mcp/tools/a__t/call", body={}) as events:
            last = [event async for event in events][-1]
        assert last["event"] == "error"
        assert f'"code":"{code}"' in last["data"]
        assert "hunter2" not in last["data"]


async def test_closing_the_request_cancels_the_call() -> None:
    async def never(*_: Any) -> AgentToolResult:
        await trio.sleep_forever()
        raise AssertionError

    async with serving(FakeManager(answer=never)) as site:
        site.manager.put("a", remote_tool("t"))
        async with await site.connect() as stream:
            await stream.send_all(site.head("POST", "/api/mcp/tools/a__t/call", body=b"{}"))
            await site.manager.calling.wait()
        await site.manager.cancelled.wait()


async def test_closing_the_stream_cancels_the_call() -> None:
    async def never(*_: Any) -> AgentToolResult:
        await trio.sleep_forever()
        raise AssertionError

    async with serving(FakeManager(answer=never)) as site:
        site.manager.put("a", remote_tool("t"))
        async with site.stream("POST", "/api/mcp/tools/a__t/call", body={}) as events:
            await anext(events)
            await site.manager.calling.wait()
        await site.manager.cancelled.wait()


async def test_a_streamed_call_tells_its_progress_and_then_its_result() -> None:
    async def work(_: Any, on_progress: Any) -> AgentToolResult:
        await on_progress(1.0, 2.0, "half\nway")
        await on_progress(2.0, None, None)
        return AgentToolResult(content=({"type": "text", "text": "done"},), details={"is_error": False})

    async with serving(FakeManager(answer=work)) as site:
        site.manager.put("a", remote_tool("t"))
        async with site.stream("POST", "/api/mcp/tools/a__t/call", body={"call_id": "c"}) as events:
            got = [(event["event"], event["data"]) async for event in events if "event" in event]
    assert got[:-1] == [
        ("progress", '{"call_id":"c","progress":1.0,"total":2.0,"message":"half\\nway"}'),
        ("progress", '{"call_id":"c","progress":2.0,"total":null,"message":null}'),
    ]
    assert got[-1][0] == "result"
    assert '"text":"done"' in got[-1][1]


async def test_a_client_that_does_not_read_its_progress_does_not_slow_the_call_down() -> None:
    finished = trio.Event()

    async def work(_: Any, on_progress: Any) -> AgentToolResult:
        for number in range(5000):
            await on_progress(number, None, "x" * 2000)
            await trio.lowlevel.checkpoint()
        finished.set()
        return AgentToolResult(content=(), details={"is_error": False})

    async with serving(FakeManager(answer=work)) as site, await site.connect() as stream:
        site.manager.put("a", remote_tool("t"))
        await stream.send_all(
            site.head("POST", "/api/mcp/tools/a__t/call", {"Accept": "text/event-stream"}, body=b"{}")
        )
        await finished.wait()


async def test_an_answer_that_is_no_valid_unicode_still_arrives() -> None:
    async def odd(*_: Any) -> AgentToolResult:
        return AgentToolResult(content=({"type": "text", "text": "\ud83d and \u2028"},), details={"n": 10**30})

    async with serving(FakeManager(answer=odd)) as site:
        site.manager.put("a", remote_tool("t"))
        reply = await site.post("/api/mcp/tools/a__t/call", {})
        assert reply.json["text"] == "\ud83d and \u2028"
        assert reply.json["details"]["n"] == 10**30
        async with site.stream("POST", "/api/mcp/tools/a__t/call", body={}) as events:
            last = [event async for event in events][-1]
        assert last["event"] == "result"


async def test_two_hundred_calls_at_once_each_get_their_own_answer() -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        answers: dict[int, str] = {}

        async def call(number: int) -> None:
            reply = await site.post("/api/mcp/tools/a__t/call", {"arguments": {"n": number}})
            answers[number] = reply.json["text"]

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(call, number)
        assert answers == {number: f"{{'n': {number}}}" for number in range(200)}


# Events


def _status(bus: EventBus, name: str) -> int:
    return bus.publish(StatusChanged(server=name, status=ServerStatus(name=name, type="local")))


async def test_events_are_streamed_from_now_on() -> None:
    async with serving() as site:
        _status(site.manager.events, "before")
        async with site.stream("GET", "/api/mcp/events") as events:
            await anext(events)
            _status(site.manager.events, "after")
            event = await anext(events)
        assert (event["id"], event["event"]) == ("2", "StatusChanged")
        assert '"server":"after"' in event["data"]
        assert '"status":{"name":"after"' in event["data"]


async def test_a_stream_goes_on_after_the_last_event_id() -> None:
    async with serving() as site:
        for name in "abc":
            _status(site.manager.events, name)
        async with site.stream("GET", "/api/mcp/events", {"Last-Event-ID": "1"}) as events:
            got = [event["id"] async for event in _take(2, events)]
        assert got == ["2", "3"]


async def test_a_number_of_an_earlier_worker_gives_everything_of_this_one() -> None:
    async with serving() as site:
        _status(site.manager.events, "a")
        async with site.stream("GET", "/api/mcp/events", {"Last-Event-ID": "4711"}) as events:
            assert [event["id"] async for event in _take(1, events)] == ["1"]
        assert [event["id"] for event in (await site.get("/api/mcp/events?since=4711")).json["events"]] == [1]


async def test_a_stream_that_was_away_too_long_is_told_how_much_it_missed() -> None:
    async with serving() as site:
        site.manager.events = EventBus(size=4)
    async with serving(site.manager) as site:
        for _ in range(10):
            _status(site.manager.events, "a")
        async with site.stream("GET", "/api/mcp/events", {"Last-Event-ID": "1"}) as events:
            got = [event async for event in _take(5, events)]
        assert got[0]["event"] == "Gap"
        assert '"missed":5' in got[0]["data"]
        assert [event["id"] for event in got[1:]] == ["7", "8", "9", "10"]


async def test_an_idle_stream_beats() -> None:
    async with serving(heartbeat_seconds=0.01) as site, site.stream("GET", "/api/mcp/events") as events:
        for _ in range(3):
            assert ":" in await anext(events)


async def test_streams_end_when_the_worker_stops_and_need_no_grace() -> None:
    with trio.fail_after(10):
        async with serving(grace_seconds=60) as site, site.stream("GET", "/api/mcp/events") as events:
            await anext(events)
            site.stop.set()
            assert [event async for event in events] == []


async def test_a_client_that_stopped_reading_does_not_hold_up_the_end() -> None:
    """Hypercorn shields a send without a limit: one suspended client would keep the worker alive for ever."""
    with trio.fail_after(10):
        async with serving(grace_seconds=0.1) as site:
            stream = await site.connect()  # closed after the end, not before
            await stream.send_all(site.head("GET", "/api/mcp/events", {"Accept": "text/event-stream"}))
            await stream.receive_some()
            for _ in range(500):
                site.manager.events.publish(ServerLog(server="a", level="info", logger="x", text="x" * 50_000))
                await trio.lowlevel.checkpoint()
        await stream.aclose()


async def test_events_can_be_polled() -> None:
    async with serving() as site:
        for name in "abc":
            _status(site.manager.events, name)
        page = (await site.get("/api/mcp/events?since=1")).json
        assert ([event["id"] for event in page["events"]], page["next"], page["missed"]) == ([2, 3], 3, 0)
        assert (await site.get("/api/mcp/events?since=3")).json == {"events": [], "next": 3, "missed": 0}
        assert len((await site.get("/api/mcp/events")).json["events"]) == 3


async def test_a_position_that_is_no_number_is_refused() -> None:
    async with serving() as site:
        reply = await site.get("/api/mcp/events?since=soon")
        assert (reply.status, reply.json["code"], reply.json["path"]) == (422, "invalid_arguments", "since")
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "-1"}
        assert (await site.ask("GET", "/api/mcp/events", dict(headers))).status == 422


async def test_log_lines_are_found_by_server_level_and_position() -> None:
    async with serving() as site:
        bus = site.manager.events
        bus.publish(ServerLog(server="a", level="info", logger="stderr", text="one"))
        bus.publish(ServerLog(server="b", level="error", logger=None, text="two"))
        bus.publish(ServerLog(server="a", level="error", logger="x", text="three"))

        async def texts(query: str) -> list[str]:
            return [line["text"] for line in (await site.get(f"/api/mcp/logs{query}")).json["lines"]]

        assert await texts("") == ["one", "two", "three"]
        assert await texts("?server=a") == ["one", "three"]
        assert await texts("?level=error") == ["two", "three"]
        assert await texts("?server=a&level=error&since=1") == ["three"]
        assert (await site.get("/api/mcp/logs?since=2")).json["lines"] == [
            {**(await site.get("/api/mcp/logs?since=2")).json["lines"][0], "id": 3, "server": "a", "logger": "x"}
        ]


async def test_the_configuration_path_is_told() -> None:
    async with serving() as site:
        reply = await site.get("/api/mcp/config-path")
        assert reply.json == {"path": str(paths.config_path()), "exists": False}


# The document


def _keys(form: type) -> set[str]:
    return {one.name for one in attrs.fields(form)}


def test_the_documented_row_is_the_row() -> None:
    row = ServerStatus(name="a", type="local", last_call=LastCall("t", 1.0, "ok", 1.0)).to_dict()
    assert set(row) == _keys(_schemas.ServerRow)
    assert set(row["last_call"]) == _keys(_schemas.LastCallRow)
    assert set(row["auth"]) == _keys(_schemas.Auth)
    assert set(get_args(_schemas.State)) == {str(state) for state in ServerState}


async def test_answers_have_the_documented_keys() -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        site.manager.events.publish(ServerLog(server="a", level="info", logger=None, text="x"))
        for path, form, inner in [
            ("servers", _schemas.ServerList, ("servers", _schemas.ServerRow)),
            ("servers/a", _schemas.ServerDetail, ("tool_schemas", _schemas.ToolSchema)),
            ("tools", _schemas.ToolList, ("tools", _schemas.ToolRow)),
            ("logs", _schemas.LogPage, ("lines", _schemas.LogLine)),
        ]:
            found = (await site.get(f"/api/mcp/{path}")).json
            assert set(found) == _keys(form), path
            assert set(found[inner[0]][0]) == _keys(inner[1]), path
        assert set((await site.get("/api/mcp/events")).json) == _keys(_schemas.EventPage)
        assert set((await site.post("/api/mcp/tools/a__t/call")).json) == _keys(_schemas.CallResult)
        assert set((await site.get("/api/mcp/servers/x")).json) == _keys(_schemas.Problem)


async def test_the_openapi_document_names_every_route_and_shape() -> None:
    async with serving() as site:
        document = (await site.get("/api/openapi.json")).json
        assert document["openapi"].startswith("3.1")
        assert set(document["paths"]) == {
            "/healthz",
            "/api/mcp/config-path",
            "/api/mcp/servers",
            "/api/mcp/servers/{name}",
            "/api/mcp/servers/{name}/restart",
            "/api/mcp/servers/{name}/connect",
            "/api/mcp/servers/{name}/disconnect",
            "/api/mcp/servers/{name}/auth",
            "/api/mcp/servers/{name}/auth/authenticate",
            "/api/mcp/servers/{name}/auth/callback",
            "/api/mcp/auth/pending",
            "/api/mcp/auth/pending/{sign_in}",
            "/api/mcp/servers/{name}/enable",
            "/api/mcp/servers/{name}/disable",
            "/api/mcp/test",
            "/api/mcp/roots",
            "/mcp",
            "/metrics",
            "/mcp/enter",
            "/api/mcp/link",
            "/api/mcp/servers/{name}/resources",
            "/api/mcp/servers/{name}/resources/read",
            "/api/mcp/servers/{name}/prompts",
            "/api/mcp/servers/{name}/prompts/{prompt}",
            "/api/mcp/servers/{name}/complete",
            "/api/mcp/tools",
            "/api/mcp/tools/{name}/call",
            "/api/mcp/events",
            "/api/mcp/logs",
        }
        schemas = document["components"]["schemas"]
        assert {"ServerRow", "ToolRow", "CallRequest", "CallResult", "Problem"} <= set(schemas)
        assert set(schemas["ServerRow"]["required"]) == _keys(_schemas.ServerRow)
        call = document["paths"]["/api/mcp/tools/{name}/call"]["post"]["responses"]
        assert "application/problem+json" in call["422"]["content"]
        ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
        assert len(ids) == len(set(ids))


async def _take(count: int, events: AsyncIterator[dict[str, str]]) -> AsyncIterator[dict[str, str]]:
    """The first real events of a stream."""
    async for event in events:
        if "event" in event:
            yield event
            count -= 1
            if count == 0:
                return


async def test_a_body_that_is_nested_too_deeply_is_refused_and_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(FakeManager()) as site:
        answer = await site.ask("POST", "/api/mcp/tools/x__y/call", body=b"[" * 100_000)
        assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert caplog.text == ""
