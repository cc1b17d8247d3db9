"""What servers get wrong about the protocol, and a status that stays green although nothing works."""

from __future__ import annotations

import pytest

from openprogram_mcp.errors import ServerGone
from openprogram_mcp.events import StatusChanged
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.testing.do import Step

from ._host import hosting

_REFUSALS = {
    "-32601": [do.fail(-32601, "Method not found")],
    "-32600": [do.fail(-32600, "Invalid request")],
    "-32603": [do.fail(-32603, "Internal error")],
    "no reply": [],
}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("refusal", _REFUSALS)
async def test_proto_01_what_is_not_advertised_is_not_asked_for_and_refused_lists_cost_no_tools(
    refusal: str, era: str
) -> None:
    steps: list[Step] = _REFUSALS[refusal]
    fake = FakeServer(era="legacy" if era == "legacy" else "modern", capabilities={"tools": {}})
    fake.tool("echo", read_only=True)
    for method in ("prompts/list", "resources/list", "resources/templates/list", "logging/setLevel", "ping"):
        fake.on(method, *steps)
    async with hosting({"f": fake}) as manager:
        assert manager.server("f").tools == ("f__echo",)
        assert not (await manager.call_tool("f__echo", {})).is_error
    asked = {frame.get("method") for frame in fake.received()}
    assert asked <= {"initialize", "notifications/initialized", "server/discover", "tools/list", "tools/call"}


async def test_a_server_without_tools_connects() -> None:
    fake = FakeServer(era="legacy", capabilities={"prompts": {}})
    async with hosting({"f": fake}) as manager:
        assert manager.server("f").status is ServerState.CONNECTED
        assert manager.server("f").tool_count == 0
    assert fake.received("tools/list") == []


async def test_proto_08_the_status_says_what_became_of_the_last_call() -> None:
    fake = FakeServer(era="legacy").tool("works", read_only=True).tool("refused", do.fail(-32001, "401 Unauthorized"))
    fake.tool("dies", do.exit(7))
    async with hosting({"f": fake.config(reconnect=False)}) as manager:
        assert manager.server("f").last_call is None
        assert (await manager.call_tool("f__refused", {})).is_error
        last = manager.server("f").last_call
        assert last is not None
        assert (last.tool, last.outcome) == ("f__refused", "tool_error")
        await manager.call_tool("f__works", {})
        last = manager.server("f").last_call
        assert last is not None
        assert last.outcome == "ok"
        with manager.events.subscribe() as events:
            with pytest.raises(ServerGone):
                await manager.call_tool("f__dies", {})
            async for record in events:
                if isinstance(record.event, StatusChanged):
                    break
        row = manager.server("f")
        assert row.status is ServerState.FAILED
        assert row.exit_code == 7
        assert row.last_call is not None
        assert row.last_call.outcome == "unknown"


async def test_proto_04_a_server_that_the_probe_kills_is_started_again_the_old_way_and_that_is_remembered() -> None:
    fake = FakeServer(era="legacy").on("server/discover", do.exit(1)).tool("t")
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__t")).text == "{}"
        assert fake.starts == 2
        row = await manager.restart("f")
        assert (row.protocol_version, fake.starts) == ("2025-11-25", 3)
        assert len(fake.received("server/discover")) == 1


async def test_proto_04_what_is_remembered_wrongly_is_found_out_at_the_next_start() -> None:
    fake = FakeServer(era="legacy").tool("t")
    async with hosting({"f": fake}) as manager:
        assert manager.server("f").protocol_version == "2025-11-25"
        fake.era = "modern"
        fake.tool("u")
        row = await manager.restart("f")
        assert (row.protocol_version, row.tools) == ("2026-07-28", ("f__t", "f__u"))


async def test_proto_03_a_version_that_nobody_knows_fails_the_server_in_plain_words() -> None:
    fake = FakeServer(era="legacy").on("initialize", do.standard({"protocolVersion": "2099-01-01"}))
    async with hosting({"f": fake}) as manager:
        row = manager.server("f")
        assert row.phase == "initialize"
        assert row.error == "it wants to speak protocol revision '2099-01-01', which this client does not know"
        assert "2025-11-25 or 2026-07-28" in (row.remedy or "")
        assert fake.alive() == []
