"""One server's life: what it is doing, what it is told to do, and what is true of it now.

Owns the only place where a server's failures become its status: whatever goes wrong with one server ends in
:meth:`MCPClient.run`, and no further. Its state changes in one method alone, along the table of ``status``. Does not
own the names under which its tools are offered, nor the file that it was configured in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from time import time
from types import MappingProxyType
from typing import Any, Final

import trio
from attrs import evolve

from ..adapter import AgentToolResult, RemoteTool
from ..config import MCPServerConfig
from ..errors import AuthRequired, ConfigError, NotConnected, ServerFailed
from ..events import EventBus, ServerLog
from ..status import Phase, ServerState, ServerStatus, check_transition, rfc3339
from ..transports._ownership import Instance
from ..transports._process import ServerProcess
from ._attempt import hold_connection
from ._backoff import Backoff
from ._calls import Call, CallDesk
from ._catalogs import Catalogs
from ._connection import Connection, Ending, Withdrawn
from ._gate import StartGate
from ._health import until_silent
from ._hidden import Hidden
from ._inquiries import Inquiries
from ._signing import NOBODY, Signing
from ._turns import Turns

__all__ = ["MCPClient"]

logger = logging.getLogger(__name__)

# How long a stop waits for calls that are running before it ends them.
_DRAIN_SECONDS: Final = 0.5

# How long the tools of a server stay offered while it is away. A short outage is none of a model's business; after a
# long one they are taken back.
_KEEP_SECONDS: Final = 60.0

_DOWN: Final = frozenset({ServerState.DISABLED, ServerState.DISCONNECTED})
_COMING_BACK: Final = frozenset({ServerState.RECONNECTING, ServerState.STARTING})
_NEEDS_SIGN_IN: Final = frozenset({ServerState.NEEDS_AUTH, ServerState.NEEDS_CLIENT_REGISTRATION})
_TELLS_WHY: Final = frozenset({ServerState.FAILED, ServerState.RECONNECTING}) | _NEEDS_SIGN_IN
_UNSETTLED: Final = frozenset({ServerState.PENDING, ServerState.STARTING})

# One object for all: its owner sees by identity whether the tools have changed.
_NO_TOOLS: Final[Mapping[str, RemoteTool]] = MappingProxyType({})


class MCPClient:
    """A server, from its configuration to the calls of its tools.

    ``ended`` is set when its life is over; ``catalogs`` has what it offers beside its tools.

    Args:
        config: Its configuration, not expanded.
        bus: Where its events go.
        gate: Limits how many servers work at their start at once.
        environ: Our environment, for its process.
        prepare: Gives the expanded configuration for a start when its turn has come, or ``None`` when it is not to be
            made any more.
        permit: Lets the call of a tool, by its full name, pass or raises ``Denied``.
        on_change: Called, synchronously, after every change of its state or of its tools.
        owner: Whose its processes are; an owner of its own without it.
        signing: Signs in to it, where it is remote.
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
        permit: Callable[[str], None],
        on_change: Callable[[MCPClient], None],
        owner: Instance | None = None,
        signing: Signing = NOBODY,
        raise_internal: bool = False,
    ) -> None:
        self.config = config
        self.tools = _NO_TOOLS
        self.ended = trio.Event()
        self._bus = bus
        self._gate = gate
        self._owner = Instance.claim(None) if owner is None else owner
        self._environ = environ
        self._prepare = prepare
        self._on_change = on_change
        self._raise_internal = raise_internal
        self._signing = signing
        self.locked_out = signing.locked_out
        self._hidden = Hidden()
        self._hidden.hide(config)
        self._turns: Turns[Connection] = Turns(config.max_concurrency)
        self.catalogs = Catalogs(
            lambda: self.config,
            bus,
            Inquiries(
                lambda: self.config,
                self._turns,
                lambda: next(self._desk.tickets),
                self.hasten,
                self._hidden,
            ),
            lambda level, text: self.log(level, None, text),
            self.mask,
            self._take_tools,
            lambda: self._on_change(self),
        )
        self._desk = CallDesk(config, self._turns, self._hidden, bus, self.catalogs.tools.read, permit, self.hasten)
        self._backoff = Backoff(config.reconnect)
        # When it is tried again by itself, and whether a call has hastened that already.
        self._retry_at: float | None = None
        self._hastened = False
        # Whether it has been up since somebody last told it anything; then calls wait for it to come back.
        self._was_up = False
        # Until when its tools are offered though it is away; None while it is not, or when they were taken back.
        self._kept_until: float | None = None
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
        # Since when a connection to a remote server is up.
        self._up_since: float | None = None
        # What is wanted next, taken by run(); None while things are to stay as they are.
        self._wanted: ServerState | None = self._status.status
        self._woken = trio.Event()
        self._starting = trio.CancelScope()
        self._leaving = False
        self._lost: Ending | None = None
        self._settled = trio.lowlevel.ParkingLot()

    @property
    def name(self) -> str:
        """The server's name."""
        return self.config.name

    @property
    def state(self) -> ServerState:
        """What it is doing."""
        return self._status.status

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out."""
        return self._leaving

    @property
    def unsettled(self) -> bool:
        """Whether its verdict is still out: it is on its way up, or about to follow a command."""
        if self.ended.is_set():
            return False
        return self.state in _UNSETTLED or self._wanted is not None or self._leaving

    def status(self) -> ServerStatus:
        """Its status at this moment, without the full names of its tools, which its owner gives them."""
        process = self._process
        alive = process is not None and not process.exited.is_set()
        began = self._up_since if process is None else process.started_at if alive else None
        return evolve(
            self._status,
            stderr=() if process is None else process.stderr.last(),
            pid=process.pid if process is not None and alive else None,
            uptime_seconds=None if began is None else round(trio.current_time() - began, 3),
            processes=0 if process is None or process.tree is None else process.tree.count,
            in_flight=self._turns.running,
            queued=self._turns.waiting,
            last_call=self._desk.last,
            warnings=(*self._status.warnings, *self.catalogs.warnings),
        )

    def not_connected(self) -> NotConnected:
        """Why no call can be made, as the error for one caller."""
        status, going = self._status, self._wanted or self.state
        if self._leaving:
            return NotConnected(f"server {self.name!r} was stopped", server=self.name)
        why = str(going) if status.error is None else f"{going}: {status.error}"
        remedy = {
            ServerState.DISABLED: "Enable it first.",
            ServerState.DISCONNECTED: "Connect it first.",
            ServerState.FAILED: status.remedy,
            ServerState.NEEDS_AUTH: status.remedy,
            ServerState.NEEDS_CLIENT_REGISTRATION: status.remedy,
        }.get(going)
        return NotConnected(f"server {self.name!r} is {why}", remedy=remedy, server=self.name)

    async def settled(self) -> ServerStatus:
        """Wait until it is neither pending nor starting, nor about to be."""
        while self.unsettled:
            await self._settled.park()
        return self.status()

    # Commands. Each is noted at once, in every state, and ends what is under way; run() does the rest.

    def connect(self) -> None:
        """Bring it up, unless it is up or on its way.

        Raises:
            NotConnected: It is disabled.
        """
        self._refuse_if_disabled()
        if (self._wanted or self.state) not in (ServerState.CONNECTED, ServerState.PENDING, ServerState.STARTING):
            self._want(ServerState.PENDING)

    def restart(self) -> None:
        """End its connection, if there is one, and bring it up anew.

        Raises:
            NotConnected: It is disabled.
        """
        self._refuse_if_disabled()
        self._want(ServerState.PENDING)

    def disconnect(self) -> None:
        """Take it down until somebody connects it."""
        self._want(ServerState.DISCONNECTED)

    def configure(self, config: MCPServerConfig) -> None:
        """Follow another configuration: from the next connection on, or at once where it enables or disables."""
        enabled_before = self.config.enabled
        if config.fingerprint() != self.config.fingerprint():
            self._known_era = None
        self.config = self._desk.config = config
        self._hidden.hide(config)
        self._turns.allow(config.max_concurrency)
        self._backoff = Backoff(config.reconnect)
        self._status = evolve(
            self._status, type=config.resolved_type, description=config.description, enabled=config.enabled
        )
        if config.enabled != enabled_before:
            self._want(ServerState.PENDING)

    def leave(self) -> None:
        """Take it down and let :meth:`run` return."""
        self._leaving = True
        self._interrupt()

    def hasten(self) -> None:
        """A call waits for it: do not wait any longer with the next try. Once a try, however many calls wait."""
        if self.state is ServerState.RECONNECTING and self._retry_at is not None and not self._hastened:
            self._hastened = True
            self._retry_at = trio.current_time()
            self._woken.set()

    def _refuse_if_disabled(self) -> None:
        if not self.config.enabled:
            raise NotConnected(f"server {self.name!r} is disabled", remedy="Enable it first.", server=self.name)

    def _want(self, state: ServerState) -> None:
        # Whatever it is told, what is disabled is disabled.
        self._wanted = state if self.config.enabled else ServerState.DISABLED
        self._interrupt()

    def _interrupt(self) -> None:
        self._woken.set()
        self._starting.cancel()

    # Its life.

    async def run(self) -> None:
        """Its whole life. Returns after :meth:`leave`; cancelled, it takes its process with it."""
        try:
            while not self._leaving:
                wanted, self._wanted = self._wanted, None
                self._woken, self._starting = trio.Event(), trio.CancelScope()
                if wanted is not None:
                    # Somebody has said something: what was before counts no more.
                    self._forget_failures()
                    self._move(wanted)
                    if wanted is ServerState.PENDING:
                        await self._live_contained()
                elif self._retry_at is None:
                    await self._woken.wait()
                elif await self._retry_is_due(self._retry_at):
                    await self._live_contained()
        finally:
            self.end()

    def _forget_failures(self) -> None:
        self._backoff.begin_again()
        self._attempt = 0
        self._retry_at = self._kept_until = None
        self._was_up = False

    async def _retry_is_due(self, retry_at: float) -> bool:
        """Wait until it is to be tried again; false when a command comes first. Takes its tools back in time."""
        if self._kept_until is not None and self._kept_until < retry_at:
            with trio.move_on_at(self._kept_until):
                await self._woken.wait()
            if not self._woken.is_set():
                self._kept_until = None
                self._withdraw_offer()
                self._on_change(self)
        with trio.move_on_at(retry_at):
            await self._woken.wait()
        if self._wanted is not None or self._leaving:
            return False
        # A call that has hastened it has been heard with that: what wakes from here on is about the connection.
        self._woken = trio.Event()
        return True

    def end(self) -> None:
        """Its life is over, on whatever way: nothing of it is left, and nobody waits for it. For :meth:`run`, and for
        an owner who never came to run it.
        """
        self._leaving = True
        self.ended.set()
        if self.state not in _DOWN:
            self._move(ServerState.DISCONNECTED)
        self._turns.refuse(self.not_connected)
        self._settled.unpark_all()

    async def _live_contained(self) -> None:
        """One connection's life, and the one place where a failure of the server's or a fault of ours ends."""
        failure: ServerFailed | None = None
        try:
            await self._live()
        except* Withdrawn:
            # Whoever withdrew the start has said what is wanted instead; if not, that it is not wanted.
            if self._wanted is None:
                self._want(ServerState.DISCONNECTED)
        except* ServerFailed as failures:
            failure = _first(failures)
        except* Exception:  # a fault of ours in one server must not take the host down
            if self._raise_internal:
                raise
            logger.exception("a fault of openprogram_mcp's own, while it served %r", self.name)
            failure = ServerFailed(
                "a fault of openprogram_mcp's own; the log has the traceback",
                phase="internal",
                remedy="Please report it, with the traceback from the log.",
                server=self.name,
            )
        if failure is not None and self._wanted is None and not self._leaving:
            self._fail(failure, crashed=failure.exit_code is not None)

    async def _live(self) -> None:
        self._attempt += 1
        self._process = None
        self._lost = None
        self._retry_at = None
        self._turns.hold()
        async with trio.open_nursery() as nursery:
            connection: Connection | None = None
            with self._starting:
                # Until it is up, it ends with this scope; from then on, with the nursery.
                connection = await nursery.start(self._hold)
            if connection is not None:
                await self._serve(connection)

    async def _hold(self, task_status: trio.TaskStatus[Connection]) -> None:
        known_era, self._known_era = self._known_era, None
        ending = await hold_connection(
            self._prepared,
            generation=next(self._generations),
            known_era=known_era,
            gate=self._gate,
            owner=self._owner,
            environ=self._environ,
            watcher=self,
            task_status=task_status,
        )
        before = self._status
        self._status = evolve(before, exit_code=ending.exit_code, exit_way=ending.exit_way)
        if self.state in (ServerState.FAILED, ServerState.RECONNECTING) and self._status != before:
            self._on_change(self)

    async def _prepared(self) -> MCPServerConfig:
        """Its turn to start has come."""
        try:
            config = await self._prepare(self)
        except ConfigError as error:
            raise ServerFailed(error.message, phase="config", remedy=error.remedy, server=self.name) from error
        if config is None:
            raise Withdrawn
        self._hidden.hide(config)
        self._move(ServerState.STARTING)
        return config

    async def _serve(self, connection: Connection) -> None:
        """Serve calls over a connection until it is lost or a command comes; then let what runs come to an end."""
        self._known_era = connection.session.era
        self._attempt = 0
        self._was_up = True
        self._kept_until = None
        began = self._up_since = trio.current_time()
        self._turns.offer(connection)
        self.tools = connection.tools
        self._move(
            ServerState.CONNECTED,
            generation=connection.generation,
            protocol_version=connection.session.protocol_version,
            server_info=connection.session.server_info,
            warnings=connection.warnings,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.catalogs.follow, connection)
            nursery.start_soon(self._desk.lingering.run)
            nursery.start_soon(self._watch_health, connection)
            await self._woken.wait()
            nursery.cancel_scope.cancel()
        self._up_since = None
        if self._wanted is None and not self._leaving:
            # Its process may take a while to end; that nothing can be called any more is true now.
            self._backoff.was_up(trio.current_time() - began)
            self._kept_until = trio.current_time() + _KEEP_SECONDS
            self._fail(
                (self._lost or Ending()).loss(self.name),
                self._lost,
                crashed=self._lost is not None and self._lost.exit_way == "own",
            )
            connection.retire()
            return
        if self._leaving or self._wanted in _DOWN:
            self._turns.refuse(self.not_connected)
        else:
            self._turns.hold()
        with trio.move_on_after(_DRAIN_SECONDS):
            await self._turns.idle()
        connection.retire()

    async def _watch_health(self, connection: Connection) -> None:
        health = self.config.health
        if health is not None:
            patience = min(health.interval_seconds, self.config.call_seconds)
            await until_silent(connection, health.interval_seconds, patience, lambda: self._desk.busy)
            self.lost(Ending(f"it did not answer a health check within {patience:g} s"))

    # Signing in.

    def signed_in(self) -> None:
        """Somebody has signed in to it: it comes up by itself, where it was waiting for that."""
        self.sign_in_changed()
        if self.config.enabled and self.state in (*_NEEDS_SIGN_IN, ServerState.FAILED, ServerState.RECONNECTING):
            self.connect()

    def sign_in_changed(self) -> None:
        """What is known of its sign-in has changed."""
        self._hidden.hide_tokens(self._signing.tokens(self.name))
        if not self.ended.is_set():
            self._on_change(self)

    def needs_registration(self, error: str, remedy: str | None) -> None:
        """It has turned out that nobody can sign in to it before a client id is given."""
        if self.state in _NEEDS_SIGN_IN and self._wanted is None:
            self._move(
                ServerState.NEEDS_CLIENT_REGISTRATION, error=self.mask(error), remedy=remedy and self.mask(remedy)
            )

    async def signer(self, config: MCPServerConfig) -> Any:
        """See ``_connection.Watcher``."""
        signer = await self._signing.signer(config)
        self._hidden.hide_tokens(self._signing.tokens(self.name))
        return signer

    # What a connection tells while it lives: see _connection.Watcher.

    def phase(self, phase: Phase) -> None:
        """The connection has come so far."""
        if self.state is ServerState.STARTING and phase != "running":
            self._status = evolve(self._status, phase=phase)
            self._on_change(self)

    def process(self, process: ServerProcess) -> None:
        """A process was started."""
        self._process = process

    def lost(self, ending: Ending) -> None:
        """The connection is lost."""
        self._lost = ending
        self._woken.set()

    def mask(self, text: str) -> str:
        """A text without the server's secrets."""
        return self._hidden.mask(text)

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something."""
        self._bus.publish(ServerLog(server=self.name, level=level, logger=logger, text=text))

    async def list_changed(self, kind: str) -> None:
        """One of the server's lists has changed."""
        self.catalogs.told(kind)

    async def resource_updated(self, uri: str) -> None:
        """A resource has changed."""
        self.catalogs.updates.told(uri)

    async def unheard(self) -> None:
        """Something may have changed that was not heard."""
        self.catalogs.unheard()

    def _take_tools(self, connection: Connection) -> None:
        """A connection's tools were read anew. What an older one had to say is dropped."""
        if self.state is ServerState.CONNECTED and connection.generation == self._status.generation:
            self.tools = connection.tools
            self._status = evolve(self._status, warnings=connection.warnings)
            self._on_change(self)

    def _withdraw_offer(self) -> None:
        self.tools = _NO_TOOLS
        self.catalogs.withdraw()

    # Calls.

    def call_tool(self, call: Call) -> Awaitable[AgentToolResult]:
        """Make a call, when its turn comes.

        Raises:
            Denied: The permissions do not allow it.
            InvalidArguments: They do not fit the tool's schema.
            UnknownTool: The server does not offer it any more.
            NotConnected: It is not connected, and nothing is on its way to connect it.
            TimedOut: A budget ran out.
            ServerGone: The connection was lost before the answer came.
        """
        return self._desk.make(call)

    # Its state: changed here and nowhere else.

    def _move(self, state: ServerState, **changes: Any) -> None:
        check_transition(self.state, state)
        if state is not self.state:
            changes["since"] = rfc3339(time())
        cleared: dict[str, Any] = {"attempt": self._attempt}
        if state not in _TELLS_WHY:
            cleared |= {"error": None, "error_kind": None, "phase": None, "remedy": None, "retry_at": None}
        if state in _UNSETTLED:
            cleared |= {"exit_code": None, "exit_way": None}
        if state is not ServerState.CONNECTED and not (self._kept_until is not None and state in _COMING_BACK):
            self._withdraw_offer()
        if state is not ServerState.CONNECTED:
            cleared |= {"protocol_version": None, "server_info": None, "warnings": ()}
        self._status = evolve(self._status, **{**cleared, **changes, "status": state})
        if state in _DOWN or state is ServerState.FAILED or state in _NEEDS_SIGN_IN:
            self._turns.refuse(self.not_connected)
        self._on_change(self)
        self._settled.unpark_all()

    def _fail(self, failure: ServerFailed, ending: Ending | None = None, *, crashed: bool = False) -> None:
        """It has failed: it is tried again where time may mend that, or stays as it is until somebody does something.

        A server that was up is ``reconnecting``, and calls wait for it; one that has not come up yet is ``failed``, and
        calls are told why.
        """
        process = self._process
        exit_way = ending.exit_way if ending is not None else None if process is None else process.exit_way
        wait = self._backoff.next_wait(crashed=crashed) if failure.transient else None
        if wait is not None and ending is not None and ending.at_once and self._backoff.tries == 1:
            wait = 0.0
        if wait is not None and failure.retry_after is not None:
            wait = max(wait, failure.retry_after)
        self._retry_at = None if wait is None else trio.current_time() + wait
        # Who asked us to wait is not hastened either.
        self._hastened = failure.retry_after is not None
        comes_back = wait is not None and self._was_up
        self._attempt = self._backoff.tries
        down = ServerState.FAILED
        if isinstance(failure, AuthRequired) and not failure.rejected:
            down = ServerState.NEEDS_CLIENT_REGISTRATION if failure.registration else ServerState.NEEDS_AUTH
        self._move(
            ServerState.RECONNECTING if comes_back else down,
            error=failure.message,
            error_kind="needs_reauth" if down in _NEEDS_SIGN_IN else "fatal" if wait is None else "transient",
            phase=failure.phase,
            remedy=failure.remedy,
            retry_at=None if wait is None else rfc3339(time() + wait),
            exit_code=failure.exit_code,
            exit_way=exit_way,
        )
        if comes_back:
            self._turns.hold()


def _first(failures: BaseExceptionGroup[ServerFailed]) -> ServerFailed:
    for failure in failures.exceptions:
        return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
    raise AssertionError("a group without exceptions")
