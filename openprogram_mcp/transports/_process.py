"""One server process, owned from its first moment to the reaping of its last descendant in the group.

Owns the process, its pipes and the two tasks that watch it: one drains standard error, one waits for the exit. Does not
know what is said over the pipes. The leader is not reaped before its group is killed, since reaping frees the group's
id for others to take.

MCP specification: basic/lifecycle, shutdown over stdio.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, cast

import trio

from ..status import ExitWay
from ._launch import Launch, explain_spawn_error
from ._link import PipeLink, enlarge_pipe
from ._stderr import StderrLines

__all__ = ["ServerProcess", "start_process"]

_KILL_WAIT_SECONDS: Final = 5.0
_READ_SIZE: Final = 64 * 1024


class ServerProcess:
    """A running server process. Made by :func:`start_process`, ended by :meth:`stop`, which must be awaited."""

    def __init__(self, popen: subprocess.Popen[bytes], stderr: StderrLines) -> None:
        self._popen = popen
        self._stdin = cast("IO[bytes]", popen.stdin)
        self._stdout = cast("IO[bytes]", popen.stdout)
        self._stderr_pipe = cast("IO[bytes]", popen.stderr)
        # Shielded, since it must be watched until it is stopped, whatever was cancelled around it; stop() ends this.
        self._watching = trio.CancelScope(shield=True)
        self._stopping = False
        self._reaped = False
        self._stderr_ended = trio.Event()
        self.pid = popen.pid
        self.stderr = stderr
        self.started_at = trio.current_time()
        self.exited = trio.Event()
        self.exit_code: int | None = None
        self.exit_way: ExitWay | None = None

    def link(self) -> PipeLink:
        """The pipes to its standard input and output, for the dispatcher."""
        enlarge_pipe(self._stdout.fileno())
        return PipeLink(self._stdout.fileno(), self._stdin.fileno())

    async def stderr_ended(self, seconds: float) -> None:
        """Wait, no longer than so many seconds, until all it has written to standard error was read."""
        with trio.move_on_after(seconds):
            await self._stderr_ended.wait()

    async def stop(self, seconds: float) -> None:
        """End the process and all of its group: close its input, wait, SIGTERM, wait, SIGKILL; then reap it.

        Shielded and bounded: takes no longer than twice ``seconds`` and a few more. Nobody may read or write its link
        any more. Calling it twice is harmless.

        Args:
            seconds: How long it may take to end by itself after its input is closed, and again after SIGTERM.
        """
        if self._stopping:
            return
        self._stopping = True
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                self._close(self._stdin)
                nursery.start_soon(self._drain_stdout)
                way: ExitWay = "own" if self.exited.is_set() else "eof"
                if not await self._exited_within(seconds):
                    way = "term"
                    self._signal_group(signal.SIGTERM)
                    if not await self._exited_within(seconds):
                        way = "kill"
                self.exit_way = way
                await self._end_group(seconds if way in ("eof", "own") else 0)
                await self._exited_within(_KILL_WAIT_SECONDS)
                # Its descendants are gone, so that whatever it wrote last can be read to the end.
                await self.stderr_ended(1)
                nursery.cancel_scope.cancel()
            self._watching.cancel()
            self._reap()

    async def _exited_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.exited.wait()
        return self.exited.is_set()

    async def _end_group(self, seconds: float) -> None:
        """End what is left of the group. The leader may be a zombie; its group is still ours."""
        survivors = await trio.to_thread.run_sync(_group_members, self.pid, limiter=trio.CapacityLimiter(1))
        if survivors and seconds:
            self._signal_group(signal.SIGTERM)
            with trio.move_on_after(seconds):
                for pid in survivors:
                    await _gone(pid)
        self._signal_group(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        with trio.move_on_after(_KILL_WAIT_SECONDS):
            for pid in survivors:
                await _gone(pid)

    def _signal_group(self, number: int) -> None:
        if self._reaped:
            return
        if sys.platform == "win32":
            with suppress(OSError):  # it has just ended by itself
                self._popen.terminate()
            return
        with suppress(ProcessLookupError, PermissionError):  # nothing is left, or only zombies, as macOS tells it
            os.killpg(self.pid, number)

    async def _drain_stdout(self) -> None:
        """Read what nobody wants any more, so that a server that writes while it ends is not blocked by it."""
        link = PipeLink(self._stdout.fileno(), self._stdout.fileno())
        while await link.receive():
            pass

    async def _drain_stderr(self) -> None:
        fd = self._stderr_pipe.fileno()
        link = PipeLink(fd, fd)
        try:
            while chunk := await link.receive():
                self.stderr.feed(chunk)
        finally:
            self.stderr.finish()
            self._stderr_ended.set()

    async def watch(self) -> None:
        """Drain standard error and wait for the exit, until :meth:`stop` is done."""
        with self._watching:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain_stderr)
                self.exit_code = await _exit_code(self._popen)
                self.exited.set()

    def _reap(self) -> None:
        self._reaped = True
        with suppress(subprocess.TimeoutExpired):  # it cannot be killed: stuck in the kernel, and no fault of ours
            self._popen.wait(timeout=0 if self.exited.is_set() else 0.1)
        for pipe in (self._stdin, self._stdout, self._stderr_pipe):
            self._close(pipe)

    @staticmethod
    def _close(pipe: Any) -> None:
        with suppress(OSError):  # closing flushes nothing: the pipe is unbuffered, and the other side may be gone
            if not pipe.closed and sys.platform != "win32":
                trio.lowlevel.notify_closing(pipe.fileno())
            pipe.close()


@trio.lowlevel.enable_ki_protection
async def start_process(
    nursery: trio.Nursery,
    server: str,
    launch: Launch,
    *,
    mask: Callable[[str], str],
    on_stderr: Callable[[str], None],
) -> ServerProcess:
    """Start a server process in a session and a group of its own.

    The caller guards it with ``try: … finally: await process.stop(…)`` directly after the call: there is no checkpoint
    between the birth of the process and the return, and Ctrl-C cannot fall in between either.

    Args:
        nursery: Where the task that watches the process lives; it must outlive ``stop``.
        server: The server's name, for errors.
        launch: What to start.
        mask: Hides secrets in a line of standard error.
        on_stderr: Told each line of standard error.

    Raises:
        ServerFailed: In phase ``spawn``.
    """

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            launch.command_line or launch.argv,
            executable=None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(launch.env),
            cwd=launch.cwd,
            start_new_session=sys.platform != "win32",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )

    # A thread, since a program on a slow disk may take its time; not abandoned, so that its result is always received.
    try:
        popen = await trio.to_thread.run_sync(spawn, limiter=trio.CapacityLimiter(1))
    except OSError as error:
        raise explain_spawn_error(server, launch, error) from error
    process = ServerProcess(popen, StderrLines(mask, on_stderr))
    nursery.start_soon(process.watch)
    return process


async def _exit_code(popen: subprocess.Popen[bytes]) -> int:
    """Wait for the exit and tell its code, negative for a signal, without reaping the process."""
    if sys.platform == "win32":
        return await trio.to_thread.run_sync(popen.wait, abandon_on_cancel=True)
    if sys.platform == "linux" and (pidfd := _pidfd(popen.pid)) is not None:
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        # It has exited: this returns at once.
        info = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)  # noqa: ASYNC222 - see above
    else:
        info = await trio.to_thread.run_sync(
            os.waitid, os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True
        )
    if info is None:
        return 0
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESRCH):
            return None
        raise


async def _gone(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    if sys.platform == "linux" and (pidfd := _pidfd(pid)) is not None:
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


def _group_members(group: int) -> list[int]:
    """The living processes of a group, its leader left out; empty where the system does not tell."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        try:
            text = stat.read_bytes()
        except OSError:
            continue  # it ended while we were looking
        # The name may hold blanks and brackets; the fields begin after the last bracket: state, parent, group.
        state, _, its_group = text[text.rfind(b")") + 2 :].split(None, 3)[:3]
        pid = int(stat.parent.name)
        if int(its_group) == group and pid != group and state not in b"ZX":
            members.append(pid)
    return members
