"""Resources, prompts and completions of a server: read, kept true while they change, and never taken for another's."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from openprogram_mcp.adapter import limit_texts
from openprogram_mcp.client import _supervisor
from openprogram_mcp.client._subscriptions import Updates
from openprogram_mcp.errors import NotConnected, ServerFailed, ServerGone, TimedOut, UnknownServer
from openprogram_mcp.events import Event, EventBus, PromptsChanged, ResourcesChanged, ResourceUpdated
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of, until
from tests._sessions import methods
from tests.faults._host import hosting

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
AT_ONCE = {"initial_seconds": 0.01, "max_seconds": 0.05}


def library(era: Any = "legacy", **options: Any) -> FakeServer:
    """A server with a tool, two resources and a prompt."""
    fake = FakeServer(era=era, **options).tool("t").tool("die", do.exit(3), read_only=True)
    fake.resource("file:///b", "text of b").resource("file:///a", "text of a")
    return fake.prompt("greet", "Hello!", arguments=["name"])


async def happened(manager: MCPManager, kind: type[Event], since: int = 0, count: int = 1) -> list[Any]:
    """The next events of a kind after a number."""
    found: list[Any] = []
    with trio.fail_after(10), manager.events.subscribe(since) as events:
        async for record in events:
            if isinstance(record.event, kind):
                found.append(record.event)
                if len(found) == count:
                    return found
    raise AssertionError("the events have ended")


def resource(name: str, **more: Any) -> dict[str, Any]:
    return {"uri": f"file:///{name}", "name": name, **more}


# What can be asked for.


@ERAS
async def test_resources_and_prompts_are_listed_in_a_stable_order_and_read(era: Any) -> None:
    async with hosting({"f": library(era)}) as manager:
        listed = await manager.resources("f")
        assert [item["uri"] for item in listed] == ["file:///a", "file:///b"]
        assert listed[0]["mimeType"] == "text/plain"
        assert await manager.resource_templates("f") == []
        assert (await manager.read_resource("f", "file:///b"))["contents"][0]["text"] == "text of b"
        assert [item["name"] for item in await manager.prompts("f")] == ["greet"]
        prompt = await manager.get_prompt("f", "greet", {"name": "you"})
        assert prompt["messages"][0]["content"]["text"] == "Hello!"


@ERAS
async def test_templates_are_listed_and_an_argument_is_completed(era: Any) -> None:
    templates = [{"uriTemplate": "file:///{name}", "name": "any"}]
    fake = library(era, capabilities={"resources": {}, "completions": {}})
    fake.on("resources/templates/list", do.standard({"resourceTemplates": templates}))
    fake.on("completion/complete", do.result({"completion": {"values": ["one"], "hasMore": False}}))
    async with hosting({"f": fake}) as manager:
        assert await manager.resource_templates("f") == templates
        reference = {"type": "ref/resource", "uri": "file:///{name}"}
        found = await manager.complete(
            "f", reference, {"name": "name", "value": "o"}, context={"arguments": {"a": "b"}}
        )
        assert found["completion"]["values"] == ["one"]
        (asked,) = fake.received("completion/complete")
        assert asked["params"]["ref"] == reference
        assert asked["params"]["argument"] == {"name": "name", "value": "o"}
        assert asked["params"]["context"] == {"arguments": {"a": "b"}}


@ERAS
async def test_what_a_server_refuses_is_told_with_its_reason(era: Any) -> None:
    async with hosting({"f": library(era)}) as manager:
        with pytest.raises(ServerFailed, match=r"it refused resources/read: Resource not found \(code -32602\)"):
            await manager.read_resource("f", "file:///nowhere")
        with pytest.raises(ServerFailed, match="it refused prompts/get: Unknown prompt"):
            await manager.get_prompt("f", "nothing")
        with pytest.raises(UnknownServer):
            await manager.resources("g")


@pytest.mark.parametrize(
    ("method", "answer"),
    [("resources/read", {}), ("prompts/get", {"messages": "none"}), ("completion/complete", {"completion": 3})],
)
async def test_an_answer_without_what_was_asked_for_is_no_answer(method: str, answer: Any) -> None:
    fake = library(capabilities={"resources": {}, "prompts": {}, "completions": {}}).on(method, do.result(answer))
    async with hosting({"f": fake}) as manager:
        with pytest.raises(ServerFailed, match=f"its answer to {method} holds no"):
            if method == "resources/read":
                await manager.read_resource("f", "file:///a")
            elif method == "prompts/get":
                await manager.get_prompt("f", "greet")
            else:
                await manager.complete("f", {"type": "ref/prompt", "name": "greet"}, {"name": "name", "value": ""})


@ERAS
async def test_proto_01_what_is_not_advertised_is_never_asked_for(era: Any) -> None:
    fake = FakeServer(era=era, capabilities={"tools": {}}).tool("t")
    async with hosting({"f": fake}) as manager:
        assert await manager.resources("f") == await manager.resource_templates("f") == await manager.prompts("f") == []
        for ask in (
            lambda: manager.read_resource("f", "file:///a"),
            lambda: manager.get_prompt("f", "greet"),
            lambda: manager.complete("f", {"type": "ref/prompt", "name": "greet"}, {"name": "a", "value": ""}),
            lambda: manager.subscribe_resource("f", "file:///a"),
        ):
            with pytest.raises(ServerFailed, match="it does not"):
                await ask()
        await manager.call_tool("f__t")
        assert not [method for method in methods(fake) if method.startswith(("resources", "prompts", "completion"))]
        assert manager.server("f").warnings == ()


@ERAS
@pytest.mark.parametrize("steps", [[do.fail(-32603, "no")], [do.fail(-32600, "no")], [do.result({})], []])
async def test_proto_01_a_list_beside_the_tools_that_cannot_be_read_is_a_warning(era: Any, steps: Any) -> None:
    fake = library(era).on("resources/list", *steps).on("prompts/list", *steps)
    async with hosting({"f": fake.config(startup_timeout_seconds=0.5, call_timeout_seconds=0.3)}) as manager:
        row = await until(manager, "f", ServerState.CONNECTED, where=lambda row: len(row.warnings) == 2)
        assert row.ready
        assert "its list of resources could not be read anew; what is offered may be out of date" in row.warnings
        assert row.tools == ("f__die", "f__t")
        assert (await manager.call_tool("f__t")).text == "{}"
        with pytest.raises(ServerFailed if steps else TimedOut):
            await manager.resources("f")


async def test_proto_01_a_list_that_is_advertised_but_unknown_is_empty_and_not_asked_for_again() -> None:
    fake = library().on("resources/list", do.fail(-32601, "Method not found"))
    async with hosting({"f": fake}) as manager:
        row = await until(manager, "f", ServerState.CONNECTED, where=lambda row: row.warnings != ())
        assert row.warnings == ("it has no list of resources, though it says that it has resources",)
        await wait_all_tasks_blocked(0.3)
        assert methods(fake).count("resources/list") == 1


async def test_items_without_a_name_or_with_that_of_another_are_left_out_with_a_warning() -> None:
    items = [resource("a", size=1), 7, {"name": "no uri"}, resource("a", size=2)]
    fake = library().on("resources/list", do.result({"resources": items}))
    async with hosting({"f": fake}) as manager:
        assert [item["uri"] for item in await manager.resources("f")] == ["file:///a"]
        assert "3 resources were left out: without a uri, or with that of another" in manager.server("f").warnings


# Limits.


async def test_a_request_is_bounded_by_the_limit_of_a_call_and_the_server_is_told() -> None:
    fake = library().on("resources/read", do.hang())
    async with hosting({"f": fake.config(call_timeout_seconds=0.2)}) as manager:
        with pytest.raises(TimedOut) as caught:
            await manager.read_resource("f", "file:///a")
        assert (caught.value.budget, caught.value.seconds) == ("call", 0.2)
        await fake.wait_for("cancelled")
        assert (await manager.call_tool("f__t")).text == "{}"


async def test_long_texts_of_an_answer_are_cut_with_a_note() -> None:
    fake = FakeServer(era="legacy").resource("file:///long", "x" * 1000).prompt("long", "y" * 1000)
    async with hosting({"f": fake.config(max_result_chars=100)}) as manager:
        text = (await manager.read_resource("f", "file:///long"))["contents"][0]["text"]
        assert text.startswith("x" * 100 + "\n[… 1,000 characters in all;")
        prompt = await manager.get_prompt("f", "long")
        assert prompt["messages"][0]["content"]["text"].startswith("y" * 100 + "\n[…")


def test_the_limit_counts_all_texts_and_leaves_bytes_and_the_given_answer_alone() -> None:
    answer: dict[str, Any] = {
        "contents": [{"text": "abc"}, {"blob": "QUJD" * 100}, {"text": "defgh"}, {"text": "ij"}, "odd", {"text": 3}],
        "messages": [
            {"content": [{"type": "text", "text": "k"}, {"type": "resource", "resource": {"text": "lm"}}]},
            {"content": None},
        ],
    }
    assert limit_texts(answer, 13) == answer
    cut = limit_texts(answer, 5)
    assert [item.get("text", "")[:3] for item in cut["contents"][:4]] == ["abc", "", "de\n", "\n[…"]
    assert cut["contents"][1] == answer["contents"][1]
    assert cut["messages"][0]["content"][1]["resource"]["text"].startswith("\n[… 2 characters")
    assert answer["contents"][2] == {"text": "defgh"}


# A server that is away.


async def test_a_request_waits_for_a_server_that_comes_back() -> None:
    fake = library()
    async with hosting({"f": fake.config(reconnect={"initial_seconds": 600, "max_seconds": 600})}) as manager:
        fake.send_signal("SIGKILL")
        await until(manager, "f", ServerState.RECONNECTING)
        assert (await manager.read_resource("f", "file:///a"))["contents"][0]["text"] == "text of a"
        assert fake.starts == 2


async def test_a_request_whose_connection_is_lost_is_made_once_more_and_no_oftener() -> None:
    fake = library().on("resources/read", do.exit(3))
    async with hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
        with pytest.raises(ServerGone) as caught:
            await manager.read_resource("f", "file:///a")
        assert not caught.value.may_have_run
        assert len(fake.received("resources/read")) == 2


async def test_a_request_to_a_server_that_is_down_says_so() -> None:
    async with hosting({"f": library()}) as manager:
        await manager.disconnect("f")
        for ask in (lambda: manager.resources("f"), lambda: manager.read_resource("f", "file:///a")):
            with pytest.raises(NotConnected):
                await ask()


async def test_what_a_server_offered_is_withdrawn_when_it_is_down_and_told() -> None:
    async with hosting({"f": library()}) as manager:
        (added,) = await happened(manager, ResourcesChanged)
        assert (added.added, added.removed, added.version) == (("file:///a", "file:///b"), (), 1)
        await happened(manager, PromptsChanged)
        last = manager.events.last_id
        await manager.disconnect("f")
        (gone,) = await happened(manager, ResourcesChanged, last)
        assert (gone.server, gone.added, gone.removed, gone.version) == ("f", (), ("file:///a", "file:///b"), 2)
        assert (await happened(manager, PromptsChanged, last))[0].removed == ("greet",)


async def test_a_short_outage_changes_nothing_and_a_long_one_withdraws_what_was_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = library()
    async with hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
        await happened(manager, ResourcesChanged)
        fake.send_signal("SIGKILL")
        await until(manager, "f", ServerState.CONNECTED, where=lambda row: row.generation == 2)
        assert len(await manager.resources("f")) == 2
        assert len(events_of(manager.events, ResourcesChanged)) == 1
        monkeypatch.setattr(_supervisor, "_KEEP_SECONDS", 0.05)
        fake.on_start(do.exit(1))
        assert fake.command
        fake.send_signal("SIGKILL")
        assert (await happened(manager, ResourcesChanged, count=2))[1].removed == ("file:///a", "file:///b")


# Lists that change.


@ERAS
@pytest.mark.parametrize(
    ("kind", "event", "key"), [("resources", ResourcesChanged, "uri"), ("prompts", PromptsChanged, "name")]
)
async def test_a_list_that_changes_is_read_anew_and_what_has_changed_is_told(
    era: Any, kind: Any, event: Any, key: str
) -> None:
    one, two, three = ({key: name, "description": "old"} for name in ("one", "two", "three"))
    fake = library(era).tool("change", do.changed(kind), do.reply("changed"))
    lists = [{kind: [two, one]}, {kind: [three, {**two, "description": "new"}]}]
    fake.on(f"{kind}/list", do.turns(*([do.standard(one)] for one in lists)))
    async with hosting({"f": fake}) as manager:
        (first,) = await happened(manager, event)
        assert (first.added, first.version) == (("one", "two"), 1)
        last = manager.events.last_id
        await manager.call_tool("f__change")
        (told,) = await happened(manager, event, last)
        assert (told.server, told.added, told.removed, told.changed) == ("f", ("three",), ("one",), ("two",))
        assert told.version == 2
        listed = await (manager.resources("f") if kind == "resources" else manager.prompts("f"))
        assert [item[key] for item in listed] == ["three", "two"]


async def test_a_list_in_another_order_is_no_change() -> None:
    fake = library().tool("change", do.changed("resources"), do.reply("changed"))
    lists = [{"resources": [resource("a"), resource("b")]}, {"resources": [resource("b"), resource("a")]}]
    fake.on("resources/list", do.turns(*([do.result(one)] for one in lists)))
    async with hosting({"f": fake}) as manager:
        await happened(manager, ResourcesChanged)
        await manager.call_tool("f__change")
        await fake.wait_for("end", method="resources/list", count=2)
        await manager.call_tool("f__t")
        assert len(events_of(manager.events, ResourcesChanged)) == 1


@ERAS
async def test_a_storm_of_changes_costs_few_readings(era: Any) -> None:
    fake = library(era).tool("storm", do.repeat(do.changed("resources"), do.changed(), times=500), do.reply("done"))
    async with hosting({"f": fake}) as manager:
        await happened(manager, ResourcesChanged)
        await manager.call_tool("f__storm")
        await manager.call_tool("f__t")
        assert methods(fake).count("resources/list") <= 8
        assert methods(fake).count("tools/list") <= 8


# Resources that change.


@ERAS
async def test_a_resource_that_is_subscribed_to_tells_its_changes(era: Any) -> None:
    fake = library(era).tool("touch", do.changed(uri="file:///a"), do.reply("touched"))
    async with hosting({"f": fake}) as manager:
        await manager.subscribe_resource("f", "file:///a")
        await manager.subscribe_resource("f", "file:///a")
        await manager.subscribe_resource("f", "file:///b")
        await manager.call_tool("f__touch")
        (told,) = await happened(manager, ResourceUpdated)
        assert (told.server, told.uri) == ("f", "file:///a")
        if era == "legacy":
            asked = [message["params"]["uri"] for message in fake.received("resources/subscribe")]
            assert asked == ["file:///a", "file:///b"]
            await manager.unsubscribe_resource("f", "file:///a")
            assert [message["params"]["uri"] for message in fake.received("resources/unsubscribe")] == ["file:///a"]
        else:
            wanted = [message["params"]["notifications"] for message in fake.received("subscriptions/listen")]
            assert [one.get("resourceSubscriptions") for one in wanted] == [
                None,
                ["file:///a"],
                ["file:///a", "file:///b"],
            ]
            last = manager.events.last_id
            await manager.unsubscribe_resource("f", "file:///a")
            await fake.wait_for("received", method="subscriptions/listen", count=4)
            await fake.wait_for("end", method="subscriptions/listen", count=2)
            await manager.call_tool("f__touch")
            assert ResourceUpdated not in [type(record.event) for record in manager.events.since(last)[0]]


@ERAS
async def test_a_subscription_outlives_the_connection_and_what_was_missed_is_told(era: Any) -> None:
    fake = library(era).tool("touch", do.changed(uri="file:///a"), do.reply("touched"))
    async with hosting({"f": fake.config(reconnect=AT_ONCE)}) as manager:
        await manager.subscribe_resource("f", "file:///a")
        fake.send_signal("SIGKILL")
        (missed,) = await happened(manager, ResourceUpdated)
        assert missed.uri == "file:///a"
        last = manager.events.last_id
        await manager.call_tool("f__touch")
        assert (await happened(manager, ResourceUpdated, last))[0].uri == "file:///a"


@ERAS
async def test_a_subscription_that_is_refused_is_told_and_forgotten(era: Any) -> None:
    fake = library(era).on("resources/subscribe", do.fail(-32603, "no"))
    fake.on("subscriptions/listen", do.fail(-32603, "no"))
    async with hosting({"f": fake}) as manager:
        for _ in range(2):
            with pytest.raises(ServerFailed):
                await manager.subscribe_resource("f", "file:///a")


async def test_a_storm_of_updates_is_told_once_for_each_resource_and_bounded(autojump_clock: MockClock) -> None:
    bus, logged = EventBus(), list[str]()
    updates = Updates("f", bus, lambda text: text, lambda _level, text: logged.append(text))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(updates.run)
        for second in range(20):
            for number in range(1000):
                updates.told(f"file:///{number}")
                updates.told("file:///0")
            await trio.sleep_until(0.07 * second)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    told = [event.uri for event in events_of(bus, ResourceUpdated)]
    assert len(told) <= 100 * 6
    assert logged
    last = bus.last_id
    assert last < 1024


# How long a list may be used.


@pytest.mark.parametrize("ttl", [{}, {"ttlMs": -5}, {"ttlMs": "x"}, {"ttlMs": None}, {"ttlMs": True}, {"ttlMs": 0}])
async def test_list_07_a_list_without_a_good_time_to_live_is_read_at_each_use(ttl: dict[str, Any]) -> None:
    fake = library("modern").on("resources/list", do.result({"resources": [resource("a")], **ttl}))
    async with hosting({"f": fake}) as manager:
        await happened(manager, ResourcesChanged)
        for _ in range(3):
            assert len(await manager.resources("f")) == 1
        assert methods(fake).count("resources/list") == 4


async def test_list_07_a_list_is_used_for_as_long_as_it_lives_and_a_change_beats_that() -> None:
    fake = library("modern").tool("change", do.changed("resources"), do.reply("changed"))
    lives = {"ttlMs": 3_600_000, "cacheScope": "private", "resultType": "complete"}
    lists = [{"resources": [resource("a")], **lives}, {"resources": [resource("b")], **lives}]
    fake.on("resources/list", do.turns(*([do.result(one)] for one in lists)))
    async with hosting({"f": fake}) as manager:
        await happened(manager, ResourcesChanged)
        for _ in range(3):
            assert (await manager.resources("f"))[0]["name"] == "a"
        assert methods(fake).count("resources/list") == 1
        await manager.call_tool("f__change")
        await happened(manager, ResourcesChanged, count=2)
        assert (await manager.resources("f"))[0]["name"] == "b"
        assert methods(fake).count("resources/list") == 2


async def test_list_07_a_change_that_is_told_while_a_list_is_read_beats_its_time_to_live_too() -> None:
    lives = {"ttlMs": 3_600_000, "resultType": "complete"}
    lists = [{"resourceTemplates": [{"uriTemplate": name}], **lives} for name in ("one", "two", "three")]
    fake = library("modern").tool("change", do.changed("resources"), do.reply("changed"))
    during = [do.changed("resources"), do.result(lists[0])]
    fake.on("resources/templates/list", do.turns(during, [do.result(lists[1])], [do.result(lists[2])]))
    async with hosting({"f": fake}) as manager:
        seen: list[str] = []
        for _ in range(3):
            # What the server has said is heard when there is nothing left to do.
            await wait_all_tasks_blocked()
            seen.extend(item["uriTemplate"] for item in await manager.resource_templates("f"))
        await manager.call_tool("f__change")
        await wait_all_tasks_blocked()
        seen.extend(item["uriTemplate"] for item in await manager.resource_templates("f"))
        assert seen == ["one", "two", "two", "three"]


async def test_list_07_what_is_private_to_one_credential_is_never_shown_to_another() -> None:
    lives = {"ttlMs": 3_600_000, "cacheScope": "public", "resultType": "complete"}
    fake = (
        FakeServer(era="modern")
        .tool("t")
        .resource("file:///a", "a")
        .on("resources/list", do.result({"resources": [resource("$env.WHO")], **lives}))
    )
    entries = {who: fake.config(env={"WHO": who}) for who in ("ann", "bob")}
    async with hosting(entries) as manager:
        for who in entries:
            assert len(await manager.resources(who)) == 1
        assert len(fake.received("resources/list")) == 2


@ERAS
async def test_secret_01_no_list_and_no_content_holds_a_credential(era: Any) -> None:
    secret = "sk-very-secret-0123456789"
    leak = "it is ${env.API_TOKEN}"
    fake = library(era).on("resources/list", do.standard({"resources": [resource("a", description=leak)]}))
    fake.on("resources/read", do.standard({"contents": [{"uri": "file:///a", "text": leak}]}))
    fake.on("prompts/get", do.fail(-32603, leak))
    async with hosting({"f": fake.config(env={"API_TOKEN": secret})}) as manager:
        listed = await manager.resources("f")
        found = await manager.read_resource("f", "file:///a")
        with pytest.raises(ServerFailed) as caught:
            await manager.get_prompt("f", "greet")
        for shown in (listed, found, caught.value.to_problem(), manager.server("f").to_dict()):
            assert secret not in str(shown)
            assert "it is " in str(shown) or "warnings" in str(shown)
