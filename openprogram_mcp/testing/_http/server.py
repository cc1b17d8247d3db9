"""The fake server over HTTP as its user sees it: how it is reached, started and stopped, and what it was asked."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self

import trio
from attrs import Factory, define, field

from .._records import Record
from .._scripted import Scripted
from .._step import Step, steps_of
from .connection import Connection
from .exchange import Exchange
from .seen import HttpRequest
from .world import World

if TYPE_CHECKING:
    from ...config import MCPServerConfig

__all__ = ["FakeHttpServer"]

_pids = itertools.count(2_000_001)  # no real process has one of these
_Socket = trio.SocketStream | trio.SSLStream[trio.SocketStream]


@define(kw_only=True, eq=False)
class FakeHttpServer(Scripted):
    """A scripted MCP server over HTTP, on a real socket, in the process of the test.

    It plays the scripts of :class:`FakeServer` and the steps that only HTTP has; scripts may also stand for whole HTTP
    requests (:meth:`on`). Without a script it is a well-behaved server::

        fake = FakeHttpServer().tool("add", do.reply("3")).on("GET", do.respond(405))
        async with fake.serving():
            config = fake.config()               # {"url": "http://127.0.0.1:PORT/mcp"}
            ...
        assert [request.rpc for request in fake.requests("POST")] == ["initialize", ...]

    It may be changed at any time, and what was last said holds from then on: ``fake.on("POST", do.respond(503))`` is an
    outage that ``fake.off("POST")`` ends.

    Args:
        transport: ``http`` is Streamable HTTP, ``sse`` the transport of 2024-11-05.
        path: The path of its URL; ``/mcp``, or ``/sse`` for the older transport.
        endpoint: What the older transport names as the address for messages. ``${session}`` in it becomes the session.
        sessions: Give a session with the answer to ``initialize``, and want it back.
        session_requests: Forget a session after so many requests.
        answers: ``json`` or ``sse``; with ``auto`` a response is a stream where something is sent before the answer.
        resumable: Give events ids, and go on behind one where a client asks for that.
        retry: The ``retry`` at the beginning of streams, milliseconds.
        strict: Refuse what the specification says to refuse: headers that are missing, or say other than the message.
        host: The address to listen at; ``::1`` for IPv6.
        port: The port; any that is free where it is 0, and the same one again after a stop.
        tls: How to speak TLS, where it does.
    """

    transport: Literal["http", "sse"] = "http"
    path: str = field(default=Factory(lambda self: "/sse" if self.transport == "sse" else "/mcp", takes_self=True))
    endpoint: str = "/messages?session_id=${session}"
    sessions: bool = True
    session_requests: int | None = None
    answers: Literal["auto", "json", "sse"] = "auto"
    resumable: bool = False
    retry: int | None = None
    strict: bool = True
    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = None

    exchanges: list[Exchange] = field(init=False, factory=list, repr=False)
    """For those who play it; tests ask :meth:`requests`."""
    _world: World | None = field(init=False, default=None)
    _scope: trio.CancelScope | None = field(init=False, default=None)
    _ended: trio.Event = field(init=False, factory=trio.Event)
    _connections: set[Connection] = field(init=False, factory=set)
    _accepted: int = field(init=False, default=0)
    _failure: Exception | None = field(init=False, default=None)

    # What it does differently.

    def on(self, method: str, *steps: Step) -> Self:
        """Play steps whenever something comes in, and nothing else: without steps it is ignored.

        Args:
            method: The method of a JSON-RPC message; or ``GET``, ``POST`` or ``DELETE`` for whole HTTP requests, where
                a path may follow (``GET /sse``); ``connect`` for connections, of which nothing is read before the steps
                have ended; ``no session`` for requests whose session is missing or not known.
            steps: What is played. For HTTP requests ``do.standard()`` does what the server would do without them.
        """
        return super().on(method, *steps)

    def off(self, method: str) -> Self:
        """Play no steps any more for what :meth:`on` named."""
        self._hooks.pop(method, None)
        return self._changed()

    def play(self, *steps: Step) -> None:
        """Play steps now, for no request: what they send goes on the stream of the latest session.

        Raises:
            RuntimeError: It does not run.
        """
        world = self._running()
        world.enter(lambda: world.play(steps_of(steps)))

    def forget_sessions(self) -> None:
        """Forget all sessions, as a server does that was started anew."""
        world = self._running()
        world.enter(lambda: world.forget(None))

    def cut(self, *, reset: bool = False) -> None:
        """Close all connections now, whatever is on the way; with an RST where ``reset``."""
        for connection in list(self._connections):
            connection.drop(reset=reset)

    # How it is reached.

    @property
    def url(self) -> str:
        """Its address."""
        return self.url_at(self.host)

    def url_at(self, host: str, path: str | None = None) -> str:
        """Its address by another name of its host, and another path."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.path if path is None else path}"

    def config(self, **more: Any) -> dict[str, Any]:
        """Its entry in ``mcp_servers.json``, and further fields of it."""
        return {"url": self.url, **more}

    def server_config(self, name: str = "fake", **more: Any) -> MCPServerConfig:
        """The same as an :class:`~openprogram_mcp.MCPServerConfig`."""
        from ...config import MCPServerConfig

        return MCPServerConfig.from_dict(name, self.config(**more))

    # How it is started.

    async def start(self, nursery: trio.Nursery) -> None:
        """Start it, and come back when it can be connected to.

        Args:
            nursery: Where it runs. Cancelling the nursery ends it.

        Raises:
            RuntimeError: It runs already.
        """
        if self._world is not None:
            raise RuntimeError("this server runs already")
        await nursery.start(self._run)

    async def stop(self, *, reset: bool = False) -> None:
        """Stop it: connections are closed, with an RST where ``reset``, new ones are refused, sessions forgotten."""
        if self._scope is not None:
            self.cut(reset=reset)
            self._scope.cancel()
            await self._ended.wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        """Run it for the time of an ``async with``."""
        error: Exception | None = None
        async with trio.open_nursery() as nursery:
            await self.start(nursery)
            try:
                yield self
            except Exception as raised:  # noqa: BLE001 - raised again below, where no nursery puts it into a group
                error = raised
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    # What it was asked.

    def requests(self, method: str | None = None, *, rpc: str | None = None) -> list[HttpRequest]:
        """The HTTP requests that came in, over all its lives.

        Args:
            method: Of this HTTP method only.
            rpc: With a JSON-RPC message of this method only.
        """
        found = [request for request in map(HttpRequest.of, self.exchanges) if request is not None]
        return [
            request
            for request in found
            if (method is None or request.method == method) and (rpc is None or request.rpc == rpc)
        ]

    @property
    def connections(self) -> int:
        """How many connections were made."""
        return self._accepted

    @property
    def open_connections(self) -> int:
        """How many of them are open."""
        return len(self._connections)

    # How it runs.

    def _running(self) -> World:
        if self._world is None:
            raise RuntimeError("this server does not run")
        return self._world

    def _changed(self) -> Self:
        if self._world is not None:
            offer = self._world.player.offer
            known = {tool["name"] for tool in offer.tools}
            offer.tools = list(self._tools.values())
            offer.hidden |= {tool["name"] for tool in offer.tools if tool["hidden"] and tool["name"] not in known}
        return self

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(self.port, host=self.host)
        self.port = listeners[0].socket.getsockname()[1]
        pid = next(_pids)
        wakeup = trio.Event()

        def note(event: str, facts: Mapping[str, Any]) -> None:
            if self.recording:
                self._note(Record(trio.current_time(), pid, event, {"pid": pid, **facts}))

        def stop(reset: bool) -> None:
            self.cut(reset=reset)
            scope.cancel()

        def changed() -> None:
            wakeup.set()

        scope = trio.CancelScope()
        self._scope, self._ended = scope, trio.Event()
        self._world = world = World(self, self.script, pid, trio.current_time, note, stop)
        world.changed = changed
        note("start", {"beside": False, **world.facts()})
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    world.enter(world.player.start)
                    for listener in listeners:
                        nursery.start_soon(trio.serve_listeners, self._connected, [listener])
                    task_status.started()
                    while True:
                        deadline = world.player.next_deadline()
                        with trio.move_on_at(float("inf") if deadline is None else deadline):
                            await wakeup.wait()
                        wakeup = trio.Event()
                        world.enter(world.player.tick)
                        wakeup = trio.Event()
        finally:
            self._world = self._scope = None
            for listener in listeners:
                listener.socket.close()
            self._ended.set()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    async def _connected(self, plain: trio.SocketStream) -> None:
        stream: _Socket = plain
        if self.tls is not None:
            stream = trio.SSLStream(plain, self.tls, server_side=True, https_compatible=True)
        self._accepted += 1
        connection = Connection(self._accepted, stream, self._running())
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001 - raised by the server as a whole, where no cancellation can hide it
            self._failure = self._failure or error
            if self._scope is not None:
                self._scope.cancel()
        finally:
            self._connections.discard(connection)
