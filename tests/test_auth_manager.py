"""Signing in through a manager: states, what is known before anybody connects, and back to connected by itself."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from openprogram_mcp import open_manager
from openprogram_mcp.auth.tokens import TokenStore
from openprogram_mcp.config import MCPServerConfig, load_document
from openprogram_mcp.errors import InvalidArguments, NotConnected, ReadOnly, ServerFailed, ServerGone
from openprogram_mcp.events import BrowserOpenFailed, StatusChanged
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.status import ServerState, ServerStatus
from tests._authority import Authority, Protected, consent, get, serving


@asynccontextmanager
async def managing(
    folder: Path, servers: dict[str, dict[str, Any]], *sites: Any, seconds: float = 30, **kwargs: Any
) -> AsyncIterator[MCPManager]:
    """A manager with a saved configuration; the sites must listen already, or are let."""
    write(folder, servers)
    with trio.fail_after(seconds):
        async with open_manager(state_dir=folder, raise_internal=True, **kwargs) as manager:
            await manager.started.wait()
            yield manager


def write(folder: Path, servers: dict[str, dict[str, Any]]) -> None:
    import json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mcp_servers.json").write_text(json.dumps({"servers": servers}))


def entry(server: Protected, **more: Any) -> dict[str, Any]:
    return {"type": "http", "url": server.address, **more}


async def sign_in(manager: MCPManager, name: str = "x") -> ServerStatus:
    pending = await manager.start_auth(name)
    status, page = await consent(pending.authorization_url)
    assert status == 200, page
    return await manager.wait_settled(name)


async def test_a_server_that_wants_a_sign_in_comes_up_by_itself_once_somebody_has(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        row = manager.server("x")
        assert row.status is ServerState.NEEDS_AUTH
        assert row.error_kind == "needs_reauth"
        assert row.auth.to_dict() == {"kind": "oauth", "state": "not_logged_in"}
        assert "openprogram-mcp auth x" in (row.remedy or "")
        pending = await manager.start_auth("x")
        assert manager.server("x").authorization_url == pending.authorization_url
        assert [one.server for one in manager.pending_auth()] == ["x"]
        await consent(pending.authorization_url)
        row = await manager.wait_settled("x")
        assert row.status is ServerState.CONNECTED
        assert row.auth.state == "logged_in"
        assert row.authorization_url is None
        assert manager.pending_auth() == []
        assert (await manager.call_tool("x__read")).text == "read"


async def test_oauth_02_the_state_of_a_sign_in_is_known_before_anybody_connects(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority):
        async with managing(tmp_path, {"x": entry(server)}) as manager:
            assert (await sign_in(manager)).ready
        expire(tmp_path)
        server.authority.seen.clear()
        write(tmp_path, {"x": entry(server, enabled=False), "y": entry(server, enabled=False)})
        async with open_manager(state_dir=tmp_path) as manager:
            assert manager.server("x").auth.state == "logged_in"
            assert manager.server("y").auth.to_dict() == {"kind": "none", "state": "unsupported"}
            row = await manager.enable("x")
            assert row.ready
        # 0 browsers.
        assert server.authority.counts() == {"/token": 1}


def expire(folder: Path, name: str = "x") -> None:
    store = TokenStore.of(folder / "mcp_tokens", name)
    kept = store.read()
    assert kept is not None
    assert kept.tokens is not None
    store.write(evolve(kept, tokens=evolve(kept.tokens, expires_at=time.time() - 1)))


async def test_a_rejected_refresh_token_leads_to_needs_auth_and_a_sign_in_out_of_it(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        server.authority.refresh.clear()
        server.authority.access.clear()
        with pytest.raises((NotConnected, ServerGone)):
            await manager.call_tool("x__read")
        row = await manager.wait_settled("x")
        assert row.status is ServerState.NEEDS_AUTH
        assert row.error_kind == "needs_reauth"
        assert row.auth.state == "expired"
        assert (await sign_in(manager)).ready


async def test_oauth_04_a_server_whose_authority_registers_nobody_says_how_to_give_a_client_id(tmp_path: Path) -> None:
    server = Protected(authority=Authority(registers="absent"))
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        row = manager.server("x")
        assert row.status is ServerState.NEEDS_CLIENT_REGISTRATION
        assert row.error_kind == "needs_reauth"
        assert "client_id" in (row.remedy or "")
        assert "http://127.0.0.1:19876/mcp/oauth/callback" in (row.remedy or "")


async def test_oauth_04_a_registration_that_is_refused_says_what_the_authority_said(tmp_path: Path) -> None:
    server = Protected(authority=Authority(registers=403))
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert manager.server("x").status is ServerState.NEEDS_AUTH
        with pytest.raises(ServerFailed):
            await manager.start_auth("x")
        row = manager.server("x")
        assert row.status is ServerState.NEEDS_CLIENT_REGISTRATION
        assert "no strangers here" in (row.error or "")
        assert "client_id" in (row.remedy or "")


async def test_an_authority_that_is_down_is_no_sign_in_that_is_over(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority):
        config = entry(server, reconnect={"initial_seconds": 0.05, "max_seconds": 0.05})
        async with managing(tmp_path, {"x": config}) as manager:
            assert (await sign_in(manager)).ready
        expire(tmp_path)
        server.authority.down = True
        async with managing(tmp_path, {"x": config}) as manager:
            row = manager.server("x")
            assert row.status is ServerState.FAILED
            assert row.error_kind == "transient"
            assert row.auth.state == "logged_in"
            assert "sign-in cannot be renewed" in (row.error or "")
            server.authority.down = False
            with manager.events.subscribe() as events:
                async for _ in events:
                    if manager.server("x").ready:
                        break


async def test_oauth_12_configured_credentials_that_are_refused_start_no_sign_in(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    headers = {"authorization": "Bearer old"}
    async with serving(server, server.authority):
        async with managing(tmp_path, {"x": entry(server, headers=headers)}) as manager:
            row = manager.server("x")
            assert row.status is ServerState.FAILED
            assert row.error_kind == "fatal"
            assert "401" in (row.error or "")
            assert row.auth.state == "unsupported"
            with pytest.raises(InvalidArguments):
                await manager.start_auth("x")
        assert server.authority.seen == []
        assert server.count("/.well-known/oauth-protected-resource/mcp") == 0


async def test_oauth_07_a_call_that_lacks_a_scope_says_so_and_costs_no_other_call(tmp_path: Path) -> None:
    server = Protected(authority=Authority(), scope="r", write_scope="w")
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        refused = await manager.call_tool("x__write")
        assert refused.is_error
        assert "insufficient scope" in refused.text
        assert "w" in refused.text
        assert not (await manager.call_tool("x__read")).is_error
        assert manager.server("x").ready
        generation = manager.server("x").generation
        pending = await manager.start_auth("x")
        await consent(pending.authorization_url)
        await manager.wait_auth("x")
        assert set(server.authority.scopes_asked[-1].split()) == {"r", "w"}
        assert not (await manager.call_tool("x__write")).is_error
        # The connection lived on.
        assert manager.server("x").generation == generation


async def test_oauth_09_another_address_in_the_file_gets_no_old_token_and_the_old_one_is_forgotten(
    tmp_path: Path,
) -> None:
    server, other = Protected(authority=Authority()), Protected(authority=Authority())
    async with serving(server, server.authority, other, other.authority):
        async with managing(tmp_path, {"x": entry(server)}) as manager:
            assert (await sign_in(manager)).ready
        async with managing(tmp_path, {"x": entry(other)}) as manager:
            assert manager.server("x").status is ServerState.NEEDS_AUTH
            assert all("authorization" not in one.headers for one in other.seen)
        async with managing(tmp_path, {"x": entry(server)}) as manager:
            assert manager.server("x").status is ServerState.NEEDS_AUTH


async def test_oauth_09_a_server_that_was_removed_starts_anew_under_its_name(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        await manager.remove("x")
        assert TokenStore.of(tmp_path / "mcp_tokens", "x").read() is None
        row = await manager.add(MCPServerConfig.from_dict("x", entry(server)))
        assert row.status is ServerState.NEEDS_AUTH
        assert "x" in load_document(tmp_path / "mcp_servers.json").servers


async def test_forgetting_a_sign_in_takes_the_server_to_needs_auth(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        row = await manager.clear_auth("x")
        assert row.status is ServerState.NEEDS_AUTH
        assert row.auth.state == "not_logged_in"


async def test_two_sign_ins_at_once_and_one_of_them_cancelled(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with (
        serving(server, server.authority),
        managing(tmp_path, {"x": entry(server), "y": entry(server)}) as manager,
    ):
        one, other = await manager.start_auth("x"), await manager.start_auth("y")
        assert one.state != other.state
        assert {pending.server for pending in manager.pending_auth()} == {"x", "y"}
        manager.cancel_auth(one.state)
        with pytest.raises(ServerFailed, match="cancelled"):
            await manager.wait_auth("x")
        await consent(other.authorization_url)
        assert (await manager.wait_auth("y")).ready
        assert manager.server("x").status is ServerState.NEEDS_AUTH
        with pytest.raises(InvalidArguments):
            manager.cancel_auth(one.state)


async def test_a_sign_in_blocks_nobody(tmp_path: Path) -> None:
    server, good = Protected(authority=Authority()), Protected(authority=Authority())
    async with (
        serving(server, server.authority, good, good.authority),
        managing(tmp_path, {"x": entry(server), "good": entry(good)}) as manager,
    ):
        await manager.start_auth("x")
        assert (await sign_in(manager, "good")).ready
        assert (await manager.call_tool("good__read")).text == "read"


async def test_a_code_given_by_hand_finishes_a_sign_in(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        pending = await manager.start_auth("x")
        _, headers, _ = await get(pending.authorization_url)
        with pytest.raises(InvalidArguments):
            await manager.finish_auth("x", "stolen", "not the state")
        assert (await manager.finish_auth("x", redirect_url=headers["location"])).ready


async def test_where_no_browser_can_be_opened_an_event_has_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        with manager.events.subscribe() as events:
            async with trio.open_nursery() as nursery:
                rows: list[ServerStatus] = []

                async def authenticate() -> None:
                    rows.append(await manager.authenticate("x"))

                nursery.start_soon(authenticate)
                async for record in events:
                    if isinstance(record.event, BrowserOpenFailed):
                        await consent(record.event.authorization_url)
                        break
            assert rows[0].ready


async def test_a_read_only_manager_signs_nobody_in(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with (
        serving(server, server.authority),
        managing(tmp_path, {"x": entry(server)}, read_only=True) as manager,
    ):
        with pytest.raises(ReadOnly):
            await manager.start_auth("x")
        with pytest.raises(ReadOnly):
            await manager.clear_auth("x")


async def test_a_client_with_credentials_of_its_own_needs_nobody(tmp_path: Path) -> None:
    authority = Authority()
    authority.clients["robot"] = {"client_id": "robot", "client_secret": "hush-hush"}
    server = Protected(authority=authority)
    auth = {"kind": "client_credentials", "client_id": "robot", "client_secret": "${ROBOT}"}
    environ = {"ROBOT": "hush-hush"}
    async with serving(server, authority):
        async with managing(tmp_path, {"x": entry(server, auth=auth)}, environ=environ) as manager:
            row = manager.server("x")
            assert row.ready, row
            assert row.auth.to_dict() == {"kind": "client_credentials", "state": "logged_in"}
        authority.clients["robot"]["client_secret"] = "another"
        expire(tmp_path)
        async with managing(tmp_path, {"x": entry(server, auth=auth)}, environ=environ) as manager:
            row = manager.server("x")
            assert row.status is ServerState.FAILED
            assert row.error_kind == "fatal"
            assert "invalid_client" in (row.error or "")
            # The authority quotes the secret back.
            assert "hush-hush" not in repr(row)


async def test_secret_01_what_the_server_echoes_of_a_token_is_masked(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        kept = TokenStore.of(tmp_path / "mcp_tokens", "x").read()
        assert kept is not None
        assert kept.tokens is not None
        mcp = server.routes["/mcp"]

        async def echoing(seen: Any) -> Any:
            if b"tools/call" not in seen.body:
                return await mcp(seen)
            message = seen.document
            said = f"you said {seen.headers['authorization']}"
            return 200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": 1, "message": said}}

        server.routes["/mcp"] = echoing
        result = await manager.call_tool("x__read")
        assert result.is_error
        told = repr(result.text) + repr([record.to_dict() for record in manager.events.since(0)[0]])
        assert kept.tokens.access_token not in told
        assert "you said" in told


async def test_the_events_tell_each_step_of_a_sign_in(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        await sign_in(manager)
        rows = [record.event.status for record in manager.events.since(0)[0] if isinstance(record.event, StatusChanged)]
        steps = [(row.status, row.authorization_url is not None) for row in rows]
        assert (ServerState.NEEDS_AUTH, True) in steps
        assert steps[-1] == (ServerState.CONNECTED, False)


async def test_an_edit_that_does_not_come_up_costs_no_sign_in(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        before = TokenStore.of(tmp_path / "mcp_tokens", "x").read()
        wrong = MCPServerConfig.from_dict("x", {"type": "http", "url": f"{server.url}/nowhere"})
        with pytest.raises(ServerFailed):
            await manager.update("x", wrong)
        assert TokenStore.of(tmp_path / "mcp_tokens", "x").read() == before
        assert (await manager.call_tool("x__read")).text == "read"
        assert manager.server("x").auth.state == "logged_in"
        assert all("authorization" not in one.headers for one in server.seen if one.path == "/nowhere")


async def test_oauth_09_an_edit_of_the_address_forgets_the_old_sign_in(tmp_path: Path) -> None:
    server, other = Protected(authority=Authority()), Protected(authority=Authority())
    async with (
        serving(server, server.authority, other, other.authority),
        managing(tmp_path, {"x": entry(server)}) as manager,
    ):
        assert (await sign_in(manager)).ready
        await manager.update("x", MCPServerConfig.from_dict("x", entry(other)))
        row = await manager.wait_settled("x")
        assert row.status is ServerState.NEEDS_AUTH
        assert row.auth.state == "not_logged_in"
        assert all("authorization" not in one.headers for one in other.seen)
        assert TokenStore.of(tmp_path / "mcp_tokens", "x").read() is None
        assert (await sign_in(manager)).ready
        await manager.update("x", MCPServerConfig.from_dict("x", entry(server)))
        assert (await manager.wait_settled("x")).status is ServerState.NEEDS_AUTH


async def test_an_edit_to_a_client_with_credentials_takes_the_place_of_a_sign_in(tmp_path: Path) -> None:
    server = Protected(authority=Authority())
    server.authority.clients["robot"] = {"client_id": "robot", "client_secret": "hush-hush"}
    auth = {"kind": "client_credentials", "client_id": "robot", "client_secret": "hush-hush"}
    async with serving(server, server.authority), managing(tmp_path, {"x": entry(server)}) as manager:
        assert (await sign_in(manager)).ready
        await manager.update("x", MCPServerConfig.from_dict("x", entry(server, auth=auth)))
        row = await manager.wait_settled("x")
        assert row.ready
        assert row.auth.to_dict() == {"kind": "client_credentials", "state": "logged_in"}
        store = TokenStore.of(tmp_path / "mcp_tokens", "x")
        # It is written beside, and soon.
        while (kept := store.read()) is None or kept.binding.client_id != "robot":
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("auth", [{"kind": "none"}, None])
async def test_oauth_12_where_nobody_is_to_sign_in_a_refusal_is_final(
    tmp_path: Path, auth: dict[str, Any] | None
) -> None:
    server = Protected(authority=Authority())
    async with serving(server, server.authority):
        url = server.address if auth else server.address.replace("://", "://me:old-password@")
        more = {} if auth is None else {"auth": auth}
        async with managing(tmp_path, {"x": entry(server, **more) | {"url": url}}) as manager:
            row = manager.server("x")
            assert row.status is ServerState.FAILED
            assert row.error_kind == "fatal"
            assert row.auth.state == "unsupported"
            assert "old-password" not in repr(row)
        assert server.authority.seen == []


@pytest.mark.parametrize("name", ["OPENPROGRAM_MCP_TOKEN_STORAGE", "OPENPROGRAM_OAUTH_CALLBACK_PORT"])
async def test_a_variable_that_is_wrong_is_told_and_is_no_fault_of_ours(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Protected(authority=Authority(registers="absent"))
    async with serving(server, server.authority):
        monkeypatch.setenv(name, "cupboard")
        async with managing(tmp_path, {"x": entry(server)}) as manager:
            row = manager.server("x")
            if name.endswith("STORAGE"):
                assert row.status is ServerState.FAILED
                assert row.phase == "config"
                assert name in (row.error or "")
            else:
                assert row.status is ServerState.NEEDS_CLIENT_REGISTRATION


async def test_a_verdict_does_not_wait_for_an_authority_that_hangs(tmp_path: Path) -> None:
    server = Protected(authority=Authority())

    async def hangs(seen: Any) -> Any:
        await trio.sleep_forever()

    server.routes["/.well-known/oauth-protected-resource/mcp"] = hangs
    async with (
        serving(server, server.authority),
        managing(tmp_path, {"x": entry(server, startup_timeout_seconds=2)}) as manager,
    ):
        assert manager.server("x").status is ServerState.NEEDS_AUTH
