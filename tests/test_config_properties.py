"""What holds for every configuration: it is stored without loss, and shown without a secret."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from openprogram_mcp.config import MCPServerConfig, load_document, save_document
from openprogram_mcp.errors import ConfigError
from openprogram_mcp.masking import MASK, Masker

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1
).filter(lambda name: bool(name.strip()) and len(name) <= 128)
words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8).filter(
    lambda one: MASK not in one
)
variables = st.from_regex(r"[A-Z_][A-Z0-9_]{0,6}", fullmatch=True)
seconds = st.integers(1, 10**6) | st.floats(0.001, 10**6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
KNOWN = frozenset(MCPServerConfig(name="x").to_response_dict()) | {
    "name",
    "disabled",
    "transport",
    "environment",
    "serverUrl",
    "httpUrl",
}
unknown = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda name: name not in KNOWN), json_values, max_size=3
)

common = {
    "enabled": st.booleans(),
    "timeout_seconds": seconds,
    "startup_timeout_seconds": seconds,
    "call_timeout_seconds": seconds,
    "max_call_seconds": seconds,
    "max_concurrency": st.integers(1, 1000),
    "serialize": st.sampled_from(["writes", "all", "none"]),
    "reconnect": st.just(False)
    | st.fixed_dictionaries({}, optional={"max_attempts": st.integers(1), "stable_seconds": seconds, "jitter": texts}),
    "health": st.fixed_dictionaries({"interval_seconds": seconds}),
    "max_frame_bytes": st.integers(1, 2**40),
    "max_result_chars": st.integers(1, 2**40),
    "always_load": st.booleans(),
    "allow": st.lists(texts, max_size=3),
    "deny": st.lists(texts, max_size=3),
    "era": st.sampled_from(["auto", "legacy", "2026-07-28"]),
    "stop_first": st.booleans(),
    "share": st.sampled_from(["process", "directory"]),
    "account": texts,
    "sandbox_state": st.booleans(),
    "source": st.fixed_dictionaries({"catalog_url": texts, "entry_hash": texts}),
    "description": texts,
}
tokens = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
auths = st.one_of(
    st.just({"kind": "none"}),
    st.fixed_dictionaries({"kind": st.just("bearer"), "token": tokens}),
    st.fixed_dictionaries(
        {"kind": st.just("oauth")}, optional={"client_id": texts, "client_secret": tokens, "redirect_port": st.just(99)}
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("enterprise"),
            "client_id": texts,
            "client_secret": tokens,
            "issuer": st.just("https://as.example"),
            "assertion_file": texts,
        }
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("workload"),
            "client_id": texts,
            "issuer": st.just("https://as.example"),
            "assertion_file": texts,
        }
    ),
    st.fixed_dictionaries({"kind": st.just("client_credentials"), "client_id": texts, "client_secret": tokens}),
)
locals_ = st.fixed_dictionaries(
    {"command": st.lists(words, min_size=1, max_size=3) | words.map(lambda word: f"run '{word.replace(chr(39), '')}'")},
    optional={
        **common,
        "type": st.just("local"),
        "args": st.lists(words | st.integers() | st.booleans(), max_size=4),
        "env": st.dictionaries(variables, st.none() | texts | st.integers() | st.booleans(), max_size=4),
        "cwd": texts,
        "inherit_env": st.sampled_from(["safe", "all"]) | st.lists(variables, max_size=2),
        "stop_timeout_seconds": seconds,
    },
)
remotes = st.fixed_dictionaries(
    {"url": st.sampled_from(["https://h/mcp", "http://u:pass@h:1/", "https://h/?k=v&token=SECRET", "${BASE}/x"])},
    optional={
        **common,
        "type": st.sampled_from(["http", "sse", "auto"]),
        "headers": st.dictionaries(variables, tokens, max_size=3),
        "auth": auths,
        "verify": st.booleans(),
        "ca_file": texts,
    },
)


def _masks_within(value: Any) -> bool:
    return MASK in json.dumps(value)


entries = (
    st.tuples(locals_ | remotes, unknown).map(lambda pair: pair[1] | pair[0]).filter(lambda one: not _masks_within(one))
)


@given(names, entries)
def test_the_storage_form_is_read_back_as_the_same_configuration(name: str, entry: dict[str, Any]) -> None:
    config = MCPServerConfig.from_dict(name, entry)
    stored = json.loads(json.dumps(config.to_storage_dict()))
    again = MCPServerConfig.from_dict(name, stored)
    assert again == config
    assert again.to_storage_dict() == stored
    assert again.fingerprint() == config.fingerprint()
    assert again.argv == config.argv


@given(entries)
def test_what_is_shown_sent_back_changes_nothing(entry: dict[str, Any]) -> None:
    config = MCPServerConfig.from_dict("x", entry)
    shown = json.loads(json.dumps(config.to_response_dict()))
    assert config.merge_patch(shown) == config
    assert config.merge_patch({}) == config


@given(st.dictionaries(names, entries, max_size=3))
def test_a_file_is_read_back_as_what_was_saved(tmp_path_factory: Any, servers: dict[str, Any]) -> None:
    path: Path = tmp_path_factory.mktemp("state") / "mcp_servers.json"
    document = load_document(path)
    for name, entry in servers.items():
        document = document.with_server(MCPServerConfig.from_dict(name, entry))
    save_document(document)
    assert load_document(path).servers == document.servers
    assert list(load_document(path).servers) == list(servers)


SECRET = st.text(st.sampled_from("QZ0123456789%+/=@:#&' é"), min_size=6, max_size=12).map(lambda tail: f"Secr3t{tail}X")


@given(
    SECRET, st.sampled_from(["env", "headers", "token", "client_secret", "query", "user", "flag", "named", "pasted"])
)
def test_a_secret_is_never_shown_and_always_known(secret: str, where: str) -> None:
    quoted = quote(secret, safe="")
    url = {"url": "https://h/mcp"}
    entries_by_place: dict[str, dict[str, Any]] = {
        "env": {"command": "x", "env": {"SOME_NAME": secret}},
        "headers": {**url, "headers": {"X-Any": secret}},
        "token": {**url, "auth": {"kind": "bearer", "token": secret}},
        "client_secret": {**url, "auth": {"kind": "oauth", "client_secret": secret}},
        "query": {"url": f"https://h/mcp?a=b&k={quoted}"},
        "user": {"url": f"https://me:{quoted}@h/mcp"},
        "flag": {"command": ["x", "--api-key", secret]},
        "named": {"command": "x", "args": ["-e", f"API_TOKEN={secret}"]},
        "pasted": {"command": "x", "args": ["-H", f"Authorization: Bearer {secret}"]},
    }
    entry = entries_by_place[where]
    config = MCPServerConfig.from_dict("x", entry)
    seen = json.dumps(config.to_response_dict(), ensure_ascii=False) + repr(config) + repr(config.auth)
    assert "Secr3t" not in seen
    said = f"a {secret} b {quoted} c {base64.b64encode(secret.encode()).decode().rstrip('=')}"
    assert Masker(config.secret_values()).mask(said) == f"a {MASK} b {MASK} c {MASK}"
    for fault in ({"timeout_seconds": 0}, {"era": 0}, {"url": [secret]}, {"type": "?"}, {"args": secret}):
        with pytest.raises(ConfigError) as raised:
            MCPServerConfig.from_dict("x", {**entry, **fault})
        assert "Secr3t" not in json.dumps(raised.value.to_problem())


@given(entries, st.sampled_from(sorted(KNOWN - {"name", "disabled"})), json_values)
def test_whatever_a_field_holds_is_taken_or_refused_with_its_path(entry: dict[str, Any], name: str, value: Any) -> None:
    assume(not _masks_within(value))
    config = error = None
    try:
        config = MCPServerConfig.from_dict("x", {**entry, name: value})
    except ConfigError as refusal:
        error = refusal
    if config is not None:
        assert MCPServerConfig.from_dict("x", config.to_storage_dict()) == config
    else:
        assert error is not None
        assert error.path is not None
        assert error.path.startswith("servers.x")
        assert error.message.startswith(error.path)
