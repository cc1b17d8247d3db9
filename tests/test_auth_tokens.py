"""What is kept of sign-ins: for whom, where, and against whom."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest
import trio
from attrs import evolve

from openprogram_mcp.auth import _vault
from openprogram_mcp.auth.tokens import Binding, Credentials, Registration, Tokens, TokenStore, file_name, same_issuer
from openprogram_mcp.errors import ConfigError

URL = "https://h.example/mcp"


def some(**changes: object) -> Credentials:
    return Credentials(
        binding=Binding.to(URL),
        issuer="https://as.example",
        tokens=Tokens(access_token="access", refresh_token="refresh", expires_at=time.time() + 60, lifetime=60.0),
        registration=Registration(
            client_id="me", client_secret="secret", redirect_uri="http://127.0.0.1:19876/mcp/oauth/callback"
        ),
        metadata={"issuer": "https://as.example"},
        resource={"resource": URL},
        **changes,  # type: ignore[arg-type]  # as the test says
    )


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    store = TokenStore.of(tmp_path / "mcp_tokens", "github")
    assert store.read() is None
    store.write(some(wanted_scope="r w"))
    assert json.loads(store.path.read_text())["wanted_scope"] == "r w"
    again = TokenStore.of(tmp_path / "mcp_tokens", "github").read()
    assert again is not None
    assert again.registration is not None
    assert again.registration.redirect_port == 19876
    assert store.path.name == "github.json"
    if os.name == "posix":
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert store.remove() is True
    assert store.remove() is False


def test_no_two_servers_share_a_file_whatever_they_are_called() -> None:
    names = [
        "github",
        "GitHub",
        "GITHUB",
        "a b",
        "a%20b",
        ".",
        "..",
        "con",
        "CON",
        "con.x",
        "\u00e9",
        "e\u0301",
        "a@b",
        "x" * 128,
    ]
    names += ["x" * 127 + "y", "\U0001f600" * 128, "\U0001f600" * 127 + "x"]
    files = [file_name(name) for name in names] + [file_name("a", "b"), file_name("a", "B"), file_name("a")]
    assert len({name.lower() for name in files}) == len(files)
    assert all(len(name.encode()) < 220 and "/" not in name and name.isascii() for name in files)
    assert not any(name.split(".")[0] in ("con", "nul") for name in files)
    assert file_name("a", "b") == "a@b.json"


def test_oauth_09_what_belongs_to_one_address_is_not_there_for_another(tmp_path: Path) -> None:
    store = TokenStore.of(tmp_path, "x")
    store.write(some())
    assert store.load(Binding.to("https://H.example/mcp#here")) is not None
    for other in (
        Binding.to("https://h.example/other"),
        Binding.to("https://b.example/mcp"),
        Binding.to("http://h.example/mcp"),
        Binding.to(URL, "another client"),
        Binding.to(URL, None, "another scope"),
    ):
        assert store.load(other) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"version": 99}', b'{"version": 1}', b"\xff", b'{"version": 1, "binding": {"server_url": 3}}'],
)
def test_a_broken_file_is_as_none_and_nothing_of_it_is_said(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = TokenStore.of(tmp_path, "x")
    store.path.write_bytes(data)
    assert store.read() is None
    assert "cannot be understood" in caplog.text
    store.write(some())
    assert store.read() is not None


def test_the_state_says_how_far_a_sign_in_gets() -> None:
    now = time.time()
    fresh = some()
    assert fresh.state == "logged_in"
    assert fresh.without_tokens().state == "not_logged_in"
    old = evolve(fresh, tokens=Tokens(access_token="a", expires_at=now - 1))
    assert old.state == "expired"
    renewable = evolve(fresh, tokens=Tokens(access_token="a", refresh_token="r", expires_at=now - 1))
    assert renewable.state == "logged_in"
    assert evolve(renewable, rejected=True).state == "expired"
    assert evolve(fresh, tokens=Tokens(access_token="a")).state == "logged_in"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://as", "https://as/", True),
        ("https://as/", "https://as", True),
        ("https://AS:443/tenant/", "https://as/tenant", True),
        ("https://as/tenant/", "https://as/tenant/", True),
        ("https://as/tenant", "https://as/other", False),
        ("https://as", "https://as.evil", False),
        ("https://as", "http://as", False),
        ("https://as/tenant", "https://as/Tenant", False),
        ("https://as", "https://as//", False),
    ],
)
def test_oauth_10_one_slash_at_the_end_of_an_issuer_makes_no_difference(one: str, other: str, same: bool) -> None:
    assert same_issuer(one, other) is same


async def test_a_transaction_keeps_other_processes_out(tmp_path: Path) -> None:
    store = TokenStore.of(tmp_path, "x")
    script = (
        "import sys, trio\nfrom pathlib import Path\nfrom openprogram_mcp.auth.tokens import TokenStore\n"
        "async def main():\n"
        "    print('u', end='', flush=True)\n"
        "    async with TokenStore(Path(sys.argv[1])).transaction():\n"
        "        print('i', end='', flush=True)\n"
        "trio.run(main)\n"
    )
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with store.transaction():
                process = await nursery.start(_child, script, str(store.path))
                assert await process.stdout.receive_some() == b"u"
                with trio.move_on_after(0.2) as patience:
                    await process.stdout.receive_some()
                assert patience.cancelled_caught
            assert await process.stdout.receive_some() == b"i"


async def _child(
    script: str, argument: str, task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED
) -> None:
    import subprocess

    await trio.run_process([sys.executable, "-c", script, argument], stdout=subprocess.PIPE, task_status=task_status)


async def test_a_transaction_that_is_cancelled_while_it_waits_leaves_the_lock_alone(tmp_path: Path) -> None:
    store = TokenStore.of(tmp_path, "x")
    async with store.transaction():
        with trio.move_on_after(0.1) as scope:
            async with store.transaction():
                raise AssertionError
        assert scope.cancelled_caught
    with trio.fail_after(5):
        async with store.transaction():
            pass


class Ring:
    """A keyring in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        return self.kept.get(name)

    def put(self, name: str, secret: str) -> None:
        self.kept[name] = secret

    def drop(self, name: str) -> None:
        self.kept.pop(name, None)


def test_a_keyring_keeps_the_secrets_and_the_file_the_rest(tmp_path: Path) -> None:
    ring = Ring()
    store = TokenStore(tmp_path / "x.json", ring)
    wanted = some()
    store.write(wanted)
    told = store.path.read_text()
    assert "https://as.example" in told
    assert not any(secret in told for secret in ('"access"', '"refresh"', '"secret"'))
    assert store.read() == wanted
    ring.kept.clear()
    emptied = store.read()
    assert emptied is not None
    assert emptied.tokens is None
    store.remove()
    assert ring.kept == {}


def test_a_keyring_that_is_not_installed_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_vault.STORAGE_VARIABLE, "keyring")
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        TokenStore.of(Path(), "x")
    assert "openprogram-mcp[keyring]" in (caught.value.remedy or "")
    monkeypatch.setenv(_vault.STORAGE_VARIABLE, "cupboard")
    with pytest.raises(ConfigError, match="cupboard"):
        TokenStore.of(Path(), "x")


def test_secret_01_no_repr_shows_a_secret() -> None:
    shown = repr(some())
    assert "refresh" not in shown.replace("refresh_token", "")
    assert "secret'" not in shown
    assert "'access'" not in shown
