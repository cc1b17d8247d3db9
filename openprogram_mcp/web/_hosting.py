"""Connections of the management API: accepting them, serving each with Hypercorn's HTTP, ending all of them in time.

Hypercorn's own runner is not used, for two reasons that a worker with children to put away cannot live with: a send to
a client that has stopped reading is shielded there without a limit, so that one suspended ``curl`` holds up the
shutdown for ever; and an exception in one connection ends the server. Its protocol and its connection class do the work
here; this module is what remains: a nursery, a grace and a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState

from ._guard import ASGIApp

__all__ = ["host"]

_MAX_CONNECTIONS = 512
_IDLE_SECONDS = 15.0
"""How long a client may take to send a request's headers, and may stay without a request."""

_SEND_SECONDS = 60.0
"""How long one piece may take to be taken by the client before the connection is given up."""

_logger = logging.getLogger(__name__)


async def host(
    app: ASGIApp,
    listeners: Sequence[trio.SocketListener],
    *,
    shutdown: trio.Event,
    grace_seconds: float,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application until ``shutdown`` is set.

    Then nothing new is accepted, idle connections are closed, and requests under way have ``grace_seconds`` to end.

    Args:
        app: The application; it is not sent lifespan events.
        listeners: Bound sockets, closed when this ends.
        shutdown: Ends it.
        grace_seconds: How long requests may go on after that.
        task_status: Started when connections are accepted.
    """
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger(f"{__name__}.hypercorn")
    config.include_server_header = False
    config.keep_alive_timeout = _IDLE_SECONDS
    context = WorkerContext(None)
    living: set[_Connection] = set()
    wrapped = ASGIWrapper(app)  # type: ignore[arg-type]  # its ASGI types are TypedDicts, ours plain mappings

    async def serve(stream: trio.SocketStream) -> None:
        if len(living) >= _MAX_CONNECTIONS:
            return
        connection = _Connection(wrapped, config, context, stream)
        living.add(connection)
        try:
            await connection.serve()
        finally:
            living.discard(connection)

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            await accepting.start(partial(trio.serve_listeners, serve, list(listeners), handler_nursery=connections))
            task_status.started()
            await shutdown.wait()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        with trio.move_on_after(grace_seconds):
            while living:
                await next(iter(living)).ended.wait()
        for connection in living:
            connection.abort()


class _Connection(TCPServer):
    """One connection, which can be ended and whose failure is its own."""

    def __init__(self, app: AppWrapper, config: Config, context: WorkerContext, stream: trio.SocketStream) -> None:
        super().__init__(app, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]  # it takes plain streams too
        self.ended = trio.Event()
        self._scope = trio.CancelScope()
        self._sending: trio.CancelScope | None = None
        self._hung_up = False

    def abort(self) -> None:
        """End it now, also when the client does not take what is being sent."""
        self._scope.cancel()
        if self._sending is not None:
            self._sending.cancel()

    async def serve(self) -> None:
        """Serve until the client or the server ends it."""
        try:
            with self._scope:
                await self.run()
        except Exception:  # broad, because one connection's failure must not end the others
            _logger.warning("A connection ended with an error", exc_info=True)
        finally:
            self.ended.set()

    async def _read_data(self) -> None:
        """Read until the client has gone.

        Such a one is not idle. Hypercorn takes it for that, and would keep its connection for as long as one may be.
        """
        await super()._read_data()
        self._hung_up = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        """Send, in one piece, within a limit.

        The shield is Hypercorn's: a piece sent by half would spoil the connection for the rest of the answer. Where the
        limit strikes it is spoilt, and closed.
        """
        if self._hung_up and isinstance(event, Updated):
            return
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        broken = False
        async with self.send_lock:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _SEND_SECONDS) as self._sending:
                try:
                    await self.stream.send_all(event.data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    broken = True
            if self._sending.cancelled_caught:
                broken = True
                await trio.aclose_forcefully(self.stream)
            self._sending = None
        if broken:
            await self.protocol.handle(Closed())
