"""What may be seen of a server's configuration, and the edits made on what was seen."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from openprogram_mcp.config import BearerAuth, ClientCredentialsAuth, MCPServerConfig, OAuthAuth
from openprogram_mcp.errors import ConfigError
from openprogram_mcp.masking import MASK

SECRETS = ("SECRET123", "SECRET456", "SECRET789", "SECRETabc", "SECRETdef", "SECRETghi")


def local(**more: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict("x", {"command": ["x"], **more})


def remote(**more: Any) -> MCPServerConfig:
    return MCPServerConfig.from_dict("x", {"url": "https://h/mcp", **more})


LOCAL = local(
    args=["--key", "SECRETabc", "--verbose", "--api-token=SECRETdef"], env={"API_KEY": "SECRET456", "GONE": None}
)
REMOTE = remote(
    url="https://me:SECRETghi@h/mcp?token=SECRET789",
    headers={"Authorization": "Bearer SECRET123"},
    auth={"kind": "oauth", "client_id": "id", "client_secret": "SECRET456"},
    privateToken="SECRETabc",
)


@pytest.mark.parametrize("config", [LOCAL, REMOTE], ids=["local", "remote"])
def test_secret_01_no_part_of_a_secret_is_shown_and_the_names_are(config: MCPServerConfig) -> None:
    seen = json.dumps(config.to_response_dict()) + repr(config) + repr(config.auth)
    assert "SECRET" not in seen
    for name in (*config.env, *config.headers):
        assert name in seen


def test_the_response_form_is_the_documented_one() -> None:
    form = LOCAL.to_response_dict()
    assert form["type"] == "local"
    assert form["args"] == ["--key", MASK, "--verbose", f"--api-token={MASK}"]
    assert form["env"] == {
        "API_KEY": {"has_value": True, "masked": "********"},
        "GONE": {"has_value": False, "masked": None},
    }
    assert form["reconnect"] == {
        "initial_seconds": 1,
        "max_seconds": 60,
        "max_attempts": None,
        "stable_seconds": 30,
    }
    form = REMOTE.to_response_dict()
    assert form["url"] == f"https://{MASK}@h/mcp?token={MASK}"
    assert form["headers"] == {"Authorization": {"has_value": True, "masked": "********"}}
    assert form["auth"] == {
        "kind": "oauth",
        "client_name": None,
        "client_id": "id",
        "client_secret": MASK,
        "has_client_secret": True,
        "scope": None,
        "redirect_port": None,
        "client_metadata_url": None,
    }
    assert remote(auth={"kind": "bearer", "token": "t"}).to_response_dict()["auth"] == {
        "kind": "bearer",
        "token": MASK,
        "has_token": True,
    }
    assert remote(auth={"kind": "oauth"}).to_response_dict()["auth"]["has_client_secret"] is False


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["-H", "Authorization: Bearer SECRET123"], ["-H", f"Authorization: {MASK}"]),
        (["-e", "GITHUB_TOKEN=SECRET123"], ["-e", f"GITHUB_TOKEN={MASK}"]),
        (["postgresql://me:SECRET123@h/db"], [f"postgresql://{MASK}@h/db"]),
        (["https://h/?api_key=SECRET123&page=2"], [f"https://h/?api_key={MASK}&page=2"]),
        (["ghp_SECRET123SECRET123"], [MASK]),
        (["--token", "${TOKEN}"], ["--token", "${TOKEN}"]),
        (["--token=${TOKEN}"], ["--token=${TOKEN}"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["--no-auth", "server.py"], ["--no-auth", "server.py"]),
        (["--max-tokens", "4096", "--keyword", "word", "--author", "Somebody"],) * 2,
        (["-y", "@scope/package@1.2.3", "--port=80", "https://h/x?page=2", "C:\\a\\b", "/a/b:c"],) * 2,
    ],
)
def test_secret_01_secrets_in_a_command_line_are_known_by_names_and_looks(words: list[str], seen: list[str]) -> None:
    config = local(args=words)
    assert config.to_response_dict()["args"] == seen
    assert local(command=["x", *words]).to_response_dict()["command"] == ["x", *seen]
    if "SECRET" in str(words):
        assert any("SECRET123" in one for one in config.secret_values())
    else:
        assert config.secret_values() == ()


def test_secret_01_a_command_that_is_one_text_is_masked_too() -> None:
    config = MCPServerConfig.from_dict("x", {"command": "run --key 'SECRET 123' -v"})
    assert config.to_response_dict()["command"] == f"run --key '{MASK}' -v"
    assert config.secret_values() == ("SECRET 123",)
    assert MCPServerConfig.from_dict("x", {"command": "run  'a b'"}).to_response_dict()["command"] == "run  'a b'"
    last = MCPServerConfig.from_dict("x", {"command": ["run", "--key"], "args": ["SECRETabc"]})
    assert last.to_response_dict()["args"] == [MASK]


def test_every_secret_text_is_known_for_masking() -> None:
    assert set(LOCAL.secret_values()) == {"SECRET456", "SECRETabc", "SECRETdef"}
    assert {"SECRET123", "Bearer SECRET123", "SECRET456", "SECRET789", "SECRETghi"} <= set(REMOTE.secret_values())
    assert {"p@ss", "p%40ss"} <= set(remote(url="https://me:p%40ss@h/").secret_values())
    assert {"SECRETa b", "SECRETa%20b"} <= set(remote(url="https://h/?k=SECRETa%20b").secret_values())
    assert "SECRETlone" in remote(url="https://SECRETlone@h/").secret_values()
    basic = base64.b64encode(b"me:SECRET123").decode()
    assert {"SECRET123", "me:SECRET123", basic} <= set(
        remote(headers={"Authorization": f"Basic {basic}"}).secret_values()
    )
    lengths = [len(one) for one in REMOTE.secret_values()]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TZ", "Europe/Berlin"),
        ("ZONE", "America/New_York"),
        ("DEBUG", "true"),
        ("AUTH_ENABLED", "true"),
        ("PORT", "8080"),
        ("MAX_TOKENS", "4096"),
        ("NODE_ENV", "production"),
        ("MEMORY_FILE", "/var/lib/memory.json"),
        ("LANG", "en_US.UTF-8"),
        ("BASE", "https://api.example.com/v1"),
        ("HOST", "db.example.com:5432"),
        ("LISTEN", "127.0.0.1:80"),
        ("SHORT_KEY", "abc"),
    ],
)
def test_values_whose_masking_would_only_spoil_texts_are_not_looked_for(name: str, value: str) -> None:
    assert local(env={name: value}).secret_values() == ()
    assert local(env={name: value}).to_response_dict()["env"][name]["masked"] == MASK  # and yet never shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PASSWORD", "123456"),
        ("X", "correct horse"),
        ("X", "hunter2"),
        ("API_KEY", "/abc/def"),
        ("DB", "pg://a:bcde@h/d"),
    ],
)
def test_all_other_values_are_secrets(name: str, value: str) -> None:
    assert value in local(env={name: value}).secret_values()


@pytest.mark.parametrize("config", [LOCAL, REMOTE], ids=["local", "remote"])
def test_secret_02_what_was_shown_can_be_sent_back_with_one_thing_changed(config: MCPServerConfig) -> None:
    body = config.to_response_dict() | {"description": "new"}
    after = config.merge_patch(json.loads(json.dumps(body)))
    assert after.to_storage_dict() == config.to_storage_dict() | {"description": "new"}
    assert after.fingerprint() == config.fingerprint()
    assert config.merge_patch({**config.to_response_dict(), "name": "x"}) == config


def test_secret_02_a_secret_is_kept_replaced_or_deleted() -> None:
    config = local(env={"KEEP": "a1", "MASKED": "b2", "FORM": "c3", "EMPTY": "d4", "NULL": "e5", "NEW": "f6"})
    edit = {
        "MASKED": MASK,
        "FORM": {"has_value": True, "masked": MASK},
        "EMPTY": "",
        "NULL": None,
        "NEW": "z",
        "MORE": 5,
    }
    after = config.merge_patch({"env": edit})
    assert after.env == {"KEEP": "a1", "MASKED": "b2", "FORM": "c3", "NEW": "z", "MORE": "5"}
    assert config.merge_patch({"env": None}).env == {}
    assert config.merge_patch({}) == config


def test_secret_02_the_secrets_of_auth_are_kept_replaced_or_deleted() -> None:
    config = remote(auth={"kind": "oauth", "client_id": "i", "client_secret": "s", "audience": "kept"})
    assert config.merge_patch({"auth": {"scope": "a"}}).to_storage_dict()["auth"] == {
        "kind": "oauth",
        "client_id": "i",
        "client_secret": "s",
        "scope": "a",
        "audience": "kept",
    }
    seen = {"kind": "oauth", "client_secret": MASK, "has_client_secret": True}
    assert config.merge_patch({"auth": seen}) == config
    assert config.merge_patch({"auth": {"client_secret": "t"}}).auth == OAuthAuth(
        client_id="i", client_secret="t", unknown={"audience": "kept"}
    )
    for nothing in ("", None):
        after = config.merge_patch({"auth": {"client_secret": nothing}})
        assert after.auth == OAuthAuth(client_id="i", unknown={"audience": "kept"})
    assert config.merge_patch({"auth": None}).auth is None


def test_secret_02_another_kind_of_sign_in_drops_the_secrets_of_the_first() -> None:
    config = remote(auth={"kind": "oauth", "client_id": "i", "client_secret": "s"})
    assert config.merge_patch({"auth": {"kind": "bearer", "token": "t"}}).auth == BearerAuth("t")
    credentials = {"kind": "client_credentials", "client_id": "i", "client_secret": "new"}
    assert config.merge_patch({"auth": credentials}).auth == ClientCredentialsAuth(client_id="i", client_secret="new")
    with pytest.raises(ConfigError, match=r"auth\.client_secret: the mask stands for no value"):
        config.merge_patch({"auth": {"kind": "client_credentials", "client_id": "i", "client_secret": MASK}})


def test_secret_02_words_of_a_command_line_are_kept_where_the_mask_comes_back() -> None:
    after = LOCAL.merge_patch({"args": ["--new", "--key", MASK, f"--api-token={MASK}", "x"]})
    assert after.args == ("--new", "--key", "SECRETabc", "--api-token=SECRETdef", "x")


@pytest.mark.parametrize(
    ("config", "patch", "path"),
    [
        (LOCAL, {"env": {"OTHER": MASK}}, "servers.x.env.OTHER"),
        (LOCAL, {"env": {"API_KEY": f"Bearer {MASK}"}}, "servers.x.env.API_KEY"),
        (LOCAL, {"args": ["--key", MASK, MASK]}, "servers.x.command"),
        (LOCAL, {"command": f"x --key {MASK}"}, "servers.x.command"),
        (REMOTE, {"url": f"https://other/?token={MASK}"}, "servers.x.url"),
        (REMOTE, {"headers": {"X-Key": MASK}}, "servers.x.headers.X-Key"),
    ],
)
def test_secret_02_a_mask_that_stands_for_nothing_is_refused_and_never_saved(
    config: MCPServerConfig, patch: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match="the mask stands for no value that is known") as raised:
        config.merge_patch(patch)
    assert raised.value.path == path
    with pytest.raises(ConfigError, match="the mask stands for no value"):
        local(env={"A": MASK})


def test_an_edit_merges_parts_resets_with_null_and_is_checked_as_a_whole() -> None:
    config = local(reconnect={"max_attempts": 3}, timeout_seconds=5, odd=1)
    assert config.merge_patch({"reconnect": {"max_seconds": 9}}).to_storage_dict()["reconnect"] == {
        "max_attempts": 3,
        "max_seconds": 9,
    }
    assert config.merge_patch({"reconnect": False}).reconnect is False
    assert config.merge_patch({"reconnect": False}).merge_patch({"reconnect": {"max_attempts": 1}}).reconnect
    assert config.merge_patch({"timeout_seconds": None, "odd": None}).to_storage_dict() == {
        "command": ["x"],
        "reconnect": {"max_attempts": 3},
    }
    assert config.merge_patch({"disabled": True}).enabled is False
    moved = config.merge_patch({"command": None, "url": "https://h"})
    assert moved.resolved_type == "auto"
    with pytest.raises(ConfigError, match=r"^servers\.x\.url: does not fit a local server"):
        local(type="local").merge_patch({"url": "https://h"})
    with pytest.raises(ConfigError, match=r"^servers\.x\.name: a server cannot be renamed"):
        config.merge_patch({"name": "y"})
    with pytest.raises(ConfigError, match=r"^servers\.x: expected an object of changes"):
        config.merge_patch([])


def test_a_fault_never_tells_a_secret() -> None:
    entry = {
        "command": {"x": "SECRET123"},
        "args": "SECRET123",
        "env": {"A": ["SECRET123"]},
        "headers": "SECRET123",
        "url": "SECRET123",
        "auth": {"kind": "bearer", "token": ["SECRET123"]},
    }
    with pytest.raises(ConfigError) as raised:
        MCPServerConfig.from_dict("x", entry)
    assert "SECRET" not in json.dumps(raised.value.to_problem())
    assert str(raised.value).count("expected") == 6
    assert raised.value.__context__ is None


# What models are kept from: credentials, and not every secret.


def test_credentials_are_the_secrets_whose_place_name_or_looks_say_so() -> None:
    config = MCPServerConfig.from_dict(
        "x",
        {
            "command": ["run", "--api-key", "word-secret-1", "${PROJECT}", "${SERVICE_TOKEN}"],
            "env": {"PROJECT": "zeppelin-works", "DB_PASSWORD": "${PW}", "OTHER": "ghp_abcdefghijklmnop1234"},
        },
    ).expand({"PROJECT": "airship-works", "SERVICE_TOKEN": "token-4711-x", "PW": "hush-hush-1"})
    assert set(config.credentials()) == {
        "word-secret-1",
        "token-4711-x",
        "hush-hush-1",
        "ghp_abcdefghijklmnop1234",
    }
    assert {"zeppelin-works", "airship-works"} <= set(config.secret_values())
    remote = MCPServerConfig.from_dict(
        "y",
        {
            "url": "https://me:pass-word-1@h.example/mcp?project=zeppelin-works&key=k-123456",
            "headers": {"Authorization": "Bearer b-123456", "X-Project": "zeppelin-works"},
            "auth": {"kind": "oauth", "client_secret": "c-123456"},
        },
    )
    assert set(remote.credentials()) == {
        "me:pass-word-1",
        "pass-word-1",
        "k-123456",
        "Bearer b-123456",
        "b-123456",
        "c-123456",
    }
