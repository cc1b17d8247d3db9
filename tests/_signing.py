"""A desk of sign-ins, with a server behind it, as the tests of signing in want it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import trio
from attrs import define, field

from openprogram_mcp.auth.desk import AuthDesk
from openprogram_mcp.auth.flow import SignIn
from openprogram_mcp.auth.provider import ServerAuth
from openprogram_mcp.auth.tokens import Credentials, TokenStore
from openprogram_mcp.config import MCPServerConfig
from openprogram_mcp.transports._http_client import open_client
from tests._authority import Authority, Protected, consent, serving

__all__ = ["PING", "WRITE", "Office", "make_desk", "office", "signed_in"]

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
WRITE = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "write"}}


@define(eq=False)
class Office:
    """The desk, and one server ``x`` that it is for."""

    desk: AuthDesk
    folder: Path
    server: Protected
    auth_config: dict[str, Any] | None = None
    signed_in: list[str] = field(factory=list)
    no_browser: list[tuple[SignIn, str | None]] = field(factory=list)

    @property
    def authority(self) -> Authority:
        return self.server.authority

    def config(self, name: str = "x", **changes: Any) -> MCPServerConfig:
        entry: dict[str, Any] = {"type": "http", "url": self.server.address}
        if self.auth_config is not None:
            entry["auth"] = self.auth_config
        return MCPServerConfig.from_dict(name, entry | changes)

    def auth(self, name: str = "x", **changes: Any) -> ServerAuth:
        auth = self.desk.auth_of(self.config(name, **changes))
        assert auth is not None
        return auth

    async def post(self, message: Any = PING, *, auth: ServerAuth | None = None, config: Any = None) -> httpx2.Response:
        config = config or self.config()
        client = await open_client(config, auth=auth or self.desk.auth_of(config))
        async with client:
            return await client.post(config.url, json=message)

    def store(self, name: str = "x") -> TokenStore:
        return TokenStore.of(self.folder, name)

    def kept(self, name: str = "x") -> Credentials:
        kept = self.store(name).read()
        assert kept is not None
        return kept

    async def sign_in(self, name: str = "x", **changes: Any) -> str:
        """A human signs in. Gives the page that is shown at the end."""
        sign_in = await self.desk.start(self.config(name, **changes))
        assert sign_in.authorization_url is not None
        status, page = await consent(sign_in.authorization_url)
        assert status == 200, page
        await sign_in.result()
        return page


def make_desk(folder: Path, **told: Any) -> AuthDesk:
    """A desk whose files are in a folder."""

    async def nowhere(url: str) -> bool:
        return False

    told.setdefault("browse", nowhere)
    return AuthDesk("instance", lambda config: TokenStore.of(folder, config.name, config.account), open_client, **told)


@asynccontextmanager
async def office(
    folder: Path, server: Protected | None = None, *, auth: dict[str, Any] | None = None, seconds: float = 30
) -> AsyncIterator[Office]:
    """A desk at work, and a server and its authority that listen."""
    server = Protected(authority=Authority()) if server is None else server
    signed: list[str] = []
    failed: list[tuple[SignIn, str | None]] = []
    desk = make_desk(
        folder, on_signed_in=signed.append, on_no_browser=lambda sign_in, hint: failed.append((sign_in, hint))
    )
    with trio.fail_after(seconds):
        async with serving(server, server.authority), trio.open_nursery() as nursery:
            await nursery.start(partial(desk.run))
            yield Office(desk, folder, server, auth, signed, failed)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def signed_in(folder: Path, server: Protected | None = None, **kwargs: Any) -> AsyncIterator[Office]:
    """The same, with somebody signed in already."""
    async with office(folder, server, **kwargs) as place:
        await place.post()
        await place.sign_in()
        place.authority.seen.clear()
        place.authority.grants.clear()
        place.server.seen.clear()
        yield place
