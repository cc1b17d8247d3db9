"""The configuration file: what is read of it, what a save writes, and two who save at once."""

from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from openprogram_mcp import paths
from openprogram_mcp.config import (
    ConfigDocument,
    MCPServerConfig,
    load_configs,
    load_document,
    save_configs,
    save_document,
)
from openprogram_mcp.errors import ConfigError, RevisionConflict, StorageError, UnknownServer
from openprogram_mcp.storage import ABSENT


@pytest.fixture
def file(state_dir: Path) -> Path:
    state_dir.mkdir()
    return paths.config_path()


def write(file: Path, value: Any) -> ConfigDocument:
    file.write_text(value if isinstance(value, str) else json.dumps(value, indent=2))
    return load_document()


def server(name: str, **fields: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict(name, {"command": ["x"], **fields})


def test_a_missing_file_is_no_servers_and_not_a_word(caplog: pytest.LogCaptureFixture) -> None:
    document = load_document()
    assert (document.servers, document.error, document.revision) == ({}, None, ABSENT)
    assert document.path == paths.config_path()
    assert load_configs() == []
    assert caplog.records == []


def test_servers_are_in_the_order_of_the_file_and_the_rest_has_its_place(file: Path) -> None:
    document = write(
        file,
        {
            "servers": {"b": {"command": "x"}, "a": {"url": "https://h"}},
            "roots": [{"uri": "file:///x", "name": "x"}],
            "permissions": [{"tool": "github__*", "action": "ask"}],
            "permission_default": "deny",
            "tool_names": "mcp",
            "start_limit": 2,
            "model": {"provider": "openai", "api_key": "hunter2"},
            "theme": "dark",
        },
    )
    assert list(document.servers) == ["b", "a"]
    assert document.roots == ({"uri": "file:///x", "name": "x"},)
    assert document.permissions == ({"tool": "github__*", "action": "ask"},)
    assert (document.permission_default, document.tool_names, document.start_limit) == ("deny", "mcp", 2)
    assert document.unknown == {"theme": "dark"}
    assert (document.warnings, document.broken, document.error) == ((), {}, None)
    assert "hunter2" not in repr(document)


def test_one_bad_entry_costs_that_entry_alone(file: Path) -> None:
    document = write(file, {"servers": {"good": {"command": "x"}, "bad": {"timeout_seconds": "soon"}, "worse": 5}})
    assert list(document.servers) == ["good"]
    assert document.broken["bad"].path == "servers.bad.timeout_seconds"
    assert str(document.broken["worse"]) == "servers.worse: expected an object, got a number"
    assert document.error is None


def test_conf_08_a_name_given_twice_is_an_error_of_that_name_and_twins_are_told(file: Path) -> None:
    document = write(
        file,
        '{"servers": {"a": {"command":"x"}, "b": {"env": {"K": "v", "K": "hunter2"}}, "a": {"command":"y"},'
        ' "A": {"command":"z"}}}',
    )
    assert list(document.servers) == ["A"]
    assert str(document.broken["a"]) == "servers.a: is given 2 times"
    assert str(document.broken["b"]) == "servers.b.env.K: is given 2 times"
    assert document.warnings == ("servers.A: differs from a in upper and lower case only",)


def test_conf_08_a_repaired_name_stands_there_once(file: Path) -> None:
    document = write(file, '{"servers": {"a": {"command":"x"}, "z": {"command": "z"}, "a": {"command":"y"}}}')
    after = save_document(document.with_server(server("a")))
    assert json.loads(file.read_text()) == {"servers": {"a": {"command": ["x"]}, "z": {"command": "z"}}}
    assert (list(after.servers), after.broken) == (["a", "z"], {})


def test_servers_by_the_name_others_give_them_are_read_and_stay_there(file: Path) -> None:
    document = write(file, {"mcpServers": {"a": {"command": "x"}}})
    assert list(document.servers) == ["a"]
    assert "mcpServers: is read as servers" in document.warnings[0]
    save_document(document.with_server(server("b")))
    assert json.loads(file.read_text()) == {"mcpServers": {"a": {"command": "x"}, "b": {"command": ["x"]}}}
    document = write(file, {"mcpServers": {"a": {"command": "x"}}, "servers": {}})
    assert document.servers == {}
    assert "mcpServers: is not read" in document.warnings[0]


def test_a_setting_that_cannot_be_understood_is_told_and_its_default_used(file: Path) -> None:
    document = write(file, '{"start_limit": 0, "tool_names": "x", "roots": [{"uri": 5}], "model": 1, "model": 2}')
    assert (document.start_limit, document.tool_names, document.roots, document.model) == (8, "plain", (), None)
    assert document.warnings == (
        "roots.0: expected an object with uri, got an object; it is not used",
        'tool_names: expected "plain" or "mcp", got "x"; it is not used',
        "start_limit: expected a whole number from 1 to 1000, got 0; it is not used",
        "model: expected one value, got 2 of them; it is not used",
    )


@pytest.mark.parametrize(
    "wrong",
    [{"permission_default": "dney"}, {"permissions": ["x"]}, {"permissions": {}, "permission_default": "allow"}],
)
def test_permissions_that_cannot_be_understood_do_not_allow_what_they_may_have_forbidden(
    file: Path, wrong: dict[str, Any]
) -> None:
    assert write(file, wrong).permission_default == "ask"


UNREADABLE = {
    "truncated": b'{\n "servers": {"a": {"command": "x"',
    "empty": b"",
    "utf-16": '{"servers": {}}'.encode("utf-16"),
    "a list": b"[]",
    "servers is a list": b'{"servers": []}',
    "servers twice": b'{"servers": {}, "servers": {}}',
    "not utf-8": b'{"servers": {"\xff": {}}}',
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_conf_01_a_file_that_cannot_be_read_gives_one_warning_no_servers_and_is_never_overwritten(
    file: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_bytes(data)
    document = load_document()
    assert document.servers == {}
    assert isinstance(document.error, ConfigError)
    assert load_configs() == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    for save in (
        lambda: save_document(document.with_server(server("b"))),
        lambda: save_configs([server("b")]),
        lambda: save_document(ConfigDocument(path=file).with_server(server("b"))),
    ):
        with pytest.raises(StorageError, match="cannot be read"):
            save()
    assert file.read_bytes() == data


def test_conf_01_the_warning_names_line_and_column(file: Path) -> None:
    error = write(file, '{ // c\n  "servers": {"a": {"command": "x"}\n').error
    assert error is not None
    assert str(error) == f"{file}:3:1: expecting ',' delimiter"


def test_a_file_that_may_not_be_read_is_an_error_and_not_no_servers(file: Path) -> None:
    file.mkdir()
    error = load_document().error
    assert error is not None
    assert "cannot be read: Is a directory" in str(error)


COMMENTED = """\
\ufeff{
  // my servers
  "servers": {
    "a": {"command": "x", "env": {"PORT": 8080, "KEY": "v"}, "disabled": true, "odd": 1.0, "timeout_seconds": 30},
    "broken": {"command": 5},  // to be repaired
  },
  "theme": 1e3,
}
"""


def test_conf_01_a_save_keeps_comments_unknown_fields_and_broken_entries_as_they_are_written(file: Path) -> None:
    document = write(file, COMMENTED)
    after = save_document(document.with_server(attrs.evolve(document.servers["a"], enabled=True)))
    assert file.read_text() == COMMENTED.replace(' "disabled": true,', "")
    assert after.servers["a"].enabled
    assert not file.with_name("mcp_servers.json.bak").exists()
    config = after.servers["a"].merge_patch({"env": {"KEY": "w", "NEW": 5}, "odd": 2})
    save_document(after.with_server(config).with_server(server("b")))
    assert file.read_text() == COMMENTED.replace(' "disabled": true,', "").replace(
        '"KEY": "v"', '"KEY": "w", "NEW": "5"'
    ).replace('"odd": 1.0', '"odd": 2').replace(
        "// to be repaired\n", '// to be repaired\n    "b": {\n      "command": [\n        "x"\n      ]\n    },\n'
    )


def test_conf_01_where_comments_are_lost_the_file_as_it_was_is_kept(file: Path) -> None:
    document = write(file, COMMENTED)
    save_document(document.without_server("broken"))
    backup = file.with_name("mcp_servers.json.bak")
    assert backup.read_text() == COMMENTED
    assert stat.S_IMODE(backup.stat().st_mode) == stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_broken_entry_can_be_removed_and_an_unknown_one_cannot(file: Path) -> None:
    document = write(file, {"servers": {"bad": 1, "good": {"command": "x"}}})
    after = save_document(document.without_server("bad"))
    assert (list(after.servers), after.broken) == (["good"], {})
    with pytest.raises(UnknownServer):
        after.without_server("bad")


def test_what_is_saved_is_what_is_read_again_and_a_new_file_is_the_owners(state_dir: Path) -> None:
    document = load_document().with_server(server("a", env={"K": "v"})).with_server(server("b"))
    saved = save_document(document, expected=ABSENT)
    assert saved == load_document()
    assert saved.servers == document.servers
    assert stat.S_IMODE(paths.config_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700


def test_a_save_of_nothing_writes_nothing(file: Path) -> None:
    document = write(file, COMMENTED)
    before = file.stat().st_mtime_ns
    assert save_document(document.with_server(document.servers["a"])).revision == document.revision
    assert file.stat().st_mtime_ns == before


def test_a_server_made_in_code_is_checked_before_it_is_saved() -> None:
    with pytest.raises(ConfigError, match=r"servers\.x\.timeout_seconds"):
        load_document().with_server(MCPServerConfig(name="x", command=("x",), timeout_seconds=-1))
    with pytest.raises(ConfigError, match=r"servers\.x: expected a command"):
        load_document().with_server(MCPServerConfig(name="x"))


def test_settings_are_saved_too(file: Path) -> None:
    document = write(file, COMMENTED)
    roots = ({"uri": "file:///r"},)
    after = save_document(attrs.evolve(document, roots=roots, permission_default="ask"))
    assert (after.roots, after.permission_default) == (roots, "ask")
    assert list(after.servers) == ["a"]
    assert "// my servers" in file.read_text()


def test_edits_of_different_entries_are_both_kept(file: Path) -> None:
    first = second = write(file, COMMENTED)
    save_document(first.with_server(server("b")))
    after = save_document(second.with_server(attrs.evolve(second.servers["a"], enabled=True)))
    assert list(after.servers) == ["a", "b"]
    assert after.servers["a"].enabled


def test_the_second_edit_of_the_same_thing_is_a_conflict(file: Path) -> None:
    first = second = write(file, COMMENTED)
    save_document(attrs.evolve(first.with_server(server("b")).with_server(server("a")), start_limit=1))
    written = file.read_bytes()
    for edited in (
        second.with_server(server("b", description="mine")),
        second.with_server(attrs.evolve(second.servers["a"], enabled=True)),
        second.without_server("a"),
        attrs.evolve(second, start_limit=2),
    ):
        with pytest.raises(RevisionConflict):
            save_document(edited)
    assert file.read_bytes() == written


def test_a_save_that_expects_a_revision_is_refused_when_anything_else_has_changed(file: Path) -> None:
    first = second = write(file, COMMENTED)
    after = save_document(first.with_server(server("b")), expected=first.revision)
    with pytest.raises(RevisionConflict):
        save_document(second.with_server(server("c")), expected=second.revision)
    assert list(save_document(after.with_server(server("c")), expected=after.revision).servers) == ["a", "b", "c"]


def test_a_list_of_servers_is_saved_and_loaded(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(file, COMMENTED)
    [config] = load_configs()
    assert config.name == "a"
    assert [record.getMessage() for record in caplog.records] == [
        "servers.broken.command: expected a program with its arguments, as a list of texts or one text, got a number"
    ]
    save_configs([config, server("b")])
    assert [one.name for one in load_configs()] == ["a", "b"]
    save_configs([server("b")])
    assert json.loads(
        file.read_text("utf-8-sig")
        .replace("// my servers", "")
        .replace("// to be repaired", "")
        .replace("},\n  },", "}},")
        .replace(",\n}", "}")
    )["servers"] == {"broken": {"command": 5}, "b": {"command": ["x"]}}


ADD = """
import sys
from openprogram_mcp.config import MCPServerConfig, load_document, save_document
name = sys.argv[1]
document = load_document().with_server(MCPServerConfig(name=name, command=("x", name)))
print("ready", flush=True)
sys.stdin.readline()
save_document(document)
"""


def test_conf_04_twenty_processes_that_add_a_server_each_at_once_lose_none(file: Path) -> None:
    write(file, COMMENTED)
    names = [f"added {number}" for number in range(20)]
    adding = [
        subprocess.Popen([sys.executable, "-c", ADD, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in names
    ]
    for one in adding:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
    for one in adding:
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
    while any(one.poll() is None for one in adding):
        document = load_document()  # a reader never sees half a file, nor one without servers
        assert document.error is None
        assert "a" in document.servers
    for one in adding:
        one.communicate()
    assert [one.returncode for one in adding] == [0] * 20
    document = load_document()
    assert sorted(document.servers) == sorted(["a", *names])
    assert list(document.broken) == ["broken"]
    assert "// my servers" in file.read_text()
