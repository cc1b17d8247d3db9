"""``logs`` and ``events``: what has happened in the worker, and with ``-f`` what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import WorkerUnreachable
from ._output import Output, one_line
from ._parser import Options
from ._parser_manage import LEVELS
from ._source import from_worker, no_worker

if TYPE_CHECKING:
    from ..web.client import WorkerClient

__all__ = ["run_events", "run_logs"]

_COMMON = frozenset({"id", "type", "time", "server", "directory"})


def run_logs(options: Options, output: Output) -> int:
    """What the servers have logged."""

    def wanted(line: Mapping[str, Any]) -> bool:
        return options.server in (None, line["server"]) and _weight(line["level"]) >= _weight(options.level)

    def show(line: Mapping[str, Any]) -> None:
        if output.json:
            output.line(line)
        else:
            origin = f"{line['server'] or 'worker'} {line['level']}{' ' + line['logger'] if line['logger'] else ''}"
            output.text(f"{line['time']} {one_line(origin, 100)}: {one_line(line['text'], 4000)}")

    def ask(worker: WorkerClient) -> None:
        # Listening first: what is logged between the two is in both, and told once.
        coming = worker.follow("events") if options.follow else iter(())
        last = 0
        if options.server is not None:
            worker.get("servers", options.server)  # a name that is mistyped would be silent for ever
        for line in worker.get("logs", server=options.server)["lines"]:
            last = line["id"]
            if wanted(line):
                show(line)
        output.flush()
        for event in _until_it_ends(coming, options):
            if event["type"] == "Gap":
                _tell_gap(event["missed"], output)
            elif event["type"] == "ServerLog" and event["id"] > last and wanted(event):
                show({key: event[key] for key in ("id", "time", "server", "level", "logger", "text")})
            output.flush()

    from_worker(ask, _nobody("only a worker keeps what its servers log"))
    return 0


def run_events(options: Options, output: Output) -> int:
    """What has happened."""

    def show(event: Mapping[str, Any]) -> None:
        if output.json:
            output.line(event)
        elif event["type"] == "Gap":
            _tell_gap(event["missed"], output)
        else:
            about = f" {one_line(event['server'], 60)}:" if event["server"] else ""
            output.text(f"{event['id']} {event['time']} {event['type']}{about} {one_line(_told(event), 2000)}".rstrip())

    def ask(worker: WorkerClient) -> None:
        if options.follow:
            for event in _until_it_ends(worker.follow("events", since=options.since), options):
                show(event)
                output.flush()
            return
        page = worker.get("events", since=options.since or 0)
        # Without --since nothing is missing: what is asked for is what there still is.
        if page["missed"] and options.since is not None:
            _tell_gap(page["missed"], output)
        for event in page["events"]:
            show(event)

    from_worker(ask, _nobody("only a worker has events"))
    return 0


def _until_it_ends(coming: Iterator[tuple[str, Any]], options: Options) -> Iterator[dict[str, Any]]:
    for _, event in coming:
        yield event
    if options.follow:
        raise WorkerUnreachable("The worker has ended", remedy="Start it again with: openprogram-mcp worker")


def _nobody(what: str) -> Callable[[], Any]:
    def refuse() -> Any:
        raise no_worker(what)

    return refuse


def _tell_gap(missed: int, output: Output) -> None:
    output.error_text(f"openprogram-mcp: {missed} events before this are not kept any more")


def _weight(level: str | None) -> int:
    """How grave a level is. One that nobody knows is told whatever was asked for."""
    if level is None:
        return 0
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def _told(event: Mapping[str, Any]) -> str:
    """What an event says besides whom it is about, in one line."""
    if event["type"] == "StatusChanged":
        row = event["status"]
        said = f"{row['status']} ({row['tool_count']} tools)" if row["ready"] else str(row["status"])
        return f"{said}: {row['error']}" if row["error"] else said
    return " ".join(
        f"{key}={_value(event[key])}" for key in event if key not in _COMMON and event[key] not in (None, [])
    )


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
