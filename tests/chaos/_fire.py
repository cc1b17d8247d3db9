"""The fire: faults in the servers, and callers and editors who go on through it.

A :class:`Fire` belongs to one manager. It keeps what its callers were told, what the events said, and how many faults
of each kind there were. It checks nothing but what must hold at every single moment; the rest is for ``_life``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import trio
from attrs import define, field

from openprogram_mcp import MCPManager, MCPServerConfig, ServerState
from openprogram_mcp.errors import (
    NotConnected,
    OpenProgramMCPError,
    ServerExists,
    ServerFailed,
    ServerGone,
    TimedOut,
    UnknownServer,
    UnknownTool,
)
from openprogram_mcp.events import Event, StatusChanged, ToolCallEnded, ToolCallStarted

from ._processes import is_server, send_signal
from ._remote import FAULTS as REMOTE_FAULTS
from ._remote import Remote
from ._witness import Asked, Told

__all__ = ["CALL_BOUND_SECONDS", "LIMIT", "STOP_SECONDS", "Fire", "Folder"]

_SERVER: Final = Path(__file__).with_name("_server.py")
LIMIT: Final = 4
STOP_SECONDS: Final = 0.3
_CALL_SECONDS: Final = 1.0
_MAX_CALL_SECONDS: Final = 3.0
# Looking the tool up, waiting for turns, and two sendings; and a while for a busy machine.
CALL_BOUND_SECONDS: Final = 2 * _CALL_SECONDS + 2 * _MAX_CALL_SECONDS + 10.0

_NO_SUCH_TOOL: Final = -32601
_TOOLS: Final = ("read", "read", "read", "read", "write", "write", "write", "idem", "idem", "extra")

# What the servers are told to do, and how often; those in capitals come from outside.
_FAULTS: Final = {
    "KILL": 18,
    "TERM": 8,
    "FREEZE": 8,
    "exit": 8,
    "garbage": 8,
    "stale": 4,
    "dup": 5,
    "split": 5,
    "torn": 6,
    "slow": 6,
    "tiny": 3,
    "late": 6,
    "mute": 4,
    "storm": 6,
    "flood": 5,
    "stderr": 3,
    "closeout": 4,
    "closein": 3,
    "child": 4,
    "START": 8,
}
_START_FAULTS: Final = ("exit", "stderr", "garbled", "init", "list", "hang", "slow", "refuse")


@define(eq=False)
class Folder:
    """Where the servers' records and orders are, and the configuration.

    Args:
        path: The folder.
        local: How many local servers there are.
        remote: How many remote servers.
    """

    path: Path
    local: int
    remote: int = 0
    remotes: dict[str, Remote] = field(factory=dict, init=False)
    apart: trio.Nursery | None = field(default=None, init=False)
    """Where the remote servers run: none of it is the client's."""

    # Each differs from the others in one thing that matters.
    _KINDS: ClassVar[tuple[tuple[str, dict[str, Any]], ...]] = (
        ("legacy", {}),
        ("modern", {}),
        ("legacy stubborn", {}),
        ("legacy", {"wrapped": True}),
        ("modern", {"serialize": "none"}),
        ("legacy", {"serialize": "all", "era": "legacy"}),
    )

    @property
    def names(self) -> list[str]:
        """The names of all servers."""
        return [*(f"s{number}" for number in range(self.local)), *(f"h{number}" for number in range(self.remote))]

    @asynccontextmanager
    async def running(self, seed: str) -> AsyncIterator[None]:
        """Run the remote servers."""
        async with trio.open_nursery() as self.apart:
            for number in range(self.remote):
                remote = Remote(f"h{number}", self.path, number)
                remote.make_orders()
                self.remotes[remote.name] = remote
                await self.apart.start(_run, remote, seed)
            yield
            self.apart.cancel_scope.cancel()

    def config(self, name: str) -> MCPServerConfig:
        """The configuration of a server, by its name."""
        how = self.remotes[name].settings if name in self.remotes else self._local(name)
        return MCPServerConfig.from_dict(
            name,
            {
                "call_timeout_seconds": _CALL_SECONDS,
                "max_call_seconds": _MAX_CALL_SECONDS,
                "startup_timeout_seconds": 2.5,
                "max_concurrency": LIMIT,
                "reconnect": {"initial_seconds": 0.02, "max_seconds": 0.5, "stable_seconds": 0.2},
                **how,
            },
        )

    def _local(self, name: str) -> dict[str, Any]:
        words, more = self._KINDS[int(name[1:]) % len(self._KINDS)]
        more = dict(more)
        command = [sys.executable, "-S", "-E", "-I", str(_SERVER), name, str(self.path), *words.split()]
        if more.pop("wrapped", False):
            # As npx does: a shell that only waits, and does not hand signals on.
            command = ["/bin/sh", "-c", f"{' '.join(command)}; exit 7"]
        orders = self.path / f"{name}.orders"
        if not orders.exists():
            os.mkfifo(orders, 0o600)
        return {"command": command, "stop_timeout_seconds": STOP_SECONDS, **more}

    def is_wrapped(self, name: str) -> bool:
        """Whether a shell stands between it and us."""
        return name not in self.remotes and "wrapped" in self._KINDS[int(name[1:]) % len(self._KINDS)][1]

    def order(self, name: str, what: str) -> None:
        """Tell a server to misbehave; nothing, where it does not run."""
        try:
            fd = os.open(self.path / f"{name}.orders", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(fd, f"{what} ".encode())
        except OSError:
            return
        finally:
            os.close(fd)

    def fail_next_start(self, name: str, how: str) -> None:
        """Let the next process of a server fail, in one of its ways."""
        (self.path / f"{name}.start").write_text(how)

    def calm(self) -> None:
        """Take back what was to fail at the next start, and let the network be good."""
        for name in self.names:
            (self.path / f"{name}.start").unlink(missing_ok=True)
        for remote in self.remotes.values():
            remote.calm()


async def _run(remote: Remote, seed: str, *, task_status: trio.TaskStatus[None]) -> None:
    async with remote.running(seed):
        task_status.started()
        await trio.sleep_forever()


@define(eq=False)
class Fire:
    """Callers, editors and faults around one manager.

    Args:
        manager: The manager.
        folder: The servers' folder.
        seed: What all choices are drawn from.
        rate: Faults a second.
        broken: Told what must not be, in a sentence.
    """

    manager: MCPManager
    folder: Folder
    seed: str
    rate: float
    broken: Callable[[str], None]
    asked: list[Asked] = field(factory=list)
    told: list[Told] = field(factory=list)
    faults: Counter[str] = field(factory=Counter)
    edits: Counter[str] = field(factory=Counter)
    calls_wanted: bool = True
    _numbers: count[int] = field(factory=count)
    _frozen: set[str] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        # The ring of the bus is bounded, and a flood of log lines may push a call's event out of it.
        publish = self.manager.events.publish

        def heard(event: Event) -> int:
            self._hear(event)
            return publish(event)

        setattr(self.manager.events, "publish", heard)  # noqa: B010 - a type checker would not have it otherwise

    def _hear(self, event: Event) -> None:
        if isinstance(event, ToolCallStarted):
            self.told.append(Told("started", event.server or "", event.call_id))
        elif isinstance(event, ToolCallEnded):
            self.told.append(Told("ended", event.server or "", event.call_id, event.outcome))
        elif isinstance(event, StatusChanged):
            self.told.append(Told("status", event.server or "", what=str(event.status.status)))

    def random(self, who: str) -> Random:
        """A source of choices of one's own."""
        return Random(f"{self.seed} {who}")  # noqa: S311 - a seed is what it needs

    # Callers.

    async def calls(self, who: str) -> None:
        """One caller, until no calls are wanted any more."""
        random = self.random(who)
        while self.calls_wanted:
            await self.call(random, random.choice(self.folder.names), random.choice(_TOOLS))
            await trio.sleep(random.random() * 0.03)

    async def call(self, random: Random, server: str, tool: str, *, patient: bool = False) -> Asked:
        """One call, to its end."""
        asked = Asked(f"{self.seed}-{next(self._numbers)}", server, tool, time.monotonic())
        self.asked.append(asked)
        arguments = {
            "id": asked.id,
            "ms": random.choice((0, 0, 1, 5, 20, 60, 200)),
            "progress": random.random() < 0.3,
            "fail": random.random() < 0.1,
            "size": random.choice((0, 0, 0, 1000, 100_000)),
        }
        patience = random.choice((None, None, None, 0.005, 0.05, 0.2))
        timeout = random.choice((None, None, None, 0.05, 0.3))
        if patient:
            patience, timeout = None, 10.0
            arguments |= {"fail": False}

        async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
            # A sentence is our own, about what is waited for; the servers send the call's id.
            if message is None or " " not in message:
                asked.heard.append(message)

        try:
            with trio.fail_after(CALL_BOUND_SECONDS):
                with trio.CancelScope() as scope:
                    if patience is not None:
                        scope.deadline = trio.current_time() + patience
                    result = await self.manager.call_tool(
                        f"{server}__{tool}", arguments, timeout=timeout, on_progress=on_progress, call_id=asked.id
                    )
                    kind = _kind(result)
                    # What came over a bad network may have been something else when it was sent.
                    over_http = kind == "unusable" and server in self.folder.remotes
                    asked.told("garbled" if over_http else kind, result.text.partition("\n")[0])
                if scope.cancelled_caught:
                    asked.told("cancelled")
        except TimedOut as error:
            asked.told(f"timeout:{error.budget}")
        except ServerGone as error:
            asked.told("gone:unknown" if error.may_have_run else "gone:not_run")
        except NotConnected as error:
            asked.told("not_connected", error.message)
        except UnknownTool:
            asked.told("unknown_tool")
        except trio.TooSlowError:
            asked.told("stuck")
        except OpenProgramMCPError as error:
            asked.told("other", repr(error))
        finally:
            if asked.outcome is None:
                asked.told("cancelled")  # with everything else
            asked.ended = time.monotonic()
        return asked

    # Edits.

    async def edit(self, who: str) -> None:
        """One who changes things, for ever."""
        random = self.random(who)
        while True:
            await trio.sleep(random.random() * 0.8)
            name = random.choice(self.folder.names)
            what = random.choice(("restart", "restart", "disconnect", "connect", "disable", "enable", "remove", "add"))
            limit = random.choice((0.0, 0.05, 0.3, 5.0, 5.0))
            with trio.move_on_after(limit):
                await self.attempt(what, name)
            # Somebody puts things right again, too; else there would soon be nothing left to break.
            await self.attempt("put right", name)

    async def attempt(self, what: str, name: str) -> None:
        """One change, which may be refused as changes are."""
        manager = self.manager
        changes: dict[str, Callable[[], Awaitable[Any]]] = {
            "restart": lambda: manager.restart(name),
            "disconnect": lambda: manager.disconnect(name),
            "connect": lambda: manager.connect(name),
            "disable": lambda: manager.disable(name),
            "enable": lambda: manager.enable(name),
            "remove": lambda: manager.remove(name),
            "add": lambda: manager.add(self.folder.config(name)),
            "put right": lambda: self.put_right(name),
        }
        self.edits[what] += 1
        try:
            await changes[what]()
        except (NotConnected, UnknownServer, ServerExists, ServerFailed):
            self.edits[f"{what}, refused"] += 1

    async def put_right(self, name: str) -> None:
        """Bring a server up that will not come up by itself."""
        row = self.manager.status().get(name)
        if row is None:
            await self.manager.add(self.folder.config(name))
        elif not row.enabled:
            await self.manager.enable(name)
        elif row.status is ServerState.DISCONNECTED or (row.status is ServerState.FAILED and row.retry_at is None):
            await self.manager.connect(name)

    # Faults.

    async def burn(self, faults: int) -> None:
        """So many faults, one after the other."""
        random = self.random(f"faults {sum(self.faults.values())}")
        for remote in self.folder.remotes.values():
            remote.burn(random.randrange(1_000_000))
        async with trio.open_nursery() as nursery:
            for _ in range(faults):
                await trio.sleep(random.expovariate(self.rate))
                name = random.choice(self.folder.names)
                kinds = REMOTE_FAULTS if name in self.folder.remotes else _FAULTS
                self._break(nursery, random, random.choices(list(kinds), list(kinds.values()))[0], name)

    def _break(self, nursery: trio.Nursery, random: Random, what: str, name: str) -> None:
        if what == "START":
            self.folder.fail_next_start(name, random.choice(_START_FAULTS))
            what = "KILL"
        if what in ("closein", "closeout") and self.folder.is_wrapped(name):
            # Its shell holds the same pipes open: nobody could tell that it is not there any more.
            return
        if what in ("CUT", "RESET", "SHUT"):
            self.faults[f"net:{what.lower()}"] += 1
            if what == "SHUT":
                nursery.start_soon(self.folder.remotes[name].shut, random.random() * 0.4)
            else:
                self.folder.remotes[name].middleman.cut(reset=what == "RESET")
        elif what not in ("KILL", "TERM", "FREEZE"):
            # The server's record says when it was carried out, and counts it.
            self.folder.order(name, f"{what}:{random.randrange(10_000)}")
        elif name not in self._frozen:
            pidfd = self._signal(name, {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "FREEZE": signal.SIGSTOP}[what])
            if pidfd is None:
                return
            self.faults[what.lower()] += 1
            if what == "FREEZE":
                self._frozen.add(name)
                nursery.start_soon(self._thaw, name, pidfd, random.choice((0.05, 0.3, 0.8, 1.6)))
            else:
                os.close(pidfd)

    def _signal(self, name: str, number: signal.Signals) -> int | None:
        if name in self.folder.remotes:
            return self.folder.remotes[name].signal(number)
        row = self.manager.status().get(name)
        # No checkpoint since its pid was read, and it is not reaped in between.
        return None if row is None or row.pid is None else send_signal(row.pid, number)

    async def _thaw(self, name: str, pidfd: int, seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        finally:
            self._frozen.discard(name)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it was ended frozen
            finally:
                os.close(pidfd)

    # What holds at every moment.

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            self.look()
            await trio.sleep(0.02)

    def look(self) -> None:
        """What the status says is so at this moment."""
        rows = self.manager.status()
        for name, row in rows.items():
            if row.pid is not None and not is_server(row.pid, name):
                self.broken(f"{name} is said to be process {row.pid}, which is another or none: {row}")
            if row.in_flight < 0 or row.queued < 0 or row.in_flight > LIMIT:
                self.broken(f"{name} is said to have {row.in_flight} calls in flight and {row.queued} queued")
            if row.status is ServerState.CONNECTED and row.error is not None:
                self.broken(f"{name} is connected, with an error: {row.error}")
        offered = set(self.manager.registry.names())
        claimed = {tool for row in rows.values() for tool in row.tools}
        if offered != claimed:
            self.broken(f"the registry and the status disagree about {sorted(offered ^ claimed)}")


def _kind(result: Any) -> str:
    if not result.is_error:
        return "ok"
    if len(result.text.partition("\n")[0].split()) == 3:
        return "tool_error"
    # One that its server does not offer any more, or an answer that was none.
    return "refused" if result.details.get("rpc_code") == _NO_SUCH_TOOL else "unusable"
