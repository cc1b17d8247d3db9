"""Edits beside those of others: what is saved at the same moment, a name that is taken meanwhile, and servers that do
not live in the manager that edits them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp import ServerState
from openprogram_mcp.config import ConfigDocument, save_document
from openprogram_mcp.errors import ConfigError, RevisionConflict, ServerExists, ServerFailed, UnknownServer
from openprogram_mcp.events import ConfigChanged
from openprogram_mcp.manager import _file
from openprogram_mcp.testing import FakeServer, do
from tests._living import events_of, managed, until
from tests._worker_process import write_servers

_S = ServerState


@pytest.fixture
def file(state_dir: Path) -> Path:
    return state_dir / "mcp_servers.json"


def entries(file: Path) -> Any:
    return json.loads(file.read_text())["servers"]


def before_the_save(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let something happen once, between the reading of the file and the lock of the next save."""
    waiting = [act]

    def saved(document: ConfigDocument) -> ConfigDocument:
        if waiting:
            # In a thread of its own, as another process would: this one may hold the lock already.
            thread = threading.Thread(target=waiting.pop())
            thread.start()
            thread.join()
        return save_document(document)

    monkeypatch.setattr(_file, "save_document", saved)


def changed_by_hand(file: Path, **servers: Any) -> Callable[[], None]:
    def change() -> None:
        document = json.loads(file.read_text())
        document["servers"].update(servers)
        document["servers"] = {name: entry for name, entry in document["servers"].items() if entry is not None}
        file.write_text(json.dumps(document))

    return change


async def test_what_somebody_else_saves_at_the_moment_of_a_save_is_followed_too(
    state_dir: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, fresh = FakeServer(version="1"), FakeServer(version="2"), FakeServer()
    write_servers(state_dir, {"a": FakeServer().config(), "b": old.config(), "gone": FakeServer().config()})
    async with managed() as manager:
        await manager.started.wait()
        before_the_save(monkeypatch, changed_by_hand(file, b=new.config(), fresh=fresh.config(), gone=None))
        await manager.update("a", {"description": "mine"})
        assert manager.config("b").command == tuple(new.config()["command"])
        await until(manager, "b", _S.CONNECTED, where=lambda row: (row.server_info or {}).get("version") == "2")
        await until(manager, "fresh", _S.CONNECTED)
        with trio.fail_after(10), manager.events.subscribe() as heard:
            while "gone" in manager.status():
                await anext(heard)
        assert entries(file)["a"]["description"] == "mine"
        told = {name for event in events_of(manager.events, ConfigChanged) for name in event.changed}
        assert told == {"a", "b", "fresh", "gone"}


async def test_of_two_who_add_the_same_name_one_is_told_and_the_server_is_that_of_the_file(
    state_dir: Path, file: Path
) -> None:
    theirs = FakeServer(version="theirs")
    mine = FakeServer(version="mine", era="legacy").on_signal("SIGUSR1", do.wake("go"))
    mine.on("initialize", do.wait("go"), do.standard())
    write_servers(state_dir, {})
    async with managed() as manager:
        await manager.started.wait()
        errors: list[Exception] = []
        added = mine.server_config("a", era="legacy")

        async def add() -> None:
            try:
                await manager.add(added)
            except ServerExists as error:
                errors.append(error)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(add)
                await mine.wait_for("received", method="initialize")
                changed_by_hand(file, a=theirs.config())()
                mine.send_signal("SIGUSR1")
        assert len(errors) == 1
        row = await until(manager, "a", _S.CONNECTED)
        assert (row.server_info or {}).get("version") == "theirs"
        assert entries(file)["a"]["command"] == theirs.config()["command"]
        assert mine.alive() == []


async def test_a_server_that_does_not_live_here_is_edited_without_the_old_one_being_started(
    state_dir: Path, file: Path
) -> None:
    old, new, other = FakeServer(version="1"), FakeServer(version="2").tool("t"), FakeServer()
    write_servers(state_dir, {"a": old.config(), "other": other.config()})
    async with managed(only=()) as manager:
        assert manager.status() == {}
        row = await manager.update("a", {**new.config(), "description": "new"})
        assert (row.status, row.description) == (_S.CONNECTED, "new")
        assert entries(file)["a"]["command"] == new.config()["command"]
        assert (old.starts, other.starts, new.starts) == (0, 0, 1)
        before = entries(file)
        with pytest.raises(ServerFailed):
            await manager.update("other", {"command": ["no-such-program-here"]})
        assert "other" not in manager.status()
        with pytest.raises(UnknownServer):
            await manager.update("nobody", {"description": "x"})
        with pytest.raises(RevisionConflict):
            await manager.update("other", {"description": "x"}, revision="another")
        assert entries(file) == before
    assert new.alive() == []


async def test_a_server_that_does_not_live_here_is_removed_without_being_started(state_dir: Path, file: Path) -> None:
    server = FakeServer()
    write_servers(state_dir, {"a": server.config(), "b": {"command": ["x"]}})
    async with managed(only=()) as manager:
        await manager.remove("a")
        with pytest.raises(UnknownServer):
            await manager.remove("a")
    assert list(entries(file)) == ["b"]
    assert server.starts == 0


async def test_the_configuration_that_is_told_is_the_file_s_though_another_one_is_in_force(
    state_dir: Path, file: Path
) -> None:
    server = FakeServer()
    write_servers(state_dir, {"a": server.config()})
    async with managed() as manager:
        await manager.started.wait()
        changed_by_hand(file, a={"command": ["no-such-program-here"]})()
        row = await until(manager, "a", _S.CONNECTED, where=lambda row: row.config_error is not None)
        assert row.ready
        assert manager.config("a").command == ("no-such-program-here",)
        changed_by_hand(file, a={**server.config(), "timeout_seconds": "soon"})()
        await until(manager, "a", _S.CONNECTED, where=lambda row: "soon" in (row.config_error or ""))
        with pytest.raises(ConfigError, match="timeout_seconds"):
            manager.config("a")
