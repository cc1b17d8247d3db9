"""The configuration that a manager follows: as it was read last, read anew, and edited one edit at a time.

Nothing that is read can be older than what is in force: reading and saving exclude each other, and what was read or
saved is in force before the next one begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio
from attrs import define, field

from ..config import ConfigDocument, load_document, save_document
from ..errors import ConfigError, OpenProgramMCPError, StorageError
from ..storage import PrivateFile

__all__ = ["ConfigFile"]

logger = logging.getLogger(__name__)


@define(eq=False)
class ConfigFile:
    """The configuration of one manager. ``problem`` says why what the file says now is not in force, where it is not.

    Args:
        document: What is in force.
        saved: Whether it stands in a file; else it lives and dies with the manager.
        follow: Told, synchronously, what somebody else has made of the file, once it is in force.
    """

    document: ConfigDocument
    saved: bool
    problem: ConfigError | StorageError | None = field(default=None, init=False)
    _follow: Callable[[ConfigDocument], None]
    _lock: trio.Lock = field(factory=trio.Lock, init=False)

    async def reread(self) -> None:
        """See whether somebody else has changed the file. One that cannot be read changes nothing."""
        if self.saved:
            async with self._lock:
                await self._reread()

    async def edit(self, change: Callable[[ConfigDocument], ConfigDocument]) -> ConfigDocument:
        """Change the configuration, and save it.

        Cancelled while it saves, it is saved.

        Args:
            change: Makes the new document of what the file says now.

        Raises:
            RevisionConflict: Somebody else has changed the same entry at this very moment; nothing was written.
            StorageError: The file cannot be read or written; nothing was changed.
        """
        async with self._lock:
            if self.saved:
                await self._reread()
                # No checkpoint between the end of the writing and the assignment: the thread is not abandoned.
                self.document = await trio.to_thread.run_sync(save_document, change(self.document))
            else:
                self.document = change(self.document)
            return self.document

    async def _reread(self) -> None:
        found = await trio.to_thread.run_sync(_newer, self.document)
        before, self.problem = self.problem, found if isinstance(found, OpenProgramMCPError) else None
        if self.problem is not None and str(self.problem) != str(before):
            logger.error("the configuration file cannot be read, the last good one stays in force: %s", self.problem)
        if isinstance(found, ConfigDocument):
            self.document = found
            self._follow(found)


def _newer(document: ConfigDocument) -> ConfigDocument | ConfigError | StorageError | None:
    """What the file says now, if it says something else. Reading it is much cheaper than understanding it."""
    try:
        if PrivateFile(document.path).read().revision == document.revision:
            return None
    except StorageError as error:
        return error
    found = load_document(document.path)
    return found if found.error is None else found.error
