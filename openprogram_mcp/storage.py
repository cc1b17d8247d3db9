"""Files of the state directory that only their owner may read, and that are never half written.

Owns how bytes get to the disk: created 0600, written whole to a file beside the old one, flushed, and put in its place
in one step; a lock between processes, and a revision that tells whether somebody else has written since. Knows nothing
of what the bytes mean. Everything here blocks: inside Trio it is called through :func:`trio.to_thread.run_sync`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import filelock
from attrs import field, frozen

from .errors import RevisionConflict, StorageError

__all__ = ["ABSENT", "LOCK_SECONDS", "PrivateFile", "Snapshot", "make_private_folder", "revision_of"]

ABSENT: Final = "absent"
"""The revision of a file that does not exist."""

LOCK_SECONDS: Final = 10.0
"""How long a writer waits for the others before it gives up."""


def revision_of(data: bytes | None) -> str:
    """The revision of a file with these bytes: equal bytes, equal revision."""
    return ABSENT if data is None else hashlib.sha256(data).hexdigest()


@frozen
class Snapshot:
    """A file as it was at one moment. ``data`` is ``None`` when there was no file."""

    data: bytes | None = field(repr=False)
    revision: str


@frozen
class PrivateFile:
    """A file for its owner's eyes.

    A symbolic link stays a link: what it points to is read and replaced.

    Args:
        path: Where it is. Neither it nor its folder need exist.
    """

    path: Path = field(converter=Path)

    def read(self) -> Snapshot:
        """What the file holds now, always a whole version of it.

        Raises:
            StorageError: It is there and cannot be read.
        """
        try:
            data = self._target().read_bytes()
        except FileNotFoundError:
            data = None
        except OSError as error:
            raise self._failed("cannot be read", error) from error
        return Snapshot(data, revision_of(data))

    @contextmanager
    def locked(self, *, seconds: float = LOCK_SECONDS) -> Generator[None]:
        """Keep all other writers out, in this process and in others, so that reading and writing are one step.

        The same thread may enter again. A reader needs no lock.

        Args:
            seconds: How long to wait for another writer.

        Raises:
            StorageError: Another writer holds the lock for longer than that, or it cannot be made.
        """
        target = self._target()
        lock = filelock.FileLock(target.with_name(f".{target.name}.lock"), mode=0o600, is_singleton=True)
        try:
            make_private_folder(target.parent)
            lock.acquire(timeout=seconds)
        except filelock.Timeout as error:
            raise StorageError(
                f"{self.path} has been locked by another process for {seconds:g} s; nothing was written.",
                remedy="Try again; if it persists, look for a process of this program that hangs.",
            ) from error
        except OSError as error:
            raise self._failed("cannot be locked", error) from error
        try:
            yield
        finally:
            lock.release()

    def write(self, data: bytes, *, expected: str | None = None) -> str:
        """Replace the whole content, in one step, readable and writable for the owner alone.

        What was there is untouched until the new bytes are on the disk. Missing folders are made, 0700. Bytes that are
        there already are not written again.

        Args:
            data: The new content.
            expected: The revision the file must still have (:data:`ABSENT`: it must not exist); ``None`` for any.

        Returns:
            The new revision.

        Raises:
            RevisionConflict: It has another revision; nothing was written.
            StorageError: It could not be written; nothing was changed.
        """
        with self.locked():
            now = self.read()
            if expected is not None and now.revision != expected:
                raise self._changed()
            try:
                target = self._target()
                if now.data != data:
                    _replace(target, data, lambda: self._expect(expected))
                elif os.name == "posix" and target.stat().st_mode & 0o077:
                    target.chmod(0o600)
            except OSError as error:
                raise self._failed("cannot be written", error) from error
        return revision_of(data)

    def remove(self) -> None:
        """Delete the file; one that is not there is no error.

        Raises:
            StorageError: It cannot be deleted.
        """
        with self.locked():
            target = self._target()
            try:
                target.unlink(missing_ok=True)
                _flush_folder(target.parent)
            except OSError as error:
                raise self._failed("cannot be deleted", error) from error

    def _expect(self, revision: str | None) -> None:
        """An editor keeps to no lock. So one more look, when all that is left to do is to put the new file in place."""
        if revision is not None and self.read().revision != revision:
            raise self._changed()

    def _changed(self) -> RevisionConflict:
        return RevisionConflict(
            f"{self.path} was changed by somebody else since it was read; nothing was written.",
            remedy="Read it again and repeat the change.",
        )

    def _target(self) -> Path:
        return Path(os.path.realpath(self.path))

    def _failed(self, what: str, error: OSError) -> StorageError:
        return StorageError(
            f"{self.path} {what}: {error.strerror or type(error).__name__}; nothing was changed.",
            remedy="Look at the owner and the permissions of the file and its folder, and at the space on its disk.",
        )


def make_private_folder(folder: Path) -> None:
    """Make a folder, with 0700 for what is made.

    Raises:
        OSError: It cannot be made.
    """
    for missing in reversed([part for part in (folder, *folder.parents) if not part.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _replace(target: Path, data: bytes, allow: Callable[[], None]) -> None:
    """Put ``data`` in the place of ``target``. The lock is held, so any temporary file is a dead writer's.

    ``allow`` is asked at the last moment, and may raise.
    """
    prefix = f".{target.name}."
    for left in target.parent.glob(f"{prefix}*.tmp"):
        left.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=".tmp")  # 0600 from the first byte
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, which Path.open does not take
            _keep_owner(target, file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        allow()
        os.replace(name, target)  # noqa: PTH105 - mkstemp gives a text
    except BaseException:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - mkstemp gives a text
        raise
    _flush_folder(target.parent)


def _keep_owner(target: Path, descriptor: int) -> None:
    """Let root's edit of a user's file leave it the user's."""
    if os.name == "posix" and os.geteuid() == 0:
        with suppress(FileNotFoundError):
            old = target.stat()
            os.fchown(descriptor, old.st_uid, old.st_gid)


def _flush_folder(folder: Path) -> None:
    """Make a rename or a deletion last through a power cut, where the system lets a folder be opened."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
