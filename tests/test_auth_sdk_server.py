"""Signing in to the SDK's own MCP server, by the SDK's own authorization server."""

from __future__ import annotations

import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, evolve, field
from hypercorn.config import Config
from hypercorn.trio import serve
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from openprogram_mcp import open_manager
from openprogram_mcp.auth.tokens import TokenStore
from openprogram_mcp.status import ServerState
from tests._authority import consent


@define(eq=False)
class Memory(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Clients, codes and tokens in memory; refresh tokens rotate."""

    clients: dict[str, OAuthClientInformationFull] = field(factory=dict)
    codes: dict[str, AuthorizationCode] = field(factory=dict)
    refresh: dict[str, RefreshToken] = field(factory=dict)
    access: dict[str, AccessToken] = field(factory=dict)
    counts: Counter[str] = field(factory=Counter)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.counts["register"] += 1
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.counts["authorize"] += 1
        code = secrets.token_urlsafe(32)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.counts["refresh"] += 1
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        return self._issue(client.client_id, scopes or refresh_token.scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    def _issue(self, client: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
        expires = int(time.time()) + 3600
        self.access[access] = AccessToken(
            token=access, client_id=client, scopes=scopes, expires_at=expires, resource=resource
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=scopes, resource=resource)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes))


@asynccontextmanager
async def sdk_server() -> AsyncIterator[tuple[str, Memory]]:
    """The SDK's server with its authorization server, at one address."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    provider = Memory()
    settings = AuthSettings(
        issuer_url=AnyHttpUrl(url),
        resource_server_url=AnyHttpUrl(f"{url}/mcp"),
        required_scopes=["tools"],
        validate_token_resource=True,
        client_registration_options=ClientRegistrationOptions(
            enabled=True, valid_scopes=["tools"], default_scopes=["tools"]
        ),
    )
    server = MCPServer("guarded", auth_server_provider=provider, auth=settings)

    @server.tool()
    def greet() -> str:
        return "hello"

    config = Config()
    config.bind = [f"fd://{bound.detach()}"]
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        app: Any = server.streamable_http_app()
        await nursery.start(lambda task_status: serve(app, config, shutdown_trigger=stop.wait, task_status=task_status))
        yield url, provider
        stop.set()


async def test_the_sdks_server_is_signed_in_to_once_and_renewed_after_a_restart(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with sdk_server() as (url, provider):
            servers = {"x": {"type": "http", "url": f"{url}/mcp"}}
            async with open_manager(servers, state_dir=tmp_path, raise_internal=True) as manager:
                await manager.started.wait()
                assert manager.server("x").status is ServerState.NEEDS_AUTH
                pending = await manager.start_auth("x")
                status, page = await consent(pending.authorization_url)
                assert status == 200, page
                assert (await manager.wait_settled("x")).ready
                assert (await manager.call_tool("x__greet")).text == "hello"
            store = TokenStore.of(tmp_path / "mcp_tokens", "x")
            kept = store.read()
            assert kept is not None
            assert kept.tokens is not None
            provider.access.clear()
            store.write(evolve(kept, tokens=evolve(kept.tokens, expires_at=time.time() - 1)))
            async with open_manager(servers, state_dir=tmp_path, raise_internal=True) as manager:
                await manager.started.wait()
                assert (await manager.call_tool("x__greet")).text == "hello"
            assert provider.counts == {"register": 1, "authorize": 1, "refresh": 1}
