"""The routes about resources, prompts and completions, over a manager whose answers are given."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from openprogram_mcp.errors import NotConnected, ServerFailed, ServerGone, TimedOut

from ._fake_manager import FakeManager
from ._web import serving

A = "/api/mcp/servers/a"


async def test_resources_and_prompts_are_listed_as_mcp_gives_them() -> None:
    async with serving(read_only=True) as site:
        site.manager.put("a")
        assert (await site.get(f"{A}/resources")).json == {
            "resources": [{"uri": "file:///a", "name": "a"}],
            "resourceTemplates": [{"uriTemplate": "file:///{name}", "name": "any"}],
        }
        assert (await site.get(f"{A}/prompts")).json == {"prompts": [{"name": "greet"}]}


@pytest.mark.parametrize(
    ("encoded", "uri"),
    [("file:///a", "file:///a"), ("x%3A%2F%2Fa%3Fb%3Dc%26d%23e", "x://a?b=c&d#e"), ("caf%C3%A9+%2B", "café +")],
)
async def test_a_resource_is_read_by_its_uri(encoded: str, uri: str) -> None:
    async with serving(read_only=True) as site:
        site.manager.put("a")
        assert (await site.get(f"{A}/resources/read?uri={encoded}")).json["contents"][0]["text"] == "text"
        assert site.manager.asked == [("read_resource", uri)]


@pytest.mark.parametrize(
    ("encoded", "prompt"),
    [("greet", "greet"), ("a%2Fb", "a/b"), ("%2Fa", "/a"), ("a%20b%25", "a b%"), ("a//b", "a//b")],
)
async def test_a_prompt_of_any_name_is_filled_in(encoded: str, prompt: str) -> None:
    async with serving(read_only=True) as site:
        site.manager.put("a")
        reply = await site.post(f"{A}/prompts/{encoded}", {"arguments": {"name": "you"}})
        assert reply.status == 200
        assert reply.json["messages"][0]["content"]["text"] == "Hello!"
        assert (await site.post(f"{A}/prompts/{encoded}")).status == 200
        assert site.manager.asked == [("get_prompt", prompt, {"name": "you"}), ("get_prompt", prompt, {})]


async def test_an_argument_is_completed() -> None:
    async with serving(read_only=True) as site:
        site.manager.put("a")
        ref, argument = {"type": "ref/prompt", "name": "greet"}, {"name": "name", "value": "o"}
        context = {"arguments": {"other": "x"}}
        reply = await site.post(f"{A}/complete", {"ref": ref, "argument": argument})
        assert reply.json["completion"] == {"values": ["one"]}
        assert (await site.post(f"{A}/complete", {"ref": ref, "argument": argument, "context": context})).status == 200
        assert site.manager.asked == [("complete", ref, argument, None), ("complete", ref, argument, context)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("complete", {}),
        ("complete", {"ref": {}, "argument": {"name": 1}}),
        ("complete", {"ref": "x", "argument": {}}),
        ("prompts/greet", {"arguments": {"name": 1}}),
        ("prompts/greet", {"arguments": "x"}),
        ("prompts/greet", b"{"),
    ],
)
async def test_a_request_that_is_not_well_formed_is_refused(path: str, body: Any) -> None:
    async with serving() as site:
        site.manager.put("a")
        reply = await site.post(f"{A}/{path}", body)
        assert (reply.status, reply.json["code"]) in {(422, "invalid_arguments"), (400, "bad_request")}
        assert site.manager.asked == []


async def test_a_resource_without_a_uri_is_refused() -> None:
    async with serving() as site:
        site.manager.put("a")
        assert (await site.get(f"{A}/resources/read")).json["code"] == "invalid_arguments"


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "resources", None),
    ("GET", "resources/read?uri=x", None),
    ("GET", "prompts", None),
    ("POST", "prompts/greet", {}),
    ("POST", "complete", {"ref": {}, "argument": {}}),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_what_fails_is_a_problem(method: str, path: str, body: Any) -> None:
    errors = [
        (ServerFailed("it refused", phase="running", server="a"), 422, "server_failed"),
        (ServerGone("gone", may_have_run=False), 502, "server_gone"),
        (NotConnected("down"), 503, "not_connected"),
        (TimedOut("late", budget="call", seconds=1.0), 504, "timeout"),
    ]
    for error, status, code in errors:

        async def fail(_method: str, _arguments: Any, error: Exception = error) -> dict[str, Any]:
            raise error

        async with serving(FakeManager(offer=fail)) as site:
            site.manager.put("a")
            reply = await site.ask(method, f"{A}/{path}", body=body)
            assert (reply.status, reply.json["code"]) == (status, code)
            assert (await site.ask(method, f"/api/mcp/servers/b/{path}", body=body)).json["code"] == "unknown_server"
            assert (await site.ask(method, f"{A}/{path}", {"Authorization": None}, body)).status == 401


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_closing_the_request_withdraws_it(method: str, path: str, body: Any) -> None:
    async def never(_method: str, _arguments: Any) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    async with serving(FakeManager(offer=never)) as site:
        site.manager.put("a")
        content = None if body is None else b'{"ref": {}, "argument": {}}' if path == "complete" else b"{}"
        async with await site.connect() as stream:
            await stream.send_all(site.head(method, f"{A}/{path}", body=content))
            await site.manager.calling.wait()
        await site.manager.cancelled.wait()
