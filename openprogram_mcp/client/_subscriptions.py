"""The resources of one server that somebody wants to hear of, and the telling of it.

What is subscribed to outlives a connection: the next one subscribes again, and since nothing was heard in between, each
of them is told as changed once.

MCP specification: server/resources, "Subscriptions"; basic/patterns/subscriptions (2026-07-28).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio
from attrs import define, field

from ..events import EventBus, ResourceUpdated
from ._connection import Connection, is_closed, is_refusal
from ._listening import Listening
from ._pace import Pace

__all__ = ["Subscriptions", "Updates"]

_MOST_AT_ONCE: Final = 100
_LONGEST_PAUSE_SECONDS: Final = 1.0
_AGREE_SECONDS: Final = 5.0
_SUBSCRIBE_SECONDS: Final = 10.0


async def _heard_by_hook(_kind: object) -> None:
    """The hook of the session hears every change as well."""


@define(eq=False)
class Updates:
    """The telling of resources that have changed: each once in a burst, and few at a time in a storm.

    Args:
        server: The server's name.
        bus: Where the events go.
        mask: Hides the server's secrets.
        log: Told, by level and text, what went wrong.
    """

    _server: str
    _bus: EventBus
    _mask: Callable[[str], str]
    _log: Callable[[str, str], None]
    _pending: dict[str, None] = field(factory=dict, init=False)
    _pace: Pace = field(factory=lambda: Pace(_LONGEST_PAUSE_SECONDS), init=False)
    _lost: int = field(default=0, init=False)

    def told(self, uri: str) -> None:
        """The server has said that a resource has changed."""
        if uri not in self._pending and len(self._pending) >= _MOST_AT_ONCE:
            self._lost += 1
            return
        self._pending[uri] = None
        self._pace.tell()

    async def run(self) -> None:
        """Tell it, for ever."""
        while True:
            await self._pace.next()
            pending, self._pending = self._pending, {}
            for uri in pending:
                self._bus.publish(ResourceUpdated(server=self._server, uri=self._mask(uri)))
            if self._lost:
                self._log("warning", f"{self._lost} changes of its resources were too many at once, and are not told")
                self._lost = 0


@define(eq=False)
class Subscriptions:
    """What is subscribed to on one server.

    Args:
        updates: Told what may have changed.
        log: Told, by level and text, what went wrong.
    """

    _updates: Updates
    _log: Callable[[str, str], None]
    _uris: dict[str, None] = field(factory=dict, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _waiting: dict[trio.Event, bool] = field(factory=dict, init=False)
    _heard_before: bool = field(default=False, init=False)

    def has(self, uri: str) -> bool:
        """Whether a resource is subscribed to."""
        return uri in self._uris

    def add(self, uri: str) -> None:
        """Subscribe to it on the connections that follow."""
        self._uris[uri] = None

    def remove(self, uri: str) -> None:
        """Subscribe to it no more."""
        self._uris.pop(uri, None)
        self._changed.set()

    def unheard(self) -> None:
        """What is subscribed to may have changed unheard."""
        for uri in self._uris:
            self._updates.told(uri)

    async def listen_to(self, uri: str) -> bool:
        """Listen to one more resource (2026-07-28); says whether the server has agreed. The caller bounds it."""
        self.add(uri)
        settled = trio.Event()
        self._waiting[settled] = False
        self._changed.set()
        agreed = False
        try:
            await settled.wait()
            agreed = self._waiting[settled]
        finally:
            del self._waiting[settled]
            if not agreed:
                self.remove(uri)
        return agreed

    async def follow(self, connection: Connection) -> None:
        """Subscribe on a connection to what is wanted, for ever."""
        try:
            if connection.session.era == "legacy":
                await self._subscribe(connection)
                await trio.sleep_forever()
            else:
                await self._listen(connection)
        finally:
            # Whoever waits is told no: the connection is over.
            self._settle(list(self._waiting), agreed=False)

    async def _subscribe(self, connection: Connection) -> None:
        for uri in list(self._uris):
            try:
                with trio.fail_after(_SUBSCRIBE_SECONDS):
                    await connection.session.ask("resources/subscribe", {"uri": uri})
            except trio.TooSlowError:
                self._log("warning", f"it did not agree to tell changes of {uri}")
            except Exception as error:
                if not is_refusal(error):
                    raise
                if is_closed(error):
                    return
                self._log("warning", f"it refused to tell changes of {uri}")
            self._updates.told(uri)

    async def _listen(self, connection: Connection) -> None:
        """One stream for all of them. Where they change, the new one is open before the old one ends."""
        late = self._heard_before
        async with trio.open_nursery() as nursery:
            old: trio.CancelScope | None = None
            while True:
                self._changed = trio.Event()
                waiting, uris = list(self._waiting), tuple(self._uris)
                listening, scope = self._stream(connection, uris, late=late), trio.CancelScope()
                if uris:
                    nursery.start_soon(_run_in, scope, listening)
                    with trio.move_on_after(_AGREE_SECONDS):
                        await listening.settled.wait()
                if old is not None:
                    old.cancel()
                old, late = scope, False
                self._heard_before = bool(uris)
                self._settle(waiting, agreed=listening.agreed)
                await self._changed.wait()

    def _stream(self, connection: Connection, uris: tuple[str, ...], *, late: bool) -> Listening:
        async def missed() -> None:
            self.unheard()

        return Listening(partial(connection.session.listen, _heard_by_hook, uris=uris), missed, self._log, late)

    def _settle(self, waiting: list[trio.Event], *, agreed: bool) -> None:
        for settled in waiting:
            if settled in self._waiting:
                self._waiting[settled] = agreed
                settled.set()


async def _run_in(scope: trio.CancelScope, listening: Listening) -> None:
    with scope:
        await listening.run()
