"""What ``/metrics`` shows: a meter that is told of every call as it ends, and the text that is made when somebody asks.

The meter costs a call two look-ups and an addition, in Trio's thread and without a lock; prometheus_client makes the
text, in another thread. What servers are like at this moment is read from the manager then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from attrs import define, field
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .. import __version__
from ..events import EventBus, StatusChanged, ToolCallEnded
from ..status import ProcessCount, ServerState, ServerStatus

if TYPE_CHECKING:
    from ..manager import MCPManager

__all__ = ["Meter", "Snapshot"]

_PREFIX: Final = "openprogram_mcp"

_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets for durations, in seconds: a call may take a millisecond, or minutes."""

_OUTCOMES: Final = ("ok", "tool_error", "failed", "cancelled", "timed_out", "unknown")
_S = ServerState
_DOWN: Final = frozenset({_S.RECONNECTING, _S.FAILED, _S.NEEDS_AUTH, _S.NEEDS_CLIENT_REGISTRATION})
"""What follows a connection that was lost."""

_PUT_AWAY: Final = frozenset({_S.DISABLED, _S.DISCONNECTED})


@define
class _Server:
    """What was counted of one server."""

    state: ServerState | None = None
    outcomes: dict[str, int] = field(factory=lambda: dict.fromkeys(_OUTCOMES, 0))
    buckets: list[int] = field(factory=lambda: [0] * (len(_BOUNDS) + 1))
    seconds: float = 0.0
    lost: int = 0
    reconnected: int = 0
    is_lost: bool = False


@define
class Meter:
    """Counts what happens, for as long as a worker serves."""

    _servers: dict[str, _Server] = field(factory=dict, init=False)

    @contextmanager
    def counting(self, bus: EventBus) -> Iterator[None]:
        """Count what is published within the block."""
        bus.observe(ToolCallEnded, self._ended)
        bus.observe(StatusChanged, self._changed)
        try:
            yield
        finally:
            bus.unobserve(ToolCallEnded, self._ended)
            bus.unobserve(StatusChanged, self._changed)

    def _ended(self, event: ToolCallEnded) -> None:
        server = self._of(event.server or "")
        server.outcomes[event.outcome] = server.outcomes.get(event.outcome, 0) + 1
        server.buckets[bisect_left(_BOUNDS, event.duration_seconds)] += 1
        server.seconds += event.duration_seconds

    def _changed(self, event: StatusChanged) -> None:
        server, state = self._of(event.status.name), event.status.status
        if server.state is _S.CONNECTED and state in _DOWN:
            server.lost += 1
            server.is_lost = True
        elif state is _S.CONNECTED and server.is_lost:
            server.reconnected += 1
            server.is_lost = False
        elif state in _PUT_AWAY:
            server.is_lost = False
        server.state = state

    def _of(self, name: str) -> _Server:
        found = self._servers.get(name)
        if found is None:
            found = self._servers[name] = _Server()
        return found

    def snapshot(self, manager: MCPManager) -> Snapshot:
        """All there is to tell at this moment. Servers that are gone are forgotten."""
        rows = manager.status()
        self._servers = {name: one for name, one in self._servers.items() if name in rows or not name}
        counts = [(name, self._of(name)) for name in rows]
        return Snapshot(list(_families(rows.values(), counts, manager.processes, manager.events.last_id)))


@define
class Snapshot(Collector):
    """Figures of one moment, as prometheus_client collects them."""

    _families: list[Metric]

    def collect(self) -> Iterator[Metric]:
        """The figures, and those of this process."""
        yield from self._families
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            yield from collector.collect()

    def encode(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type, in the form that an ``Accept`` header asks for."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self), content_type


def _families(
    rows: Iterable[ServerStatus], counts: list[tuple[str, _Server]], processes: ProcessCount, events: int
) -> Iterator[Metric]:
    info = GaugeMetricFamily(f"{_PREFIX}_info", "The worker; always 1.", labels=["version"])
    info.add_metric([__version__], 1)
    states = dict.fromkeys(ServerState, 0)
    ready = _gauge("server_ready", "Whether the server's tools can be called now.")
    tools = _gauge("server_tools", "How many tools the server offers.")
    running = _gauge("calls_in_flight", "Calls that run.")
    queued = _gauge("calls_queued", "Calls that wait for their turn.")
    for row in rows:
        states[row.status] += 1
        ready.add_metric([row.name], row.ready)
        tools.add_metric([row.name], row.tool_count)
        running.add_metric([row.name], row.in_flight)
        queued.add_metric([row.name], row.queued)
    servers = GaugeMetricFamily(f"{_PREFIX}_servers", "How many servers are in which state.", labels=["state"])
    for state, number in states.items():
        servers.add_metric([str(state)], number)

    calls = CounterMetricFamily(f"{_PREFIX}_calls", "Calls that have ended, by outcome.", labels=["server", "outcome"])
    seconds = HistogramMetricFamily(f"{_PREFIX}_call_duration_seconds", "How long calls took.", labels=["server"])
    lost = _counter("connections_lost", "Connections that were lost.")
    reconnects = _counter("reconnects", "Lost connections that came back.")
    for name, server in counts:
        for outcome, number in server.outcomes.items():
            calls.add_metric([name, outcome], number)
        bounds = [*(str(bound) for bound in _BOUNDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(server.buckets), strict=True))
        seconds.add_metric([name], buckets=buckets, sum_value=server.seconds)
        lost.add_metric([name], server.lost)
        reconnects.add_metric([name], server.reconnected)
    yield from (info, servers, ready, tools, running, queued, calls, seconds, lost, reconnects)

    yield GaugeMetricFamily(f"{_PREFIX}_processes_owned", "Processes of all servers.", value=processes.owned)
    leaked = "Processes that were found alive after their server had been stopped: 0, or there is a defect."
    yield CounterMetricFamily(f"{_PREFIX}_processes_leaked", leaked, value=processes.leaked)
    yield CounterMetricFamily(f"{_PREFIX}_events", "Events that were published.", value=events)


def _gauge(name: str, what: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", what, labels=["server"])


def _counter(name: str, what: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{_PREFIX}_{name}", what, labels=["server"])
