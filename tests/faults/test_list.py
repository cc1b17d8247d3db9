"""Lists without an end, and lists that change while a server runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from openprogram_mcp.client._catalogs import Catalogs
from openprogram_mcp.client._changes import Changes
from openprogram_mcp.client._connection import Connection, protocol
from openprogram_mcp.client._listening import Listening
from openprogram_mcp.errors import UnknownTool
from openprogram_mcp.events import EventBus, ServerLog, StatusChanged, ToolsChanged
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of, until
from tests._sessions import session_with
from tests.faults._host import hosting

ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
EIGHT = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(8)]


async def tools_changed(manager: MCPManager, since: int = 0) -> ToolsChanged:
    """The next change of tools after an event."""
    with trio.fail_after(10), manager.events.subscribe(since) as events:
        async for record in events:
            if isinstance(record.event, ToolsChanged):
                return record.event
    raise AssertionError("the events have ended")


async def test_list_02_a_server_whose_list_never_ends_is_usable_and_warns() -> None:
    fake = FakeServer().on("tools/list", do.result({"tools": EIGHT, "nextCursor": "p1"}))
    for number in range(8):
        fake.tool(f"t{number}")
    async with hosting({"f": fake}) as manager:
        row = manager.server("f")
        assert row.tools == tuple(f"f__t{number}" for number in range(8))
        assert "tools/list does not come to an end; what came so far is used" in row.warnings
        assert (await manager.call_tool("f__t7")).text == "{}"


@ERAS
async def test_list_05_a_changed_list_replaces_the_old_one_and_is_told(era: Any) -> None:
    fake = FakeServer(era=era).tool("old").tool("stays").tool("new", hidden=True)
    fake.tool("change", do.hide("old"), do.show("new"), do.changed(), do.reply("changed"))
    async with hosting({"f": fake}) as manager:
        before, version, last = manager.registry.snapshot(), manager.registry.version, manager.events.last_id
        held = before.tools["f__old"]
        assert (await manager.call_tool("f__change")).text == "changed"
        told = await tools_changed(manager, last)
        assert (told.server, told.added, told.removed, told.changed) == ("f", ("f__new",), ("f__old",), ())
        assert told.version == manager.registry.version == version + 1, "in one step"
        assert manager.registry.names() == ["f__change", "f__new", "f__stays"]
        assert manager.server("f").tools == ("f__change", "f__new", "f__stays")
        assert "f__old" in before.tools, "whoever holds a picture of the moment before keeps it"
        assert (await manager.call_tool("f__new")).text == "{}"
        with pytest.raises(UnknownTool):
            await manager.call_tool("f__old")
        result = await held.execute({})
        assert result.is_error
        assert "offers f__old no longer" in result.text
        assert [call.tool for call in fake.calls()] == ["change", "new"]


async def test_list_05_a_change_is_honoured_though_the_server_did_not_say_that_it_tells_them() -> None:
    fake = FakeServer(era="legacy", capabilities={"tools": {}}).tool("new", hidden=True)
    fake.tool("change", do.show("new"), do.changed(), do.reply("changed"))
    async with hosting({"f": fake}) as manager:
        last = manager.events.last_id
        await manager.call_tool("f__change")
        assert (await tools_changed(manager, last)).added == ("f__new",)


async def test_list_05_what_the_configuration_filters_out_stays_out_when_the_list_changes() -> None:
    fake = FakeServer(era="legacy").tool("read_a").tool("read_b", hidden=True).tool("drop_b", hidden=True)
    fake.tool("read_change", do.show("read_b", "drop_b"), do.changed(), do.reply("changed"))
    async with hosting({"f": fake.config(allow=["read_*", "drop_b"], deny=["drop_*"])}) as manager:
        last = manager.events.last_id
        await manager.call_tool("f__read_change")
        assert (await tools_changed(manager, last)).added == ("f__read_b",)
        with pytest.raises(UnknownTool):
            await manager.call_tool("f__drop_b")


@ERAS
async def test_a_tool_that_changes_in_place_is_told_as_changed(era: Any) -> None:
    one = {"name": "t", "description": "one", "inputSchema": {"type": "object"}}
    two = {**one, "description": "two"}
    fake = FakeServer(era=era).tool("t", do.changed(), do.reply("done"))
    fake.on("tools/list", do.turns([do.standard({"tools": [one]})], [do.standard({"tools": [two]})]))
    async with hosting({"f": fake}) as manager:
        last = manager.events.last_id
        await manager.call_tool("f__t")
        told = await tools_changed(manager, last)
        assert (told.added, told.removed, told.changed) == ((), (), ("f__t",))
        assert manager.registry["f__t"].description == "two"


async def test_spec_09_a_list_in_another_order_is_no_change() -> None:
    fake = FakeServer(era="legacy", shuffled=True)
    for number in range(8):
        fake.tool(f"t{number}")
    fake.tool("t8", do.changed(), do.reply("done"))
    async with hosting({"f": fake}) as manager:
        version = manager.registry.version
        await manager.call_tool("f__t8")
        await fake.wait_for("end", method="tools/list", count=2)
        await wait_all_tasks_blocked()
        assert manager.registry.version == version
        assert len(events_of(manager.events, ToolsChanged)) == 1


async def test_a_change_before_the_server_has_agreed_to_tell_changes_is_not_missed() -> None:
    # It agrees late, and changes its list in between.
    fake = FakeServer(era="modern").tool("old").tool("new", hidden=True).on_signal("SIGUSR1")
    fake.on("subscriptions/listen", do.wait("SIGUSR1"), do.show("new"), do.standard())
    async with hosting({"f": fake}) as manager:
        assert manager.registry.names() == ["f__old"]
        last = manager.events.last_id
        fake.send_signal("SIGUSR1")
        assert (await tools_changed(manager, last)).added == ("f__new",)


async def test_listening_comes_before_the_tools_are_read_and_costs_no_second_reading() -> None:
    fake = FakeServer(era="modern").tool("t")
    async with hosting({"f": fake}) as manager:
        await wait_all_tasks_blocked()
        await manager.call_tool("f__t")
        methods = [message["method"] for message in fake.received()]
        assert methods == ["server/discover", "subscriptions/listen", "tools/list", "tools/call"]


@pytest.mark.parametrize(
    "steps", [[do.fail(-32601, "no")], [do.result({})], []], ids=["refused", "ended at once", "never answered"]
)
async def test_a_server_that_does_not_let_us_listen_is_usable(steps: Any) -> None:
    fake = FakeServer(era="modern").tool("t").on("subscriptions/listen", *steps)
    async with hosting({"f": fake}) as manager:
        assert manager.server("f").ready
        assert (await manager.call_tool("f__t")).text == "{}"


async def test_a_stream_of_changes_that_ends_is_opened_anew_and_what_was_missed_is_read() -> None:
    fake = FakeServer(era="modern").tool("old").tool("new", hidden=True)
    fake.tool("drop", do.end_listening(), do.show("new"), do.reply("dropped"))
    async with hosting({"f": fake}) as manager:
        last = manager.events.last_id
        await manager.call_tool("f__drop")
        assert (await tools_changed(manager, last)).added == ("f__new",)
        assert len(fake.received("subscriptions/listen")) >= 2


class _Stream:
    """A stream of changes, as the session opens it, of a server that does with it what it is told."""

    def __init__(self, *outcomes: Any) -> None:
        self.opened: list[float] = []
        self._outcomes = list(outcomes)

    async def listen(self, agreed: Callable[[], Any]) -> None:
        self.opened.append(trio.current_time())
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            await agreed()
            await trio.sleep(outcome)


async def _listen(stream: _Stream, seconds: float, *, late: bool = False) -> tuple[list[float], list[str]]:
    """Listen for so long; when something was missed, and what was logged."""
    missed: list[float] = []
    logged: list[str] = []

    async def note() -> None:
        missed.append(trio.current_time())

    listening = Listening(
        stream.listen, note, lambda _level, text: logged.append(text), late=late, uniform=lambda _low, high: high
    )
    with trio.move_on_after(seconds):
        await listening.run()
    assert listening.settled.is_set()
    return missed, logged


@pytest.mark.parametrize("outcome", [0.0, None, protocol().MCPError(-32603, "busy")], ids=["ends", "declines", "fails"])
async def test_a_stream_that_never_holds_is_opened_ever_more_slowly(outcome: Any, autojump_clock: MockClock) -> None:
    stream = _Stream(outcome)
    missed, logged = await _listen(stream, 600)
    gaps = [later - earlier for earlier, later in zip(stream.opened, stream.opened[1:], strict=False)]
    assert gaps[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    assert max(gaps) == pytest.approx(60)
    assert len(missed) == (len(stream.opened) - 1 if outcome == 0.0 else 0)
    assert len(logged) == (0 if outcome == 0.0 else 1), "it is said once"


async def test_a_stream_that_held_for_long_is_opened_soon(autojump_clock: MockClock) -> None:
    stream = _Stream(0.0, 0.0, 0.0, 0.0, 40.0)
    await _listen(stream, 100)
    gaps = [later - earlier for earlier, later in zip(stream.opened, stream.opened[1:], strict=False)]
    assert gaps == pytest.approx([0.1, 0.2, 0.4, 0.8, 40.1, 40.1])


async def test_a_server_that_cannot_be_listened_to_is_asked_once(autojump_clock: MockClock) -> None:
    stream = _Stream(protocol().MCPError(-32601, "no"))
    missed, logged = await _listen(stream, 600)
    assert (len(stream.opened), missed, len(logged)) == (1, [], 1)


async def test_the_end_of_a_connection_ends_the_listening_in_silence(autojump_clock: MockClock) -> None:
    stream = _Stream(0.0, protocol().ConnectionClosed())
    _missed, logged = await _listen(stream, 600)
    assert (len(stream.opened), logged) == (2, [])


async def test_who_looked_before_the_first_agreement_is_told_that_something_may_be_missed(
    autojump_clock: MockClock,
) -> None:
    assert (await _listen(_Stream(50.0), 10, late=True))[0] == [0.0]
    assert (await _listen(_Stream(50.0), 10))[0] == []


@pytest.mark.parametrize("ttl", [{}, {"ttlMs": -5}, {"ttlMs": "x"}, {"ttlMs": 0}], ids=str)
async def test_list_07_tools_without_a_good_time_to_live_are_read_anew_when_their_list_is_used(ttl: Any) -> None:
    # It changes its list and does not say so.
    fake = FakeServer(era="modern").tool("old").tool("new").tool("newer").tool("newest")
    lists = [["old"], ["old", "new"], ["old", "newer"], ["old", "newest"]]
    fake.on("tools/list", do.turns(*([do.result({"tools": [_tool(name) for name in one], **ttl})] for one in lists)))
    async with hosting({"f": fake}) as manager:
        await wait_all_tasks_blocked(0.3)
        assert len(fake.received("tools/list")) == 1, "it is used, not polled"
        assert (await manager.call_tool("f__old")).text == "{}"
        assert len(fake.received("tools/list")) == 1, "a call of a tool that is there is no use of the list"
        # A name that is not in the list: that is looked for in a new one.
        assert (await manager.call_tool("f__new")).text == "{}"
        assert len(fake.received("tools/list")) == 2
        # Who waits for a list that is true now.
        await manager.freshen_tools()
        assert manager.registry.names() == ["f__newer", "f__old"]
        # A model's turn does not wait: the next one has what comes of it.
        last, turn = manager.events.last_id, manager.registry.snapshot()
        assert (await tools_changed(manager, last)).added == ("f__newest",)
        assert list(turn.tools) == ["f__newer", "f__old"]
        assert len(fake.received("tools/list")) == 4


async def test_list_07_tools_that_live_for_long_are_read_anew_only_when_the_server_says_so() -> None:
    lives = {"ttlMs": 3_600_000, "cacheScope": "private", "resultType": "complete"}
    fake = FakeServer(era="modern").tool("new").tool("change", do.changed(), do.reply("changed"))
    lists = [["change"], ["change", "new"]]
    fake.on("tools/list", do.turns(*([do.result({"tools": [_tool(name) for name in one], **lives})] for one in lists)))
    async with hosting({"f": fake}) as manager:
        manager.registry.snapshot()
        await manager.freshen_tools()
        with pytest.raises(UnknownTool):
            await manager.call_tool("f__new")
        assert len(fake.received("tools/list")) == 1
        last = manager.events.last_id
        await manager.call_tool("f__change")
        assert (await tools_changed(manager, last)).added == ("f__new",)
        assert len(fake.received("tools/list")) == 2


async def test_list_07_an_older_server_is_not_asked_again_until_it_says_so() -> None:
    fake = FakeServer(era="legacy", capabilities={"tools": {}}).tool("old")
    async with hosting({"f": fake}) as manager:
        manager.registry.openai()
        await manager.freshen_tools()
        with pytest.raises(UnknownTool):
            await manager.call_tool("f__new")
        assert len(fake.received("tools/list")) == 1


async def test_list_07_a_list_lives_for_as_long_as_the_server_says(autojump_clock: MockClock) -> None:
    fake = FakeServer(era="modern").on("tools/list", do.result({"tools": [_tool("t")], "ttlMs": 60_000}))
    async with session_with(fake) as session:
        process: Any = None
        connection = Connection(1, session, process, fake.server_config())
        catalogs = _catalogs(EventBus())
        async with trio.open_nursery() as nursery:
            await connection.read_tools()
            nursery.start_soon(catalogs.follow, connection)
            await wait_all_tasks_blocked()
            for seconds, readings in ((30, 1), (29, 1), (2, 2), (59, 2), (2, 3)):
                await trio.sleep(seconds)
                await catalogs.freshen(1)
                await catalogs.freshen(1)
                assert len(fake.received("tools/list")) == readings
            nursery.cancel_scope.cancel()


def _tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


def _catalogs(bus: EventBus) -> Catalogs:
    """The lists of a server without a life around them."""
    inquiries: Any = None
    return Catalogs(
        lambda: FakeServer().server_config(),
        bus,
        inquiries,
        lambda _level, _text: None,
        lambda text: text,
        lambda _connection: None,
        lambda: None,
    )


async def test_a_list_that_cannot_be_read_in_time_is_not_waited_for_for_long() -> None:
    fake = FakeServer(era="modern").tool("t").on("tools/list", do.turns([do.standard()], [do.hang()]))
    async with hosting({"f": fake}) as manager:
        with trio.fail_after(5):
            await manager.freshen_tools(0.05)
        assert manager.registry.names() == ["f__t"]
        assert (await manager.call_tool("f__t")).text == "{}"


@ERAS
@pytest.mark.parametrize(
    "failure",
    [do.fail(-32603, "busy"), do.result({}), do.result({"tools": 7})],
    ids=["an error", "no list", "a number"],
)
async def test_time_08_a_reading_that_fails_keeps_the_old_list_and_is_repeated(failure: Any, era: Any) -> None:
    fake = FakeServer(era=era).tool("old").tool("new", hidden=True)
    fake.tool("change", do.show("new"), do.changed(), do.reply("changed"))
    fake.on("tools/list", do.turns([do.standard()], [failure], [do.standard()]))
    async with hosting({"f": fake}) as manager:
        last = manager.events.last_id
        await manager.call_tool("f__change")
        await fake.wait_for("end", method="tools/list", count=2)
        await wait_all_tasks_blocked()
        assert manager.registry.names() == ["f__change", "f__old"], "the last good list stays"
        assert (await manager.call_tool("f__old")).text == "{}"
        assert (await tools_changed(manager, last)).added == ("f__new",)
        logs = [event.text for event in events_of(manager.events, ServerLog)]
        assert "its tools could not be read anew; the old list stays" in logs
        assert manager.server("f").ready


async def test_time_08_a_reading_that_takes_too_long_keeps_the_old_list_and_says_that_it_may_be_old() -> None:
    # It serves one request at a time, and the first call keeps it busy.
    fake = FakeServer(era="legacy", single_threaded=True).tool("old")
    fake.tool("busy", do.changed(), do.sleep(0.6), do.reply("done"))
    entry = fake.config(startup_timeout_seconds=0.3, call_timeout_seconds=0.1)
    async with hosting({"f": entry}) as manager:
        with pytest.raises(Exception, match="nothing was heard"):
            await manager.call_tool("f__busy")
        with trio.fail_after(10), manager.events.subscribe(0) as events:
            async for record in events:
                if isinstance(record.event, ServerLog) and "took too long" in record.event.text:
                    break
        assert manager.registry.names() == ["f__busy", "f__old"]
        assert manager.server("f").ready
        stale = "its list of tools could not be read anew; what is offered may be out of date"
        await until(manager, "f", ServerState.CONNECTED, where=lambda row: stale in row.warnings)
        # It is tried again until it goes well; the tools can be called all the while.
        await until(manager, "f", ServerState.CONNECTED, where=lambda row: stale not in row.warnings)
        assert (await manager.call_tool("f__old")).text == "{}"


# How often a list is read that changes without end.


class _Noisy:
    """A connection whose server says at each reading that its list has changed."""

    def __init__(self, told: Callable[[], None]) -> None:
        self.readings: list[float] = []
        self._told = told

    async def read_tools(self) -> None:
        self.readings.append(trio.current_time())
        self._told()


async def test_list_04_a_server_that_changes_at_each_reading_is_read_ever_more_slowly(
    autojump_clock: MockClock,
) -> None:
    changes = Changes(lambda _connection: None, lambda _level, _text: None, lambda: 30.0)
    noisy: Any = _Noisy(changes.told)
    with trio.move_on_after(600):
        changes.told()
        noisy.readings.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes.follow, noisy)
            await trio.sleep(10)
            assert changes.warnings == ("its list of tools changes all the time; it is read anew now and then only",)
            await trio.sleep_forever()
    assert changes.warnings == ()
    gaps = [later - earlier for earlier, later in zip(noisy.readings, noisy.readings[1:], strict=False)]
    assert gaps[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert max(gaps) == pytest.approx(30)
    assert len(gaps) < 30


@ERAS
async def test_list_04_a_server_that_answers_a_list_with_another_change_is_asked_seldom(era: Any) -> None:
    fake = FakeServer(era=era).tool("a").tool("b")
    one, other = ([do.changed(), do.standard({"tools": [_tool(name)]})] for name in "ab")
    fake.on("tools/list", do.turns(*[one, other] * 50))
    async with hosting({"f": fake}) as manager:
        asked = [record.time for record in await fake.wait_for("received", method="tools/list", count=6)]
        # The first two at once, then after 0.1, 0.2, 0.4 and 0.8 seconds.
        assert asked[5] - asked[4] > 0.7
        assert len(manager.registry.names()) == 1
        assert manager.server("f").ready


async def test_a_server_that_has_become_quiet_is_read_at_once_again(autojump_clock: MockClock) -> None:
    readings: list[float] = []

    class Quiet:
        async def read_tools(self) -> None:
            readings.append(trio.current_time())

    changes = Changes(lambda _connection: None, lambda _level, _text: None, lambda: 30.0)
    quiet: Any = Quiet()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.follow, quiet)
        for moment in (1.0, 1.05, 1.06, 5.0, 5.05, 9.0):
            await trio.sleep_until(moment)
            changes.told()
        await trio.sleep_until(20)
        nursery.cancel_scope.cancel()
    assert readings == pytest.approx([1.0, 1.1, 5.0, 5.1, 9.0]), "what comes in a burst is one reading more"


async def test_a_reading_that_fails_is_repeated_ever_more_slowly(autojump_clock: MockClock) -> None:
    readings: list[float] = []
    logged: list[str] = []

    class Refusing:
        async def read_tools(self) -> None:
            readings.append(trio.current_time())
            raise protocol().MCPError(-32603, "busy")

    changes = Changes(lambda _connection: None, lambda _level, text: logged.append(text), lambda: 30.0)
    refusing: Any = Refusing()
    with trio.move_on_after(10):
        changes.told()
        await changes.follow(refusing)
    assert readings[:4] == pytest.approx([0, 0.1, 0.3, 0.7])
    assert len(logged) == len(readings)


async def test_the_end_of_a_connection_is_no_failed_reading() -> None:
    logged: list[str] = []

    class Closed:
        async def read_tools(self) -> None:
            raise protocol().ConnectionClosed

    changes = Changes(lambda _connection: None, lambda _level, text: logged.append(text), lambda: 30.0)
    closed: Any = Closed()
    assert not await changes.read(closed)
    assert logged == []


async def test_a_fault_of_ours_in_a_reading_is_not_taken_for_the_servers() -> None:
    class Broken:
        async def read_tools(self) -> None:
            raise ZeroDivisionError

    changes = Changes(lambda _connection: None, lambda _level, _text: None, lambda: 30.0)
    broken: Any = Broken()
    with pytest.raises(ZeroDivisionError):
        await changes.read(broken)


async def test_a_change_of_tools_is_a_change_of_status_too() -> None:
    fake = FakeServer(era="legacy").tool("new", hidden=True)
    fake.tool("change", do.show("new"), do.changed(), do.reply("changed"))
    async with hosting({"f": fake}) as manager:
        version, last = manager.status_version, manager.events.last_id
        await manager.call_tool("f__change")
        await tools_changed(manager, last)
        assert manager.status_version == version + 1
        assert events_of(manager.events, StatusChanged)[-1].status.tools == ("f__change", "f__new")
