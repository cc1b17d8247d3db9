"""Who may ask at all: the outermost layer of the management API, in front of every route.

It owns four questions. Was the request addressed to us (the ``Host``: without this check a web page whose name
resolves to this machine could talk to the worker)? Does it come from a page of somebody else (``Origin``, and what
browsers say of themselves in ``Sec-Fetch-Site``)? Does it carry the owner's token, or the cookie of a browser that was
let in? Does its body come in time? It knows nothing about routes, except which of them are open.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

import trio
from attrs import define, field

from ..errors import Forbidden, OpenProgramMCPError, TooSlow, Unauthorized
from ._json import encode
from ._sessions import LINK_PATH, Sessions

__all__ = ["BODY_SECONDS", "OPEN_PATHS", "Guard", "allowed_hosts"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz", LINK_PATH})
"""What is answered without a token."""

BODY_SECONDS = 30.0
"""How long a request's body may take to arrive: 16 MiB at half a megabyte a second."""

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OWN_SITE = frozenset({"same-origin", "none"})
"""What a browser says of a request that our own page, or its user, has made."""

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@\s]+))(?::[0-9]*)?")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SECURITY_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-frame-options", b"DENY"),
]


def allowed_hosts(host: str) -> Callable[[str], bool]:
    """Which names a request may be addressed to when the API listens at ``host``.

    On a loopback address: this machine's loopback names. On all addresses: those and every literal address, since an
    attacker's page can only come under a name. On one address: that one.
    """
    host = host.strip("[]").lower()
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - the address is compared, not listened at
        return lambda name: name in _LOOPBACK_NAMES or _is_address(name)
    if host in _LOOPBACK_NAMES or (_is_address(host) and ipaddress.ip_address(host).is_loopback):
        return lambda name: name in _LOOPBACK_NAMES or name == host
    return lambda name: name == host


@define
class Guard:
    """An ASGI application in front of another.

    Args:
        app: The application behind it.
        token: The owner's token.
        hosts: Whether a host name, without port, is one of ours.
        sessions: The browsers that were let in.
        body_seconds: How long a request's body may take to arrive.
    """

    app: ASGIApp
    token: str = field(repr=False)
    hosts: Callable[[str], bool]
    sessions: Sessions
    body_seconds: float = BODY_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            return
        body = _Body(receive, send, self.body_seconds)
        try:
            self._check(scope)
        except OpenProgramMCPError as error:
            await _refuse(error, body.send)
        else:
            await self.app(scope, body.receive, _with_security_headers(body.send))

    def _check(self, scope: Scope) -> None:
        hosts = _header(scope, b"host")
        if len(hosts) != 1 or not self.hosts(_host_name(hosts[0])):
            raise Forbidden(
                "The request is addressed to a host name that is not this worker's",
                remedy="Use the url of mcp_worker.json",
            )
        origins = _header(scope, b"origin")
        if origins and origins != [f"{scope['scheme']}://{hosts[0]}"]:
            raise Forbidden("The request comes from a page of another site", remedy="Use the worker's own page")
        if _header(scope, b"access-control-request-method"):
            raise Forbidden("A page of another site asks whether it may come in", remedy="Use the worker's own page")
        if scope["path"] in OPEN_PATHS:
            return
        # Pages of other ports of this machine are of the same site to a browser, and not of ours.
        sites = _header(scope, b"sec-fetch-site")
        if sites and (len(sites) > 1 or sites[0] not in _OWN_SITE):
            raise Forbidden("The request comes from a page of another site", remedy="Use the worker's own page")
        if not self._is_owner(scope, from_own_page=bool(origins) or sites == ["same-origin"]):
            raise Unauthorized(
                "The request carries no valid owner token",
                remedy="Send Authorization: Bearer TOKEN with the token of mcp_worker.json",
            )

    def _is_owner(self, scope: Scope, *, from_own_page: bool) -> bool:
        credentials = _header(scope, b"authorization")
        if credentials:
            kind, _, token = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
            # Compared as bytes: compare_digest refuses text beyond ASCII, and a header may hold any.
            matches = hmac.compare_digest(token.strip().encode(), self.token.encode())
            return kind.lower() == "bearer" and matches
        if not self.sessions.knows(_header(scope, b"cookie")):
            return False
        # A browser sends cookies by itself, so that a change must show that our own page has asked for it.
        if scope["method"] not in _SAFE_METHODS and not from_own_page:
            raise Forbidden(
                "The request does not say that it comes from the worker's own page",
                remedy="Programs send the token, not a cookie",
            )
        return True


@define
class _Body:
    """A request's body on its way in, within its time. Where the answer is complete first, the rest is thrown away.

    Without that, Hypercorn's queue of a request fills up, it waits for somebody to read from it before it ends the
    request, and nobody does: the connection would stay for ever.
    """

    _receive: Receive
    _send: Send
    _seconds: float
    _deadline: float = field(init=False, factory=lambda: math.inf)
    _complete: bool = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        # The time begins when somebody wants the body: one that nobody reads is thrown away with the answer.
        self._deadline = min(self._deadline, trio.current_time() + self._seconds)
        with trio.CancelScope(deadline=self._deadline):
            message = await self._receive()
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                self._complete = True
            return message
        raise TooSlow(
            f"The body did not arrive within {self._seconds:g} s", remedy="Send less, or over a faster connection"
        )

    async def send(self, message: Message) -> None:
        if self._complete or message.get("more_body", False) or message["type"] != "http.response.body":
            await self._send(message)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard)
            await self._send(message)
            nursery.cancel_scope.cancel()

    async def _discard(self) -> None:
        with suppress(TooSlow):
            while not self._complete:
                await self.receive()


def _with_security_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", []))
            names = {name for name, _ in given}
            # A page may have rules of its own.
            own = [pair for pair in _SECURITY_HEADERS if pair[0] not in names]
            message = {**message, "headers": [*given, *own]}
        await send(message)

    return wrapped


async def _refuse(error: OpenProgramMCPError, send: Send) -> None:
    body = encode(error.to_problem())
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        *_SECURITY_HEADERS,
    ]
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="openprogram-mcp"'))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _header(scope: Scope, name: bytes) -> list[str]:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _host_name(value: str) -> str:
    """The name in a ``Host`` header: without port, brackets and the dot of the root; empty when it is none."""
    match = _HOST.fullmatch(value.strip().lower())
    return "" if match is None else match["address"] or match["name"].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
