"""What one server offers beside its tools: resources, their templates, prompts; and how all its lists stay true.

Owns the lists as they were last read, from which connection, and how long they may be used; nothing of them is ever
shared with another server, so that what is private to one credential stays so. What a server does not advertise is not
asked for; a list beside the tools that cannot be read is a warning, and no more.

MCP specification: server/resources, server/prompts, server/utilities/completion, server/utilities/caching.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import trio
from attrs import define, field

from ..config import MCPServerConfig
from ..errors import ServerFailed
from ..events import EventBus, PromptsChanged, ResourcesChanged
from ._changes import Changes
from ._connection import Connection, protocol
from ._inquiries import Inquiries
from ._subscriptions import Subscriptions, Updates

__all__ = ["Catalogs"]

_MAX_WARNINGS: Final = 50
_KINDS: Final = ("resources", "prompts")


@define(eq=False)
class _Shelf:
    """One list, as it was last read.

    Args:
        name: What it is a list of, as a session calls it.
        kind: Who advertises it.
        key: What names an item.
        event: Tells what has changed; a list without one is read when somebody asks for it.
    """

    name: str
    kind: str
    key: str
    event: type[ResourcesChanged] | type[PromptsChanged] | None = None
    items: dict[str, dict[str, Any]] = field(factory=dict, init=False)
    version: int = field(default=0, init=False)
    warnings: tuple[str, ...] = field(default=(), init=False)
    read_from: Connection | None = field(default=None, init=False)
    fresh_until: float = field(default=-math.inf, init=False)
    told: int = field(default=0, init=False)

    def is_fresh(self, connection: Connection) -> bool:
        return self.read_from is connection and trio.current_time() < self.fresh_until


@define(eq=False)
class Catalogs:
    """The lists of one server, and what else can be asked of it.

    Args:
        config: Gives the configuration in force.
        bus: Where its events go.
        inquiries: Where it is asked for something.
        log: Told, by level and text, what went wrong.
        mask: Hides the server's secrets.
        take_tools: Told that a connection's tools were read anew.
        noted: Told that there is another warning, or one less.
    """

    _config: Callable[[], MCPServerConfig]
    _bus: EventBus
    _inquiries: Inquiries
    _log: Callable[[str, str], None]
    _mask: Callable[[str], str]
    _take_tools: Callable[[Connection], None]
    _noted: Callable[[], None]
    tools: Changes = field(init=False)
    updates: Updates = field(init=False)
    _shelves: dict[str, _Shelf] = field(init=False)
    _changes: dict[str, Changes] = field(init=False)
    _subscriptions: Subscriptions = field(init=False)
    _current: Connection | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        shelves = (
            _Shelf("resources", "resources", "uri", ResourcesChanged),
            _Shelf("resource_templates", "resources", "uriTemplate"),
            _Shelf("prompts", "prompts", "name", PromptsChanged),
            _Shelf("skills", "skills", "uri"),
        )
        self._shelves = {shelf.name: shelf for shelf in shelves}
        self.tools = Changes(self._take_tools, self._log, self._reading_seconds, noted=self._noted)
        self._changes = {
            shelf.name: Changes(
                lambda _connection: None,
                self._log,
                self._reading_seconds,
                partial(self._read, shelf),
                shelf.name.replace("_", " "),
                self._noted,
            )
            for shelf in shelves
        }
        self.updates = Updates(self._config().name, self._bus, self._mask, self._log)
        self._subscriptions = Subscriptions(self.updates, self._log)

    def _reading_seconds(self) -> float:
        return self._config().startup_seconds

    # What a connection tells.

    def told(self, kind: str) -> None:
        """The server has said that what it offers of a kind has changed. However fresh the list was, it is not now."""
        if kind == "tools":
            self.tools.told()
        for shelf in self._shelves.values():
            if shelf.kind == kind:
                shelf.told += 1
                shelf.fresh_until = -math.inf
                self._changes[shelf.name].told()

    def unheard(self) -> None:
        """Something may have changed that was not heard: whatever there is counts as changed."""
        for kind in ("tools", *_KINDS):
            self.told(kind)
        self._subscriptions.unheard()

    async def follow(self, connection: Connection) -> None:
        """Keep the lists of a connection as the server has them, and hear what is subscribed to, for ever."""
        self._current = connection
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.tools.follow, connection)
                nursery.start_soon(self.updates.run)
                nursery.start_soon(self._subscriptions.follow, connection)
                for kind in _KINDS:
                    if connection.session.offers(kind):
                        # Nobody waits for these: what the server offers beside its tools is read when it is up.
                        self._changes[kind].wanted()
                    else:
                        self._put(self._shelves[kind], {})
                    nursery.start_soon(self._changes[kind].follow, connection)
        finally:
            self._current = None

    def withdraw(self) -> None:
        """The server is down, or has been away for long: what it offered is not on offer any more."""
        for shelf in self._shelves.values():
            shelf.read_from = None
            shelf.warnings = ()
            self._put(shelf, {})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the lists, in sentences."""
        if self._current is None:
            return ()
        told = (warning for changes in (self.tools, *self._changes.values()) for warning in changes.warnings)
        read = (warning for shelf in self._shelves.values() for warning in shelf.warnings)
        return (*told, *read)[:_MAX_WARNINGS]

    # The tools, for those who use their list.

    @property
    def stale(self) -> bool:
        """Whether the list of tools is too old to be used without being read anew (``ttlMs``)."""
        connection = self._current
        return connection is not None and trio.current_time() >= connection.tools_fresh_until

    def used(self) -> None:
        """Somebody uses the list of tools: if it is too old it is read anew, soon."""
        if self.stale:
            self.tools.told()

    async def freshen(self, seconds: float) -> None:
        """Somebody uses the list of tools: if it is too old, read it anew first, where that goes well and fast.

        Args:
            seconds: How long to wait at most.
        """
        connection = self._current
        if connection is None or not self.stale:
            return
        if self.tools.failing:
            # It is being tried again already; whoever asks need not wait for what has failed.
            return
        with trio.move_on_after(seconds) as limit:
            await self.tools.read(connection)
        if limit.cancelled_caught:
            self.tools.told()

    # What is offered beside the tools.

    async def listed(self, name: str) -> list[dict[str, Any]]:
        """A list, by name, read anew where it may have changed: ``resources``, ``resource_templates``,
        ``prompts``, ``skills``.

        Raises:
            NotConnected: The server is down.
            ServerFailed: It refused, or its answer cannot be used.
            ServerGone: The connection was lost.
            TimedOut: It did not answer in time.
        """
        shelf = self._shelves[name]
        method = f"the list of {name.replace('_', ' ')}"
        with self._inquiries.explained(method):
            connection = await self._inquiries.connected(method)
            if not connection.session.offers(shelf.kind):
                return []
            if not shelf.is_fresh(connection):
                with self._inquiries.limited(method):
                    await self._changes[name].read_or_raise(connection, unless=lambda: shelf.is_fresh(connection))
        return list(shelf.items.values())

    async def read_resource(self, uri: str) -> dict[str, Any]:
        """The contents of a resource. Raises as :meth:`listed` does."""
        return await self._inquiries.ask(
            "resources/read", {"uri": uri}, "contents", list, lambda one: one.offers("resources")
        )

    async def read_whole(self, uri: str) -> list[Any]:
        """The contents of a resource as they came, to the last byte. Raises as :meth:`listed` does."""
        raw = await self._inquiries.ask(
            "resources/read", {"uri": uri}, "contents", list, lambda one: one.offers("resources"), whole=True
        )
        return list(raw["contents"])

    async def get_skill(self, uri: str) -> dict[str, Any]:
        """The entry of a skill. Raises as :meth:`listed` does."""
        raw = await self._inquiries.ask("skills/get", {"uri": uri}, "skill", dict, lambda one: one.offers("skills"))
        return dict(raw["skill"])

    def conceal(self, text: str) -> str:
        """A text of the server without its credentials."""
        return str(self._inquiries.conceal(text))

    def failed(self, message: str) -> ServerFailed:
        """That the server did not do what it was asked."""
        return self._inquiries.failed(message)

    async def get_prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """The messages of a prompt. Raises as :meth:`listed` does."""
        params: dict[str, Any] = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        return await self._inquiries.ask("prompts/get", params, "messages", list, lambda one: one.offers("prompts"))

    async def complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Completions of an argument. Raises as :meth:`listed` does."""
        return await self._inquiries.ask(
            "completion/complete", params, "completion", dict, lambda one: one.can_complete
        )

    async def subscribe(self, uri: str) -> None:
        """Let the server tell when a resource changes, on this connection and on those after it.

        Raises as :meth:`listed` does.
        """
        if self._subscriptions.has(uri):
            return
        with self._inquiries.explained("resources/subscribe"):
            connection = await self._inquiries.connected("resources/subscribe")
            if not connection.session.can_subscribe:
                raise self._inquiries.failed("it does not tell when a resource changes")
            if connection.session.era == "legacy":
                await self._inquiries.ask(
                    "resources/subscribe", {"uri": uri}, None, dict, lambda one: one.can_subscribe
                )
                self._subscriptions.add(uri)
                return
            with self._inquiries.limited("subscriptions/listen"):
                agreed = await self._subscriptions.listen_to(uri)
        if not agreed:
            raise self._inquiries.failed(f"it did not agree to tell when {uri} changes")

    async def unsubscribe(self, uri: str) -> None:
        """Let it tell no more. Raises as :meth:`listed` does; whatever is raised, nothing is subscribed any more."""
        if not self._subscriptions.has(uri):
            return
        self._subscriptions.remove(uri)
        connection = self._current
        if connection is not None and connection.session.era == "legacy":
            await self._inquiries.ask("resources/unsubscribe", {"uri": uri}, None, dict, lambda one: one.can_subscribe)

    # How the lists are read.

    async def _read(self, shelf: _Shelf, connection: Connection) -> None:
        if not connection.session.offers(shelf.kind):
            return
        told, asked_at, fresh_seconds = shelf.told, trio.current_time(), 0.0
        warnings: tuple[str, ...] = ()
        items: dict[str, dict[str, Any]] = {}
        try:
            page = await connection.session.list_all(shelf.name)
        except protocol().MCPError as error:
            if error.code != protocol().METHOD_NOT_FOUND:
                raise
            warnings = (f"it has no list of {shelf.name.replace('_', ' ')}, though it says that it has {shelf.kind}",)
            if shelf.event is None:
                # Most servers have resources and no templates, and do not say so.
                warnings = ()
        else:
            listed = self._inquiries.conceal(page.items)
            found = [item for item in listed if isinstance(item, dict) and isinstance(item.get(shelf.key), str)]
            items = {item[shelf.key]: item for item in sorted(found, key=lambda item: str(item[shelf.key]))}
            warnings, fresh_seconds = page.warnings, page.fresh_seconds
            if len(items) < len(page.items):
                lost = len(page.items) - len(items)
                warnings += (f"{lost} {shelf.kind} were left out: without a {shelf.key}, or with that of another",)
        if self._current is not None and connection.generation < self._current.generation:
            return
        shelf.read_from = connection
        if warnings != shelf.warnings:
            shelf.warnings = warnings
            self._noted()
        # What was said while it was read may not be in it.
        shelf.fresh_until = asked_at + fresh_seconds if told == shelf.told else -math.inf
        self._put(shelf, items)

    def _put(self, shelf: _Shelf, items: dict[str, dict[str, Any]]) -> None:
        before, shelf.items = shelf.items, items
        if items == before:
            return
        shelf.version += 1
        if shelf.event is not None:
            self._bus.publish(
                shelf.event(
                    server=self._config().name,
                    added=tuple(name for name in items if name not in before),
                    removed=tuple(name for name in before if name not in items),
                    changed=tuple(name for name, item in items.items() if name in before and before[name] != item),
                    version=shelf.version,
                )
            )
