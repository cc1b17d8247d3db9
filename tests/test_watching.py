"""The configuration file is followed while the servers live: by difference, and only what is good."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp import MCPManager, ServerState
from openprogram_mcp.events import ConfigChanged
from openprogram_mcp.manager._watching import watch_file
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of, managed, started, until

_S = ServerState


def write(file: Path, servers: Mapping[str, Any]) -> None:
    """As an editor does: a new file in the place of the old one."""
    write_text(file, json.dumps({"servers": servers}))


def write_text(file: Path, text: str) -> None:
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def _is_broken(manager: MCPManager) -> bool:
    return manager.config_problem is not None


async def news(manager: MCPManager, count: int = 1) -> list[Any]:
    """Wait until the file was followed so often."""
    with trio.fail_after(15), manager.events.subscribe(since=0) as events:
        found: list[Any] = []
        async for record in events:
            if isinstance(record.event, ConfigChanged):
                found.append(record.event)
                if len(found) == count:
                    break
    return found


async def test_what_is_changed_by_hand_is_followed_by_difference(file: Path) -> None:
    same, old, new = FakeServer(), FakeServer(version="1").tool("t"), FakeServer(version="2").tool("t")
    added, removed = FakeServer().tool("t"), FakeServer()
    write(file, {"same": same.config(), "changed": old.config(), "removed": removed.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"same": same.config(description="only a word"), "changed": new.config(), "added": added.config()})
        (change,) = await news(manager)
        assert set(change.changed) == {"same", "changed", "removed", "added"}
        row = await until(manager, "changed", _S.CONNECTED, where=lambda row: row.generation == 2)
        assert row.server_info == {"name": "fake", "version": "2"}
        await until(manager, "added", _S.CONNECTED)
        assert (await manager.call_tool("added__t")).text == "{}"
        row = manager.server("same")
        assert (row.generation, row.description, same.starts) == (1, "only a word", 1)
        with trio.fail_after(5), manager.events.subscribe() as events:
            while "removed" in manager.status():
                await anext(events)
        assert list(manager.status()) == ["same", "changed", "added"]
    assert not any(fake.alive() for fake in (same, old, new, added, removed))


@pytest.mark.parametrize("wrong", ["it does not come up", "it is no server", "a variable is not set"])
async def test_an_entry_that_is_wrong_leaves_its_connection_where_it_is_and_says_why(wrong: str, file: Path) -> None:
    good, bad = FakeServer(version="1").tool("t"), FakeServer().on_start(do.exit(3))
    entries: dict[str, tuple[Any, str]] = {
        "it does not come up": (bad.config(), "initialize: it exited with code 3"),
        "it is no server": ({"command": 7}, "servers.a.command"),
        "a variable is not set": (good.config(env={"X": "${NO_SUCH_VARIABLE}"}), "NO_SUCH_VARIABLE is not set"),
    }
    entry, said = entries[wrong]
    write(file, {"a": good.config(), "b": FakeServer().config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": entry, "b": FakeServer().config(description="x")})
        await until(manager, "b", _S.CONNECTED, where=lambda row: row.description == "x")
        row = await until(manager, "a", _S.CONNECTED, where=lambda row: row.config_error is not None)
        assert said in (row.config_error or "")
        assert row.generation == 1
        assert (await manager.call_tool("a__t")).text == "{}"
        # And mended, it is followed, and the complaint is gone.
        mended = FakeServer(version="2").tool("t")
        write(file, {"a": mended.config(), "b": FakeServer().config(description="x")})
        row = await until(manager, "a", _S.CONNECTED, where=lambda row: row.config_error is None)
        await until(manager, "a", _S.CONNECTED, where=lambda row: row.generation > 1)
        assert manager.server("a").server_info == {"name": "fake", "version": "2"}


async def test_a_file_that_cannot_be_read_is_told_and_ignored_until_it_is_mended(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeServer().tool("t")
    write(file, {"a": fake.config()})
    async with managed() as manager:
        await started(manager)
        write_text(file, '{"servers": {"a": ')
        with trio.fail_after(15):
            while not _is_broken(manager):
                # Reading it is all that tells.
                await manager._edits.reread()
                await trio.lowlevel.checkpoint()
        assert (await manager.call_tool("a__t")).text == "{}"
        assert "the last good one stays in force" in caplog.text
        write(file, {"a": fake.config(description="mended")})
        await until(manager, "a", _S.CONNECTED, where=lambda row: row.description == "mended")
        assert not _is_broken(manager)
        assert fake.starts == 1


async def test_what_was_disabled_by_hand_is_stopped_and_what_was_enabled_is_started(file: Path) -> None:
    fake = FakeServer()
    write(file, {"a": fake.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": fake.config(enabled=False)})
        assert (await until(manager, "a", _S.DISABLED)).pid is None
        write(file, {"a": fake.config()})
        await until(manager, "a", _S.CONNECTED)
    assert fake.starts == 2


async def test_a_server_that_failed_is_tried_anew_when_its_entry_was_changed(file: Path) -> None:
    broken, mended = FakeServer().on_start(do.exit(3)), FakeServer(version="2")
    write(file, {"a": broken.config(reconnect=False)})
    async with managed() as manager:
        await started(manager)
        assert manager.server("a").status is _S.FAILED
        write(file, {"a": mended.config()})
        assert (await until(manager, "a", _S.CONNECTED)).server_info == {"name": "fake", "version": "2"}


async def test_of_several_edits_by_hand_the_last_one_counts(file: Path) -> None:
    first, hanging, last = FakeServer(version="1"), FakeServer().on_start(do.hang()), FakeServer(version="3")
    write(file, {"a": first.config()})
    async with managed() as manager:
        await started(manager)
        write(file, {"a": hanging.config(stop_timeout_seconds=0.2)})
        await hanging.wait_for("start")
        write(file, {"a": last.config()})
        row = await until(manager, "a", _S.CONNECTED, where=lambda row: row.generation > 1)
        assert row.server_info == {"name": "fake", "version": "3"}
        assert row.config_error is None
        assert hanging.alive() == []


async def test_what_another_manager_saves_is_followed(file: Path) -> None:
    write(file, {})
    fake = FakeServer().tool("t")
    async with managed() as one, managed() as other:
        await started(one)
        await started(other)
        await other.add(fake.server_config("new"))
        await until(one, "new", _S.CONNECTED) if "new" in one.status() else await news(one)
        await until(one, "new", _S.CONNECTED)
        assert (await one.call_tool("new__t")).text == "{}"
    assert fake.starts == 2, "each has its own"


async def test_our_own_saving_is_no_news_to_us(file: Path) -> None:
    fake = FakeServer()
    write(file, {"a": fake.config()})
    async with managed() as manager:
        await started(manager)
        await manager.update("a", {"description": "x"})
        write(file, {"a": fake.config(description="y")})
        await until(manager, "a", _S.CONNECTED, where=lambda row: row.description == "y")
        assert [event.changed for event in events_of(manager.events, ConfigChanged)] == [("a",), ("a",)]


# The watch alone.


async def _heard(path: Path, change: Any) -> bool:
    """Whether a change is heard by a watch that stands."""
    heard: list[None] = []
    stands, again = trio.Event(), trio.Event()

    async def changed() -> None:
        await trio.lowlevel.checkpoint()
        heard.append(None)
        (again if stands.is_set() else stands).set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_file, path, changed)
        with trio.fail_after(10):
            await stands.wait()
        await trio.to_thread.run_sync(change)
        with trio.move_on_after(5):
            await again.wait()
        nursery.cancel_scope.cancel()
    return again.is_set()


async def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"

    def make() -> None:
        path.parent.mkdir(parents=True)
        path.write_text("{}")

    assert await _heard(path, make)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX: links without a privilege")
async def test_a_file_behind_a_link_is_watched_where_it_is(tmp_path: Path) -> None:
    real = tmp_path / "real" / "servers.json"
    real.parent.mkdir()
    real.write_text("{}")
    link = tmp_path / "state" / "mcp_servers.json"
    link.parent.mkdir()
    link.symlink_to(real)
    assert await _heard(link, lambda: write_text(real, '{"servers": {}}'))


async def test_other_files_in_the_folder_are_none_of_its_business(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("{}")
    assert not await _heard(path, lambda: write_text(tmp_path / "other.json", "{}"))


async def test_it_ends_at_once_when_it_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "file.json"

    async def changed() -> None:
        scope.cancel()

    with trio.fail_after(10), trio.CancelScope() as scope:
        await watch_file(path, changed)
    assert scope.cancelled_caught
