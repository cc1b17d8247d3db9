"""A host as a process of its own, for the exit matrix: it opens a manager, and ends as it is told on its stdin.

``python -m tests._exit_host script FILE`` opens a manager of the entries in a JSON file; ``worker`` is the command
line's worker. Both have a fault built in, which strikes in the tasks of all servers on SIGUSR1.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import trio

from openprogram_mcp import open_manager
from openprogram_mcp.cli import main as cli
from openprogram_mcp.client._changes import Changes
from openprogram_mcp.client._connection import Connection


class InjectedFault(Exception):
    """A fault in a task of a server."""


class HostFault(Exception):
    """A fault in the host's own body."""


def _build_fault_in() -> None:
    """Let the task that follows a server's lists fail on SIGUSR1, as a fault of ours would."""
    strike: trio.Event | None = None

    async def wait_for_signal(now: trio.Event) -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for _ in signals:
                now.set()

    async def follow(_changes: Changes, _connection: Connection) -> None:
        nonlocal strike
        if strike is None:
            strike = trio.Event()
            trio.lowlevel.spawn_system_task(wait_for_signal, strike)
        await strike.wait()
        raise InjectedFault

    setattr(Changes, "follow", follow)  # noqa: B010 - a method is replaced, which is what this program is for


def _tell(text: str) -> None:
    print(text, flush=True)


async def _script(entries: str, *, let_out: bool) -> None:
    servers = json.loads(await trio.Path(entries).read_text())
    with trio.CancelScope() as scope:
        async with open_manager(servers, raise_internal=let_out) as manager:
            _tell("open")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_tell_when_up, manager.started)
                told = (await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).strip()
                nursery.cancel_scope.cancel()
            if told == "raise":
                raise HostFault
            if told == "cancel":
                scope.cancel()
                await trio.sleep_forever()
    # What SIGTERM must not let run.
    _tell("left")


async def _tell_when_up(started: trio.Event) -> None:
    await started.wait()
    _tell("up")


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    _build_fault_in()
    if kind == "worker":
        sys.exit(cli(["worker"]))
    path = str(Path(rest[0]))
    try:
        trio.run(lambda: _script(path, let_out="--let-out" in rest))
    except* HostFault:
        sys.exit(7)
    except* KeyboardInterrupt:
        # In a group, since it falls into the nursery of the body.
        sys.exit(130)
