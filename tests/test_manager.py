"""All servers together: the life of a manager, what people change in it, and the file that it follows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from openprogram_mcp import MCPManager, MCPServerConfig, ServerState, ToolRegistry, open_manager
from openprogram_mcp.adapter import parse_tools
from openprogram_mcp.config import ConfigDocument, load_document, save_document
from openprogram_mcp.errors import (
    ConfigError,
    NotConnected,
    ReadOnly,
    RevisionConflict,
    ServerExists,
    ServerFailed,
    ServerGone,
    StorageError,
    UnknownServer,
)
from openprogram_mcp.events import ConfigChanged, StartupComplete, StatusChanged
from openprogram_mcp.manager import _file
from openprogram_mcp.manager._file import ConfigFile
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.transports._ownership import Instance
from tests._living import events_of, managed, started, until

_S = ServerState


def write(file: Path, servers: Mapping[str, Any], **settings: Any) -> None:
    """Write the configuration, as somebody does by hand."""
    file.write_text(json.dumps({"servers": servers, **settings}))


def write_text(file: Path, text: str) -> None:
    file.write_text(text)


def content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def entries(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())["servers"]
    return found


def hung(**options: Any) -> FakeServer:
    """A server that never answers ``initialize``."""
    return FakeServer(era="legacy", **options).on("initialize")


async def until_gone(manager: MCPManager, name: str) -> None:
    with trio.fail_after(10), suppress(UnknownServer):
        await manager.wait_settled(name)
        manager.server(name)
        raise AssertionError("it is still there")


# From the first moment to the last.


async def test_every_server_has_a_true_status_before_anything_has_begun() -> None:
    configs = {"a": FakeServer().config(), "b": FakeServer().config(enabled=False), "c": FakeServer().config()}
    async with managed(configs) as manager:
        assert [(name, row.status) for name, row in manager.status().items()] == [
            ("a", _S.PENDING),
            ("b", _S.DISABLED),
            ("c", _S.PENDING),
        ]
        assert not manager.started.is_set()


async def test_without_any_server_the_start_is_complete_at_once() -> None:
    async with managed([]) as manager:
        await started(manager)
        assert manager.status() == {}
        assert events_of(manager.events) == [StartupComplete()]


async def test_the_end_of_the_start_tells_each_server_by_its_verdict(file: Path) -> None:
    good, late = FakeServer(), hung()
    write(
        file,
        {
            "good": good.config(),
            "off": FakeServer().config(enabled=False),
            "dead": FakeServer().on_start(do.exit(3)).config(),
            "wrong": {"command": ["x"], "timeout_seconds": "soon"},
            "put off": late.config(),
            "taken away": hung().config(),
            "switched off": hung().config(),
        },
    )
    async with managed() as manager:
        await late.wait_for("received", method="initialize")
        await manager.disconnect("put off")
        await manager.remove("taken away")
        await manager.disable("switched off")
        await started(manager)
        (told,) = events_of(manager.events, StartupComplete)
        assert told.ready == ("good",)
        assert [name for name, _ in told.failed] == ["dead", "wrong"]
        assert "exited with code 3" in dict(told.failed)["dead"]
        assert "timeout_seconds" in dict(told.failed)["wrong"]
        assert set(told.cancelled) == {"put off", "taken away", "switched off"}
        assert told.needs_auth == ()


async def test_the_start_is_complete_when_all_servers_were_removed_while_they_started(file: Path) -> None:
    servers = {name: hung() for name in ("a", "b")}
    write(file, {name: fake.config() for name, fake in servers.items()})
    async with managed() as manager:
        for name, fake in servers.items():
            await fake.wait_for("received", method="initialize")
            await manager.remove(name)
        await started(manager)
        assert events_of(manager.events, StartupComplete) == [StartupComplete(cancelled=("a", "b"))]
    assert entries(file) == {}


async def test_whoever_waits_for_the_start_is_let_go_when_there_will_be_none() -> None:
    fake = hung()
    async with trio.open_nursery() as nursery, managed([fake.server_config()]) as manager:
        nursery.start_soon(started, manager)
        nursery.start_soon(manager.wait_settled, "fake")
        await fake.wait_for("received", method="initialize")
    assert fake.alive() == []
    assert manager.server("fake").status is _S.DISCONNECTED


async def test_whoever_waits_for_the_start_is_let_go_when_it_is_cancelled() -> None:
    fake = hung()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with managed([fake.server_config()]) as manager:
                nursery.start_soon(started, manager)
                await fake.wait_for("received", method="initialize")
                scope.cancel()
    assert fake.alive() == []


async def test_servers_end_side_by_side_within_a_limit_however_stubborn_they_are() -> None:
    fakes = [FakeServer().on_eof().on_signal("SIGTERM") for _ in range(4)]
    configs = {f"s{number}": fake.config(stop_timeout_seconds=0.3) for number, fake in enumerate(fakes)}
    async with managed(configs) as manager:
        await started(manager)
        began = trio.current_time()
    assert trio.current_time() - began < 0.6 + 1.5, "not one after the other: that would take 2.4 s"
    assert [fake.alive() for fake in fakes] == [[], [], [], []]
    assert {row.exit_way for row in manager.status().values()} == {"kill"}
    assert {row.status for row in manager.status().values()} == {_S.DISCONNECTED}


async def test_after_its_end_nothing_begins_any_more() -> None:
    async with managed([]) as manager:
        await started(manager)
    with pytest.raises(NotConnected, match="all servers are being stopped"):
        await manager.add(FakeServer().server_config())


async def test_a_server_that_came_too_late_to_live_keeps_nobody_waiting() -> None:
    manager = MCPManager(ConfigDocument(path=Path("nowhere")), saved=False, owner=Instance.claim(None))
    manager._roster.begin(FakeServer().server_config("late"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await manager.run()
    with trio.fail_after(5):
        assert (await manager.wait_settled("late")).status is _S.DISCONNECTED
    assert manager.started.is_set()


@pytest.mark.parametrize("only", [{"b"}, ["b", "nobody"]])
async def test_only_those_servers_live_that_are_asked_for(only: Any) -> None:
    fakes = {"a": FakeServer().tool("t"), "b": FakeServer().tool("t")}
    async with managed({name: fake.config() for name, fake in fakes.items()}, only=only) as manager:
        await started(manager)
        assert list(manager.status()) == ["b"]
        assert manager.registry.names() == ["b__t"]
    assert (fakes["a"].starts, fakes["b"].starts) == (0, 1)


async def test_a_server_takes_its_variables_from_the_environment_that_was_given(file: Path) -> None:
    fake = FakeServer(info={"token": "$env.TOKEN", "cwd": "$cwd"})
    (file.parent / "sub").mkdir()
    write(file, {"a": fake.config(env={"TOKEN": "${SECRET}"}, cwd="sub"), "b": fake.config(args=["${NOT_SET}"])})
    async with managed(environ={"SECRET": "sesame-1234", "PATH": "/usr/bin"}) as manager:
        await started(manager)
        (start,) = fake.records("start")
        assert start.facts["env"]["TOKEN"] == "sesame-1234"
        assert start.facts["cwd"] == str(file.parent / "sub")
        failed = manager.server("b")
        assert (failed.status, failed.phase) == (_S.FAILED, "config")
        assert "NOT_SET" in (failed.error or "")
        assert "sesame" not in repr([record.to_dict() for record in manager.events.since(0)[0]])


async def test_an_entry_given_in_code_that_is_wrong_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="timeout_seconds"):
        async with open_manager({"a": {"command": ["x"], "timeout_seconds": -1}}):
            raise AssertionError("it was opened")


# What comes out of it.


class _Odd(BaseException):
    """An exception that nobody expects."""


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), _Odd(), ExceptionGroup("mine", [ValueError("a")])]
)
async def test_what_the_body_raises_comes_out_as_it_was_raised(error: BaseException) -> None:
    fake = FakeServer()
    with pytest.raises(type(error)) as caught:
        async with managed([fake.server_config()]) as manager:
            await started(manager)
            raise error
    assert caught.value is error
    assert fake.alive() == []


async def test_a_cancelled_body_is_cancelled_and_nothing_else() -> None:
    fake = FakeServer()
    seen: list[BaseException] = []
    with trio.CancelScope() as scope:
        try:
            async with managed([fake.server_config()]) as manager:
                await started(manager)
                scope.cancel()
                await trio.sleep_forever()
        except BaseException as error:
            seen.append(error)
            raise
    assert scope.cancelled_caught
    assert [type(error) for error in seen] == [trio.Cancelled]
    assert fake.alive() == []


async def test_what_the_body_raises_comes_out_bare_though_all_around_it_is_cancelled() -> None:
    fake = FakeServer()
    with trio.CancelScope() as scope, pytest.raises(ValueError, match="mine"):
        async with managed([fake.server_config()]) as manager:
            await started(manager)
            scope.cancel()
            raise ValueError("mine")
    assert fake.alive() == []


async def test_a_fault_of_ours_under_test_ends_the_body_and_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise ZeroDivisionError

    fake = FakeServer()
    monkeypatch.setattr("openprogram_mcp.client._connection.parse_tools", broken)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with managed([fake.server_config()]):
            await trio.sleep_forever()
    assert caught.value.subgroup(ZeroDivisionError) is not None
    assert caught.value.subgroup(trio.Cancelled) is None, "one whose scope is gone would end the host"
    assert fake.alive() == []


async def test_a_fault_of_ours_fails_the_one_server_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def broken(items: list[Any]) -> Any:
        if items:
            raise ZeroDivisionError("sesame-1234")
        return parse_tools(items)

    monkeypatch.setattr("openprogram_mcp.client._connection.parse_tools", broken)
    good, bad = FakeServer(), FakeServer().tool("x")
    async with open_manager({"good": good.config(), "bad": bad.config()}) as manager:
        await started(manager)
        assert manager.server("good").ready
        row = manager.server("bad")
        assert (row.status, row.phase, row.tools) == (_S.FAILED, "internal", ())
        assert "sesame" not in repr(row.to_dict())
        assert bad.alive() == []
    assert "ZeroDivisionError" in caplog.text


async def test_a_fault_of_ours_while_it_serves_leaves_no_tool_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("openprogram_mcp.client._changes.Changes.read", broken)
    fake = FakeServer(era="legacy").tool("t", do.changed(), do.reply("done"))
    async with open_manager([fake.server_config()]) as manager:
        await started(manager)
        with suppress(ServerGone):
            await manager.call_tool("fake__t")
        row = await until(manager, "fake", _S.FAILED)
        assert (row.phase, row.tools, manager.registry.names()) == ("internal", (), [])
        assert fake.alive() == []


# Changes.


async def test_adding_starts_the_server_and_saves_it_once_it_is_up(file: Path) -> None:
    write(file, {"old": FakeServer().config(enabled=False)})
    fake = FakeServer().tool("t")
    async with managed() as manager:
        row = await manager.add(fake.server_config("new"))
        assert (row.status, row.tools) == (_S.CONNECTED, ("new__t",))
        assert list(entries(file)) == list(manager.status()) == ["old", "new"]
        assert [event.changed for event in events_of(manager.events, ConfigChanged)] == [("new",)]


async def test_adding_a_server_that_does_not_come_up_changes_nothing(file: Path) -> None:
    write(file, {})
    before = content(file)
    fake = FakeServer().on_start(do.stderr("no licence\n"), do.exit(4))
    async with managed() as manager:
        with pytest.raises(ServerFailed) as failure:
            await manager.add(fake.server_config("new"))
        assert (failure.value.phase, failure.value.exit_code, failure.value.stderr) == (
            "initialize",
            4,
            ("no licence",),
        )
        assert manager.status() == {}
        assert content(file) == before
        row = await manager.add(fake.server_config("new"), force=True)
        assert (row.status, list(entries(file))) == (_S.FAILED, ["new"])


async def test_adding_a_disabled_server_saves_it_without_starting_it(file: Path) -> None:
    fake = FakeServer()
    async with managed() as manager:
        row = await manager.add(fake.server_config("new", enabled=False))
        assert (row.status, entries(file)["new"]["enabled"], fake.starts) == (_S.DISABLED, False, 0)


async def test_a_cancelled_adding_puts_the_server_away(file: Path) -> None:
    fake = hung()
    async with managed() as manager, trio.open_nursery() as nursery:
        nursery.start_soon(manager.add, fake.server_config("new"))
        await fake.wait_for("received", method="initialize")
        nursery.cancel_scope.cancel()
    assert fake.alive() == []
    assert manager.status() == {}
    assert content(file) is None


async def test_a_name_that_is_taken_is_taken_also_by_an_entry_that_is_wrong_or_was_written_since(file: Path) -> None:
    write(file, {"a": FakeServer().config(enabled=False), "wrong": {"command": 7}})
    async with managed() as manager:
        write(file, {**entries(file), "since": FakeServer().config()})
        for name in ("a", "wrong", "since"):
            with pytest.raises(ServerExists):
                await manager.add(FakeServer().server_config(name))


async def test_removing_takes_the_server_from_the_file_and_its_process_away(file: Path) -> None:
    fake = FakeServer().tool("t")
    write(file, {"a": fake.config(), "wrong": {"command": 7}})
    async with managed() as manager:
        await started(manager)
        version = manager.status_version
        await manager.remove("a")
        assert fake.alive() == []
        await manager.remove("wrong")
        assert (entries(file), manager.status(), manager.registry.names()) == ({}, {}, [])
        assert manager.status_version > version
        with pytest.raises(UnknownServer):
            await manager.remove("a")


async def test_disabling_and_enabling_is_saved_and_obeyed(file: Path) -> None:
    fake = FakeServer().tool("t")
    write(file, {"a": fake.config(description="as it was")})
    async with managed() as manager:
        await started(manager)
        row = await manager.disable("a")
        assert (row.status, row.enabled, entries(file)["a"]["enabled"]) == (_S.DISABLED, False, False)
        assert fake.alive() == []
        row = await manager.enable("a")
        assert (row.status, row.enabled, row.description) == (_S.CONNECTED, True, "as it was")
        assert entries(file)["a"].get("enabled", True) is True


async def test_a_disconnect_is_not_saved(file: Path) -> None:
    write(file, {"a": FakeServer().config()})
    before = content(file)
    async with managed() as manager:
        assert (await manager.disconnect("a")).status is _S.DISCONNECTED
        assert (await manager.connect("a")).status is _S.CONNECTED
        assert content(file) == before


async def test_a_switch_keeps_what_somebody_has_written_into_the_entry_meanwhile(file: Path) -> None:
    fake = FakeServer()
    write(file, {"a": fake.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": fake.config(description="by hand", max_concurrency=3)})
        await manager.disable("a")
        assert entries(file)["a"]["description"] == "by hand"
        row = await manager.enable("a")
        assert (row.description, manager.config("a").max_concurrency) == ("by hand", 3)


async def test_nothing_is_saved_to_a_file_that_cannot_be_read(file: Path) -> None:
    write_text(file, "{ not json")
    async with managed() as manager:
        await started(manager)
        with pytest.raises(StorageError):
            await manager.add(FakeServer().server_config("new"))
        assert manager.status() == {}
    assert content(file) == b"{ not json"


async def test_nothing_of_a_manager_whose_servers_were_given_in_code_is_saved(file: Path) -> None:
    async with managed([FakeServer().server_config("a")]) as manager:
        await manager.add(FakeServer().server_config("b"))
        await manager.disable("a")
        assert list(manager.status()) == ["a", "b"]
        assert manager.document.servers["a"].enabled is False
    assert content(file) is None


async def test_a_read_only_manager_refuses_every_change() -> None:
    fake = FakeServer()
    async with managed([fake.server_config("a")], read_only=True) as manager:
        await started(manager)
        for change in (manager.connect, manager.disconnect, manager.restart, manager.enable, manager.disable):
            with pytest.raises(ReadOnly):
                await change("a")
        with pytest.raises(ReadOnly):
            await manager.remove("a")
        with pytest.raises(ReadOnly):
            await manager.add(fake.server_config("b"))
        assert manager.server("a").ready


async def test_a_name_that_nobody_has_is_told_with_the_one_that_was_meant() -> None:
    async with managed([FakeServer().server_config("time")]) as manager:
        for ask in (manager.server, manager.config, manager.tool_records):
            with pytest.raises(UnknownServer) as unknown:
                ask("tim")
            assert unknown.value.remedy == "Did you mean 'time'?"
        for change in (manager.restart, manager.enable, manager.remove, manager.wait_settled):
            with pytest.raises(UnknownServer):
                await change("tim")


async def test_disabled_servers_are_not_connected_by_mistake() -> None:
    async with managed([FakeServer().server_config("a", enabled=False)]) as manager:
        for change in (manager.connect, manager.restart):
            with pytest.raises(NotConnected, match="is disabled") as refused:
                await change("a")
            assert refused.value.remedy == "Enable it first."
        assert (await manager.disconnect("a")).status is _S.DISABLED


# The file that it follows.


@asynccontextmanager
async def waiting_behind(file: Path, **waiting: FakeServer) -> AsyncIterator[tuple[MCPManager, FakeServer]]:
    """A manager in which one server is busy with its start, so that the others wait for their turn."""
    busy = FakeServer().on_signal("SIGUSR1", do.wake("go"))
    # It works without a pause until it is told to go on; a server that slept would give its turn away.
    busy.on_start(do.beside(do.repeat(do.stderr(""))), do.wait("go"))
    servers = {"busy": busy.config(), **{name: fake.config() for name, fake in waiting.items()}}
    write(file, servers, start_limit=1)
    async with managed() as manager:
        await busy.wait_for("start")
        await wait_all_tasks_blocked()
        assert [row.status for row in manager.status().values()] == [_S.STARTING, *[_S.PENDING] * len(waiting)]
        yield manager, busy
        if busy.alive():
            busy.send_signal("SIGUSR1")


async def test_what_was_deleted_switched_off_or_changed_while_it_waited_is_obeyed(file: Path) -> None:
    deleted, disabled, changed = FakeServer(), FakeServer(), FakeServer()
    async with waiting_behind(file, deleted=deleted, disabled=disabled, changed=changed) as (manager, busy):
        servers = entries(file)
        del servers["deleted"]
        servers["disabled"]["enabled"] = False
        servers["changed"]["description"] = "changed meanwhile"
        write(file, servers, start_limit=1)
        busy.send_signal("SIGUSR1")
        await started(manager)
        assert manager.server("busy").ready
        assert list(manager.status()) == ["busy", "disabled", "changed"]
        assert manager.server("disabled").status is _S.DISABLED
        assert (manager.server("changed").status, manager.server("changed").description) == (
            _S.CONNECTED,
            "changed meanwhile",
        )
        (told,) = events_of(manager.events, StartupComplete)
        assert (told.ready, set(told.cancelled)) == (("busy", "changed"), {"deleted", "disabled"})
        begun = {
            event.server for event in events_of(manager.events, StatusChanged) if event.status.status is _S.STARTING
        }
        assert begun == {"busy", "changed"}
    assert (deleted.starts, disabled.starts, changed.starts) == (0, 0, 1)


async def test_a_running_server_that_is_switched_off_or_deleted_by_hand_goes_when_the_file_is_read_next(
    file: Path,
) -> None:
    off, gone, other = FakeServer(), FakeServer(), FakeServer()
    write(file, {"off": off.config(), "gone": gone.config(), "other": other.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"off": off.config(enabled=False), "other": other.config()})
        await manager.restart("other")
        assert (await manager.wait_settled("off")).status is _S.DISABLED
        await until_gone(manager, "gone")
        assert (off.alive(), gone.alive()) == ([], [])
        assert list(manager.status()) == ["off", "other"]


async def test_a_file_that_was_broken_while_servers_waited_changes_nothing(file: Path) -> None:
    fake = FakeServer()
    async with waiting_behind(file, fake=fake) as (manager, busy):
        write_text(file, "{ half")
        busy.send_signal("SIGUSR1")
        await started(manager)
        assert manager.server("fake").ready


async def test_an_entry_that_was_broken_by_hand_leaves_the_running_server_and_is_told(file: Path) -> None:
    fake, other = FakeServer(), FakeServer()
    write(file, {"a": fake.config(), "b": other.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": {"command": 7}, "b": other.config()})
        await manager.restart("b")
        row = manager.server("a")
        assert row.ready
        assert "servers.a.command" in (row.config_error or "")


async def test_a_server_that_is_tried_again_by_itself_follows_what_the_file_says_by_then(file: Path) -> None:
    broken, mended = FakeServer().on_start(do.exit(3)), FakeServer()
    reconnect = {"initial_seconds": 0.05, "max_seconds": 0.05}
    write(file, {"a": broken.config(reconnect=reconnect)})
    async with managed() as manager:
        await started(manager)
        assert manager.server("a").status is _S.FAILED
        write(file, {"a": mended.config(reconnect=reconnect)})
        await until(manager, "a", _S.CONNECTED)
        assert mended.starts == 1


async def test_what_was_changed_by_hand_interrupts_nobody_who_runs_and_touches_nobody_else(file: Path) -> None:
    runs, failed, other = FakeServer(), FakeServer().on_start(do.exit(3)), FakeServer()
    servers = {"runs": runs.config(), "failed": failed.config(reconnect=False), "other": other.config()}
    write(file, servers)
    async with managed() as manager:
        await started(manager)
        tries = failed.starts
        write(file, {**servers, "runs": runs.config(description="x"), "other": other.config(description="y")})
        await manager.restart("other")
        await until(manager, "runs", _S.CONNECTED, where=lambda row: row.description == "x")
        assert (runs.starts, failed.starts, other.starts) == (1, tries, 2)
        assert manager.server("failed").status is _S.FAILED


async def test_a_server_that_was_taken_down_is_connected_as_the_file_says_by_then(file: Path) -> None:
    first, second = FakeServer(), FakeServer(version="2")
    write(file, {"a": first.config()})
    async with managed() as manager:
        await started(manager)
        await manager.disconnect("a")
        write(file, {"a": second.config()})
        assert (await manager.connect("a")).server_info == {"name": "fake", "version": "2"}


async def test_a_restart_follows_what_the_file_says_now(file: Path) -> None:
    first, second = FakeServer(), FakeServer(version="2")
    write(file, {"a": first.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": second.config()})
        assert (await manager.restart("a")).server_info == {"name": "fake", "version": "2"}


async def test_a_server_that_is_being_added_is_not_taken_for_one_that_was_deleted(file: Path) -> None:
    new, other = FakeServer(era="legacy").on_signal("SIGUSR1", do.wake("go")), FakeServer()
    new.on("initialize", do.wait("go"), do.standard())
    write(file, {"other": other.config()})
    async with managed() as manager, trio.open_nursery() as nursery:
        await started(manager)
        nursery.start_soon(manager.add, new.server_config("new"))
        await new.wait_for("received", method="initialize")
        write(file, {"other": other.config(description="a change")})
        await manager.restart("other")
        assert manager.server("other").description == "a change"
        new.send_signal("SIGUSR1")
        await until(manager, "new", _S.CONNECTED)
        with trio.fail_after(5):
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()
        assert list(entries(file)) == ["other", "new"]


async def test_a_server_added_while_others_start_is_not_replaced_by_what_the_file_said_before(file: Path) -> None:
    waiting = FakeServer()
    async with waiting_behind(file, waiting=waiting) as (manager, busy):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.add, FakeServer(version="2").server_config("new"))
            await wait_all_tasks_blocked()
            busy.send_signal("SIGUSR1")
        await started(manager)
        assert manager.server("new").server_info == {"name": "fake", "version": "2"}
        assert set(entries(file)) == {"busy", "waiting", "new"}
        assert manager.server("waiting").ready


async def test_two_managers_of_one_file_keep_each_others_edits(file: Path) -> None:
    write(file, {})
    async with managed() as one, managed() as two, trio.open_nursery() as nursery:
        for number in range(4):
            manager = one if number % 2 else two
            nursery.start_soon(manager.add, FakeServer().server_config(f"s{number}", enabled=False))
    assert set(entries(file)) == {"s0", "s1", "s2", "s3"}


# The file alone.


async def test_what_was_read_before_an_edit_does_not_undo_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, {"a": {"command": ["x"]}})
    followed: list[ConfigDocument] = []
    config = ConfigFile(load_document(file), True, followed.append)
    write(file, {"a": {"command": ["x"]}, "by hand": {"command": ["y"]}})
    reading, go_on = trio.Event(), trio.Event()
    real = _file._newer

    def slow(document: ConfigDocument) -> Any:
        found = real(document)
        trio.from_thread.run_sync(reading.set)
        trio.from_thread.run(go_on.wait)
        return found

    monkeypatch.setattr(_file, "_newer", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(config.reread)
        await reading.wait()
        nursery.start_soon(
            config.edit, lambda document: document.with_server(MCPServerConfig(name="new", command=("z",)))
        )
        await wait_all_tasks_blocked()
        go_on.set()
    assert list(config.document.servers) == ["a", "by hand", "new"]
    assert [list(document.servers) for document in followed] == [["a", "by hand"]], "what we save is no news to us"


async def test_an_edit_that_is_cancelled_while_it_is_saved_stands(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConfigFile(load_document(file), True, lambda _document: None)
    scope = trio.CancelScope()

    def cancelled(document: ConfigDocument) -> ConfigDocument:
        trio.from_thread.run_sync(scope.cancel)
        return save_document(document)

    monkeypatch.setattr(_file, "save_document", cancelled)
    with scope:
        await config.edit(lambda document: document.with_server(MCPServerConfig(name="new", command=("z",))))
    assert list(config.document.servers) == list(entries(file)) == ["new"]


async def test_an_edit_that_meets_another_one_at_the_same_moment_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, {"a": {"command": ["x"]}})
    config = ConfigFile(load_document(file), True, lambda _document: None)
    monkeypatch.setattr(_file, "_newer", lambda _document: None)
    write(file, {"a": {"command": ["by hand"]}})
    with pytest.raises(RevisionConflict):
        await config.edit(lambda document: document.with_server(evolve(document.servers["a"], enabled=False)))
    assert config.document.servers["a"].enabled


# What is told of all this.


async def test_every_change_of_status_is_told_with_the_row_as_it_was_then() -> None:
    fake = FakeServer().tool("t")
    async with managed([fake.server_config("a")]) as manager:
        await started(manager)
        await manager.restart("a")
        await manager.disconnect("a")
        rows = [event.status for event in events_of(manager.events, StatusChanged)]
        states = [
            row.status for number, row in enumerate(rows) if not number or row.status is not rows[number - 1].status
        ]
        up = [_S.PENDING, _S.STARTING, _S.CONNECTED]
        assert states == [*up, *up, _S.DISCONNECTED]
        phases = [row.phase for row in rows if row.status is _S.STARTING]
        assert phases == [None, "spawn", "initialize", "list_tools"] * 2
        assert all(row.tools == (("a__t",) if row.ready else ()) for row in rows)
        assert manager.status_version == len(rows)


async def test_the_registry_that_was_given_is_the_one_that_holds_the_tools() -> None:
    registry = ToolRegistry()
    async with managed([FakeServer().tool("t").server_config("a")], registry=registry) as manager:
        await started(manager)
        assert manager.registry is registry
        assert registry.names() == ["a__t"]
    assert registry.names() == []
