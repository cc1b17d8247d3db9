from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openprogram_mcp.errors import RevisionConflict, StorageError
from openprogram_mcp.storage import ABSENT, PrivateFile, revision_of


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_read_back_with_the_revision_of_its_bytes(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "f")
    assert (file.read().data, file.read().revision) == (None, ABSENT)
    revision = file.write(b"one")
    assert (file.read().data, file.read().revision) == (b"one", revision)
    assert revision == revision_of(b"one") != revision_of(b"two")


def test_the_file_and_the_folders_made_for_it_are_the_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        PrivateFile(tmp_path / "a" / "b" / "f").write(b"x")
    finally:
        os.umask(old)
    assert mode(tmp_path / "a" / "b" / "f") == 0o600
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    assert all(mode(one) == 0o600 for one in (tmp_path / "a" / "b").iterdir())


def test_the_bytes_are_never_in_a_file_that_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def fsync(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fsync", fsync)
    old = os.umask(0)
    try:
        PrivateFile(tmp_path / "f").write(b"x")
    finally:
        os.umask(old)
    assert seen == [0o600]


@pytest.mark.parametrize("data", [b"old", b"new"])
def test_an_open_file_is_narrowed_at_the_next_save_even_when_nothing_changed(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(0o644)
    PrivateFile(path).write(data)
    assert mode(path) == 0o600
    assert path.read_bytes() == data


def test_file_and_folder_are_flushed_before_and_after_the_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace = os.replace

    def fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def noted(source: str, target: Path) -> None:
        done.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", noted)
    PrivateFile(tmp_path / "f").write(b"x")
    assert done == ["file", "replace", "folder"]


def test_a_write_that_expects_another_revision_changes_nothing(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "f")
    first = file.write(b"one", expected=ABSENT)
    with pytest.raises(RevisionConflict):
        file.write(b"two", expected=ABSENT)
    second = file.write(b"two", expected=first)
    with pytest.raises(RevisionConflict):
        file.write(b"three", expected=first)
    assert file.read().data == b"two"
    assert file.read().revision == second


def test_an_editor_that_keeps_to_no_lock_and_saves_during_a_write_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PrivateFile(tmp_path / "f")
    first = file.write(b"one")

    def edited(descriptor: int) -> None:
        file.path.write_bytes(b"by hand")

    monkeypatch.setattr(os, "fsync", edited)
    with pytest.raises(RevisionConflict):
        file.write(b"two", expected=first)
    assert file.read().data == b"by hand"
    assert list(tmp_path.glob(".f.*.tmp")) == []


def test_bytes_that_are_there_already_are_not_written_again(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "f")
    file.write(b"same")
    before = file.path.stat()
    file.write(b"same")
    assert (file.path.stat().st_ino, file.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_symbolic_link_stays_one_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real, link = tmp_path / "dotfiles" / "real", tmp_path / "link"
    link.symlink_to(real)
    PrivateFile(link).write(b"x")
    assert link.is_symlink()
    assert real.read_bytes() == b"x"
    assert mode(real) == 0o600
    PrivateFile(link).remove()
    assert not real.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_root_edits_for_a_user_stays_the_users(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    os.chown(path, 12345, 12345)
    PrivateFile(path).write(b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PrivateFile(tmp_path / "f")
    file.write(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        file.write(b"new")
    assert file.path.read_bytes() == b"old"
    assert list(tmp_path.glob(".f.*.tmp")) == []


def test_what_a_killed_writer_left_is_cleared_away_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / ".f.abc.tmp"
    left.write_bytes(b"secret")
    PrivateFile(tmp_path / "f").write(b"new")
    assert not left.exists()


def test_a_file_that_cannot_be_read_is_an_error_and_no_missing_file(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(StorageError, match="cannot be read: Is a directory"):
        PrivateFile(tmp_path / "f").read()
    with pytest.raises(StorageError):
        PrivateFile(tmp_path / "f").write(b"x")


def test_removing_is_no_error_when_there_is_nothing(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "f")
    file.write(b"x")
    file.remove()
    file.remove()
    assert file.read().revision == ABSENT


def test_neither_the_file_nor_what_was_read_shows_its_content(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "f")
    file.write(b"hunter2")
    assert "hunter2" not in repr(file) + repr(file.read())


def test_a_thread_may_enter_its_own_lock_again_and_another_one_waits(tmp_path: Path) -> None:
    one, same = PrivateFile(tmp_path / "f"), PrivateFile(tmp_path / "f")
    entered = threading.Event()

    def other() -> None:
        with PrivateFile(tmp_path / "f").locked():
            entered.set()

    with one.locked(), same.locked():
        thread = threading.Thread(target=other)
        thread.start()
        same.write(b"x")
        with pytest.raises(StorageError, match="locked by another"):
            _in_a_thread(lambda: _lock(one, seconds=0))
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()


def _lock(file: PrivateFile, *, seconds: float) -> None:
    with file.locked(seconds=seconds):
        pass


def _in_a_thread(function: object) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()  # type: ignore[arg-type]  # a function without arguments


COUNT = """
import sys
from openprogram_mcp.storage import PrivateFile
file = PrivateFile(sys.argv[1])
for _ in range(20):
    with file.locked():
        file.write(str(int(file.read().data or 0) + 1).encode())
"""


def test_processes_that_read_and_write_under_the_lock_lose_nothing(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path / "f")]) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert PrivateFile(tmp_path / "f").read().data == b"80"


HANG = """
import os, sys
from openprogram_mcp import storage
os.fsync = lambda descriptor: (print("writing", flush=True), sys.stdin.read())
storage.PrivateFile(sys.argv[1]).write(b"new " * 1000)
"""


def test_conf_04_a_writer_killed_in_the_middle_leaves_the_old_file_and_no_lock(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "f")
    file.write(b"old")
    writer = subprocess.Popen(
        [sys.executable, "-c", HANG, str(file.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"writing\n"
    assert file.read().data == b"old"
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=10)
    assert file.read().data == b"old"
    file.write(b"after")
    assert file.read().data == b"after"
    assert list(tmp_path.glob("*.tmp")) == list(tmp_path.glob(".*.tmp")) == []
