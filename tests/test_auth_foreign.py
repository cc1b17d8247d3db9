"""Signing in by an authorization server that is neither ours nor the SDK's, with a real Chromium in between."""

from __future__ import annotations

import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import trio
from attrs import define, evolve, field

from openprogram_mcp import open_manager
from openprogram_mcp.auth.tokens import TokenStore
from openprogram_mcp.status import ServerState
from tests import servers
from tests._authority import Protected, serving
from tests._chromium import browse, needs_chromium

pytestmark = needs_chromium


@define(eq=False)
class Foreign:
    """What the MCP server knows of the authority: its tokens are signed, and for this server alone."""

    resource: str
    issuer: str = ""
    access: dict[str, dict[str, Any]] = field(factory=dict)
    keys: jwt.PyJWKClient | None = None

    def takes(self, access: str) -> bool:
        if access not in self.access:
            if self.keys is None:
                self.keys = jwt.PyJWKClient(f"{self.issuer}/jwks")
            try:
                key = self.keys.get_signing_key_from_jwt(access).key
                claims = jwt.decode(access, key, algorithms=["RS256"], audience=self.resource, issuer=self.issuer)
            except jwt.PyJWTError:
                return False
            self.access[access] = {"scope": claims["scope"]}
        return True


@asynccontextmanager
async def running(*argv: str) -> AsyncIterator[trio.Process]:
    process = await trio.lowlevel.open_process(list(argv), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def test_a_real_browser_goes_through_a_foreign_consent_and_back(tmp_path: Path) -> None:
    foreign = Foreign(resource="")
    server = Protected(authority=foreign, extra={"scopes_supported": ["tools"]})  # type: ignore[arg-type]  # another's
    with trio.fail_after(120):
        async with serving(server):
            foreign.resource = server.address
            async with running(*servers.script("authority", server.address)) as process:
                assert process.stdout is not None
                foreign.issuer = (await process.stdout.receive_some()).decode().split()[0]
                await _sign_in_and_come_back(tmp_path, server)


async def _sign_in_and_come_back(folder: Path, server: Protected) -> None:
    entries = {"x": {"type": "http", "url": server.address}}
    async with open_manager(entries, state_dir=folder, raise_internal=True) as manager:
        await manager.started.wait()
        assert manager.server("x").status is ServerState.NEEDS_AUTH
        pending = await manager.start_auth("x")
        told = await browse("consent", pending.authorization_url, home=folder)
        assert told["title"] == "Signed in to x", told
        assert told["url"] == pending.redirect_uri
        assert (await manager.wait_settled("x")).ready
        assert (await manager.call_tool("x__read")).text == "read"
    store = TokenStore.of(folder / "mcp_tokens", "x")
    kept = store.read()
    assert kept is not None
    assert kept.tokens is not None
    assert kept.tokens.refresh_token is not None
    # The next day: 0 browsers.
    store.write(evolve(kept, tokens=evolve(kept.tokens, expires_at=time.time() - 1)))
    async with open_manager(entries, state_dir=folder, raise_internal=True) as manager:
        await manager.started.wait()
        assert manager.server("x").ready, manager.server("x")
        assert (await manager.call_tool("x__read")).text == "read"
    renewed = store.read()
    assert renewed is not None
    assert renewed.tokens is not None
    assert renewed.tokens.refresh_token != kept.tokens.refresh_token
