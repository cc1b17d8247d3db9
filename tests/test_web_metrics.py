"""``/metrics``: what a Prometheus server reads of a worker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from openprogram_mcp.events import EventBus, StatusChanged, ToolCallEnded, ToolCallStarted
from openprogram_mcp.status import ProcessCount, ServerState, ServerStatus
from openprogram_mcp.web._metrics import Meter

from ._fake_manager import FakeManager, as_manager, remote_tool
from ._web import Site, serving

_S = ServerState


async def figures(site: Site) -> dict[tuple[str, str], float]:
    """Every sample of ours by its name and its labels."""
    reply = await site.get("/metrics")
    assert (reply.status, reply.headers["content-type"].split(";")[0]) == (200, "text/plain")
    return {
        (sample.name.removeprefix("openprogram_mcp_"), _words(sample.labels)): sample.value
        for family in parse_text(reply.body.decode())
        for sample in family.samples
        if sample.name.startswith("openprogram_mcp_")
    }


def _words(labels: Mapping[str, str]) -> str:
    """The values of the labels, the server's first."""
    return ",".join(labels[name] for name in sorted(labels, key=lambda name: name != "server"))


def end(bus: EventBus, server: str, outcome: str, seconds: float) -> None:
    bus.publish(
        ToolCallEnded(server=server, call_id="1", tool="t", outcome=outcome, is_error=False, duration_seconds=seconds)
    )


def move(manager: FakeManager, name: str, *states: ServerState) -> None:
    for state in states:
        manager.rows[name] = ServerStatus(name=name, type="local", status=state)
        manager.events.publish(StatusChanged(server=name, status=manager.rows[name]))


async def test_servers_are_counted_by_state_and_shown_with_their_queue() -> None:
    async with serving() as site:
        site.manager.put("a", remote_tool("t"), in_flight=3, queued=4)
        site.manager.put("b", status=_S.FAILED)
        site.manager.processes = ProcessCount(owned=5, leaked=1)
        found = await figures(site)
        assert [found["servers", str(state)] for state in ServerState] == [
            {_S.CONNECTED: 1, _S.FAILED: 1}.get(state, 0) for state in ServerState
        ]
        assert [found[name, "a"] for name in ("server_ready", "server_tools")] == [1, 1]
        assert [found[name, "a"] for name in ("calls_in_flight", "calls_queued")] == [3, 4]
        assert (found["server_ready", "b"], found["processes_owned", ""], found["processes_leaked_total", ""]) == (
            0,
            5,
            1,
        )
        assert site.manager.counts == 1


async def test_calls_are_counted_by_outcome_and_by_how_long_they_took() -> None:
    async with serving() as site:
        site.manager.put("a")
        for outcome, seconds in [("ok", 0.004), ("ok", 0.005), ("tool_error", 0.3), ("timed_out", 1000.0)]:
            end(site.manager.events, "a", outcome, seconds)
        found = await figures(site)
        counts = {outcome: found["calls_total", f"a,{outcome}"] for outcome in ("ok", "tool_error", "timed_out")}
        assert counts == {"ok": 2, "tool_error": 1, "timed_out": 1}
        assert found["calls_total", "a,failed"] == 0
        buckets = [found["call_duration_seconds_bucket", f"a,{bound}"] for bound in ("0.0025", "0.005", "0.25", "0.5")]
        assert buckets == [0, 2, 2, 3]
        assert found["call_duration_seconds_bucket", "a,300.0"] == 3
        assert found["call_duration_seconds_bucket", "a,+Inf"] == found["call_duration_seconds_count", "a"] == 4
        assert found["call_duration_seconds_sum", "a"] == pytest.approx(1000.309)


async def test_more_calls_than_the_bus_keeps_are_all_counted() -> None:
    async with serving() as site:
        site.manager.put("a")
        for _ in range(5000):
            end(site.manager.events, "a", "ok", 0.001)
        assert (await figures(site))["calls_total", "a,ok"] == 5000


async def test_a_lost_connection_counts_once_and_its_return_too() -> None:
    async with serving() as site:
        move(site.manager, "a", _S.STARTING, _S.CONNECTED)
        move(site.manager, "a", _S.RECONNECTING, _S.RECONNECTING, _S.STARTING, _S.RECONNECTING, _S.STARTING)
        found = await figures(site)
        assert (found["connections_lost_total", "a"], found["reconnects_total", "a"]) == (1, 0)
        move(site.manager, "a", _S.CONNECTED, _S.CONNECTED)
        move(site.manager, "a", _S.PENDING, _S.STARTING, _S.CONNECTED)  # a restart is no loss
        move(site.manager, "a", _S.FAILED, _S.DISCONNECTED, _S.PENDING, _S.STARTING, _S.CONNECTED)
        found = await figures(site)
        assert (found["connections_lost_total", "a"], found["reconnects_total", "a"]) == (2, 1)


async def test_a_server_that_is_gone_is_not_shown_and_not_kept() -> None:
    async with serving() as site:
        site.manager.put("a")
        end(site.manager.events, "a", "ok", 0.001)
        assert ("calls_total", "a,ok") in await figures(site)
        del site.manager.rows["a"]
        assert ("calls_total", "a,ok") not in await figures(site)
        site.manager.put("a")
        assert (await figures(site))["calls_total", "a,ok"] == 0


async def test_any_name_of_a_server_can_be_read_back() -> None:
    names = ['with "quotes"', "back\\slash", "ünïcode ☃", "{a=b}", " "]
    async with serving() as site:
        for name in names:
            site.manager.put(name)
        reply = await site.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert reply.headers["content-type"].startswith("application/openmetrics-text")
        found = [
            sample.labels["server"]
            for family in parse_openmetrics(reply.body.decode())  # type: ignore[no-untyped-call]  # it has no types
            for sample in family.samples
            if sample.name == "openprogram_mcp_server_ready"
        ]
        assert found == names


async def test_figures_are_for_the_owner_alone() -> None:
    async with serving() as site:
        assert (await site.get("/metrics", Authorization=None)).status == 401


async def test_the_meter_counts_only_while_it_is_wanted_and_hears_only_what_it_needs() -> None:
    fake, meter = FakeManager(), Meter()
    fake.put("a")
    with meter.counting(fake.events):
        end(fake.events, "a", "ok", 0.001)
        fake.events.publish(ToolCallStarted(server="a", call_id="1", tool="t", arguments={}))
    end(fake.events, "a", "ok", 0.001)
    text, _ = await trio.to_thread.run_sync(meter.snapshot(as_manager(fake)).encode, "")
    assert 'openprogram_mcp_calls_total{outcome="ok",server="a"} 1.0' in text.decode()
    assert "openprogram_mcp_events_total 3.0" in text.decode()
