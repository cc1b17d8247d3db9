"""Names that clash are told in the status of the servers concerned."""

from __future__ import annotations

from typing import Any

from openprogram_mcp.events import StatusChanged
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do

from .._living import events_of, until
from ._host import hosting


async def test_name_03_a_clash_of_names_in_one_server_is_shown_in_its_status() -> None:
    fake = FakeServer(era="legacy", shuffled=True).tool("a.b").tool("a_b").tool("a/b").tool("c")
    async with hosting({"f": fake}) as manager:
        row = manager.server("f")
        assert len(set(row.tools)) == 4
        assert "f__c" in row.tools
        assert "f__a_b" not in row.tools, "none of them owns the plain name"
        assert len(row.warnings) == 3
        for name in ('"a.b"', '"a_b"', '"a/b"'):
            (warning,) = [one for one in row.warnings if one.startswith(f"tool {name} is offered as ")]
            assert warning.endswith("since another has the name f__a_b")


async def test_name_03_a_clash_with_another_server_is_shown_and_told_for_both_while_it_lasts() -> None:
    first = FakeServer(era="legacy").tool("run")
    second = FakeServer(era="legacy").tool("run")
    async with hosting({"x-y": first, "x.y": second.config(enabled=False), "x_y": second.config()}) as manager:
        # Plain names keep what a model API accepts, so that only one of these is written anew.
        assert manager.server("x-y").tools == ("x-y__run",)
        assert manager.server("x_y").warnings == ()
        last = manager.events.last_id
        await manager.enable("x.y")
        for name in ("x.y", "x_y"):
            row = await until(manager, name, ServerState.CONNECTED, where=lambda row: row.warnings != ())
            (warning,) = row.warnings
            assert warning == f'tool "run" is offered as {row.tools[0]}, since another has the name x_y__run'
        assert manager.server("x-y").warnings == ()
        told: list[Any] = [
            record.event.status
            for record in manager.events.since(last)[0]
            if isinstance(record.event, StatusChanged) and record.event.server == "x_y"
        ]
        assert told[-1].tools == manager.server("x_y").tools, "the row of the other has changed too, and is told"
        await manager.disable("x.y")
        row = await until(manager, "x_y", ServerState.CONNECTED, where=lambda row: row.warnings == ())
        assert row.tools == ("x_y__run",)
        assert events_of(manager.events, StatusChanged)[-1].status.tools in ((), ("x_y__run",))


async def test_name_03_clashes_that_come_with_a_change_of_the_list_are_shown_and_go_with_it() -> None:
    fake = FakeServer(era="legacy").tool("a.b").tool("a_b", hidden=True)
    fake.tool("add", do.show("a_b"), do.changed(), do.reply("done"))
    fake.tool("drop", do.hide("a_b"), do.changed(), do.reply("done"))
    async with hosting({"f": fake}) as manager:
        assert manager.server("f").warnings == ()
        await manager.call_tool("f__add")
        await until(manager, "f", ServerState.CONNECTED, where=lambda row: len(row.warnings) == 2)
        await manager.call_tool("f__drop")
        await until(manager, "f", ServerState.CONNECTED, where=lambda row: row.warnings == ())
        assert "f__a_b" in manager.registry
