"""The player of scripts over HTTP: which steps there are, and what they do to the exchange that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._play.player import Player
from .._play.steps import Steps
from .._play.values import dumps, fill, fill_bytes
from .exchange import Exchange
from .sessions import Framing

if TYPE_CHECKING:
    from .._play.player import Running, Task
    from .world import World

__all__ = ["HttpPlayer"]


class HttpSteps(Steps):
    """The steps that differ over HTTP, and those that only HTTP has."""

    _player: HttpPlayer

    def _send(self, task: Task, message: dict[str, Any], end: str = "\n") -> Running:  # noqa: ARG002 - of stdio
        origin: Exchange | None = task.origin
        if origin is None or task.aside:
            self._player.world.push(message, origin.session if origin else None)
        else:
            origin.deliver(message)
        yield from ()

    def _send_apart(self, task: Task, message: dict[str, Any]) -> Running:
        origin: Exchange | None = task.origin
        self._player.world.push(message, origin.session if origin else None)
        yield from ()

    def _write(self, task: Task, pieces: list[bytes], pause: float = 0.0) -> Running:
        for index, piece in enumerate(pieces):
            if index and pause:
                yield self._player.world.now() + pause, None
            _exchange_of(task).write(piece)

    def standard(
        self, task: Task, changes: dict[str, Any] | None = None, drop: list[str] | tuple[str, ...] = ()
    ) -> Running:
        """As over stdio; in a script for a whole HTTP request, what the server does with that."""
        if task.message is None and task.origin is not None and task.origin.request is not None:
            exchange: Exchange = task.origin
            self._player.world.serve(exchange)
            if exchange.tasks > 1:  # what stands behind it in the script comes when the message has been dealt with
                yield None, ("served", exchange.number)
            return
        yield from super().standard(task, changes, drop)

    def do_respond(self, step: dict[str, Any], task: Task) -> None:
        exchange = _exchange_of(task)
        headers = fill(step["headers"], task.names)
        body = fill_bytes(step["body"].encode("latin-1"), task.names)
        if step["json"] is not None:
            body = dumps(fill(step["json"], task.names)).encode("utf-8", "surrogatepass")
        kind = step["content_type"] or ("application/json" if step["json"] is not None else None)
        exchange.respond(step["status"], body, headers, content_type=kind, reason=step["reason"])

    def do_head(self, step: dict[str, Any], task: Task) -> None:
        _exchange_of(task).begin(step["status"], fill(step["headers"], task.names), step["framing"])

    def do_stream(self, step: dict[str, Any], task: Task) -> None:
        exchange = _exchange_of(task)
        exchange.framing = Framing(**{name: step[name] for name in ("line_end", "chunk", "bom", "indent")})
        exchange.open_stream(fill(step["headers"], task.names), step["framing"])

    def do_event(self, step: dict[str, Any], task: Task) -> None:
        exchange = _exchange_of(task)
        data = fill(step["data"], task.names)
        text = exchange.framing.event(data, event=step["event"], id=step["id"], retry=step["retry"])
        exchange.write_event(text, blank=step["blank"])

    def do_tcp(self, step: dict[str, Any], task: Task) -> None:
        exchange = _exchange_of(task)
        exchange.raw = True
        data: bytes = step["data"].encode("latin-1")
        size = step["chunk"] or len(data) or 1
        for at in range(0, len(data), size):
            exchange.connection.write(data[at : at + size])

    def do_cut(self, step: dict[str, Any], task: Task) -> None:
        _exchange_of(task).cut(reset=step["reset"])

    def do_forget(self, _step: dict[str, Any], task: Task) -> None:
        session = task.origin.session if task.origin is not None else None
        self._player.world.forget(session)

    def do_on_get(self, step: dict[str, Any], task: Task) -> Running:
        before, task.aside = task.aside, True
        try:
            yield from self._play(step["steps"], task)
        finally:
            task.aside = before


def _exchange_of(task: Task) -> Exchange:
    exchange: Exchange | None = task.origin
    if exchange is None:
        raise ValueError("this step needs an HTTP request that it answers")
    return exchange


class HttpPlayer(Player):
    """A fake server whose messages come by HTTP."""

    steps_class = HttpSteps
    world: World

    def key(self, request_id: Any, origin: Exchange | None) -> Any:
        """Ids are the client's: only within a session, and at 2026-07-28 within a request, are they of one piece."""
        if origin is None:
            return None, request_id
        if origin.modern:
            return origin.number, request_id
        return origin.session.id if origin.session else None, request_id

    def facts_of(self, origin: Exchange | None) -> dict[str, Any]:
        """The HTTP request."""
        if origin is None or origin.request is None:
            return {}
        return {
            "headers": {name.lower(): value for name, value in origin.request.headers},
            "path": origin.path,
            "query": origin.query,
            "session": origin.session.id if origin.session else None,
        }

    def whereabouts(self, origin: Exchange | None) -> dict[str, Any]:
        """Which HTTP request."""
        return {"exchange": origin.number} if origin is not None else {}

    def take(self, message: dict[str, Any], origin: Exchange) -> None:
        """A message came in."""
        origin.tasks += 1
        super().take(message, origin)

    def task_begins(self, task: Task) -> None:
        """Another thing is played for a request."""
        if task.origin is not None and task.message is None:
            task.origin.tasks += 1

    def task_ends(self, task: Task, outcome: str) -> None:
        """One less."""
        origin: Exchange | None = task.origin
        if origin is None:
            return
        origin.tasks -= 1
        if origin.tasks == 1:
            self.wake(("served", origin.number))
        if origin.tasks == 0:
            if origin.request is None:
                origin.connection.read_now()
            else:
                origin.settle(outcome)
