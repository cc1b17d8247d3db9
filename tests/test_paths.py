from __future__ import annotations

import stat
from pathlib import Path

import pytest
import trio

from openprogram_mcp import paths

STATE = paths.STATE_DIR_VARIABLE
PROFILE = paths.PROFILE_VARIABLE


def test_the_environment_variable_wins_and_is_looked_up_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILE, "work")
    monkeypatch.setenv(STATE, "/somewhere/one")
    assert paths.get_state_dir() == Path("/somewhere/one")
    monkeypatch.setenv(STATE, "/somewhere/two")
    assert paths.get_state_dir() == Path("/somewhere/two")
    assert paths.config_path() == Path("/somewhere/two/mcp_servers.json")
    assert paths.worker_path() == Path("/somewhere/two/mcp_worker.json")
    assert paths.tokens_dir() == Path("/somewhere/two/mcp_tokens")


def test_without_it_the_state_is_in_the_home_directory_one_directory_a_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(STATE)
    monkeypatch.setenv("HOME", "/home/me")
    assert paths.get_state_dir() == Path("/home/me/.openprogram")
    monkeypatch.setenv(PROFILE, "work")
    assert paths.get_state_dir() == Path("/home/me/.openprogram/profiles/work")
    monkeypatch.setenv(PROFILE, "")
    assert paths.get_state_dir() == Path("/home/me/.openprogram")


@pytest.mark.parametrize("name", ["../other", "a/b", "..", ".", "a\\b", "c:", "a\nb"])
def test_a_profile_cannot_lead_out_of_its_place(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(STATE)
    monkeypatch.setenv(PROFILE, name)
    with pytest.raises(ValueError, match=PROFILE):
        paths.get_state_dir()


def test_a_relative_or_tilde_path_becomes_a_whole_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(STATE, "here")
    assert paths.get_state_dir() == tmp_path / "here"
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(STATE, "~/there")
    assert paths.get_state_dir() == Path("/home/me/there")


async def test_a_chosen_directory_holds_in_the_tasks_and_threads_started_meanwhile_and_ends_with_its_block(
    state_dir: Path, tmp_path: Path
) -> None:
    seen: list[Path] = []

    async def look() -> None:
        seen.append(paths.get_state_dir())
        seen.append(await trio.to_thread.run_sync(paths.get_state_dir))

    async with trio.open_nursery() as nursery:
        with paths.use_state_dir(tmp_path / "mine"):
            nursery.start_soon(look)
        nursery.start_soon(look)
    assert sorted(seen) == sorted([tmp_path / "mine"] * 2 + [state_dir] * 2)


def test_asking_for_paths_makes_nothing(state_dir: Path) -> None:
    assert all(not path().exists() for path in (paths.config_path, paths.worker_path, paths.tokens_dir))
    assert not state_dir.exists()


def test_the_directory_is_made_for_its_owner_alone_and_an_open_one_is_closed(state_dir: Path) -> None:
    assert paths.ensure_state_dir() == state_dir
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    state_dir.chmod(0o755)
    paths.ensure_state_dir()
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700


def test_a_directory_that_is_shared_on_purpose_is_left_as_it_is(state_dir: Path) -> None:
    state_dir.mkdir()
    state_dir.chmod(0o1777)
    paths.ensure_state_dir()
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o1777
