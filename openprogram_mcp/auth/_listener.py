"""The local address that a browser comes back to, for all sign-ins at once.

A port is bound when the first sign-in needs it and given back after the last. What comes back is told apart by its
``state``, which is for whoever is asked about a request; nothing is known of it here.

RFC 8252 sections 7.3 and 8.3.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import h11
import trio
from attrs import define, field

from ..errors import CannotListen, ConfigError
from ._page import Page, page

__all__ = ["CALLBACK_PATH", "DEFAULT_PORT", "PORT_VARIABLE", "Listener", "callback_address", "first_port"]

CALLBACK_PATH: Final = "/mcp/oauth/callback"

DEFAULT_PORT: Final = 19876
"""The port that is tried first."""

PORT_VARIABLE: Final = "OPENPROGRAM_OAUTH_CALLBACK_PORT"
"""The environment variable that gives another one."""

_HOST: Final = "127.0.0.1"
_NEXT_PORTS: Final = 20
_REQUEST_SECONDS: Final = 10.0
_LONGEST_REQUEST: Final = 32 * 1024
# How long pages that are being written may take after the last sign-in is over.
_LAST_PAGES_SECONDS: Final = 2.0


def callback_address(port: int) -> str:
    """The redirect address for a port."""
    return f"http://{_HOST}:{port}{CALLBACK_PATH}"


def first_port() -> int:
    """The port to try first.

    Raises:
        ConfigError: The environment variable gives none.
    """
    given = os.environ.get(PORT_VARIABLE)
    if not given:
        return DEFAULT_PORT
    if not (given.isascii() and given.isdigit() and int(given) <= 65535):
        raise ConfigError(f"{PORT_VARIABLE}: expected a port, got {given!r}", path=PORT_VARIABLE)
    return int(given)


@define(eq=False)
class _Door:
    port: int
    sockets: list[trio.SocketListener]
    users: int = 0
    accepting: trio.CancelScope = field(factory=trio.CancelScope)
    living: trio.CancelScope = field(factory=trio.CancelScope)


@define(eq=False)
class Listener:
    """See the module.

    Args:
        answer: Gives the page for a request's target (path and query).
        post: Runs a job in a task that outlives the caller.
    """

    _answer: Callable[[str], Awaitable[Page]]
    _post: Callable[[Callable[[], Awaitable[None]]], None]
    _doors: dict[int, _Door] = field(factory=dict, init=False)

    @property
    def ports(self) -> list[int]:
        """The ports that are bound now."""
        return list(self._doors)

    @asynccontextmanager
    async def at(self, port: int | None) -> AsyncGenerator[int]:
        """Listen for the time of a block.

        Args:
            port: The port it has to be; ``None`` for one that is free, that of others where there is one; 0 for any.

        Yields:
            The port.

        Raises:
            CannotListen: The port is taken.
        """
        door = self._known(port) or await self._bind(port)
        door.users += 1
        try:
            yield door.port
        finally:
            door.users -= 1
            if not door.users:
                self._doors.pop(door.port, None)
                for one in door.sockets:
                    one.socket.close()
                door.accepting.cancel()
                door.living.deadline = trio.current_time() + _LAST_PAGES_SECONDS

    def _known(self, port: int | None) -> _Door | None:
        if port is None:
            return next(iter(self._doors.values()), None)
        return self._doors.get(port)

    async def _bind(self, port: int | None) -> _Door:
        if port is not None:
            tried = [port]
        else:
            first = first_port()
            tried = [0] if not first else [*range(first, min(first + _NEXT_PORTS, 65536)), 0]
        for one in tried:
            try:
                sockets = [_bound(one)]
            except OSError as error:
                if one == tried[-1] or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise _cannot(one, error) from error
                continue
            door = _Door(sockets[0].socket.getsockname()[1], sockets)
            self._doors[door.port] = door
            self._post(partial(self._serve, door))
            return door
        raise AssertionError("the last one is bound, or cannot be")

    async def _serve(self, door: _Door) -> None:
        with door.living:
            async with trio.open_nursery() as nursery:
                try:
                    with door.accepting:
                        await trio.serve_listeners(self._talk, door.sockets, handler_nursery=nursery)
                except* trio.ClosedResourceError:
                    pass  # given back while it was waited at
                finally:
                    for one in door.sockets:
                        one.socket.close()

    async def _talk(self, stream: trio.SocketStream) -> None:
        """One request of a browser, and its answer."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_REQUEST)
        try:
            with trio.move_on_after(_REQUEST_SECONDS) as limit:
                found = await _request(connection, stream)
                # From here on it may take as long as the sign-in does.
                limit.deadline = float("inf")
                await _reply(connection, stream, await self._page(found))
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            pass  # browsers open connections that they do not use
        finally:
            await trio.aclose_forcefully(stream)

    async def _page(self, request: h11.Request | None) -> Page:
        if request is None:
            return page(400, "This is no request")
        target = request.target.decode("latin-1")
        if target.partition("?")[0] != CALLBACK_PATH:
            return page(404, "Nothing is here")
        if request.method != b"GET":
            return page(405, "This is no way back from a sign-in")
        return await self._answer(target)


async def _request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return None
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(4096))
        elif isinstance(event, h11.Request):
            return event
        else:
            raise trio.ClosedResourceError


async def _reply(connection: h11.Connection, stream: trio.SocketStream, shown: Page) -> None:
    head = connection.send(h11.Response(status_code=shown.status, headers=list(shown.headers))) or b""
    await stream.send_all(head + (connection.send(h11.Data(data=shown.body)) or b""))
    await stream.send_eof()
    # A connection that is closed with unread bytes in it loses what was just sent.
    with trio.move_on_after(1):
        while await stream.receive_some(4096):
            pass


def _bound(port: int) -> trio.SocketListener:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HOST, port))
        bound.listen(64)
        return trio.SocketListener(trio.socket.from_stdlib_socket(bound))
    except BaseException:
        bound.close()
        raise


def _cannot(port: int, error: OSError) -> CannotListen:
    return CannotListen(
        f"the browser cannot come back to port {port} of this machine: {error.strerror or type(error).__name__}",
        remedy=f"Free it, or choose another: 'redirect_port' in 'auth', or {PORT_VARIABLE}.",
    )
