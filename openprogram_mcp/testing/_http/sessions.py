"""What lives longer than one request: sessions, and streams of events that can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from .._play.values import dumps

if TYPE_CHECKING:
    from .exchange import Exchange

__all__ = ["EventStream", "Framing", "Session"]


@frozen
class Framing:
    """How messages become events of a stream."""

    line_end: str = "\n"
    chunk: int | None = None
    bom: bool = False
    indent: bool = False

    def event(self, data: Any, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> str:  # noqa: A002 - named as in the event
        """One event without the empty line that ends it."""
        fields = {"event": event, "id": id, "retry": retry}
        lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
        if data is not None:
            if not isinstance(data, str):
                data = json.dumps(data, ensure_ascii=False, indent=1) if self.indent else dumps(data)
            lines += [f"data: {line}" if line else "data:" for line in data.split("\n")]
        return "".join(line + self.line_end for line in lines)

    def encode(self, text: str) -> bytes:
        """Text as it goes on the wire."""
        return text.encode("utf-8", "surrogatepass")


@define(eq=False)
class EventStream:
    """A stream of messages, of which one response at a time is the client's end.

    With ``ids`` each event has an id, and what was sent is kept, so that another response can go on behind any event.
    """

    name: str
    ids: bool = False
    retry: int | None = None
    sink: Exchange | None = None
    ended: bool = False
    waits: bool = False
    """Whether messages wait for a client where there is none."""
    events: list[tuple[str | None, Any]] = field(factory=list)
    waiting: list[Any] = field(factory=list)

    def open(self, sink: Exchange, framing: Framing) -> None:
        """A response becomes the client's end; an older one is let go."""
        self.sink, before = sink, self.sink
        if before is not None and before is not sink:
            before.end()
        if self.ids or self.retry is not None:
            event_id = self._next_id() if self.ids else None
            if self.ids:
                self.events.append((event_id, None))
            sink.write_event(framing.event("" if self.ids else None, id=event_id, retry=self.retry))
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self.send(message)

    def resume(self, sink: Exchange, after: str) -> bool:
        """A response goes on behind the event of this id, if it is one of ours."""
        known = [event_id for event_id, _ in self.events]
        if after not in known:
            return False
        self.sink = sink
        for event_id, message in self.events[known.index(after) + 1 :]:
            if message is not None:
                sink.write_message(message, event_id)
        if self.ended:
            sink.end()
        return True

    def send(self, message: Any, lost: Callable[[Any], None] | None = None) -> None:
        """Send a message as an event."""
        if self.sink is None and self.waits and not self.events:
            self.waiting.append(message)
            return
        event_id = self._next_id() if self.ids else None
        if self.ids:
            self.events.append((event_id, message))
        if self.sink is not None:
            self.sink.write_message(message, event_id)
        elif not self.ids:
            if self.waits:
                self.waiting.append(message)
            elif lost is not None:
                lost(message)

    def close(self) -> None:
        """Nothing more will come."""
        self.ended = True
        if self.sink is not None:
            self.sink.end()

    def leave(self, sink: Exchange) -> None:
        """A response is gone."""
        if self.sink is sink:
            self.sink = None

    def _next_id(self) -> str:
        return f"{self.name}/{len(self.events)}"


@define(eq=False)
class Session:
    """One session: of Streamable HTTP, or of the older transport, where it lives as long as its stream."""

    id: str
    stream: EventStream
    older: bool = False
    """Whether it is of the transport of 2024-11-05, where all messages go on the one stream."""
    requests: int = 0
