"""Serving the management API: an address, the application, and an end in time."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import trio
from attrs import frozen

from ..errors import CannotListen
from ._guard import BODY_SECONDS, ASGIApp
from ._hosting import host as host_connections
from ._sessions import Sessions
from .app import API, build_app

if TYPE_CHECKING:
    from ..manager import MCPManager

__all__ = ["Address", "serve"]

_GRACE_SECONDS = 1.0
"""How long requests may go on after the worker was told to stop; then they are cancelled."""


@frozen
class Address:
    """Where the API can be reached."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - translated, not listened at
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback


async def serve(
    manager: MCPManager,
    *,
    host: str,
    port: int,
    token: str,
    read_only: bool = False,
    shutdown: trio.Event,
    grace_seconds: float = _GRACE_SECONDS,
    heartbeat_seconds: float = 15.0,
    body_seconds: float = BODY_SECONDS,
    task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the management API of a manager until ``shutdown`` is set.

    Args:
        manager: The manager; it must outlive this.
        host: The name or address to listen at. Plain HTTP: keep it to this machine.
        port: The port, 0 for any that is free.
        token: The owner's token.
        read_only: Refuse what changes something.
        shutdown: Ends it; open streams of events end at once.
        grace_seconds: How long other requests may go on after that.
        heartbeat_seconds: How often an idle stream sends a comment.
        body_seconds: How long a request's body may take to arrive.
        task_status: Started with the bound address, when requests are answered.

    Raises:
        CannotListen: The address cannot be had; ``task_status`` was not started.
    """
    # Two sockets for one name would have two ports where any port will do.
    wanted = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        listeners = await trio.open_tcp_listeners(port, host=wanted)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CannotListen(
            f"Cannot listen at {host} port {port}: {reason}",
            remedy="Choose another --host, or another --port: 0 takes any that is free",
        ) from error
    for spare in listeners[1:]:
        await spare.aclose()
    listener = listeners[0]
    bound = listener.socket.getsockname()
    api = API(manager, shutdown, read_only, heartbeat_seconds, Sessions(bound[1]))
    app = build_app(api, host=wanted, token=token, body_seconds=body_seconds)
    with api.meter.counting(manager.events):
        async with trio.open_nursery() as nursery:
            await nursery.start(_host, app, listener, shutdown, grace_seconds)
            task_status.started(Address(bound[0], bound[1]))


async def _host(
    app: ASGIApp,
    listener: trio.SocketListener,
    shutdown: trio.Event,
    grace_seconds: float,
    task_status: trio.TaskStatus[None],
) -> None:
    await host_connections(app, [listener], shutdown=shutdown, grace_seconds=grace_seconds, task_status=task_status)
