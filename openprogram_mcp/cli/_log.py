"""The worker's log: a line for each change of a server's state, as text or as JSON, on stdout.

Written in a thread of its own out of a bounded queue: a terminal that is paused, or a full pipe, must not stop the loop
on which every server lives. What does not fit any more is counted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from time import time
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from ..events import EventBus, Gap, Record, ServerLog, StartupComplete, StatusChanged, rfc3339
from ..status import ServerState, ServerStatus
from ._output import one_line

if TYPE_CHECKING:
    from ..events import Event

__all__ = ["LibraryLog", "WorkerLog", "describe"]

_MAX_WAITING = 1000
_DRAIN_SECONDS = 1.0
# That events were missed is told so often at most.
_MISSED_SECONDS = 60.0


def describe(status: ServerStatus, seconds: float | None) -> str:
    """A server's state in one line; ``seconds`` is how long it took to get there."""
    took = "" if seconds is None else f" ({seconds:.1f} s)"
    if status.status is ServerState.CONNECTED:
        count = status.tool_count
        return f"connected, {count} {'tool' if count == 1 else 'tools'}{took}"
    if not status.error:
        return str(status.status)
    parts = [f"{status.status}{took}"]
    if status.phase:
        parts.append(f"in {status.phase}")
    text = f"{' '.join(parts)}: {status.error}"
    if status.exit_code is not None and str(status.exit_code) not in status.error:
        text += f" (exit code {status.exit_code})"
    if status.remedy:
        text += f" {status.remedy}" if text.endswith((".", "!", "?")) else f". {status.remedy}"
    return text


@define
class WorkerLog:
    """The log.

    Args:
        as_json: One JSON object a line instead of text.
    """

    _as_json: bool
    _waiting: deque[str] = field(factory=deque, init=False)
    _news: trio.Event = field(factory=trio.Event, init=False)
    _closing: bool = field(default=False, init=False)
    _closed: trio.Event = field(factory=trio.Event, init=False)
    _dropped: int = field(default=0, init=False)
    _missed: int = field(default=0, init=False)
    _told_missed: float = field(default=0.0, init=False)
    _last: dict[str, ServerState] = field(factory=dict, init=False)
    _since: dict[str, float] = field(factory=dict, init=False)

    def say(self, text: str, *, level: str = "info", server: str | None = None, **more: Any) -> None:
        """Log one line; never blocks. More keys stand in the JSON form alone."""
        now = time()
        if self._as_json:
            line = json.dumps(
                {"time": rfc3339(now), "level": level, "server": server, "message": text, **more}, ensure_ascii=False
            )
        else:
            mark = "" if level == "info" else f"{level}: "
            about = "" if server is None else f"{one_line(server, 60)}: "
            line = f"{datetime.fromtimestamp(now):%H:%M:%S} {mark}{about}{one_line(text, 2000)}"
        if len(self._waiting) >= _MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(line)
        self._news.set()

    def plain(self, *lines: str) -> None:
        """Print lines for a person; nothing in the JSON form."""
        if not self._as_json:
            self._waiting.extend(lines)
            self._news.set()

    async def write(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until :meth:`close` is called."""
        task_status.started()
        while True:
            await self._write_waiting()
            if self._closing:
                self._closed.set()
                return
            await self._news.wait()
            self._news = trio.Event()

    async def close(self) -> None:
        """Have what is left written, within a limit: nobody may be reading it."""
        self._closing = True
        self._news.set()
        with trio.move_on_after(_DRAIN_SECONDS):
            await self._closed.wait()

    async def follow(
        self,
        bus: EventBus,
        rows: Callable[[], Iterable[ServerStatus]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Log what the bus tells, from its beginning.

        Args:
            bus: The events.
            rows: Every server's status now: of a state whose change was missed, what has become of it is logged.
            task_status: Told when nothing will be missed any more.
        """
        with bus.subscribe(0) as records:
            task_status.started()
            async for record in records:
                self._tell(record)
                if isinstance(record.event, Gap):
                    for row in rows():
                        self._state(row, record.time)

    def _tell(self, record: Record) -> None:
        event: Event = record.event
        match event:
            case StatusChanged(status=status):
                self._state(status, record.time)
            case StartupComplete():
                failed = f", {len(event.failed)} failed" if event.failed else ""
                sign_in = f", {len(event.needs_auth)} to sign in to" if event.needs_auth else ""
                self.say(f"all servers have been started: {len(event.ready)} ready{failed}{sign_in}")
            case ServerLog(logger=logger) if logger != "stderr" and event.level in _GRAVE:
                level = "warning" if event.level == "warning" else "error"
                self.say(event.text, level=level, server=event.server)
            case Gap(missed=missed):
                self._missed += missed
                if record.time - self._told_missed >= _MISSED_SECONDS:
                    self._told_missed = record.time
                    self.say(f"{self._missed} events came too fast to be logged", level="warning")
                    self._missed = 0
            case _:
                pass

    def _state(self, status: ServerStatus, now: float) -> None:
        last = self._last.get(status.name)
        if status.status is last:
            return
        began = self._since.pop(status.name, None)
        if status.status in (ServerState.PENDING, ServerState.STARTING):
            self._since[status.name] = now if began is None else began
        self._last[status.name] = status.status
        grave = status.status in (ServerState.FAILED, ServerState.RECONNECTING)
        self.say(
            describe(status, None if began is None else now - began),
            level="warning" if grave else "info",
            server=status.name,
            status=str(status.status),
            phase=status.phase,
            error=status.error,
            exit_code=status.exit_code,
            remedy=status.remedy,
            tool_count=status.tool_count,
        )

    async def _write_waiting(self) -> None:
        while self._waiting:
            lines = list(self._waiting)
            self._waiting.clear()
            if self._dropped:
                lines.append(f"({self._dropped} lines are missing here: they could not be written in time)")
                self._dropped = 0
            # Abandoned when it is cancelled: a thread that hangs in a full pipe must not keep the worker alive.
            await trio.to_thread.run_sync(_write_lines, lines, abandon_on_cancel=True)


class LibraryLog(logging.Handler):
    """Passes what libraries, and our own modules, log as warnings and errors into the worker's log.

    Args:
        log: The log.
        token: Trio's, of the loop that the log belongs to.
    """

    def __init__(self, log: WorkerLog, token: trio.lowlevel.TrioToken) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._token = token

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on, from any thread."""
        try:
            text = self.format(record)
            level = "error" if record.levelno >= logging.ERROR else "warning"
            self._token.run_sync_soon(lambda: self._log.say(text, level=level))
        except Exception:  # noqa: BLE001 - logging must not fail where it is used
            self.handleError(record)


_GRAVE = frozenset({"warning", "error", "critical", "alert", "emergency"})


def _write_lines(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        sys.stdout.write(data.decode())
        return
    # Not through sys.stdout: a thread that hangs in its buffer would hang, and break, the end of the process too.
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        # Nobody reads it any more. The worker's work is not its log.
        return
