"""Catalogs that live over HTTP: changes come on other streams than the answers, and those streams break."""

from __future__ import annotations

from typing import Any

import pytest
import trio

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


async def test_a_server_that_tells_changes_on_a_stream_is_heard_before_its_tools_are_read() -> None:
    fake = FakeHttpServer(era="legacy").tool("old").on("GET", do.sleep(0.1), do.standard())
    async with fake.serving(), hosting({"f": fake}):
        (stream,), (listed,) = fake.requests("GET"), fake.requests(rpc="tools/list")
        assert stream.answered is not None
        assert stream.answered <= listed.time


async def test_what_has_changed_before_the_stream_was_open_is_not_missed() -> None:
    fake = FakeHttpServer(era="legacy").tool("old").tool("new", hidden=True)
    fake.on("GET", do.wait("open"), do.standard())
    async with fake.serving(), hosting({"f": fake}) as manager:
        assert manager.server("f").tools == ("f__old",)
        last = manager.events.last_id
        # Told to nobody: the stream is not open yet.
        fake.play(do.show("new"), do.wake("open"))
        assert (await happened(manager, ToolsChanged, last))[0].added == ("f__new",)


@pytest.mark.parametrize("status", [200, 403, 405])
async def test_a_page_in_place_of_a_stream_that_was_there_leaves_nothing_unheard(status: int) -> None:
    fake = FakeHttpServer(era="legacy").tool("old").tool("new", hidden=True)
    page = do.respond(status, "<html>please wait</html>", content_type="text/html")
    fake.on("GET", do.turns([do.standard()], [page], [do.standard()]))
    async with fake.serving(), hosting({"f": fake}) as manager:
        last = manager.events.last_id
        fake.cut()
        # Told to nobody: the stream is not there.
        fake.play(do.show("new"))
        assert (await happened(manager, ToolsChanged, last))[0].added == ("f__new",)
        assert manager.server("f").generation == 1


async def test_a_server_without_such_a_stream_is_not_waited_for() -> None:
    fake = FakeHttpServer(era="legacy").tool("old").on("GET", do.respond(405))
    async with fake.serving():
        began = trio.current_time()
        async with hosting({"f": fake}):
            lists = [request.time for request in fake.requests(rpc="tools/list")]
            refused = fake.requests("GET")[0].answered
            assert refused is not None
            assert lists[0] - refused < 0.3
        assert began < lists[0]


@ERAS
async def test_resources_and_prompts_are_read_over_http(era: Any) -> None:
    fake = _fake(era).prompt("greet", "Hello!")
    async with fake.serving(), hosting({"f": fake}) as manager:
        assert [item["uri"] for item in await manager.resources("f")] == ["file:///a"]
        assert (await manager.read_resource("f", "file:///a"))["contents"][0]["text"] == "text of a"
        assert (await manager.get_prompt("f", "greet", {}))["messages"][0]["role"] == "user"
