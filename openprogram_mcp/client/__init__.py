"""One server: its state, its request queue, and its connections, one after the other.

Owns the only place where a server's failures become its status: whatever goes wrong with one server ends in
:meth:`MCPClient.run`, and no further. Its state changes in one method alone, along the table of ``status``. Does not
own the names under which its tools are offered, nor the file that it was configured in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from time import time
from typing import Any, Final

import trio
from attrs import evolve

from ..adapter import AgentToolResult, RemoteTool
from ..config import MCPServerConfig
from ..errors import ConfigError, NotConnected, ServerFailed
from ..events import EventBus, ServerLog
from ..masking import Masker
from ..status import Phase, ServerState, ServerStatus, check_transition, rfc3339
from ..transports._process import ServerProcess
from ._calls import Call, CallDesk, OnProgress
from ._connection import Connection, Ending, Withdrawn, hold_connection, is_refusal
from ._gate import StartGate
from ._turns import Turns

__all__ = ["Call", "MCPClient", "OnProgress", "StartGate"]

logger = logging.getLogger(__name__)

# How long a stop waits for calls that are running before it ends them.
_DRAIN_SECONDS: Final = 0.5

_DOWN: Final = frozenset({ServerState.DISABLED, ServerState.DISCONNECTED})
_UNSETTLED: Final = frozenset({ServerState.PENDING, ServerState.STARTING})


class MCPClient:
    """A server, from its configuration to the calls of its tools.

    Args:
        config: Its configuration, not expanded.
        bus: Where its events go.
        gate: Limits how many servers work at their start at once.
        environ: Our environment, for its process.
        prepare: Gives the expanded configuration for a start when its turn has come, or ``None`` when it is not to be
            made any more.
        on_change: Called, synchronously, after every change of its state or of its tools.
        raise_internal: Let a fault of ours out instead of containing it; for tests.
    """

    def __init__(
        self,
        config: MCPServerConfig,
        *,
        bus: EventBus,
        gate: StartGate,
        environ: Mapping[str, str],
        prepare: Callable[[MCPClient], Awaitable[MCPServerConfig | None]],
        on_change: Callable[[MCPClient], None],
        raise_internal: bool = False,
    ) -> None:
        self.config = config
        self.tools: Mapping[str, RemoteTool] = {}
        self._bus = bus
        self._gate = gate
        self._environ = environ
        self._prepare = prepare
        self._on_change = on_change
        self._raise_internal = raise_internal
        self._turns: Turns[Connection] = Turns(config.max_concurrency)
        self._desk = CallDesk(config, self._turns, Masker(config.secret_values()), bus, self._relist)
        self._status = ServerStatus(
            name=config.name,
            type=config.resolved_type,
            enabled=config.enabled,
            description=config.description,
            status=ServerState.PENDING if config.enabled else ServerState.DISABLED,
            since=rfc3339(time()),
        )
        self._generations = count(1)
        self._attempt = 0
        self._known_era: Any = None
        self._process: ServerProcess | None = None
        # What is wanted next, taken by run(); None while things are to stay as they are.
        self._wanted: ServerState | None = self._status.status
        self._woken = trio.Event()
        self._starting = trio.CancelScope()
        self._leaving = False
        self._over = False
        self._settled = trio.lowlevel.ParkingLot()
        self._lists_changed = trio.Event()

    @property
    def name(self) -> str:
        """The server's name."""
        return self.config.name

    @property
    def state(self) -> ServerState:
        """What it is doing."""
        return self._status.status

    @property
    def masker(self) -> Masker:
        """Hides its secrets."""
        return self._desk.masker

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out."""
        return self._leaving

    def status(self) -> ServerStatus:
        """Its status at this moment, without the full names of its tools, which its owner gives them."""
        process = self._process
        alive = process is not None and not process.exited.is_set()
        return evolve(
            self._status,
            stderr=() if process is None else process.stderr.last(),
            pid=process.pid if process is not None and alive else None,
            uptime_seconds=round(trio.current_time() - process.started_at, 3)
            if process is not None and alive
            else None,
            in_flight=self._turns.running,
            queued=self._turns.waiting,
            last_call=self._desk.last,
        )

    async def settled(self) -> ServerStatus:
        """Wait until it is neither pending nor starting, nor about to be."""
        while not self._over and (self.state in _UNSETTLED or self._wanted is not None):
            await self._settled.park()
        return self.status()

    # Commands. Each is noted at once, in every state, and ends what is under way; run() does the rest.

    def connect(self) -> None:
        """Bring it up, unless it is up or on its way."""
        if self._wanted is not None or self.state not in (ServerState.CONNECTED, *_UNSETTLED):
            self._want(ServerState.PENDING)

    def restart(self) -> None:
        """End its connection, if there is one, and bring it up anew."""
        self._want(ServerState.PENDING)

    def disconnect(self) -> None:
        """Take it down until somebody connects it."""
        self._want(ServerState.DISCONNECTED)

    def configure(self, config: MCPServerConfig) -> None:
        """Follow another configuration: from the next connection on, or at once where it enables or disables."""
        enabled_before, self.config = self.config.enabled, config
        self._desk.config = config
        self._desk.masker = Masker(config.secret_values())
        self._turns.allow(config.max_concurrency)
        self._known_era = None
        self._status = evolve(
            self._status, type=config.resolved_type, description=config.description, enabled=config.enabled
        )
        if config.enabled != enabled_before:
            self._want(ServerState.PENDING if config.enabled else ServerState.DISABLED)

    def leave(self) -> None:
        """Take it down and let :meth:`run` return."""
        self._leaving = True
        self._want(ServerState.DISCONNECTED)

    def _want(self, state: ServerState) -> None:
        self._wanted = ServerState.DISCONNECTED if self._leaving else state
        self._woken.set()
        self._starting.cancel()

    # Its life.

    async def run(self) -> None:
        """Its whole life. Returns after :meth:`leave`; cancelled, it takes its process with it."""
        try:
            while not (self._leaving and self._wanted is None):
                wanted, self._wanted = self._wanted, None
                self._woken, self._starting = trio.Event(), trio.CancelScope()
                if wanted is ServerState.PENDING:
                    self._move(ServerState.PENDING)
                    await self._live_contained()
                elif wanted is not None:
                    self._move(wanted)
                else:
                    await self._woken.wait()
        finally:
            self._over = True
            self._turns.refuse(self._not_connected)
            self._settled.unpark_all()

    async def _live_contained(self) -> None:
        """One connection's life, and the one place where a failure of the server's or a fault of ours ends."""
        try:
            await self._live()
        except ServerFailed as failure:
            self._fail(failure)
        except Exception:  # a fault of ours in one server must not take the host down
            if self._raise_internal:
                raise
            logger.exception("a fault of openprogram_mcp's own, while it served %r", self.name)
            self._fail(
                ServerFailed(
                    "a fault of openprogram_mcp's own; the log has the traceback",
                    phase="internal",
                    remedy="Please report it, with the traceback from the log.",
                    server=self.name,
                )
            )

    async def _live(self) -> None:
        self._attempt += 1
        self._turns.hold()
        self._process = None
        self._move(ServerState.STARTING)
        endings: list[Ending] = []
        failure: ServerFailed | None = None

        async def hold(task_status: trio.TaskStatus[Connection]) -> None:
            ending = await hold_connection(
                self._prepared,
                generation=next(self._generations),
                known_era=self._known_era,
                gate=self._gate,
                environ=self._environ,
                watcher=self,
                task_status=task_status,
            )
            endings.append(ending)

        async with trio.open_nursery() as nursery:
            connection: Connection | None = None
            with self._starting:
                try:
                    connection = await nursery.start(hold)
                except Withdrawn:
                    pass  # what withdrew it has said what is wanted instead
                except ServerFailed as error:
                    failure = error
            if connection is not None:
                await self._serve(connection)
        if failure is not None and self._wanted is None:
            raise failure
        for ending in endings:
            self._end(ending)

    async def _prepared(self) -> MCPServerConfig:
        try:
            config = await self._prepare(self)
        except ConfigError as error:
            raise ServerFailed(error.message, phase="config", remedy=error.remedy, server=self.name) from error
        if config is None:
            raise Withdrawn
        self._desk.masker = Masker({*self.config.secret_values(), *config.secret_values()})
        return config

    async def _serve(self, connection: Connection) -> None:
        """Serve calls over a connection until it is lost or a command comes; then let what runs come to an end."""
        self._known_era = connection.session.era
        self._attempt = 0
        self._take_tools(connection)
        self._status = evolve(
            self._status,
            generation=connection.generation,
            protocol_version=connection.session.protocol_version,
            server_info=connection.session.server_info,
        )
        self._turns.offer(connection)
        self._move(ServerState.CONNECTED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_changes, connection)
            await self._woken.wait()
            nursery.cancel_scope.cancel()
        if self._wanted in _DOWN:
            self._turns.refuse(self._not_connected)
        else:
            self._turns.hold()
        if not connection.lost.is_set():
            with trio.move_on_after(_DRAIN_SECONDS):
                await self._turns.idle()
        connection.retire()

    def _end(self, ending: Ending) -> None:
        """A connection that was up has ended."""
        self.tools = {}
        self._status = evolve(self._status, exit_code=ending.exit_code, exit_way=ending.exit_way)
        if ending.error is not None and self._wanted is None:
            raise ServerFailed(
                f"the connection was lost: {ending.error}",
                phase="running",
                exit_code=ending.exit_code,
                transient=True,
                remedy="Read its standard error; restart it when the reason is gone.",
                server=self.name,
            )

    # What a connection tells while it lives: see _connection.Watcher.

    def phase(self, phase: Phase) -> None:
        """The connection has come so far."""
        if self.state is ServerState.STARTING and phase != "running":
            self._status = evolve(self._status, phase=phase)
            self._on_change(self)

    def process(self, process: ServerProcess) -> None:
        """A process was started."""
        self._process = process

    def lost(self) -> None:
        """The connection is lost."""
        self._woken.set()

    def mask(self, text: str) -> str:
        """A text without the server's secrets."""
        return self._desk.masker.mask(text)

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something."""
        self._bus.publish(ServerLog(server=self.name, level=level, logger=logger, text=text))

    async def list_changed(self, kind: str) -> None:
        """One of the server's lists has changed."""
        if kind == "tools":
            self._lists_changed.set()

    async def resource_updated(self, uri: str) -> None:
        """A resource has changed. Nobody asks for this yet."""

    # Changes of its tools.

    async def _follow_changes(self, connection: Connection) -> None:
        """Read the tools anew when the server says that they have changed, one reading after the other."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.listen, self.list_changed, self.log)
            while True:
                await self._lists_changed.wait()
                # Replaced before the reading: a change that comes meanwhile leads to another one.
                self._lists_changed = trio.Event()
                await self._relist(connection)

    async def _relist(self, connection: Connection) -> None:
        try:
            with trio.move_on_after(self.config.startup_seconds) as limit:
                await connection.read_tools()
        except Exception as error:
            if not is_refusal(error):
                raise
            self.log("warning", None, "its tools could not be read anew; the old list stays")
            return
        if limit.cancelled_caught:
            self.log("warning", None, "reading its tools anew took too long; the old list stays")
        elif not connection.lost.is_set():
            self._take_tools(connection)
            self._on_change(self)

    def _take_tools(self, connection: Connection) -> None:
        self.tools = connection.tools
        self._status = evolve(self._status, warnings=tuple(connection.warnings))

    # Calls.

    async def call_tool(self, call: Call) -> AgentToolResult:
        """Make a call, when its turn comes.

        Raises:
            NotConnected: It is not connected, and nothing is on its way to connect it.
            TimedOut: A budget ran out.
            ServerGone: The connection was lost before the answer came.
        """
        return await self._desk.make(call)

    # Its state: changed here and nowhere else.

    def _move(self, state: ServerState, **changes: Any) -> None:
        check_transition(self.state, state)
        if state is not self.state:
            changes["since"] = rfc3339(time())
        cleared: dict[str, Any] = {"attempt": self._attempt}
        if state is not ServerState.FAILED:
            cleared |= {"error": None, "error_kind": None, "phase": None, "remedy": None, "retry_at": None}
        if state in _UNSETTLED:
            cleared |= {"exit_code": None, "exit_way": None}
        if state is not ServerState.CONNECTED:
            cleared |= {"protocol_version": None, "server_info": None, "warnings": ()}
        self._status = evolve(self._status, **{**cleared, **changes, "status": state})
        if state in _DOWN or state is ServerState.FAILED:
            self._turns.refuse(self._not_connected)
        self._on_change(self)
        self._settled.unpark_all()

    def _fail(self, failure: ServerFailed) -> None:
        self._move(
            ServerState.FAILED,
            error=failure.message,
            error_kind="fatal",
            phase=failure.phase,
            remedy=failure.remedy,
            exit_code=failure.exit_code,
            exit_way=None if self._process is None else self._process.exit_way,
        )

    def _not_connected(self) -> NotConnected:
        status = self._status
        why = str(status.status) if status.error is None else f"{status.status}: {status.error}"
        remedy = status.remedy
        if self.state is ServerState.DISABLED:
            remedy = "Enable it first."
        elif self.state is ServerState.DISCONNECTED:
            remedy = "Connect it first."
        return NotConnected(f"server {self.name!r} is {why}", remedy=remedy, server=self.name)
