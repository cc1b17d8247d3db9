"""One server process, owned from its first moment to the reaping of its last descendant in the group.

Owns the process, its pipes and the two tasks that watch it: one drains standard error, one waits for the exit. Does not
know what is said over the pipes. The leader is not reaped before its group is killed, since reaping frees the group's
id for others to take. Descendants that left the group are not seen from here.

MCP specification: basic/lifecycle, shutdown over stdio.
"""

from __future__ import annotations

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
from ._containers import end_container
from ._launch import Launch, explain_spawn_error
from ._link import PipeLink, enlarge_pipe
from ._ownership import Tree, marked_environment
from ._stderr import StderrLines

__all__ = ["ServerProcess", "start_process"]

_KILL_WAIT_SECONDS: Final = 5.0
# How long the others of a group may take to follow a leader that has ended by itself.
_FOLLOW_SECONDS: Final = 0.25
# How long a look at the processes may take.
_LOOK_SECONDS: Final = 0.25
# Where the system cannot tell of the end of a process that is not our child, it is looked for so often.
_LOOK_AGAIN_SECONDS: Final = 0.05
_KILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


class ServerProcess:
    """A running server process. Made by :func:`start_process`, ended by :meth:`stop`, which must be awaited."""

    def __init__(self, popen: subprocess.Popen[bytes], launch: Launch, stderr: StderrLines, tree: Tree | None) -> None:
        self._popen = popen
        self.tree = tree
        self._launch = launch
        self._stdin = cast("IO[bytes]", popen.stdin)
        self._stdout = cast("IO[bytes]", popen.stdout)
        self._stderr_pipe = cast("IO[bytes]", popen.stderr)
        # Shielded, since it must be watched until it is stopped, whatever was cancelled around it; stop() ends this.
        self._watching = trio.CancelScope(shield=True)
        self._stopping = False
        self._stopped = trio.Event()
        self._reaped = False
        self._stderr_ended = trio.Event()
        self.pid = popen.pid
        self.stderr = stderr
        self.started_at = trio.current_time()
        self.exited = trio.Event()
        self.exit_code: int | None = None
        self.exit_way: ExitWay | None = None
        # How many of its processes could not be ended: a leak, and 0 unless the system itself holds them.

    def link(self) -> PipeLink:
        """The pipes to its standard input and output, for the dispatcher."""
        enlarge_pipe(self._stdout.fileno())
        return PipeLink(self._stdout.fileno(), self._stdin.fileno())

    async def stderr_ended(self, seconds: float) -> None:
        """Wait, no longer than so many seconds, until all it has written to standard error was read."""
        with trio.move_on_after(seconds):
            await self._stderr_ended.wait()

    @trio.lowlevel.enable_ki_protection
    async def stop(self, seconds: float) -> None:
        """End the process and all of its group: close its input, wait, SIGTERM, wait, SIGKILL; then reap it.

        Shielded and bounded: takes no longer than twice ``seconds`` and a few more. Nobody may read or write its link
        any more. What it writes meanwhile is read, so that it is not held up by it. Calling it twice is harmless.

        Args:
            seconds: How long it may take to end by itself after its input is closed, and again after SIGTERM.
        """
        with trio.CancelScope(shield=True):
            if self._stopping:
                await self._stopped.wait()
                return
            self._stopping = True
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._drain_stdout)
                    if self.tree is not None:
                        await self.tree.look()
                    self._close(self._stdin)
                    self.exit_way = await self._end(seconds)
                    if self._launch.container is not None:
                        launch = self._launch
                        await end_container(self._launch.container, launch.env, launch.cwd, self.exit_way)
                    if self.tree is not None:
                        # Those that have left the group, wherever they went.
                        await self.tree.end(_KILL_WAIT_SECONDS)
                    # Its descendants are gone, so that whatever it wrote last can be read to the end.
                    await self.stderr_ended(1)
                    nursery.cancel_scope.cancel()
            finally:
                self._signal_group(_KILL)
                self._watching.cancel()
                self._reap()
                self._stopped.set()

    async def _end(self, seconds: float) -> ExitWay:
        """End the group, and say what that took."""
        own = self.exited.is_set()
        way: ExitWay = "eof"
        if not (await self._ended_within(seconds) and await self._group_ended_within(min(seconds, _FOLLOW_SECONDS))):
            self._signal_group(signal.SIGTERM)
            deadline = trio.current_time() + seconds
            way = "term"
            if not (
                await self._ended_within(seconds)
                and await self._group_ended_within(max(deadline - trio.current_time(), _LOOK_SECONDS))
            ):
                way = "kill"
        # In any case, since a look may miss what forks while it lasts. After this none can fork any more.
        self._signal_group(_KILL)
        await self._ended_within(_KILL_WAIT_SECONDS)
        await self._group_ended_within(_KILL_WAIT_SECONDS)
        return "own" if own else way

    async def _ended_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self.exited.wait()
        return self.exited.is_set()

    async def _group_ended_within(self, seconds: float) -> bool:
        """Wait until nothing is left of the group but its leader, who may be a zombie: the group is still ours."""
        with trio.move_on_after(seconds):
            while members := await trio.to_thread.run_sync(_group_members, self.pid, limiter=trio.CapacityLimiter(1)):
                for pid in members:
                    await _left(pid, self.pid)
            return True
        return False

    def _signal_group(self, number: int) -> None:
        if self._reaped:
            return
        if sys.platform == "win32":
            with suppress(OSError):  # it has just ended by itself
                self._popen.terminate()
            return
        with suppress(ProcessLookupError, PermissionError):  # nothing is left, or only zombies, as macOS tells it
            os.killpg(self.pid, number)

    @trio.lowlevel.enable_ki_protection
    async def _drain_stdout(self) -> None:
        """Read what nobody wants any more, so that a server that writes while it ends is not blocked by it."""
        link = PipeLink(self._stdout.fileno(), self._stdout.fileno())
        while await link.receive():
            pass

    @trio.lowlevel.enable_ki_protection
    async def _drain_stderr(self) -> None:
        fd = self._stderr_pipe.fileno()
        link = PipeLink(fd, fd)
        try:
            while chunk := await link.receive():
                self.stderr.feed(chunk)
        finally:
            self.stderr.finish()
            self._stderr_ended.set()

    @trio.lowlevel.enable_ki_protection
    async def watch(self) -> None:
        """Drain standard error and wait for the exit, until :meth:`stop` is done."""
        with self._watching:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain_stderr)
                self.exit_code = await _exit_code(self._popen)
                self.exited.set()

    def _reap(self) -> None:
        self._reaped = True
        _reap(self._popen, 0 if self.exited.is_set() else 0.1)
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
    tree: Tree | None = None,
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
        tree: Whose mark it and all its descendants carry in their environment, so that they are found wherever they go.

    Raises:
        ServerFailed: In phase ``spawn``.
    """
    env = dict(launch.env) if tree is None else marked_environment(launch.env, tree.mark, os.environ)

    def spawn() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            launch.command_line or launch.argv,
            executable=None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            cwd=launch.cwd,
            start_new_session=sys.platform != "win32",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )

    # A thread, since a program on a slow disk may take its time; not abandoned, so that its result is always received.
    try:
        popen = await trio.to_thread.run_sync(spawn, limiter=trio.CapacityLimiter(1))
    except BaseException as error:
        if tree is not None:
            tree.never_began()
        if not isinstance(error, (OSError, ValueError)):
            raise
        raise explain_spawn_error(server, launch, error) from error
    try:
        process = ServerProcess(popen, launch, StderrLines(mask, on_stderr), tree)
        if tree is not None:
            tree.begin()
        nursery.start_soon(process.watch)
    except BaseException:  # the nursery is closed already: nobody would watch it, and nobody would stop it
        popen.kill()
        _reap(popen, _KILL_WAIT_SECONDS)
        for pipe in (popen.stdin, popen.stdout, popen.stderr):
            cast("IO[bytes]", pipe).close()
        if tree is not None:
            tree.never_began()
        raise
    return process


def _reap(popen: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):  # it cannot be killed: stuck in the kernel, and no fault of ours
        popen.wait(timeout=seconds)


async def _exit_code(popen: subprocess.Popen[bytes]) -> int | None:
    """Wait for the exit and tell its code, negative for a signal, without reaping the process.

    ``None`` where somebody else has reaped it: a program that waits for every child, or ignores SIGCHLD.
    """
    if sys.platform == "win32":
        return await trio.to_thread.run_sync(popen.wait, abandon_on_cancel=True)
    try:
        if sys.platform == "linux" and (pidfd := _pidfd(popen.pid)) is not None:
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
            # It has exited: this returns at once.
            info = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)  # noqa: ASYNC222 - see above
        else:
            info = await trio.to_thread.run_sync(
                os.waitid,
                os.P_PID,
                popen.pid,
                os.WEXITED | os.WNOWAIT,
                limiter=trio.CapacityLimiter(1),
                abandon_on_cancel=True,
            )
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # Gone; or an old kernel, or no descriptor left: then there are slower ways to wait.
        return None


async def _left(pid: int, group: int) -> None:
    """Wait until a process that is not our child has ended, or left a group."""
    if sys.platform != "linux" or (pidfd := _pidfd(pid)) is None:
        await trio.sleep(_LOOK_AGAIN_SECONDS)
        return
    try:
        # Another process may have got its number meanwhile.
        if os.getpgid(pid) == group:
            await trio.lowlevel.wait_readable(pidfd)
    except ProcessLookupError:
        return
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
