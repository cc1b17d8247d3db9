"""``${NAME}`` in a configuration, and the paths in it, when a server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openprogram_mcp import paths
from openprogram_mcp.config import BearerAuth, ClientCredentialsAuth, MCPServerConfig
from openprogram_mcp.errors import ConfigError
from openprogram_mcp.masking import Masker

ENVIRON = {
    "NAME": "value",
    "TOKEN": "hunter2hunter2",
    "EMPTY": "",
    "SPACED": "a b",
    "TRICKY": "${NAME} $$",
    "LINE": "t\n",
}


def expand(**entry: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict("x", entry).expand(ENVIRON, base=Path("/base"))


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${NAME}", "value"),
        ("a${NAME}b${NAME}", "avaluebvalue"),
        ("${NAME:-default}", "value"),
        ("${UNSET:-default}", "default"),
        ("${UNSET:-}", ""),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("${UNSET:-a$$b$c}", "a$b$c"),
        ("$$", "$"),
        ("$${NAME}", "${NAME}"),
        ("$$${NAME}", "$value"),
        ("$NAME costs $5", "$NAME costs $5"),
        ("${TRICKY}", "${NAME} $$"),
        ("${UNSET:-https://h/?a=b&c:-d}", "https://h/?a=b&c:-d"),
    ],
)
def test_a_reference_is_replaced_by_the_value_once(text: str, expanded: str) -> None:
    assert expand(command="x", env={"A": text}).env == {"A": expanded}


def test_references_are_replaced_in_every_field_that_may_hold_them() -> None:
    config = expand(
        command=["${NAME}", "a${NAME}"], args=["${SPACED}"], env={"A": "${NAME}", "B": None}, cwd="${NAME}/d"
    )
    assert config.command == ("value", "avalue")
    assert config.args == ("a b",)
    assert config.env == {"A": "value", "B": None}
    assert config.cwd == "/base/value/d"
    config = expand(
        url="https://${NAME}.com/${NAME}",
        headers={"A": "Bearer ${TOKEN}"},
        auth={"kind": "bearer", "token": "${TOKEN}"},
        ca_file="${NAME}.pem",
    )
    assert config.url == "https://value.com/value"
    assert config.headers == {"A": "Bearer hunter2hunter2"}
    assert config.auth == BearerAuth("hunter2hunter2")
    assert config.ca_file == "/base/value.pem"


def test_one_text_is_split_before_values_come_in_so_that_a_value_is_one_word() -> None:
    assert expand(command="run ${SPACED} x").argv == ("run", "a b", "x")


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ({"command": ["x", "${UNSET}"]}, "servers.x.command.1"),
        ({"command": "x", "args": ["a", "${UNSET}"]}, "servers.x.args.1"),
        ({"command": "x", "env": {"TOKEN": "Bearer ${UNSET}"}}, "servers.x.env.TOKEN"),
        ({"command": "x", "cwd": "${UNSET}"}, "servers.x.cwd"),
        ({"url": "https://${UNSET}/"}, "servers.x.url"),
        ({"url": "${UNSET}"}, "servers.x.url"),
        ({"url": "https://h", "headers": {"A": "${UNSET}"}}, "servers.x.headers.A"),
        ({"url": "https://h", "auth": {"kind": "bearer", "token": "${UNSET}"}}, "servers.x.auth.token"),
    ],
)
def test_an_unset_variable_fails_that_server_by_name(entry: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as raised:
        expand(**entry)
    assert str(raised.value) == f"{path}: the environment variable UNSET is not set"
    assert (raised.value.path, raised.value.server) == (path, "x")
    assert raised.value.remedy is not None
    assert "${UNSET:-default}" in raised.value.remedy


@pytest.mark.parametrize(
    "text", ["${", "${}", "${1A}", "${input:token}", "${NAME", "${NAME:?x}", "${A:-${NAME}}", "${NA ME}"]
)
def test_what_begins_like_a_reference_and_is_none_is_never_sent_as_text(text: str) -> None:
    with pytest.raises(ConfigError, match=r"servers\.x\.env\.A: a \$\{ in it begins neither") as raised:
        expand(command="x", env={"A": f"hunter2{text}"})
    assert "hunter2" not in str(raised.value)


def test_what_comes_of_a_variable_must_fit_the_field() -> None:
    with pytest.raises(ConfigError, match=r"^servers\.x\.url: expected an http:// or https:// address, got a text$"):
        expand(url="${NAME}")
    with pytest.raises(ConfigError, match=r"^servers\.x\.headers\.A: expected a text of one line"):
        expand(url="https://h", headers={"A": "${LINE}x"})
    assert expand(url="https://h", headers={"A": "${LINE}"}).headers == {"A": "t"}  # the line break of a secret's file


def test_reading_and_storing_leave_references_as_they_are() -> None:
    entry = {"command": "x ${UNSET}", "env": {"A": "${UNSET:-b}", "B": "$$"}}
    assert MCPServerConfig.from_dict("x", entry).to_storage_dict() == entry


def test_paths_are_relative_to_the_folder_of_the_file_and_know_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand(command="~/bin/x ~/a", cwd="~/d").argv == ("/home/me/bin/x", "~/a")
    assert expand(command="./x", cwd="~/d").cwd == "/home/me/d"
    assert expand(command="./x").argv == ("./x",)
    assert expand(command="x", cwd="/abs").cwd == "/abs"
    assert expand(command="x").cwd is None
    assert MCPServerConfig.from_dict("x", {"command": "x", "cwd": "d"}).expand({}).cwd == str(state_dir / "d")
    with paths.use_state_dir("/chosen"):
        assert MCPServerConfig.from_dict("x", {"command": "x", "cwd": "d"}).expand({}).cwd == "/chosen/d"
    key = {"kind": "client_credentials", "client_id": "${NAME}", "private_key_file": "k.pem"}
    assert expand(url="https://h", auth=key).auth == ClientCredentialsAuth(
        client_id="value", private_key_file="/base/k.pem"
    )


def test_the_variables_of_the_process_are_taken_when_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_NAME", "some value")
    assert MCPServerConfig.from_dict("x", {"command": ["${SOME_NAME}"]}).expand().argv == ("some value",)


def test_secret_01_the_values_of_variables_are_secrets_wherever_they_went() -> None:
    config = expand(command="x", args=["positional", "${TOKEN}", "${SPACED}"], env={"A": "pre-${TOKEN}"})
    masker = Masker(config.secret_values())
    assert masker.mask("x positional hunter2hunter2 pre-hunter2hunter2") == "x positional ******** ********"
    assert "hunter2" not in repr(config)
    config = expand(url="https://h/${TOKEN}/mcp")
    assert "hunter2" not in Masker(config.secret_values()).mask(f"GET {config.url} failed")


def test_a_reference_by_itself_is_no_secret() -> None:
    config = MCPServerConfig.from_dict("x", {"command": "x", "env": {"A": "${TOKEN}", "B": "Bearer ${TOKEN}"}})
    assert config.secret_values() == ()
    config = MCPServerConfig.from_dict("x", {"command": "x", "env": {"A": "${TOKEN:-hunter2}", "B": "pre-fix${TOKEN}"}})
    assert config.secret_values() == ("hunter2", "pre-fix")
