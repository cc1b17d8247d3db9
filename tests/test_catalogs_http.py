"""Catalogs that live over HTTP: changes come on other streams than the answers, and those streams break."""

from __future__ import annotations

from typing import Any

import pytest

from openprogram_mcp.events import ResourcesChanged, ResourceUpdated, ToolsChanged
from openprogram_mcp.testing import FakeHttpServer, do
from tests.faults._host import hosting
from tests.test_catalogs import happened

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def _fake(era: Any) -> FakeHttpServer:
    fake = FakeHttpServer(era=era).tool("old").tool("new", hidden=True).tool("newer", hidden=True)
    return fake.resource("file:///a", "text of a")


@ERAS
async def test_lists_that_change_are_read_anew_and_a_broken_stream_is_opened_again(era: Any) -> None:
    fake = _fake(era)
    async with fake.serving(), hosting({"f": fake}) as manager:
        (first,) = await happened(manager, ResourcesChanged)
        assert first.added == ("file:///a",)
        await manager.subscribe_resource("f", "file:///a")
        last = manager.events.last_id
        fake.play(do.show("new"), do.changed(), do.changed(uri="file:///a"))
        assert (await happened(manager, ToolsChanged, last))[0].added == ("f__new",)
        await happened(manager, ResourceUpdated, last)
        last = manager.events.last_id
        # It changes while nobody can hear it.
        fake.cut()
        fake.play(do.show("newer"), do.changed())
        assert (await happened(manager, ToolsChanged, last))[0].added == ("f__newer",)
        await happened(manager, ResourceUpdated, last)
        assert manager.server("f").generation == 1, "the connection has lived on"
        last = manager.events.last_id
        fake.play(do.hide("newer"), do.changed())
        assert (await happened(manager, ToolsChanged, last))[0].removed == ("f__newer",)


@ERAS
async def test_resources_and_prompts_are_read_over_http(era: Any) -> None:
    fake = _fake(era).prompt("greet", "Hello!")
    async with fake.serving(), hosting({"f": fake}) as manager:
        assert [item["uri"] for item in await manager.resources("f")] == ["file:///a"]
        assert (await manager.read_resource("f", "file:///a"))["contents"][0]["text"] == "text of a"
        assert (await manager.get_prompt("f", "greet", {}))["messages"][0]["role"] == "user"
