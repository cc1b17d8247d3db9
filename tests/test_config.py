"""The fields of a server: what they may hold, what a fault says, what a running connection depends on."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from openprogram_mcp.config import (
    BearerAuth,
    ClientCredentialsAuth,
    Health,
    MCPServerConfig,
    NoAuth,
    OAuthAuth,
    Reconnect,
    Source,
)
from openprogram_mcp.errors import ConfigError

EVERYTHING_LOCAL: dict[str, Any] = {
    "type": "local",
    "command": ["npx", "-y", "drawio-mcp"],
    "args": ["--port", "8080"],
    "env": {"A": "b", "UNSET": None},
    "cwd": "somewhere",
    "inherit_env": ["HOME", "LANG"],
    "enabled": False,
    "timeout_seconds": 10,
    "startup_timeout_seconds": 60.5,
    "call_timeout_seconds": 20,
    "max_call_seconds": 100,
    "stop_timeout_seconds": 1,
    "max_concurrency": 1000,
    "serialize": "all",
    "reconnect": {"initial_seconds": 2, "max_seconds": 9, "max_attempts": 3, "stable_seconds": 5},
    "health": {"interval_seconds": 15},
    "max_frame_bytes": 1_000_000,
    "max_result_chars": 5000,
    "always_load": True,
    "allow": ["read_*"],
    "deny": ["read_secret"],
    "era": "legacy",
    "stop_first": True,
    "share": "process",
    "account": "me",
    "sandbox_state": True,
    "source": {"catalog_url": "https://c", "entry_hash": "abc"},
    "description": "Draws",
}

EVERYTHING_REMOTE: dict[str, Any] = {
    "type": "http",
    "url": "https://example.com/mcp",
    "headers": {"X-Key": "v"},
    "auth": {
        "kind": "oauth",
        "client_name": "n",
        "client_id": "i",
        "client_secret": "s",
        "scope": "a b",
        "redirect_port": 1234,
        "client_metadata_url": "https://example.com/client",
    },
    "ca_file": "ca.pem",
    "client_cert_file": "c.pem",
    "client_key_file": "k.pem",
    "verify": False,
    "reconnect": False,
}


def local(**more: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict("x", {"command": ["x"], **more})


def remote(**more: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict("x", {"url": "https://h/mcp", **more})


@pytest.mark.parametrize("entry", [EVERYTHING_LOCAL, EVERYTHING_REMOTE], ids=["local", "remote"])
def test_every_field_is_read_and_stored_again(entry: dict[str, Any]) -> None:
    config = MCPServerConfig.from_dict("drawio", entry)
    assert config.to_storage_dict() == entry
    assert MCPServerConfig.from_dict("drawio", config.to_storage_dict()) == config
    assert config.unknown == {}


def test_the_two_entries_of_this_test_hold_every_field() -> None:
    stored = {one.name for one in attrs.fields(MCPServerConfig) if not one.metadata.get("memory")}
    assert stored - {"name", "unknown"} == EVERYTHING_LOCAL.keys() | EVERYTHING_REMOTE.keys()


def test_what_is_left_out_or_null_has_its_default_and_is_not_stored() -> None:
    config = MCPServerConfig.from_dict("x", dict.fromkeys(EVERYTHING_LOCAL | EVERYTHING_REMOTE) | {"command": ["x"]})
    assert config == MCPServerConfig(name="x", command=("x",))
    assert config.to_storage_dict() == {"command": ["x"]}
    assert (config.enabled, config.timeout_seconds, config.stop_timeout_seconds) == (True, 30, 2)
    assert (config.max_concurrency, config.serialize, config.inherit_env) == (8, "writes", "safe")
    assert config.reconnect == Reconnect(initial_seconds=1, max_seconds=60, max_attempts=None, stable_seconds=30)
    assert (config.health, config.auth, config.source, config.account) == (None, None, None, None)
    assert (config.max_frame_bytes, config.max_result_chars) == (64 * 2**20, 100_000)
    assert (config.allow, config.deny, config.era, config.share) == (("*",), (), "auto", "directory")


def test_the_parts_become_values_of_their_own() -> None:
    config = MCPServerConfig.from_dict("x", EVERYTHING_LOCAL)
    assert config.health == Health(interval_seconds=15)
    assert config.source == Source(catalog_url="https://c", entry_hash="abc")
    assert remote(auth={"kind": "none"}).auth == NoAuth()
    assert remote(auth={"kind": "bearer", "token": "t"}).auth == BearerAuth("t")
    assert remote(auth={"kind": "oauth"}).auth == OAuthAuth()
    credentials = {
        "kind": "client_credentials",
        "client_id": "i",
        "private_key_file": "k",
        "signing_algorithm": "ES256",
    }
    assert remote(auth=credentials).auth == ClientCredentialsAuth(
        client_id="i", private_key_file="k", signing_algorithm="ES256"
    )
    assert local(reconnect=False).reconnect is False
    assert local(reconnect=True).reconnect == Reconnect()


def test_the_time_limits_fall_back_on_each_other() -> None:
    config = local(timeout_seconds=5)
    assert (config.startup_seconds, config.call_seconds, config.max_call) == (5, 5, 50)
    config = local(startup_timeout_seconds=1, call_timeout_seconds=2, max_call_seconds=3)
    assert (config.startup_seconds, config.call_seconds, config.max_call) == (1, 2, 3)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"command": "x"}, "local"),
        ({"url": "https://h"}, "auto"),
        ({"url": "https://h", "type": "sse"}, "sse"),
        ({"command": "x", "type": "stdio"}, "local"),
        ({"url": "https://h", "type": "streamable-http"}, "http"),
        ({"url": "https://h", "type": "streamableHttp"}, "http"),
    ],
)
def test_conf_03_the_type_follows_from_the_fields_and_goes_by_the_names_others_use(
    entry: dict[str, Any], kind: str
) -> None:
    assert MCPServerConfig.from_dict("x", entry).resolved_type == kind


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ({"command": "x", "disabled": True}, {"command": "x", "enabled": False}),
        ({"command": "x", "disabled": False}, {"command": "x"}),
        ({"serverUrl": "https://h/mcp"}, {"url": "https://h/mcp"}),
        ({"httpUrl": " https://h/sse "}, {"url": "https://h/sse"}),
        ({"transport": "sse", "url": "https://h"}, {"type": "sse", "url": "https://h"}),
        ({"command": "x", "environment": {"A": "b"}}, {"command": "x", "env": {"A": "b"}}),
    ],
)
def test_conf_03_fields_by_the_names_of_other_programs_are_read(entry: dict[str, Any], ours: dict[str, Any]) -> None:
    assert MCPServerConfig.from_dict("x", entry).to_storage_dict() == ours


def test_conf_03_a_field_by_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"servers\.x\.disabled: is another name for enabled, which is given too"):
        local(enabled=True, disabled=True)


def test_conf_03_a_command_may_be_one_text_and_is_split_as_a_shell_does(tmp_path: Any) -> None:
    def argv(command: Any, *args: str) -> tuple[str, ...]:
        return MCPServerConfig.from_dict("x", {"command": command, "args": list(args)}).argv

    assert argv("npx -y pkg") == argv(["npx", "-y", "pkg"]) == argv("npx", "-y", "pkg") == ("npx", "-y", "pkg")
    assert argv("""sh -c 'a "b" | c' d\\ e""") == ("sh", "-c", 'a "b" | c', "d e")
    assert argv("x; rm -rf $HOME") == ("x;", "rm", "-rf", "$HOME")
    program = tmp_path / "My Programs" / "run me"
    program.parent.mkdir()
    program.touch()
    assert argv(str(program), "-v") == (str(program), "-v")


def test_conf_06_numbers_and_truth_values_become_text_and_null_takes_a_variable_away() -> None:
    config = local(env={"PORT": 8080, "DEBUG": True, "X": None, "a-b": "c", "RATE": 0.5}, args=["--n", 5, False])
    assert config.env == {"PORT": "8080", "DEBUG": "true", "X": None, "a-b": "c", "RATE": "0.5"}
    assert config.args == ("--n", "5", "false")
    assert remote(headers={"X-N": 5, "X-None": None, "X-Blank": " a "}).headers == {"X-N": "5", "X-Blank": "a"}


@pytest.mark.parametrize("name", ["timeout_seconds", "call_timeout_seconds", "stop_timeout_seconds"])
@pytest.mark.parametrize(
    ("value", "got"),
    [
        (-1, "-1"),
        (0, "0"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (10**400, "a number out of range"),
        ("30s", '"30s"'),
        ("30", '"30"'),
        (True, "true"),
        ([30], "a list"),
        ({}, "an object"),
    ],
)
def test_conf_06_a_time_limit_that_is_none_is_refused_with_its_unit(name: str, value: Any, got: str) -> None:
    with pytest.raises(ConfigError) as raised:
        local(**{name: value})
    assert str(raised.value) == f"servers.x.{name}: expected a number of seconds above 0, got {got}"
    assert raised.value.path == f"servers.x.{name}"
    assert raised.value.server == "x"


def test_conf_06_what_looks_like_milliseconds_or_a_mistyped_field_is_told_as_a_warning() -> None:
    config = local(timeout_seconds=60000, timeout=60000, timeout_second=1, alwaysAllow=["a"])
    first, second, third = config.warnings
    assert first == "timeout: is not a field of this program; timeout_seconds and its like are, in seconds"
    assert second == "timeout_second: is not a field of this program; timeout_seconds and its like are, in seconds"
    assert third.startswith("timeout_seconds: 60000 seconds are 16.7 hours; the unit is the second")
    assert local(serialise="all").warnings == ("serialise: is not a field of this program; is serialize meant?",)
    assert local(timeout_seconds=3600, description="x").warnings == ()


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({}, "servers.x: expected a command (for a local server) or a url (for a remote one), got neither"),
    ({"type": "local"}, "servers.x.command: is missing; a server of type local needs it"),
    ({"type": "http"}, "servers.x.url: is missing; a server of type http needs it"),
    ({"command": "x", "type": "pipe"}, 'servers.x.type: expected "local", "http", "sse" or "auto", got "pipe"'),
    ({"command": "x", "url": "http://h"}, "servers.x.command: does not fit a server with a url (its type is auto)"),
    (
        {"type": "local", "command": "x", "url": "http://h"},
        "servers.x.url: does not fit a local server (its type is local)",
    ),
    ({"command": "x", "headers": {"A": "b"}}, "servers.x.headers: does not fit a local server (its type is local)"),
    ({"command": "x", "verify": False}, "servers.x.verify: does not fit a local server (its type is local)"),
    ({"url": "http://h", "env": {"A": "b"}}, "servers.x.env: does not fit a server with a url (its type is auto)"),
    ({"url": "http://h", "cwd": "/"}, "servers.x.cwd: does not fit a server with a url (its type is auto)"),
    ({"command": []}, "servers.x.command: expected a program with its arguments, as a list of texts or one text, got"),
    ({"command": "  "}, "servers.x.command: expected a program with its arguments"),
    ({"command": 'x "y'}, "servers.x.command: expected a program with its arguments"),
    ({"command": ["x", ["y"]]}, "servers.x.command.1: expected a text, a number, true or false, got a list"),
    ({"command": "x", "args": "-v"}, "servers.x.args: expected a list of texts, got a text"),
    ({"command": "x", "args": ["a\0b"]}, "servers.x.args.0: expected a text, a number, true or false, got a text"),
    ({"command": "x", "env": []}, "servers.x.env: expected an object of names and texts, got a list"),
    ({"command": "x", "env": {"A": {}}}, "servers.x.env.A: expected a text, a number, true or false, got an object"),
    ({"command": "x", "env": {"A=B": "c"}}, 'servers.x.env: expected a name that the system can pass on, got "A=B"'),
    ({"command": "x", "inherit_env": "most"}, 'servers.x.inherit_env: expected "safe", "all", or a list of names'),
    ({"command": "x", "enabled": "false"}, 'servers.x.enabled: expected true or false, got "false"'),
    (
        {"command": "x", "max_concurrency": 0},
        "servers.x.max_concurrency: expected a whole number from 1 to 1000, got 0",
    ),
    ({"command": "x", "max_concurrency": 1.5}, "servers.x.max_concurrency: expected a whole number from 1 to 1000"),
    ({"command": "x", "max_concurrency": True}, "servers.x.max_concurrency: expected a whole number from 1 to 1000"),
    ({"command": "x", "serialize": "some"}, 'servers.x.serialize: expected "writes", "all" or "none", got "some"'),
    ({"command": "x", "era": "2025-11-25"}, 'servers.x.era: expected "auto", "legacy" or "2026-07-28"'),
    ({"command": "x", "allow": "*"}, 'servers.x.allow: expected a list of texts, got "*"'),
    ({"command": "x", "reconnect": {"max_attempts": 0}}, "servers.x.reconnect.max_attempts: expected a whole number"),
    (
        {"command": "x", "reconnect": {"initial_seconds": 90}},
        "servers.x.reconnect.max_seconds: expected not less than initial_seconds",
    ),
    ({"command": "x", "reconnect": "no"}, "servers.x.reconnect: expected an object, got a text"),
    ({"command": "x", "health": {}}, "servers.x.health.interval_seconds: is missing"),
    ({"command": "x", "health": 5}, "servers.x.health: expected an object, got a number"),
    ({"url": "ftp://h"}, "servers.x.url: expected an http:// or https:// address, got a text"),
    ({"url": "https://h:port/"}, "servers.x.url: expected an http:// or https:// address"),
    ({"url": "https://[::1/"}, "servers.x.url: expected an http:// or https:// address"),
    ({"url": "https://"}, "servers.x.url: expected an http:// or https:// address"),
    ({"url": "https://h/a b"}, "servers.x.url: expected an http:// or https:// address"),
    ({"url": "https://h", "headers": {"A": "b\nC: d"}}, "servers.x.headers.A: expected a text of one line, got a text"),
    ({"url": "https://h", "headers": {"A b": "c"}}, "servers.x.headers: expected a name that the system can pass on"),
    ({"url": "https://h", "auth": "bearer"}, "servers.x.auth: expected an object, got a text"),
    ({"url": "https://h", "auth": {}}, 'servers.x.auth.kind: expected "none", "bearer", "oauth", "'),
    ({"url": "https://h", "auth": {"kind": "bearer"}}, "servers.x.auth.token: is missing"),
    (
        {"url": "https://h", "auth": {"kind": "bearer", "token": 5}},
        "servers.x.auth.token: expected a text, got a number",
    ),
    (
        {"url": "https://h", "auth": {"kind": "oauth", "redirect_port": 70000}},
        "servers.x.auth.redirect_port: expected a whole number from 0 to 65535, got 70000",
    ),
    (
        {"url": "https://h", "auth": {"kind": "client_credentials", "client_id": "i"}},
        "servers.x.auth: expected either client_secret or private_key_file",
    ),
]


@pytest.mark.parametrize(("entry", "message"), FAULTS, ids=[message.partition(" ")[0] for _, message in FAULTS])
def test_a_fault_is_told_with_its_path_what_was_expected_and_what_was_found(
    entry: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        MCPServerConfig.from_dict("x", entry)
    assert str(raised.value).startswith(message)
    assert raised.value.path == message.partition(": ")[0]


def test_an_entry_that_is_no_object_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"^servers\.x: expected an object, got a text$"):
        MCPServerConfig.from_dict("x", "npx server --token=hunter2")


def test_all_faults_of_an_entry_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        local(timeout_seconds="soon", reconnect={"max_attempts": 0}, enabled=1)
    assert str(raised.value) == (
        "servers.x.enabled: expected true or false, got 1; "
        'servers.x.timeout_seconds: expected a number of seconds above 0, got "soon"; '
        "servers.x.reconnect.max_attempts: expected a whole number from 1 up, got 0"
    )


def test_the_path_of_a_fault_can_be_that_of_a_request() -> None:
    with pytest.raises(ConfigError) as raised:
        MCPServerConfig.from_dict("x", {"command": "x", "enabled": 1}, path="config")
    assert raised.value.path == "config.enabled"


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", "x" * 129, "\ud800", "a\x7f"])
def test_a_name_that_cannot_stand_in_a_route_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name of 1 to 128 characters"):
        MCPServerConfig.from_dict(name, {"command": "x"})


@pytest.mark.parametrize("name", ["time", "my server", "日本", "a.b", "🙂" * 128])
def test_any_other_name_will_do(name: str) -> None:
    assert MCPServerConfig.from_dict(name, {"command": "x", "name": "other"}).name == name


def test_fields_that_are_not_known_are_kept_in_the_parts_too() -> None:
    entry = {
        "url": "https://h",
        "autoApprove": ["a"],
        "expanded_secrets": 1,
        "unknown": {"x": 1},
        "auth": {"kind": "oauth", "audience": "x"},
        "reconnect": {"max_attempts": 1, "jitter": True},
    }
    config = MCPServerConfig.from_dict("x", entry)
    assert config.unknown == {"autoApprove": ["a"], "expanded_secrets": 1, "unknown": {"x": 1}}
    assert config.to_storage_dict() == entry


def test_a_server_says_little_of_itself() -> None:
    config = remote(headers={"A": "hunter2"}, auth={"kind": "bearer", "token": "hunter2"}, enabled=False)
    assert repr(config) == "<MCPServerConfig 'x': auto, disabled>"
    assert "hunter2" not in repr(config.auth)


@pytest.mark.parametrize(
    "change",
    [
        {"description": "new"},
        {"enabled": False},
        {"timeout_seconds": 1},
        {"max_concurrency": 1},
        {"allow": ["a"]},
        {"reconnect": False},
        {"command": "x --a b"},
        {"type": "local"},
        {"whatever": 1},
    ],
)
def test_secret_02_what_a_connection_does_not_depend_on_leaves_its_fingerprint(change: dict[str, Any]) -> None:
    before = MCPServerConfig.from_dict("x", {"command": ["x", "--a"], "args": ["b"]})
    after = before.merge_patch({"args": [], **change} if "command" in change else change)
    assert after.fingerprint() == before.fingerprint()


@pytest.mark.parametrize(
    "change", [{"args": ["c"]}, {"env": {"A": "b"}}, {"cwd": "x"}, {"inherit_env": "all"}, {"era": "legacy"}]
)
def test_what_a_connection_depends_on_changes_its_fingerprint(change: dict[str, Any]) -> None:
    before = local()
    assert before.merge_patch(change).fingerprint() != before.fingerprint()


def test_a_fingerprint_does_not_depend_on_the_process_or_on_the_order_of_names() -> None:
    one = local(env={"A": "1", "B": "2"})
    other = local(env={"B": "2", "A": "1"})
    assert one.fingerprint() == other.fingerprint()
    assert len(one.fingerprint()) == 64
