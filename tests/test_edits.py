"""Make before break: an edit that does not come up changes nothing, and one that does costs no call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from openprogram_mcp import MCPManager, MCPServerConfig, ServerState
from openprogram_mcp.client import MCPClient
from openprogram_mcp.errors import (
    ConfigError,
    NotConnected,
    ReadOnly,
    RevisionConflict,
    ServerFailed,
    StorageError,
    UnknownServer,
)
from openprogram_mcp.events import ConfigChanged, StatusChanged, ToolCallEnded, ToolsChanged
from openprogram_mcp.manager import _file
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of, living, managed, started, until

_S = ServerState


def write(file: Path, servers: Mapping[str, Any]) -> None:
    file.write_text(json.dumps({"servers": servers}))


def content(file: Path) -> bytes:
    return file.read_bytes()


async def gone(fake: FakeServer) -> None:
    """Wait until none of its processes is left."""
    with trio.fail_after(5):
        while fake.alive():  # noqa: ASYNC110 - the system tells nobody when a process that is not ours to wait for ends
            await trio.sleep(0.01)


def entry(file: Path, name: str) -> Any:
    return json.loads(file.read_text())["servers"].get(name)


def config(fake: FakeServer, name: str = "a", **more: Any) -> MCPServerConfig:
    return fake.server_config(name, **more)


def states(manager: MCPManager) -> list[str]:
    return [str(event.status.status) for event in events_of(manager.events, StatusChanged)]


async def test_an_edit_starts_the_new_server_beside_the_old_one_and_then_calls_move_over(file: Path) -> None:
    old, new = FakeServer(version="1").tool("t"), FakeServer(version="2").tool("t").tool("more")
    write(file, {"a": old.config()})
    async with managed() as manager:
        await started(manager)
        assert (await manager.call_tool("a__t")).text == "{}"
        seen = len(states(manager))
        row = await manager.update("a", config(new))
        assert (row.status, row.generation, row.server_info) == (_S.CONNECTED, 2, {"name": "fake", "version": "2"})
        assert row.tools == ("a__more", "a__t")
        assert (await manager.call_tool("a__more")).text == "{}"
        assert entry(file, "a")["command"] == new.config()["command"]
        await gone(old)
        assert "starting" not in states(manager)[seen:], "for whoever looks it was connected all the time"
        assert len(events_of(manager.events, ConfigChanged)) == 1
    assert (len(old.calls()), len(new.calls())) == (1, 1)


@pytest.mark.parametrize(
    "broken", ["a program that is missing", "one that dies", "one that never answers", "a variable"]
)
async def test_what_does_not_come_up_changes_neither_the_file_nor_the_server(broken: str, file: Path) -> None:
    old = FakeServer(version="1").tool("t")
    bad: dict[str, MCPServerConfig] = {
        "a program that is missing": MCPServerConfig(name="a", command=("/no/such/program",)),
        "one that dies": config(FakeServer().on_start(do.stderr("no\n"), do.exit(3))),
        "one that never answers": config(
            FakeServer().on_start(do.hang()), startup_timeout_seconds=0.3, stop_timeout_seconds=0.2
        ),
        "a variable": config(FakeServer(), env={"X": "${NO_SUCH_VARIABLE}"}),
    }
    write(file, {"a": old.config()})
    before = content(file)
    async with managed() as manager:
        await started(manager)
        seen = len(states(manager))
        with pytest.raises(ConfigError if broken == "a variable" else ServerFailed) as failed:
            await manager.update("a", bad[broken])
        assert failed.value.server == "a"
        assert content(file) == before
        row = manager.server("a")
        assert (row.status, row.generation, row.error) == (_S.CONNECTED, 1, None)
        assert (await manager.call_tool("a__t")).text == "{}"
        assert len(states(manager)) == seen, "nobody was told of anything"
        assert old.starts == 1


async def test_an_edit_that_changes_nothing_real_reconnects_nothing(file: Path) -> None:
    fake = FakeServer().tool("t").tool("hidden")
    write(file, {"a": fake.config()})
    async with managed() as manager:
        await started(manager)
        row = await manager.update("a", {"description": "better", "call_timeout_seconds": 7, "max_concurrency": 2})
        assert (row.generation, row.description) == (1, "better")
        assert (entry(file, "a")["description"], entry(file, "a")["call_timeout_seconds"]) == ("better", 7)
        assert fake.starts == 1


async def test_calls_that_run_come_to_their_end_on_the_old_server(file: Path) -> None:
    old = FakeServer(version="1").on_signal("SIGUSR1").tool("t", do.wait("SIGUSR1"), do.reply("old"), read_only=True)
    new = FakeServer(version="2").tool("t", do.reply("new"), read_only=True)
    write(file, {"a": old.config()})
    said: list[str] = []
    async with managed() as manager:
        await started(manager)

        async def call() -> None:
            said.append((await manager.call_tool("a__t")).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await old.wait_for("begin", method="tools/call")
            await manager.update("a", config(new))
            assert (await manager.call_tool("a__t")).text == "new"
            assert old.alive(), "it has a call"
            old.send_signal("SIGUSR1")
        assert said == ["old"]
        await gone(old)
    assert [event.outcome for event in events_of(manager.events, ToolCallEnded)] == ["ok", "ok"]


async def test_a_call_that_must_run_alone_waits_for_one_that_still_runs_on_the_old_server(file: Path) -> None:
    old = FakeServer().on_signal("SIGUSR1").tool("write", do.wait("SIGUSR1"), do.note("done"), do.reply("old"))
    new = FakeServer().tool("write", do.reply("new"))
    write(file, {"a": old.config()})
    async with managed() as manager, trio.open_nursery() as nursery:
        await started(manager)
        nursery.start_soon(manager.call_tool, "a__write")
        await old.wait_for("begin", method="tools/call")
        await manager.update("a", config(new))
        nursery.start_soon(manager.call_tool, "a__write")
        await wait_all_tasks_blocked()
        assert (manager.server("a").in_flight, manager.server("a").queued) == (1, 1)
        assert new.calls() == []
        old.send_signal("SIGUSR1")
        await new.wait_for("end", method="tools/call")
    (done,), (second,) = old.records("note"), new.calls()
    assert done.time <= second.began


async def test_the_file_is_written_only_when_the_new_server_is_up(file: Path) -> None:
    old = FakeServer(version="1")
    new = FakeServer(era="legacy").on_signal("SIGUSR1", do.wake("go")).on("initialize", do.wait("go"), do.standard())
    write(file, {"a": old.config()})
    before = content(file)
    async with managed() as manager, trio.open_nursery() as nursery:
        await started(manager)
        nursery.start_soon(manager.update, "a", config(new, era="legacy"))
        await new.wait_for("received", method="initialize")
        assert content(file) == before
        assert manager.server("a").status is _S.CONNECTED
        new.send_signal("SIGUSR1")
    assert content(file) != before


async def test_a_save_that_fails_puts_the_new_server_away(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = FakeServer(version="1"), FakeServer(version="2")
    write(file, {"a": old.config()})
    before = content(file)

    def refuse(_document: Any) -> Any:
        raise StorageError("the disk is full")

    async with managed() as manager:
        await started(manager)
        monkeypatch.setattr(_file, "save_document", refuse)
        with pytest.raises(StorageError, match="the disk is full"):
            await manager.update("a", config(new))
        row = manager.server("a")
        assert (row.generation, row.server_info) == (1, {"name": "fake", "version": "1"})
        await gone(new)
        assert old.alive()
    assert content(file) == before


@pytest.mark.parametrize("what", ["the revision", "the entry"])
async def test_of_two_edits_at_once_the_loser_is_told_and_the_servers_follow_the_file(what: str, file: Path) -> None:
    old, loser = FakeServer(version="1"), FakeServer(version="2", era="legacy")
    loser.on_signal("SIGUSR1", do.wake("go")).on("initialize", do.wait("go"), do.standard())
    winner = FakeServer(version="3")
    write(file, {"a": old.config(), "b": FakeServer().config()})
    async with managed() as manager:
        await started(manager)
        revision = manager.document.revision if what == "the revision" else None
        errors: list[Exception] = []

        edited = config(loser, era="legacy")

        async def lose() -> None:
            try:
                await manager.update("a", edited, revision=revision)
            except RevisionConflict as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            await loser.wait_for("received", method="initialize")
            if what == "the revision":
                await manager.update("b", {"description": "x"})
            else:
                write(file, {"a": winner.config(), "b": FakeServer().config()})
                await manager.restart("b")
            loser.send_signal("SIGUSR1")
        assert len(errors) == 1
        await gone(loser)
        expected = "1" if what == "the revision" else "3"
        await until(
            manager, "a", _S.CONNECTED, where=lambda row: row.server_info == {"name": "fake", "version": expected}
        )


async def test_a_caller_who_goes_away_takes_the_edit_back(file: Path) -> None:
    old, new = FakeServer(version="1").tool("t"), FakeServer().on_start(do.hang())
    write(file, {"a": old.config()})
    before = content(file)
    async with managed() as manager:
        await started(manager)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.update, "a", config(new, stop_timeout_seconds=0.2))
            await new.wait_for("start")
            nursery.cancel_scope.cancel()
        assert new.alive() == []
        assert (await manager.call_tool("a__t")).text == "{}"
        assert manager.server("a").generation == 1
        # And nothing is in the way of the next one.
        assert (await manager.update("a", config(FakeServer(version="3")))).server_info == {
            "name": "fake",
            "version": "3",
        }
    assert content(file) != before


@pytest.mark.parametrize("command", ["restart", "disconnect", "disable", "remove"])
async def test_a_command_is_obeyed_at_once_and_the_edit_under_way_is_not_made(command: str, file: Path) -> None:
    old, new = FakeServer(version="1"), FakeServer().on_start(do.hang())
    write(file, {"a": old.config()})
    told: list[Exception] = []
    async with managed() as manager:
        await started(manager)

        edited = config(new, stop_timeout_seconds=0.2)

        async def edit() -> None:
            try:
                await manager.update("a", edited)
            except (RevisionConflict, NotConnected) as error:
                told.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(edit)
            await new.wait_for("start")
            if command in ("disable", "remove"):
                # These wait for their turn among the edits of this server; the file says it at once.
                write(file, {"a": {**old.config(), "enabled": False}} if command == "disable" else {})
            else:
                await getattr(manager, command)("a")
        assert len(told) == 1
        assert new.alive() == []
        if command == "restart":
            assert manager.server("a").generation >= 2
            assert manager.server("a").server_info == {"name": "fake", "version": "1"}
        elif command == "remove":
            with trio.fail_after(5), manager.events.subscribe() as events:
                while "a" in manager.status():
                    await anext(events)
        else:
            wanted = _S.DISABLED if command == "disable" else _S.DISCONNECTED
            assert (await until(manager, "a", wanted)).pid is None


async def test_one_that_cannot_run_twice_is_stopped_first_and_its_calls_wait(file: Path) -> None:
    old = FakeServer(version="1").tool("t", do.reply("old"))
    new = FakeServer(version="2").tool("t", do.reply("new"))
    write(file, {"a": old.config(stop_first=True)})
    async with managed() as manager:
        await started(manager)
        row = await manager.update("a", config(new, stop_first=True))
        assert (row.status, row.server_info) == (_S.CONNECTED, {"name": "fake", "version": "2"})
        assert (await manager.call_tool("a__t")).text == "new"
    (ended,) = old.records("exit") or old.records("eof")[:1]
    assert ended.time <= new.records("start")[0].time


async def test_one_that_was_stopped_first_comes_back_when_the_edit_does_not_come_up(file: Path) -> None:
    old, new = FakeServer(version="1").tool("t"), FakeServer().on_start(do.exit(3))
    write(file, {"a": old.config(stop_first=True)})
    before = content(file)
    async with managed() as manager:
        await started(manager)
        with pytest.raises(ServerFailed):
            await manager.update("a", config(new, stop_first=True))
        await until(manager, "a", _S.CONNECTED)
        assert (await manager.call_tool("a__t")).text == "{}"
        assert old.starts == 2
    assert content(file) == before


@pytest.mark.parametrize("state", ["failed", "reconnecting", "disconnected", "disabled", "starting"])
async def test_an_edit_is_made_in_whatever_state_the_server_is(state: str, file: Path) -> None:
    new = FakeServer(version="2").tool("t")
    slow = {"reconnect": {"initial_seconds": 60}}
    old = FakeServer(version="1").tool("die", do.exit(1))
    if state == "failed":
        old.on_start(do.exit(3))
    if state == "starting":
        old.on_start(do.hang())
    write(file, {"a": {**old.config(**slow, stop_timeout_seconds=0.2), "enabled": state != "disabled"}})
    async with managed() as manager:
        if state == "starting":
            await old.wait_for("start")
        else:
            await started(manager)
        if state == "reconnecting":
            with pytest.raises(Exception, match="lost"):
                await manager.call_tool("a__die")
        if state == "disconnected":
            await manager.disconnect("a")
        await until(manager, "a", _S(state))
        await manager.update("a", config(new))
        if state == "disconnected":
            assert manager.server("a").status is _S.DISCONNECTED, "somebody wants it down"
            await manager.connect("a")
        row = await until(manager, "a", _S.CONNECTED)
        assert row.server_info == {"name": "fake", "version": "2"}
        assert (await manager.call_tool("a__t")).text == "{}"
        assert entry(file, "a")["command"] == new.config()["command"]
    assert old.alive() == new.alive() == []


async def test_what_is_switched_off_is_saved_unstarted_and_what_is_forced_though_it_does_not_come_up(
    file: Path,
) -> None:
    old, never, broken = FakeServer().tool("t"), FakeServer(), FakeServer().on_start(do.exit(3))
    write(file, {"a": old.config()})
    async with managed() as manager:
        await started(manager)
        row = await manager.update("a", config(never, enabled=False))
        assert row.status in (_S.CONNECTED, _S.DISABLED)
        await until(manager, "a", _S.DISABLED)
        assert (never.starts, entry(file, "a")["enabled"]) == (0, False)
        await manager.update("a", config(broken, reconnect=False), force=True)
        row = await until(manager, "a", _S.FAILED)
        assert row.exit_code == 3
        assert entry(file, "a")["command"] == broken.config()["command"]


async def test_a_patch_keeps_what_it_leaves_out_and_is_made_of_what_the_file_says_now(file: Path) -> None:
    fake = FakeServer().tool("t")
    write(file, {"a": fake.config(env={"KEY": "hush-1234"}, description="one")})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": fake.config(env={"KEY": "hush-1234"}, description="two")})
        await manager.update("a", {"env": {"MORE": "1"}})
        saved = entry(file, "a")
        assert saved["env"] == {"KEY": "hush-1234", "MORE": "1"}
        assert saved["description"] == "two"


async def test_what_cannot_be_edited_is_said(file: Path) -> None:
    write(file, {"a": FakeServer().config()})
    async with managed() as manager:
        await started(manager)
        with pytest.raises(UnknownServer):
            await manager.update("b", {"description": "x"})
        with pytest.raises(ConfigError, match="cannot be renamed"):
            await manager.update("a", config(FakeServer(), "b"))
        with pytest.raises(ConfigError):
            await manager.update("a", {"timeout_seconds": -1})
    async with managed(read_only=True) as manager:
        with pytest.raises(ReadOnly):
            await manager.update("a", {"description": "x"})


async def test_an_entry_that_was_wrong_becomes_a_server_by_an_edit(file: Path) -> None:
    fake = FakeServer().tool("t")
    write(file, {"a": {"command": 7}})
    async with managed() as manager:
        await started(manager)
        assert manager.server("a").phase == "config"
        row = await manager.update("a", fake.config())
        assert (row.status, row.config_error) == (_S.CONNECTED, None)
        assert (await manager.call_tool("a__t")).text == "{}"


async def test_a_configuration_can_be_tried_without_being_saved(file: Path) -> None:
    good, bad = FakeServer(version="9").tool("t"), FakeServer().on_start(do.stderr("no\n"), do.exit(3))
    write(file, {})
    async with managed() as manager:
        await started(manager)
        row = await manager.test(config(good, "new"))
        assert (row.name, row.status, row.tools) == ("new", _S.CONNECTED, ("new__t",))
        row = await manager.test(config(bad, "new"))
        assert (row.status, row.phase, row.exit_code, row.stderr) == (_S.FAILED, "initialize", 3, ("no",))
        assert manager.status() == {}
        assert manager.tools() == []
        assert events_of(manager.events, StatusChanged, ToolsChanged) == []
    assert good.alive() == []
    assert json.loads(content(file)) == {"servers": {}}


async def test_a_server_that_dies_while_it_is_edited_is_replaced_all_the_same(file: Path) -> None:
    old = FakeServer(version="1").tool("die", do.exit(1))
    new = FakeServer(version="2", era="legacy").tool("t")
    new.on_signal("SIGUSR1", do.wake("go")).on("initialize", do.wait("go"), do.standard())
    write(file, {"a": old.config(reconnect={"initial_seconds": 60})})
    async with managed() as manager, trio.open_nursery() as nursery:
        await started(manager)
        nursery.start_soon(manager.update, "a", config(new, era="legacy"))
        await new.wait_for("received", method="initialize")
        with pytest.raises(Exception, match="lost"):
            await manager.call_tool("a__die")
        await until(manager, "a", _S.RECONNECTING)
        new.send_signal("SIGUSR1")
        row = await until(manager, "a", _S.CONNECTED)
        assert row.server_info == {"name": "fake", "version": "2"}
        assert (await manager.call_tool("a__t")).text == "{}"


async def test_a_new_server_that_dies_after_an_edit_is_tried_again_as_any(file: Path) -> None:
    old, new = FakeServer(version="1"), FakeServer(version="2").tool("die", do.exit(1)).tool("t")
    write(file, {"a": old.config()})
    async with managed() as manager:
        await started(manager)
        await manager.update("a", config(new, reconnect={"initial_seconds": 0.05}))
        with pytest.raises(Exception, match="lost"):
            await manager.call_tool("a__die")
        row = await until(manager, "a", _S.CONNECTED, where=lambda row: row.generation == 3)
        assert row.server_info == {"name": "fake", "version": "2"}
        assert (await manager.call_tool("a__t")).text == "{}"


# At the last moment: of one client, without a file.


async def test_a_command_in_the_last_moment_of_an_edit_is_obeyed() -> None:
    old, new = FakeServer(version="1"), FakeServer(version="2")
    async with living(config(old)) as life:
        await life.settled()
        edited = config(new)

        async def save() -> None:
            await trio.lowlevel.checkpoint()
            life.client.disconnect()

        await life.client.edit(edited, edited, save)
        await life.until(_S.DISCONNECTED)
        await gone(old)
        await gone(new)
        life.client.connect()
        assert (await life.settled()).server_info == {"name": "fake", "version": "2"}, "the edit was saved, and stands"


async def test_one_that_is_disabled_in_the_last_moment_of_an_edit_that_enables_it_is_enabled() -> None:
    old, new = FakeServer(version="1"), FakeServer(version="2")
    async with living(config(old)) as life:
        await life.settled()
        edited = config(new)

        async def save() -> None:
            await trio.lowlevel.checkpoint()
            life.client.configure(evolve(life.client.config, enabled=False))

        await life.client.edit(edited, edited, save)
        status = await life.settled()
        assert (status.status, status.enabled) == (_S.CONNECTED, True)
        assert status.server_info == {"name": "fake", "version": "2"}


async def test_a_new_server_that_dies_while_the_edit_is_saved_is_started_anew() -> None:
    old, new = FakeServer(version="1"), FakeServer(version="2").tool("t")
    async with living(config(old, reconnect={"initial_seconds": 0.05})) as life:
        await life.settled()
        edited = config(new, reconnect={"initial_seconds": 0.05})

        async def save() -> None:
            new.send_signal("SIGKILL")
            await gone(new)
            await wait_all_tasks_blocked(0.05)

        await life.client.edit(edited, edited, save)
        await life.until(_S.RECONNECTING)
        await life.until(_S.CONNECTED)
        assert (await life.call("t")).text == "{}"
        assert new.starts == 2


async def test_an_edit_by_hand_that_has_not_begun_is_forgotten_when_the_file_says_something_else() -> None:
    hanging, second = FakeServer().on_start(do.hang()), FakeServer(version="2")
    async with living(config(FakeServer(version="1"))) as life, trio.open_nursery() as nursery:
        await life.settled()
        first, late = config(hanging, stop_timeout_seconds=0.2), config(second)

        async def never() -> None:
            raise AssertionError("it does not come up")

        nursery.start_soon(_expect_conflict, life.client, first, never)
        await hanging.wait_for("start")
        life.client.follow(late, late)
        life.client.configure(evolve(life.client.config, enabled=False))
        await life.until(_S.DISABLED)
    assert (second.starts, hanging.alive()) == (0, [])


async def _expect_conflict(client: MCPClient, edited: MCPServerConfig, save: Any) -> None:
    with pytest.raises(RevisionConflict):
        await client.edit(edited, edited, save)


# Guests: servers that live here and do not stand in the file, as the worker's demonstration server does.


async def test_what_is_added_beside_a_guest_is_saved_and_the_guest_is_not(file: Path) -> None:
    guest, new, by_hand = FakeServer().tool("t"), FakeServer().tool("t"), FakeServer().tool("t")
    async with managed(guests=[config(guest, "guest")]) as manager:
        await started(manager)
        assert (await manager.add(config(new, "new"))).status is _S.CONNECTED
        assert list(json.loads(content(file))["servers"]) == ["new"]
        write(file, {"new": new.config(), "by hand": by_hand.config()})
        await _arrives(manager, "by hand")
        assert list(manager.status()) == ["new", "by hand", "guest"]
        assert (await manager.call_tool("guest__t")).text == "{}"
        assert (guest.starts, new.starts) == (1, 1)
    async with managed() as manager:
        await started(manager)
        assert list(manager.status()) == ["new", "by hand"]


async def _arrives(manager: MCPManager, name: str) -> None:
    with trio.fail_after(15), manager.events.subscribe(since=0) as events:
        while name not in manager.status():
            await anext(events)
    await until(manager, name, _S.CONNECTED)


async def test_a_guest_is_switched_and_removed_without_being_saved(file: Path) -> None:
    guest = FakeServer().tool("t")
    async with managed(guests=[config(guest, "guest")]) as manager:
        await started(manager)
        assert (await manager.disable("guest")).status is _S.DISABLED
        assert (await manager.enable("guest")).status is _S.CONNECTED
        await manager.remove("guest")
        assert manager.status() == {}
        assert not await trio.Path(file).exists()
    assert guest.alive() == []


async def test_a_guest_that_is_edited_is_saved_whole(file: Path) -> None:
    guest = FakeServer().tool("t")
    async with managed(guests=[config(guest, "guest")]) as manager:
        await started(manager)
        row = await manager.update("guest", {"description": "mine now"})
        assert (row.description, row.generation) == ("mine now", 1)
        assert entry(file, "guest") == {**entry(file, "guest"), **guest.config(), "description": "mine now"}
        assert guest.starts == 1
        # It stands in the file, so that it goes with its entry.
        write(file, {})
        with trio.fail_after(15), manager.events.subscribe() as events:
            while "guest" in manager.status():
                await anext(events)
    assert guest.alive() == []
