"""What happens, told to whoever listens: the event classes and the bus that carries them.

The bus is one ring of the last events and, per subscriber, a position in it. Publishing never blocks and costs the
same however many listen; a slow subscriber slows nobody, and one that fell out of the ring is told by a
:class:`Gap` how many events it missed. An event's JSON form is made when somebody reads it, not when it is published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import time
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import trio
from attrs import define, field, frozen

from ._values import quick_frozen
from .status import ServerStatus, rfc3339

__all__ = [
    "BrowserOpenFailed",
    "ConfigChanged",
    "Event",
    "EventBus",
    "Gap",
    "PromptsChanged",
    "Record",
    "ResourceUpdated",
    "ResourcesChanged",
    "ServerLog",
    "StartupComplete",
    "StatusChanged",
    "Subscription",
    "ToolCallEnded",
    "ToolCallProgress",
    "ToolCallStarted",
    "ToolsChanged",
    "rfc3339",
    "shortened",
]

E = TypeVar("E", bound="Event")

_RING_SIZE = 1024
_LOG_RING_SIZE = 2048
_SHORT_TEXT = 400
_SHORT_ITEMS = 40
_PLAIN = frozenset({int, float, bool, type(None)})


def shortened(value: Any) -> Any:
    """A copy of a JSON value that is small enough to be kept: long texts and containers are cut, with a mark."""
    if type(value) is dict and len(value) <= _SHORT_ITEMS:
        # The arguments of most calls: a few small values. They are copied as they are.
        for item in value.values():
            if not (type(item) in _PLAIN or (type(item) is str and len(item) <= _SHORT_TEXT)):
                break
        else:
            return value.copy()
    return _shortened(value, 4)


def _shortened(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _SHORT_TEXT else f"{value[:_SHORT_TEXT]}… ({len(value)} characters)"
    if isinstance(value, dict):
        if depth == 0:
            return f"… ({len(value)} keys)"
        cut = {key: _shortened(item, depth - 1) for key, item in zip(value, _first(value.values()), strict=False)}
        if len(value) > _SHORT_ITEMS:
            cut["…"] = f"{len(value) - _SHORT_ITEMS} more keys"
        return cut
    if isinstance(value, list):
        if depth == 0:
            return f"… ({len(value)} items)"
        items = [_shortened(item, depth - 1) for item in value[:_SHORT_ITEMS]]
        return items if len(value) <= _SHORT_ITEMS else [*items, f"… ({len(value) - _SHORT_ITEMS} more items)"]
    return value


def _first(values: Any) -> Iterator[Any]:
    for index, value in enumerate(values):
        if index == _SHORT_ITEMS:
            return
        yield value


@quick_frozen(kw_only=True)
class Event:
    """The root of all events.

    Args:
        server: The server concerned, or ``None``.
        directory: The workspace concerned, or ``None`` where there is one only.
    """

    type: ClassVar[str] = "Event"

    server: str | None = None
    directory: str | None = None

    def payload(self) -> dict[str, Any]:
        """The keys that only this type has, as JSON."""
        return {}


@frozen(kw_only=True)
class StatusChanged(Event):
    """A server's status has changed; ``status`` is its row after the change."""

    type = "StatusChanged"
    status: ServerStatus

    def payload(self) -> dict[str, Any]:
        """The whole row."""
        return {"status": self.status.to_dict()}


@frozen(kw_only=True)
class StartupComplete(Event):
    """Every enabled server has had its first verdict."""

    type = "StartupComplete"
    ready: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    cancelled: tuple[str, ...] = ()
    needs_auth: tuple[str, ...] = ()

    def payload(self) -> dict[str, Any]:
        """Names by verdict; a failure with its error."""
        return {
            "ready": list(self.ready),
            "failed": [{"server": server, "error": error} for server, error in self.failed],
            "cancelled": list(self.cancelled),
            "needs_auth": list(self.needs_auth),
        }


@frozen(kw_only=True)
class _ListChanged(Event):
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    version: int = 0

    def payload(self) -> dict[str, Any]:
        """Names added, removed and changed, and the version after it."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
            "version": self.version,
        }


@frozen(kw_only=True)
class ToolsChanged(_ListChanged):
    """The tools of a server, by their full names, have changed."""

    type = "ToolsChanged"


@frozen(kw_only=True)
class ResourcesChanged(_ListChanged):
    """The resources of a server, by URI, have changed."""

    type = "ResourcesChanged"


@frozen(kw_only=True)
class PromptsChanged(_ListChanged):
    """The prompts of a server have changed."""

    type = "PromptsChanged"


@frozen(kw_only=True)
class ResourceUpdated(Event):
    """A resource's content has changed."""

    type = "ResourceUpdated"
    uri: str

    def payload(self) -> dict[str, Any]:
        """The resource's URI."""
        return {"uri": self.uri}


@quick_frozen(kw_only=True)
class ToolCallStarted(Event):
    """A tool call was asked for. ``arguments`` are short already; ``mask`` hides secrets when they are read."""

    type = "ToolCallStarted"
    call_id: str
    tool: str
    arguments: Mapping[str, Any] = field(repr=False)
    mask: Callable[[Any], Any] = field(repr=False, default=lambda value: value)

    def payload(self) -> dict[str, Any]:
        """The call, its tool and its masked arguments."""
        return {"call_id": self.call_id, "tool": self.tool, "arguments": self.mask(dict(self.arguments))}


@quick_frozen(kw_only=True)
class ToolCallProgress(Event):
    """A running call has told how far it is."""

    type = "ToolCallProgress"
    call_id: str
    progress: float
    total: float | None = None
    message: str | None = None

    def payload(self) -> dict[str, Any]:
        """The call and its progress."""
        return {"call_id": self.call_id, "progress": self.progress, "total": self.total, "message": self.message}


@quick_frozen(kw_only=True)
class ToolCallEnded(Event):
    """A tool call has ended; ``outcome`` says how, ``result`` holds a short text, masked when read.

    ``may_still_run`` says that it was given up while the server had it: it was told, and may be at it all the same.
    """

    type = "ToolCallEnded"
    call_id: str
    tool: str
    outcome: str
    is_error: bool
    duration_seconds: float
    may_still_run: bool = False
    result: str = field(default="", repr=False)
    mask: Callable[[Any], Any] = field(repr=False, default=lambda value: value)

    def payload(self) -> dict[str, Any]:
        """The call and its outcome."""
        return {
            "call_id": self.call_id,
            "tool": self.tool,
            "outcome": self.outcome,
            "is_error": self.is_error,
            "duration_seconds": round(self.duration_seconds, 6),
            "may_still_run": self.may_still_run,
            "result": self.mask(shortened(self.result)),
        }


@frozen(kw_only=True)
class ServerLog(Event):
    """A server has said something: a log message, or a line of its standard error (``logger`` is ``stderr``)."""

    type = "ServerLog"
    level: str
    logger: str | None
    text: str

    def payload(self) -> dict[str, Any]:
        """The line."""
        return {"level": self.level, "logger": self.logger, "text": self.text}


@frozen(kw_only=True)
class BrowserOpenFailed(Event):
    """No browser could be opened for a sign-in; the address stands here."""

    type = "BrowserOpenFailed"
    authorization_url: str
    hint: str | None = None

    def payload(self) -> dict[str, Any]:
        """The address to open by hand, and what has to be done before, where something has."""
        return {"authorization_url": self.authorization_url, "hint": self.hint}


@frozen(kw_only=True)
class ConfigChanged(Event):
    """The saved configuration has changed."""

    type = "ConfigChanged"
    revision: str
    changed: tuple[str, ...] = ()

    def payload(self) -> dict[str, Any]:
        """The file's revision and the names of the servers that changed."""
        return {"revision": self.revision, "changed": list(self.changed)}


@frozen(kw_only=True)
class Gap(Event):
    """Told to one subscriber alone: so many events were lost to it because it was too slow."""

    type = "Gap"
    missed: int

    def payload(self) -> dict[str, Any]:
        """How many."""
        return {"missed": self.missed}


@quick_frozen
class Record:
    """An event as it was published: with its number and its time (seconds since the epoch)."""

    id: int
    time: float
    event: Event

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        event = self.event
        return {
            "id": self.id,
            "type": event.type,
            "time": rfc3339(self.time),
            "server": event.server,
            "directory": event.directory,
            **event.payload(),
        }


class EventBus:
    """Broadcast with replay.

    Args:
        size: How many events are kept for those who come back.
    """

    def __init__(self, size: int = _RING_SIZE) -> None:
        self._size = size
        self._ring: list[Record | None] = [None] * size
        self._logs: deque[Record] = deque(maxlen=_LOG_RING_SIZE)
        self._last = 0
        self._arrival = trio.lowlevel.ParkingLot()
        self._subscribers = 0
        self._observers: dict[type[Event], tuple[Callable[[Any], None], ...]] = {}

    @property
    def last_id(self) -> int:
        """The number of the last event, 0 before the first."""
        return self._last

    @property
    def heard(self) -> bool:
        """Whether anybody subscribes now, so that events nobody would keep need not be made."""
        return self._subscribers > 0

    def publish(self, event: Event) -> int:
        """Publish an event, without blocking and from Trio's thread.

        Returns:
            The event's number.
        """
        self._last += 1
        record = Record(self._last, time(), event)
        self._ring[self._last % self._size] = record
        if isinstance(event, ServerLog):
            self._logs.append(record)
        if self._subscribers:
            self._arrival.unpark_all()
        for observe in self._observers.get(type(event), ()):
            observe(event)
        return self._last

    def since(self, after: int) -> tuple[list[Record], int, int]:
        """The events after a number.

        Args:
            after: The number of the last event already seen; 0 for all that are kept.

        Returns:
            The events, the number to ask with next time, and how many events were lost in between.
        """
        after = min(max(after, 0), self._last)
        first = max(after + 1, self._last - self._size + 1)
        found = [self._ring[number % self._size] for number in range(first, self._last + 1)]
        return [record for record in found if record is not None], self._last, first - after - 1

    def logs(self, *, server: str | None = None, level: str | None = None, since: int = 0) -> list[Record]:
        """The kept log lines after a number, of one server and level or of all."""
        return [
            record
            for record in self._logs
            if record.id > since
            and (server is None or record.event.server == server)
            and (level is None or getattr(record.event, "level", None) == level)
        ]

    def subscribe(self, since: int | None = None) -> Subscription:
        """Listen: ``with bus.subscribe() as events: async for record in events: …``.

        Args:
            since: Begin after this number; ``None`` begins with what comes next.
        """
        return Subscription(self, self._last if since is None else since)

    def observe(self, kind: type[E], observer: Callable[[E], None]) -> None:
        """Have a function called with every event of one type as it is published: for counting, which misses none.

        Args:
            kind: The type; not those derived from it.
            observer: Called within ``publish``. It must be quick, and must not raise.
        """
        self._observers[kind] = (*self._observers.get(kind, ()), observer)

    def unobserve(self, kind: type[E], observer: Callable[[E], None]) -> None:
        """Call it no more."""
        self._observers[kind] = tuple(one for one in self._observers.get(kind, ()) if one != observer)

    # For Subscription alone.

    def _enter(self) -> None:
        self._subscribers += 1

    def _leave(self) -> None:
        self._subscribers -= 1

    async def _wait(self, after: int) -> None:
        if self._last <= after:
            await self._arrival.park()


@define
class Subscription:
    """One listener's position in the bus. Enter it, then iterate over it."""

    _bus: EventBus
    _position: int
    _waiting: deque[Record] = field(factory=deque, init=False)

    def __enter__(self) -> Subscription:
        self._bus._enter()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bus._leave()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Record:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._waiting:
            records, position, missed = self._bus.since(self._position)
            if missed:
                number = records[0].id - 1 if records else position
                self._waiting.append(Record(number, time(), Gap(missed=missed)))
            self._waiting.extend(records)
            self._position = position
            if not self._waiting:
                await self._bus._wait(position)
        return self._waiting.popleft()
