"""Edits over the management API: the routes over a given manager, and real servers, secrets and files behind them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from attrs import evolve

from openprogram_mcp import MCPManager, MCPServerConfig
from openprogram_mcp.auth.tokens import Binding, Credentials, Tokens, TokenStore
from openprogram_mcp.errors import ConfigError, ServerFailed
from openprogram_mcp.testing import FakeServer, do

from ._fake_manager import FakeManager, remote_tool
from ._living import managed
from ._web import Reply, Site, serving

SERVERS = "/api/mcp/servers"
MASK = "********"


# What the routes say to the manager.


@pytest.mark.parametrize("body", [{"name": "a", "command": "x"}, {"name": "a", "config": {"command": "x"}}])
async def test_a_server_is_added_by_either_form_of_body(body: Any) -> None:
    async with serving() as site:
        reply = await site.post(SERVERS, body)
        assert (reply.status, reply.json["name"]) == (201, "a")
        assert site.manager.asked == [("add", "a", MCPServerConfig(name="a", command="x"), False)]
        assert (await site.post(f"{SERVERS}?force=true", body)).status == 201
        assert site.manager.asked[-1][-1] is True


@pytest.mark.parametrize(
    ("body", "status", "code", "path"),
    [
        ({"command": "x"}, 422, "invalid_config", "name"),
        ({"name": 7, "command": "x"}, 422, "invalid_config", "name"),
        ({"name": "a/b", "command": "x"}, 422, "invalid_config", "servers.a/b.name"),
        ({"name": "a", "config": {"command": "x"}, "env": {}}, 422, "invalid_config", "env"),
        ({"name": "a", "config": 7}, 422, "invalid_config", "config"),
        ({"name": "a", "command": "x", "timeout_seconds": -1}, 422, "invalid_config", "servers.a.timeout_seconds"),
        ({"name": "a", "command": "x", "env": {"K": MASK}}, 422, "invalid_config", "servers.a.env.K"),
        ([], 422, "invalid_arguments", None),
        (b"{", 400, "bad_request", None),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_with_its_place(
    body: Any, status: int, code: str, path: str | None
) -> None:
    async with serving() as site:
        reply = await site.post(SERVERS, body)
        assert reply.headers["content-type"] == "application/problem+json"
        assert (reply.status, reply.json["code"], reply.json["path"]) == (status, code, path)
        assert site.manager.asked == []


@pytest.mark.parametrize(
    ("header", "revision"),
    [
        (None, None),
        ("*", None),
        ('"one"', "one"),
        ('W/"one"', "one"),
        ('"two", "now"', "now"),
        ('"two", "three"', "two"),
    ],
)
async def test_an_edit_is_bound_to_the_revision_that_its_header_names(header: str | None, revision: str | None) -> None:
    fake = FakeManager()
    fake.document = evolve(fake.document, revision="now")
    async with serving(fake) as site:
        site.manager.put("a")
        assert (await site.ask("PATCH", f"{SERVERS}/a", {"If-Match": header}, {"description": "x"})).status == 200
        assert (await site.ask("DELETE", f"{SERVERS}/a", {"If-Match": header})).status == 204
        assert (await site.ask("PUT", "/api/mcp/roots", {"If-Match": header}, {"roots": []})).status == 200
        assert [asked[-1] for asked in site.manager.asked] == [revision] * 3


@pytest.mark.parametrize("header", ["one", '"one', "", '"one" "two"', '"one",'])
async def test_a_header_that_names_no_revision_is_refused(header: str) -> None:
    async with serving() as site:
        reply = await site.ask("DELETE", f"{SERVERS}/a", {"If-Match": header})
        assert (reply.status, reply.json["path"]) == (422, "If-Match")
        assert site.manager.asked == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", SERVERS, {"name": "a", "command": "x"}),
        ("PATCH", f"{SERVERS}/a", {"description": "x"}),
        ("POST", "/api/mcp/test", {"command": "x"}),
    ],
)
async def test_closing_the_request_takes_an_edit_back(method: str, path: str, body: Any) -> None:
    async def hang(_what: str, _arguments: tuple[Any, ...]) -> dict[str, Any]:
        await trio.sleep_forever()

    async with serving(FakeManager(offer=hang)) as site:
        async with await site.connect() as stream:
            await stream.send_all(site.head(method, path, {}, json.dumps(body).encode()))
            await site.manager.calling.wait()
        await site.manager.cancelled.wait()


async def test_what_the_manager_refuses_is_a_problem_of_its_own_kind() -> None:
    async def refuse(_what: str, _arguments: tuple[Any, ...]) -> dict[str, Any]:
        raise ServerFailed("It did not come up", phase="initialize", exit_code=3, stderr=("no",), server="a")

    async with serving(FakeManager(offer=refuse)) as site:
        reply = await site.post(SERVERS, {"name": "a", "command": "x"})
        assert (reply.status, reply.json["code"], reply.json["stderr"]) == (422, "server_failed", ["no"])


async def test_a_file_that_cannot_be_read_is_told_with_the_servers() -> None:
    async with serving() as site:
        assert (await site.get(SERVERS)).json["config_error"] is None
        site.manager.config_problem = ConfigError("mcp_servers.json:3:1: expected a comma")
        assert (await site.get(SERVERS)).json["config_error"] == "mcp_servers.json:3:1: expected a comma"


async def test_the_short_list_says_who_is_connected_and_with_what() -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"))
        assert (await site.get("/mcp")).json == [{"name": "a", "connected": True, "tools": ["a__t"], "error": None}]


async def test_every_operation_has_a_name_that_reads_well() -> None:
    async with serving() as site:
        document = (await site.get("/api/openapi.json")).json
        operations = [operation for methods in document["paths"].values() for operation in methods.values()]
        ids = [operation["operationId"] for operation in operations]
        assert [one for one in ids if not one.startswith("mcp.")] == []
        assert {"mcp.status", "mcp.add", "mcp.update", "mcp.remove", "mcp.connect", "mcp.call", "mcp.test"} <= set(ids)
        assert [operation["operationId"] for operation in operations if not operation["tags"]] == []


async def test_the_document_describes_every_field_of_a_configuration() -> None:
    async with serving() as site:
        document = (await site.get("/api/openapi.json")).json
        described = set(document["components"]["schemas"]["ServerConfig"]["properties"])
        stored = {one.name for one in attrs.fields(MCPServerConfig) if not one.metadata.get("memory")}
        assert described == stored - {"name", "unknown"}
        for method, path, body in [
            ("post", SERVERS, "NewServer"),
            ("patch", f"{SERVERS}/{{name}}", "ServerConfig"),
            ("post", "/api/mcp/test", "ServerConfig"),
        ]:
            content = document["paths"][path][method]["requestBody"]["content"]
            assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{body}"}


# Real servers and a real file.


def write(file: Path, servers: Mapping[str, Any], **settings: Any) -> None:
    file.write_text(json.dumps({"servers": servers, **settings}))


def content(file: Path) -> Any:
    return json.loads(file.read_text())


def entry(file: Path, name: str = "a") -> Any:
    return content(file)["servers"].get(name)


@asynccontextmanager
async def real(**options: Any) -> AsyncIterator[tuple[Site, MCPManager]]:
    """The API of a manager whose servers are started."""
    async with managed(**options) as manager, serving(cast("FakeManager", manager)) as site:
        with trio.fail_after(20):
            await manager.started.wait()
        yield site, manager


async def edit(site: Site, body: Any, name: str = "a", **headers: str) -> Reply:
    return await site.ask("PATCH", f"{SERVERS}/{name}", dict(headers), body)


async def test_a_server_lives_and_ends_through_the_api(file: Path) -> None:
    fake = FakeServer().tool("t")
    write(file, {})
    async with real() as (site, _manager):
        reply = await site.post(SERVERS, {"name": "a", **fake.config()})
        assert (reply.status, reply.json["status"], reply.json["tools"]) == (201, "connected", ["a__t"])
        assert entry(file) == fake.config()
        reply = await site.post(SERVERS, {"name": "a", **fake.config()})
        assert (reply.status, reply.json["code"]) == (409, "server_exists")
        assert (await site.post(f"{SERVERS}/a/disable")).json["status"] == "disabled"
        assert entry(file)["enabled"] is False
        assert (await site.post(f"{SERVERS}/a/connect")).json["code"] == "not_connected"
        assert (await site.post(f"{SERVERS}/a/enable")).json["status"] == "connected"
        reply = await site.ask("DELETE", f"{SERVERS}/a")
        assert (reply.status, reply.body) == (204, b"")
        assert entry(file) is None
        assert (await site.ask("DELETE", f"{SERVERS}/a")).json["code"] == "unknown_server"
    assert fake.alive() == []


async def test_what_does_not_come_up_is_not_saved_but_where_it_is_forced(file: Path) -> None:
    bad = FakeServer().on_start(do.stderr("no\n"), do.exit(3))
    write(file, {})
    async with real() as (site, manager):
        reply = await site.post(SERVERS, {"name": "a", **bad.config()})
        assert (reply.status, reply.json["code"], reply.json["exit_code"]) == (422, "server_failed", 3)
        assert (entry(file), manager.status()) == (None, {})
        reply = await site.post(f"{SERVERS}?force=true", {"name": "a", **bad.config()})
        assert (reply.status, reply.json["status"]) == (201, "failed")
        assert entry(file) == bad.config()


async def test_trying_a_configuration_saves_nothing_and_tells_how_it_did(file: Path) -> None:
    good, bad = FakeServer().tool("t"), FakeServer().on_start(do.exit(3))
    write(file, {})
    async with real() as (site, manager):
        reply = await site.post("/api/mcp/test", {"name": "new", **good.config()})
        assert (reply.status, reply.json["status"], reply.json["tools"]) == (200, "connected", ["new__t"])
        reply = await site.post("/api/mcp/test", bad.config())
        assert (reply.status, reply.json["status"], reply.json["exit_code"]) == (200, "failed", 3)
        assert (manager.status(), content(file)) == ({}, {"servers": {}})


async def test_of_two_who_edit_what_they_have_read_the_second_is_told(file: Path) -> None:
    write(file, {"a": {"command": "x", "enabled": False}})
    async with real() as (site, _manager):
        first = await site.get(f"{SERVERS}/a")
        tag = first.headers["etag"]
        assert (await site.get(SERVERS)).headers["etag"] == tag
        one = await edit(site, {"description": "one"}, **{"If-Match": tag})
        assert (one.status, one.json["description"]) == (200, "one")
        two = await edit(site, {"description": "two"}, **{"If-Match": tag})
        assert (two.status, two.json["code"]) == (409, "revision_conflict")
        assert entry(file)["description"] == "one"
        three = await edit(site, {"description": "three"}, **{"If-Match": one.headers["etag"]})
        assert (three.status, entry(file)["description"]) == (200, "three")
        reply = await site.ask("DELETE", f"{SERVERS}/a", {"If-Match": tag})
        assert (reply.status, entry(file)["description"]) == (409, "three")


async def test_roots_are_kept_in_the_file(file: Path) -> None:
    write(file, {}, roots=[{"uri": "file:///a", "name": 7}])
    async with real() as (site, _manager):
        reply = await site.get("/api/mcp/roots")
        assert reply.json == {"roots": [{"uri": "file:///a", "name": None}]}
        wanted = {"roots": [{"uri": "file:///b", "name": "b"}, {"uri": "file:///c", "name": None}]}
        put = await site.ask("PUT", "/api/mcp/roots", {"If-Match": reply.headers["etag"]}, wanted)
        assert (put.status, put.json) == (200, wanted)
        assert content(file)["roots"] == [{"uri": "file:///b", "name": "b"}, {"uri": "file:///c"}]
        late = await site.ask("PUT", "/api/mcp/roots", {"If-Match": reply.headers["etag"]}, {"roots": []})
        assert late.json["code"] == "revision_conflict"
        bad = await site.ask("PUT", "/api/mcp/roots", None, {"roots": [{"uri": "file:///b"}, {"uri": "http://x"}]})
        assert (bad.status, bad.json["code"], bad.json["path"]) == (422, "invalid_config", "roots.1.uri")
        assert (await site.get("/api/mcp/roots")).json == wanted


# SECRET-02: what was shown can be sent back.


SECRETS = {
    "command": "x",
    "args": ["--api-key", "SECRET-in-args"],
    "env": {"KEEP": "SECRET-keep", "DROP": "SECRET-drop", "EMPTY": "SECRET-empty"},
    "enabled": False,
}


async def test_secret_02_no_answer_to_an_edit_shows_a_secret(file: Path) -> None:
    write(file, {})
    async with real() as (site, _manager):
        answers = [
            await site.post(SERVERS, {"name": "a", **SECRETS}),
            await site.get(f"{SERVERS}/a"),
            await edit(site, {"env": {"NEW": "SECRET-new"}}),
            await edit(site, {"env": {"NEW": {"SECRET-deep": 1}}}),
            await site.post(SERVERS, {"name": "b", "command": "x", "env": {"K": ["SECRET-list"]}}),
            await site.get("/api/mcp/events"),
        ]
        assert [one.status for one in answers] == [201, 200, 200, 422, 422, 200]
        assert [one.body for one in answers if b"SECRET-" in one.body] == []
        assert entry(file)["env"]["NEW"] == "SECRET-new"


async def test_secret_02_what_was_shown_sent_back_with_a_change_keeps_every_secret(file: Path) -> None:
    write(file, {"a": SECRETS})
    async with real() as (site, _manager):
        shown = (await site.get(f"{SERVERS}/a")).json["config"]
        assert shown["env"]["KEEP"] == {"has_value": True, "masked": MASK}
        reply = await edit(site, {**shown, "description": "changed"})
        assert (reply.status, reply.json["description"]) == (200, "changed")
        assert entry(file) == {**SECRETS, "description": "changed"}


async def test_secret_02_a_name_left_out_is_kept_a_mask_keeps_null_and_nothing_delete(file: Path) -> None:
    write(file, {"a": SECRETS})
    async with real() as (site, _manager):
        change = {"env": {"KEEP": MASK, "DROP": None, "EMPTY": "", "NEW": "SECRET-new"}}
        assert (await edit(site, change)).status == 200
        assert entry(file)["env"] == {"KEEP": "SECRET-keep", "NEW": "SECRET-new"}
        assert (await edit(site, {"env": {"NEW": "SECRET-newer"}})).status == 200
        assert entry(file)["env"] == {"KEEP": "SECRET-keep", "NEW": "SECRET-newer"}
        reply = await edit(site, {"env": {"NOBODY": MASK}})
        assert (reply.status, reply.json["path"]) == (422, "servers.a.env.NOBODY")
        assert "NOBODY" not in entry(file)["env"]


async def test_secret_02_headers_and_auth_follow_the_same_rules(file: Path) -> None:
    remote = {"url": "http://127.0.0.1:9/mcp", "enabled": False, "headers": {"X-Key": "SECRET-header"}}
    write(file, {"a": {**remote, "auth": {"kind": "bearer", "token": "SECRET-token"}}})
    async with real() as (site, _manager):
        shown = (await site.get(f"{SERVERS}/a")).json["config"]
        assert (shown["auth"]["has_token"], shown["auth"]["token"]) == (True, MASK)
        assert (await edit(site, shown)).status == 200
        assert (await edit(site, {"auth": {"token": MASK}, "headers": {}})).status == 200
        assert entry(file)["auth"] == {"kind": "bearer", "token": "SECRET-token"}
        assert entry(file)["headers"] == {"X-Key": "SECRET-header"}
        assert (await edit(site, {"auth": {"kind": "oauth", "client_id": "me"}})).status == 200
        assert entry(file)["auth"] == {"kind": "oauth", "client_id": "me"}
        assert (await edit(site, {"auth": {"client_secret": "SECRET-client"}})).status == 200
        assert (await edit(site, {"auth": {"kind": "none"}})).status == 200
        assert "SECRET-" not in json.dumps(entry(file).get("auth"))
        assert (await edit(site, {"auth": {"kind": "bearer", "token": MASK}})).status == 422


async def test_secret_02_an_edit_that_changes_nothing_real_reconnects_nothing(file: Path) -> None:
    fake = FakeServer().tool("t")
    write(file, {"a": {**fake.config(), "env": {**fake.config().get("env", {}), "KEY": "SECRET-key"}}})
    async with real() as (site, _manager):
        before = (await site.get(f"{SERVERS}/a")).json
        reply = await edit(site, {**before["config"], "description": "changed"})
        assert (reply.status, reply.json["description"]) == (200, "changed")
        assert (reply.json["generation"], reply.json["pid"]) == (before["generation"], before["pid"])
        assert len(fake.pids()) == 1


async def test_secret_02_an_edit_that_changes_nothing_real_drops_no_sign_in(file: Path) -> None:
    url = "http://127.0.0.1:9/mcp"
    auth = {"kind": "oauth", "client_id": "me", "client_secret": "SECRET-client"}
    write(file, {"a": {"url": url, "auth": auth, "reconnect": False}})
    store = TokenStore.of(file.parent / "mcp_tokens", "a")
    store.path.parent.mkdir(mode=0o700)
    binding = Binding.to(url, "me")
    store.write(Credentials(binding=binding, tokens=Tokens(access_token="SECRET-access", refresh_token="SECRET-more")))
    before = store.path.read_bytes()
    async with real() as (site, _manager):
        shown = (await site.get(f"{SERVERS}/a")).json
        assert shown["auth"]["state"] == "logged_in"
        reply = await edit(site, {**shown["config"], "description": "changed"})
        assert (reply.status, reply.json["auth"], b"SECRET-" in reply.body) == (200, shown["auth"], False)
        assert (entry(file)["auth"], entry(file)["description"]) == (auth, "changed")
        assert store.path.read_bytes() == before
        reply = await site.ask("PATCH", f"{SERVERS}/a?force=true", None, {"url": "http://127.0.0.1:9/other"})
        assert reply.status == 200
        reply = await site.post(f"{SERVERS}/a/restart")
        assert (reply.json["auth"]["state"], store.path.exists()) == (
            "not_logged_in",
            False,
        )  # it was of the old address
