"""A strict authorization server and an MCP server that it protects, on real sockets, and every switch that tests want.

Refresh tokens rotate, and one that is used twice revokes its whole family. Codes count once, and only with the verifier
that belongs to their challenge. Where each document is, and what registration does, is for the test to say. Every
request is recorded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import h11
import trio
from attrs import define, field

__all__ = ["Authority", "Protected", "Seen", "Site", "consent", "get", "serving"]


@define
class Seen:
    """A request that has come."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}

    @property
    def document(self) -> Any:
        return json.loads(self.body)


Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Handler = Callable[[Seen], Awaitable[Reply]]


@define(eq=False)
class Site:
    """An HTTP server: handlers by path, everything recorded."""

    port: int = 0
    routes: dict[str, Handler] = field(factory=dict)
    seen: list[Seen] = field(factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(one.path == path for one in self.seen)

    def counts(self) -> Counter[str]:
        return Counter(one.path for one in self.seen)

    async def handle(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        handler = self.routes.get(seen.path)
        return (404, "Not Found") if handler is None else await handler(seen)

    async def talk(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while True:
                    seen = await _read(connection, stream)
                    if seen is None:
                        return
                    await _write(connection, stream, await self.handle(seen))
                    if connection.our_state is h11.MUST_CLOSE:
                        return
                    connection.start_next_cycle()
            except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
                return


async def _read(connection: h11.Connection, stream: trio.SocketStream) -> Seen | None:
    head: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            target = urlsplit(head.target.decode())
            return Seen(
                head.method.decode(),
                target.path,
                {name: values[0] for name, values in parse_qs(target.query).items()},
                {name.decode().lower(): value.decode() for name, value in head.headers},
                body,
            )
        else:
            return None


async def _write(connection: h11.Connection, stream: trio.SocketStream, reply: Reply) -> None:
    status, what = reply[0], reply[1]
    headers = dict(reply[2]) if len(reply) == 3 else {}
    if isinstance(what, str):
        data = what.encode()
        headers.setdefault("content-type", "text/html")
    else:
        data = b"" if what is None else json.dumps(what).encode()
        headers.setdefault("content-type", "application/json")
    headers["content-length"] = str(len(data))
    sent = connection.send(h11.Response(status_code=status, headers=list(headers.items()))) or b""
    sent += connection.send(h11.Data(data=data)) or b""
    sent += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(sent)


@asynccontextmanager
async def serving(*sites: Site) -> AsyncIterator[None]:
    """These sites listen, each at a port of its own."""
    async with trio.open_nursery() as nursery:
        for site in sites:
            listeners = await trio.open_tcp_listeners(site.port, host="127.0.0.1")
            site.port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, site.talk, listeners)
        yield
        nursery.cancel_scope.cancel()


@define(eq=False)
class Authority(Site):
    """The authorization server.

    Args:
        registers: What registration does: ``open``, ``absent``, or a status to refuse with.
        metadata: Where its metadata is: ``oauth``, ``oidc``, ``path``, ``oidc-path``, or nowhere (``""``).
        path: The path of its issuer.
        lifetime: How long its access tokens live, in seconds.
        renews: Whether refresh tokens are given.
        rotates: Whether each use of a refresh token brings a new one and spends the old.
        extra: More, or other, entries of its metadata; ``None`` takes one out.
        consent: The assertion of an organisation that is taken.
        withholds: A scope that nobody gets.
        base: The address by which it is known, where it is another site's.
    """

    registers: str | int = "open"
    metadata: str = "oauth"
    path: str = ""
    lifetime: int | None = 3600
    renews: bool = True
    rotates: bool = True
    iss: bool = False
    extra: dict[str, Any] = field(factory=dict)
    registration_answer: dict[str, Any] = field(factory=dict)
    refuses_in_registration: tuple[str, ...] = ()
    clients: dict[str, dict[str, Any]] = field(factory=dict)
    codes: dict[str, dict[str, Any]] = field(factory=dict)
    refresh: dict[str, dict[str, Any]] = field(factory=dict)
    access: dict[str, dict[str, Any]] = field(factory=dict)
    revoked: set[str] = field(factory=set)
    grants: list[str] = field(factory=list)
    scopes_asked: list[str] = field(factory=list)
    base: str | None = None
    withholds: str | None = None
    consent: str | None = None
    down: bool = False
    hold: trio.Event | None = None
    """Set aside: the token endpoint waits for it before it answers."""

    def __attrs_post_init__(self) -> None:
        self.routes |= {"/authorize": self._authorize, "/token": self._token, "/register": self._register}
        for place, path in {
            "oauth": "/.well-known/oauth-authorization-server",
            "oidc": "/.well-known/openid-configuration",
            "path": f"/.well-known/oauth-authorization-server{self.path}",
            "oidc-path": f"{self.path}/.well-known/openid-configuration",
        }.items():
            if place == self.metadata:
                self.routes[path] = self._describe

    @property
    def issuer(self) -> str:
        return (self.base or self.url) + self.path

    def document(self) -> dict[str, Any]:
        base = self.base or self.url
        entries = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": f"{base}/token",
            "registration_endpoint": None if self.registers == "absent" else f"{base}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "response_types_supported": ["code"],
            "authorization_response_iss_parameter_supported": self.iss or None,
            **self.extra,
        }
        return {name: value for name, value in entries.items() if value is not None}

    async def _describe(self, seen: Seen) -> Reply:
        return 200, self.document()

    async def _register(self, seen: Seen) -> Reply:
        if isinstance(self.registers, int):
            return self.registers, {"error": "access_denied", "error_description": "no strangers here"}
        if self.registers == "absent":
            return 404, "Not Found"
        asked = seen.document
        for name in self.refuses_in_registration:
            if name in asked:
                return 400, {"error": "invalid_client_metadata", "error_description": f"{name} is not wanted"}
        client = {"client_id": f"client-{len(self.clients) + 1}-{secrets.token_hex(4)}", **asked}
        if asked.get("token_endpoint_auth_method", "none") != "none":
            client["client_secret"] = secrets.token_hex(16)
        client |= self.registration_answer
        self.clients[client["client_id"]] = client
        return 201, client

    async def _authorize(self, seen: Seen) -> Reply:
        query = seen.query
        client = self.clients.get(query.get("client_id", ""))
        if client is None or query.get("redirect_uri") not in client["redirect_uris"]:
            return 400, "<h1>unknown client</h1>"
        if query.get("code_challenge_method") != "S256" or not query.get("code_challenge"):
            return 400, "<h1>no PKCE</h1>"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        self.scopes_asked.append(query.get("scope", ""))
        back = {
            "code": code,
            "state": query["state"],
            **({"iss": self.extra.get("issuer", self.issuer)} if self.iss else {}),
        }
        return 302, "", {"location": f"{query['redirect_uri']}?{urlencode(back)}"}

    async def _token(self, seen: Seen) -> Reply:
        if self.hold is not None:
            await self.hold.wait()
        if self.down:
            return 503, "<h1>down</h1>"
        form = seen.form
        self.grants.append(form.get("grant_type", ""))
        client_id, secret = form.get("client_id", ""), form.get("client_secret")
        authorization = seen.headers.get("authorization", "")
        if authorization.startswith("Basic "):
            client_id, secret = (
                unquote(part) for part in base64.b64decode(authorization[6:]).decode().split(":", maxsplit=1)
            )
        client = self.clients.get(client_id)
        if "client_assertion" not in form and (client is None or client.get("client_secret") != secret):
            return 401, {"error": "invalid_client", "error_description": f"who is {client_id}? {secret}"}
        match form.get("grant_type"):
            case "authorization_code":
                query = self.codes.pop(form["code"], None)
                digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if (
                    query is None
                    or query["code_challenge"] != challenge
                    or query["redirect_uri"] != form.get("redirect_uri")
                    or query["client_id"] != client_id
                ):
                    said = f"bad code {form['code']} or verifier {form.get('code_verifier')}"
                    return 400, {"error": "invalid_grant", "error_description": said}
                return 200, self.issue(client_id, query.get("scope", ""))
            case "refresh_token":
                token = form["refresh_token"]
                kept = self.refresh.get(token)
                if kept is None or kept["family"] in self.revoked or kept["client"] != client_id:
                    return 400, {"error": "invalid_grant", "error_description": f"{token} is not known"}
                if kept["spent"]:
                    self.revoked.add(kept["family"])
                    return 400, {"error": "invalid_grant", "error_description": "used twice"}
                kept["spent"] = self.rotates
                return 200, self.issue(client_id, kept["scope"], kept["family"])
            case "client_credentials":
                return 200, self.issue(client_id or "signed", form.get("scope", ""), renews=False)
            case "urn:ietf:params:oauth:grant-type:jwt-bearer":
                if form["assertion"] != self.consent:
                    return 400, {"error": "invalid_grant", "error_description": f"expired: {form['assertion']}"}
                return 200, self.issue(client_id, form.get("scope", ""), renews=False)
        return 400, {"error": "unsupported_grant_type"}

    def issue(self, client: str, scope: str, family: str | None = None, *, renews: bool = True) -> dict[str, Any]:
        """New tokens."""
        first = family is None
        scope = " ".join(one for one in scope.split() if one != self.withholds)
        family = family or secrets.token_hex(8)
        access = f"access-{secrets.token_urlsafe(16)}"
        self.access[access] = {"family": family, "scope": scope}
        answer: dict[str, Any] = {"access_token": access, "token_type": "bearer", "scope": scope or None}
        if self.lifetime is not None:
            answer["expires_in"] = self.lifetime
        if self.renews and renews and (first or self.rotates):
            refresh = f"refresh-{secrets.token_urlsafe(16)}"
            self.refresh[refresh] = {"family": family, "client": client, "scope": scope, "spent": False}
            answer["refresh_token"] = refresh
        return {name: value for name, value in answer.items() if value is not None}

    def takes(self, access: str) -> bool:
        kept = self.access.get(access)
        return kept is not None and kept["family"] not in self.revoked


@define(eq=False)
class Protected(Site):
    """The MCP server: one tool ``read``, and one ``write``, which may want a scope of its own.

    Args:
        authority: Whose tokens it takes.
        named: How it tells of its metadata: in the ``header``, at the ``path``, at the ``root``, or not (``""``).
        scope: What it asks for in its challenge.
    """

    authority: Authority = field(kw_only=True)
    named: str = "path"
    scope: str | None = None
    write_scope: str | None = None
    extra: dict[str, Any] = field(factory=dict)
    refused: set[str] = field(factory=set)
    calls: int = 0

    def __attrs_post_init__(self) -> None:
        self.routes["/mcp"] = self._mcp
        places = {
            "header": "/metadata",
            "path": "/.well-known/oauth-protected-resource/mcp",
            "root": "/.well-known/oauth-protected-resource",
        }
        if self.named:
            self.routes[places[self.named]] = self._describe

    @property
    def address(self) -> str:
        return f"{self.url}/mcp"

    async def _describe(self, seen: Seen) -> Reply:
        entries = {"resource": self.address, "authorization_servers": [self.authority.issuer], **self.extra}
        return 200, {name: value for name, value in entries.items() if value is not None}

    def bearer(self, seen: Seen) -> str | None:
        scheme, _, token = seen.headers.get("authorization", "").partition(" ")
        return token if scheme == "Bearer" else None

    async def _mcp(self, seen: Seen) -> Reply:
        token = self.bearer(seen)
        if token is None or token in self.refused or not self.authority.takes(token):
            said = [f'resource_metadata="{self.url}/metadata"'] if self.named == "header" else []
            said += [f'scope="{self.scope}"'] if self.scope else []
            return 401, {"error": "invalid_token"}, {"www-authenticate": f"Bearer {', '.join(said)}".strip()}
        if seen.method != "POST":
            return 405, None
        message = seen.document
        if "id" not in message:
            return 202, None
        granted = self.authority.access[token]["scope"].split()
        match message["method"]:
            case "initialize":
                result: Mapping[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "protected", "version": "1"},
                }
            case "tools/list":
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "write")]}
            case "tools/call":
                if message["params"]["name"] == "write" and self.write_scope and self.write_scope not in granted:
                    asks = f'Bearer error="insufficient_scope", scope="{self.write_scope}"'
                    return 403, {"error": "insufficient_scope"}, {"www-authenticate": asks}
                self.calls += 1
                result = {"content": [{"type": "text", "text": message["params"]["name"]}]}
            case "ping":
                result = {}
            case _:
                error = {"code": -32601, "message": "unknown"}
                return 200, {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def get(url: str) -> tuple[int, dict[str, str], str]:
    """What a browser gets at an address; it does not go on by itself."""
    parts = urlsplit(url)
    stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 80)
    async with stream:
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        await stream.send_all(f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n".encode())
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="GET", target="/", headers=[("host", "x"), ("connection", "close")]))
        connection.send(h11.EndOfMessage())
        status, headers, body = 0, {}, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode().lower(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                return status, headers, body.decode()


async def consent(url: str) -> tuple[int, str]:
    """A human with a browser: consents at the address, and comes back. Gives the page that is shown then."""
    status, headers, body = await get(url)
    if status != 302:
        return status, body
    status, _, body = await get(headers["location"])
    return status, body
