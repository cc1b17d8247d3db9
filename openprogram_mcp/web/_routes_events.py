"""Routes about what happens: the stream of events, the same for clients that poll, log lines, and figures."""

from __future__ import annotations

from typing import Annotated, Any

import trio
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import Response

from ..errors import InvalidArguments
from . import views
from ._answers import answer, problems
from ._schemas import EventPage, LogPage
from ._sse import EventStream, Writer, frame
from .app import API

__all__ = ["routes"]


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""
    bus = api.manager.events

    def position(number: int) -> int:
        # A number that has not been given yet comes from an earlier worker: everything of this one is news.
        return number if number <= bus.last_id else 0

    def stream(since: int | None) -> EventStream:
        # Subscribed before the answer begins: a client that has seen the answer misses nothing that it then causes.
        subscription = bus.subscribe(since)

        async def write(writer: Writer) -> None:
            with subscription as records:
                async for record in records:
                    await writer.write(frame(record.event.type, record.to_dict(), record.id))

        return EventStream(write, stop=api.stop, heartbeat_seconds=api.heartbeat_seconds)

    @get(
        "/api/mcp/events",
        summary="What happens",
        description=(
            "With `Accept: text/event-stream` a stream of events, from now or after `Last-Event-ID`; else the events "
            "after `since`. `missed` counts those that were lost in between, as the event `Gap` does in a stream."
        ),
        operation_id="mcp.events",
        responses=problems(422),
        tags=["events"],
    )
    async def events(
        request: Request[Any, Any, Any],
        since: Annotated[int | None, Parameter(description="the number of the last event seen")] = None,
    ) -> Response[EventPage]:
        if "text/event-stream" in request.headers.get("accept", ""):
            last = request.headers.get("last-event-id")
            if last is not None:
                since = _number(last)
            return stream(None if since is None else position(since))
        records, following, missed = bus.since(position(since or 0))
        return answer(views.event_page(records, following, missed))

    @get(
        "/api/mcp/logs",
        summary="Log lines of the servers",
        operation_id="mcp.logs",
        responses=problems(422),
        tags=["events"],
    )
    async def logs(
        server: Annotated[str | None, Parameter(description="of this server alone")] = None,
        level: Annotated[str | None, Parameter(description="of this level alone")] = None,
        since: Annotated[int, Parameter(description="after the line of this number")] = 0,
    ) -> Response[LogPage]:
        return answer(views.log_page(bus.logs(server=server, level=level, since=position(since))))

    @get(
        "/metrics",
        summary="Figures for Prometheus",
        description="In the text format, or that of OpenMetrics where `Accept` asks for it.",
        operation_id="mcp.metrics",
        media_type="text/plain",
        responses=problems(),
        tags=["worker"],
    )
    async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
        await api.manager.count_processes()
        snapshot = api.meter.snapshot(api.manager)
        # In a thread: with hundreds of servers the text is long.
        text, content_type = await trio.to_thread.run_sync(snapshot.encode, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    return [events, logs, metrics]


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArguments("Last-Event-ID: expected the number of an event", path="Last-Event-ID")
    return int(text)
