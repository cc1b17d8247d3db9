"""A session once it is negotiated: lists, calls, rounds of input, what the server asks and tells. In memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import mcp_types
import pytest
import trio
from mcp.shared.exceptions import MCPError
from trio.testing import MockClock

from openprogram_mcp.session import BrokenAnswer, Session, SessionHooks
from openprogram_mcp.testing import FakeServer, Step, do
from openprogram_mcp.transports.stdio import Fate, FateState, RequestOptions
from tests._sessions import methods, session_with

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
TOOLS = [{"name": f"tool{number}", "inputSchema": {"type": "object"}} for number in range(8)]


def _no_options() -> RequestOptions:
    return {}


async def _call(session: Session, tool: str, **arguments: Any) -> dict[str, Any]:
    with trio.fail_after(60):
        return await session.call_tool(tool, arguments, _no_options)


# Lists.


@ERAS
async def test_all_pages_of_a_list_are_read(era: Any, autojump_clock: MockClock) -> None:
    fake = FakeServer(era=era, page_size=3)
    for number in range(8):
        fake.tool(f"t{number}")
    async with session_with(fake) as session:
        page = await session.list_all("tools")
        assert [item["name"] for item in page.items] == [f"t{number}" for number in range(8)]
        assert page.warnings == ()
        assert methods(fake).count("tools/list") == 3


PAGES_WITHOUT_END: dict[str, list[Step]] = {
    "the same page for ever": [do.result({"tools": TOOLS, "nextCursor": "p1"})],
    "two pages in turn": [
        do.turns(
            [do.result({"tools": TOOLS, "nextCursor": "p1"})],
            [do.result({"tools": TOOLS, "nextCursor": "p2"})],
            cycle=True,
        )
    ],
    "an empty cursor": [do.result({"tools": TOOLS, "nextCursor": ""})],
}


@pytest.mark.parametrize("steps", PAGES_WITHOUT_END.values(), ids=PAGES_WITHOUT_END)
async def test_list_02_a_cursor_that_comes_again_ends_the_list_with_a_warning(
    steps: list[Step], autojump_clock: MockClock
) -> None:
    fake = FakeServer().on("tools/list", *steps)
    async with session_with(fake) as session:
        page = await session.list_all("tools")
        assert {item["name"] for item in page.items} == {tool["name"] for tool in TOOLS}
        assert page.warnings == ("tools/list does not come to an end; what came so far is used",)
        assert methods(fake).count("tools/list") <= 3


async def test_list_02_empty_pages_with_ever_new_cursors_end_soon(autojump_clock: MockClock) -> None:
    first = [do.result({"tools": TOOLS, "nextCursor": "c0"})]
    empty = [[do.result({"tools": [], "nextCursor": f"c{number}"})] for number in range(1, 100)]
    async with session_with(fake := FakeServer().on("tools/list", do.turns(first, *empty))) as session:
        page = await session.list_all("tools")
        assert len(page.items) == 8
        assert page.warnings == ("tools/list does not come to an end; what came so far is used",)
        assert methods(fake).count("tools/list") == 11


async def test_list_02_full_pages_with_ever_new_cursors_end_too(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("openprogram_mcp.session._MAX_ITEMS", 50)
    pages = [[do.result({"tools": TOOLS, "nextCursor": f"c{number}"})] for number in range(100)]
    async with session_with(fake := FakeServer().on("tools/list", do.turns(*pages))) as session:
        page = await session.list_all("tools")
        assert page.warnings == ("tools/list does not come to an end; what came so far is used",)
        assert methods(fake).count("tools/list") == 7
    monkeypatch.setattr("openprogram_mcp.session._MAX_PAGES", 3)
    async with session_with(FakeServer().on("tools/list", do.turns(*pages))) as session:
        page = await session.list_all("tools")
        assert page.warnings == ("tools/list has more than 3 pages; the rest was left out",)


@pytest.mark.parametrize(
    "answer",
    [{}, {"tools": None}, {"tools": {"a": 1}}, {"tools": [], "resultType": "input_required"}],
    ids=["nothing", "null", "an object", "input required, where it may not be"],
)
async def test_spec_04_a_first_page_that_is_no_list_is_an_answer_that_means_nothing(
    answer: dict[str, Any], autojump_clock: MockClock
) -> None:
    async with session_with(FakeServer().on("tools/list", do.result(answer))) as session:
        with pytest.raises(BrokenAnswer, match="its answer to tools/list holds no list of tools"):
            await session.list_all("tools")


async def test_a_later_page_that_is_no_list_ends_it_with_a_warning(autojump_clock: MockClock) -> None:
    pages = do.turns([do.result({"tools": TOOLS, "nextCursor": "next"})], [do.result({"tools": "none"})])
    async with session_with(FakeServer().on("tools/list", pages)) as session:
        page = await session.list_all("tools")
        assert (len(page.items), page.warnings) == (
            8,
            ("a page of tools/list held no list of tools; what came so far is used",),
        )


# Calls.


@ERAS
async def test_a_result_comes_as_the_server_sent_it(era: Any, autojump_clock: MockClock) -> None:
    odd = {"content": [{"type": "hologram", "x": [1, {"y": None}]}], "structuredContent": None, "more": 1}
    fake = FakeServer(era=era).tool("odd", do.result(odd))
    async with session_with(fake) as session:
        assert await _call(session, "odd") == odd


@ERAS
async def test_arguments_go_out_as_they_were_given(era: Any, autojump_clock: MockClock) -> None:
    fake = FakeServer(era=era).tool("echo")
    async with session_with(fake) as session:
        await _call(session, "echo", a=None, b={"c": [1.5, "ü"]})
        (sent,) = fake.received("tools/call")
        assert sent["params"]["arguments"] == {"a": None, "b": {"c": [1.5, "ü"]}}


async def test_each_request_of_the_modern_era_says_who_asks_and_in_which_version(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="modern").tool("echo")
    async with session_with(fake) as session:
        await session.list_all("tools")
        await _call(session, "echo")
        for method in ("tools/list", "tools/call"):
            (sent,) = fake.received(method)
            meta = sent["params"]["_meta"]
            assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
            assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "openprogram-mcp"
            assert meta["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_an_outdated_schema_is_read_anew_and_the_call_repeated_once(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="modern").tool("t", do.turns([do.fail(-32020, "Header mismatch")], [do.reply("now")]))
    relisted = 0

    async def relist() -> None:
        nonlocal relisted
        relisted += 1

    async with session_with(fake) as session:
        result = await session.call_tool("t", {}, _no_options, relist=relist)
        assert result["content"][0]["text"] == "now"
        assert (relisted, len(fake.received("tools/call"))) == (1, 2)
        fake.tool("t", do.fail(-32020, "Header mismatch"))
    async with session_with(fake) as session:
        with pytest.raises(MCPError, match="Header mismatch"):
            await session.call_tool("t", {}, _no_options, relist=relist)
        assert relisted == 2


# Rounds of input.


async def test_spec_04_a_round_that_only_has_a_state_is_repeated_with_it_and_a_new_id(
    autojump_clock: MockClock,
) -> None:
    state = 'opaque "\\u0000 ü {}\n '
    fake = FakeServer(era="modern").tool("t", do.input_required(None, state=state), do.reply("done"))
    fates: list[Fate] = []

    def options() -> RequestOptions:
        fates.append(Fate())
        return {"fate": fates[-1]}

    async with session_with(fake) as session:
        result = await session.call_tool("t", {"a": 1}, options)
        assert result["content"][0]["text"] == "done"
        first, second = fake.received("tools/call")
        assert second["params"]["requestState"] == state
        assert "inputResponses" not in second["params"]
        assert second["params"]["arguments"] == {"a": 1}
        assert first["id"] != second["id"]
        assert [fate.state for fate in fates] == [FateState.ANSWERED] * 2, "each round has a fate of its own"


async def test_spec_04_no_state_is_sent_where_none_was_given(autojump_clock: MockClock) -> None:
    steps = do.turns(
        [do.result({"resultType": "input_required", "requestState": "one"})],
        [do.result({"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}})],
        [do.reply("done")],
    )
    fake = FakeServer(era="modern").tool("t", steps)
    async with session_with(fake) as session:
        session._client._list_roots_callback = _no_roots
        await _call(session, "t")
        sent = [message["params"] for message in fake.received("tools/call")]
        assert [params.get("requestState") for params in sent] == [None, "one", None]
        assert sent[2]["inputResponses"] == {"r": {"roots": []}}


async def _nobody(_kind: str) -> None:
    return


async def _no_roots(context: Any) -> mcp_types.ListRootsResult:
    del context
    return mcp_types.ListRootsResult(roots=[])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"resultType": "input_required"}, "in a form that cannot be read"),
        ({"resultType": "input_required", "inputRequests": {}}, "in a form that cannot be read"),
        ({"resultType": "input_required", "inputRequests": [1]}, "in a form that cannot be read"),
        ({"resultType": "input_required", "inputRequests": {"a": {"method": "x/y"}}}, "in a form that cannot be read"),
        ({"resultType": "input_required", "requestState": 7}, "in a form that cannot be read"),
        (
            {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}},
            r"it asks for what it was not offered: roots/list",
        ),
    ],
)
async def test_spec_04_a_round_of_input_that_is_wrong_is_an_answer_that_means_nothing(
    answer: dict[str, Any], said: str, autojump_clock: MockClock
) -> None:
    async with session_with(FakeServer(era="modern").tool("t", do.result(answer))) as session:
        with pytest.raises(BrokenAnswer, match=said):
            await _call(session, "t")


async def test_rounds_of_input_come_to_an_end(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="modern").tool("t", do.result({"resultType": "input_required", "requestState": "more"}))
    async with session_with(fake) as session:
        with pytest.raises(BrokenAnswer, match="more than 10 times"):
            await _call(session, "t")
        assert len(fake.received("tools/call")) == 11


async def test_a_round_of_input_means_nothing_in_the_older_era(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="legacy").tool("t", do.result({"resultType": "input_required", "requestState": "x"}))
    async with session_with(fake) as session:
        assert (await _call(session, "t"))["requestState"] == "x"
        assert len(fake.received("tools/call")) == 1


# What the server asks.


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "foo/bar"])
async def test_s2c_01_what_we_do_not_offer_is_refused_at_once_and_the_call_goes_on(
    method: str, autojump_clock: MockClock
) -> None:
    fake = FakeServer(era="legacy").tool(
        "t", do.request(method, {"anything": 1}, id="s1"), do.note("$answer"), do.reply("done")
    )
    async with session_with(fake) as session:
        began = trio.current_time()
        assert (await _call(session, "t"))["content"][0]["text"] == "done"
        assert trio.current_time() == began
        (note,) = fake.records("note")
        assert note.facts["value"]["code"] == -32601


async def test_s2c_01_a_ping_is_answered_while_a_tool_runs_and_its_id_is_its_own(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="legacy").tool("t", do.request("ping", id="$id"), do.note("$answer"), do.reply("done"))
    async with session_with(fake) as session:
        assert (await _call(session, "t"))["content"][0]["text"] == "done"
        (note,) = fake.records("note")
        assert note.facts["value"] == {}


async def test_a_probe_asks_what_the_era_knows_and_costs_least(autojump_clock: MockClock) -> None:
    for fake, asked in (
        (FakeServer(era="legacy"), {"ping": 1, "server/discover": 0}),
        (FakeServer(era="modern"), {"ping": 0, "server/discover": 2}),
    ):
        async with session_with(fake, known_era=None if fake.era == "modern" else "legacy") as session:
            await session.probe()
            assert {method: methods(fake).count(method) for method in asked} == asked


async def test_while_the_server_waits_for_our_input_somebody_is_told_so(autojump_clock: MockClock) -> None:
    steps = do.turns(
        [do.result({"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}})],
        [do.reply("done")],
    )
    fake = FakeServer(era="modern").tool("t", steps)
    seen: list[str] = []

    @contextmanager
    def while_asked() -> Iterator[None]:
        seen.append("asked")
        yield
        seen.append("answered")

    async def slow_roots(context: Any) -> mcp_types.ListRootsResult:
        assert seen == ["asked"]
        return await _no_roots(context)

    async with session_with(fake) as session:
        session._client._list_roots_callback = slow_roots
        await session.call_tool("t", {}, _no_options, while_asked=while_asked)
    assert seen == ["asked", "answered"]


# What the server tells.


async def test_logs_and_changes_are_told_in_the_order_in_which_the_server_spoke(autojump_clock: MockClock) -> None:
    heard: list[Any] = []

    def noting(kind: str) -> Callable[..., Any]:
        async def note(*said: Any) -> None:
            heard.append((kind, *said))

        return note

    hooks = SessionHooks(
        on_log=noting("log"), on_list_changed=noting("changed"), on_resource_updated=noting("resource")
    )
    fake = FakeServer(era="legacy").tool(
        "t",
        do.log({"a": 1}, level="warning", logger="db"),
        do.changed("prompts"),
        do.changed(uri="file:///x"),
        do.log("two"),
        do.changed("resources"),
        do.changed(),
        do.reply("done"),
    )
    async with session_with(fake, hooks=hooks) as session:
        await _call(session, "t")
        await trio.testing.wait_all_tasks_blocked()
    assert heard == [
        ("log", "warning", "db", '{"a": 1}'),
        ("changed", "prompts"),
        ("resource", "file:///x"),
        ("log", "info", None, "two"),
        ("changed", "resources"),
        ("changed", "tools"),
    ]


async def test_a_hook_that_raises_costs_nothing_but_itself(autojump_clock: MockClock) -> None:
    async def broken(*_said: Any) -> None:
        raise ValueError("a fault of the host's")

    fake = FakeServer(era="legacy").tool("t", do.log("x"), do.changed(), do.reply("done"))
    async with session_with(fake, hooks=SessionHooks(on_log=broken, on_list_changed=broken)) as session:
        assert (await _call(session, "t"))["content"][0]["text"] == "done"


async def test_listening_is_agreed_upon_and_then_tells_each_change(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="modern").tool("t", do.changed(), do.reply("done"))
    heard: list[str] = []
    changed = trio.Event()

    async def listening() -> None:
        heard.append("listening")

    async def note(kind: str) -> None:
        heard.append(kind)
        changed.set()

    async with session_with(fake) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.listen, note, listening)
        await trio.testing.wait_all_tasks_blocked()
        assert heard == ["listening"]
        await _call(session, "t")
        with trio.fail_after(5):
            await changed.wait()
        assert heard == ["listening", "tools"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fake", [FakeServer(era="legacy"), FakeServer(era="modern", capabilities={"tools": {}})])
async def test_nobody_listens_where_nothing_would_be_told(fake: FakeServer, autojump_clock: MockClock) -> None:
    async with session_with(fake) as session:
        with trio.fail_after(5):
            await session.listen(_nobody)
        assert "subscriptions/listen" not in methods(fake)


async def test_what_is_not_advertised_is_not_offered(autojump_clock: MockClock) -> None:
    eras: tuple[Literal["legacy", "modern"], ...] = ("legacy", "modern")
    for era in eras:
        async with session_with(FakeServer(era=era, capabilities={"prompts": {}})) as session:
            assert [session.offers(kind) for kind in ("tools", "resources", "prompts")] == [False, False, True]
