"""The supervisor of one server: what it is doing, from its first start to its last end.

Owns the tasks of its connections, when one is tried again, and what follows when one is lost, replaced or told to end.
Whatever goes wrong with one server ends here, and no further. What others may tell a server, and ask of it, is in
``_client``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from time import time
from typing import Any, Final

import trio

from ..adapter import RemoteTool
from ..config import MCPServerConfig
from ..errors import ConfigError, NotConnected, ServerFailed
from ..events import EventBus
from ..status import Phase, ServerState, rfc3339
from ..transports._ownership import Instance
from ..transports._process import ServerProcess
from ._attempt import hold_connection
from ._backoff import Backoff
from ._calls import CallDesk
from ._catalogs import Catalogs
from ._connection import Connection, Ending, Known, Withdrawn
from ._failures import fault_of_ours, first_of, loss_of, not_connected, state_after
from ._gate import StartGate
from ._health import watch_health
from ._held import Held
from ._hidden import Hidden
from ._inquiries import Inquiries
from ._replacing import EditQueue, already, make_edit
from ._said import Said
from ._signing import ServerSigning, Signing
from ._standing import DOWN, NEEDS_SIGN_IN, NO_TOOLS, UNSETTLED, WAY_UP, Standing
from ._turns import Turns

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)

# How long a stop waits for calls that are running before it ends them.
_DRAIN_SECONDS: Final = 0.5

# How long the calls on a connection that an edit has replaced may take to come to their end, at most.
_HANDOVER_SECONDS: Final = 60.0

# How long the tools of a server stay offered while it is away. A short outage is none of a model's business; after a
# long one they are taken back.
_KEEP_SECONDS: Final = 60.0

_COMING_BACK: Final = frozenset({ServerState.RECONNECTING, ServerState.STARTING})


class Supervisor:
    """The life of a server. See :class:`._client.MCPClient` for its arguments.

    ``ended`` is set when its life is over; ``catalogs`` has what it offers beside its tools; ``config_error`` says why
    an edit of its entry in the file was not followed.
    """

    def __init__(
        self,
        config: MCPServerConfig,
        *,
        bus: EventBus,
        gate: StartGate,
        environ: Mapping[str, str],
        prepare: Callable[[], Awaitable[MCPServerConfig | None]],
        permit: Callable[[str], None],
        on_change: Callable[[], None],
        owner: Instance,
        signing: Signing,
        raise_internal: bool,
    ) -> None:
        self.config = config
        self._standing = Standing.of(config, on_change)
        self.ended = trio.Event()
        self.config_error: str | None = None
        self._said = Said(config.name, bus)
        self._gate = gate
        self._owner = owner
        self._environ = environ
        self._prepare = prepare
        self._raise_internal = raise_internal
        self._hidden = Hidden()
        self._hidden.hide(config)
        self._signing = ServerSigning(signing, self._hidden)
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
            self._standing.tell,
        )
        self._desk = CallDesk(config, self._turns, self._hidden, bus, self.catalogs.tools.read, permit, self.hasten)
        self._backoff = Backoff(config.reconnect)
        # When it is tried again by itself, and whether a call has hastened that already.
        self._retry_at: float | None = None
        self._hastened = False
        # Whether it has been up since somebody last told it anything; then calls wait for it to come back.
        self._was_up = False
        # Until when its tools are offered though it is away.
        self._kept_until: float | None = None
        self._generations = count(1)
        self._attempt = 0
        self._known: Known | None = None
        # The connection that counts, or the attempt at it; and one that an edit has put in its place, not served yet.
        self._held: Held | None = None
        self._adopted: Held | None = None
        self._edits = EditQueue(config.name)
        self._stopped_for_edit: trio.Event | None = None
        self._up_since: float | None = None
        # What is wanted next, taken by run(); None while things are to stay as they are.
        self._wanted: ServerState | None = self.state
        self._woken = trio.Event()
        self._starting = trio.CancelScope()
        self._leaving = False

    @property
    def name(self) -> str:
        """The server's name."""
        return self.config.name

    @property
    def state(self) -> ServerState:
        """What it is doing."""
        return self._standing.state

    @property
    def tools(self) -> Mapping[str, RemoteTool]:
        """What it offers now, by its own names. The same object as long as nothing changes."""
        return self._standing.tools

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out."""
        return self._leaving

    @property
    def unsettled(self) -> bool:
        """Whether its verdict is still out: it is on its way up, or about to follow a command."""
        if self.ended.is_set():
            return False
        return self.state in UNSETTLED or self._wanted is not None or self._leaving

    @property
    def _process(self) -> ServerProcess | None:
        return None if self._held is None else self._held.process_of_server

    def not_connected(self) -> NotConnected:
        """Why no call can be made, as the error for one caller."""
        return not_connected(self._standing.row, self._wanted or self.state, leaving=self._leaving)

    # What is wanted of it. Noted at once, in every state; it ends what is under way, and the supervisor does the rest.

    def _want(self, state: ServerState) -> None:
        self._edits.supersede()
        self.want_now(state)

    def want_now(self, state: ServerState) -> None:
        """Go on to a state; for edits, which nothing that they want themselves overtakes."""
        # Whatever it is told, what is disabled is disabled.
        self._wanted = state if self.config.enabled else ServerState.DISABLED
        self._interrupt()

    def _interrupt(self) -> None:
        self._woken.set()
        self._starting.cancel()

    def leave(self) -> None:
        """Take it down and let :meth:`run` return."""
        self._leaving = True
        self._edits.close()
        self._edits.supersede()
        self._interrupt()

    def hasten(self) -> None:
        """A call waits for it: do not wait any longer with the next try. Once a try, however many calls wait."""
        if self.state is ServerState.RECONNECTING and self._retry_at is not None and not self._hastened:
            self._hastened = True
            self._retry_at = trio.current_time()
            self._woken.set()

    def take(self, config: MCPServerConfig) -> None:
        """Have another configuration, and let the connection in force be as it is."""
        if config.fingerprint() != self.config.fingerprint():
            self._known = None
        self.config_error = None
        self.config = self._desk.config = config
        self._hidden.hide(config)
        self._turns.allow(config.max_concurrency)
        self._backoff = Backoff(config.reconnect)
        self._standing.configure(config)
        if config.enabled and self._wanted is ServerState.DISABLED:
            # It was disabled at the last moment of an edit that enables it.
            self._wanted = ServerState.PENDING

    # Its life.

    async def run(self) -> None:
        """Its whole life. Returns after :meth:`leave`; cancelled, it takes its process with it."""
        try:
            async with trio.open_nursery() as connections:
                connections.start_soon(self._edits.run, partial(make_edit, self, connections))
                await self._supervise(connections)
                connections.cancel_scope.cancel()
        finally:
            self.end()

    async def _supervise(self, connections: trio.Nursery) -> None:
        while not self._leaving:
            wanted, self._wanted = self._wanted, None
            adopted, self._adopted = self._adopted, None
            self._woken, self._starting = trio.Event(), trio.CancelScope()
            if adopted is not None:
                if wanted is not None:
                    # It was told something since: what has come up is taken down on the usual way.
                    self._wanted = wanted
                    self._woken.set()
                await self._live_contained(connections, adopted)
            elif wanted is not None:
                # Somebody has said something: what was before counts no more.
                self._forget_failures()
                self._move(wanted)
                if wanted is ServerState.PENDING:
                    await self._live_contained(connections)
            elif self._retry_at is None:
                await self._woken.wait()
            elif await self._retry_is_due(self._retry_at):
                await self._live_contained(connections)

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
                self._standing.tell()
        with trio.move_on_at(retry_at):
            await self._woken.wait()
        if self._wanted is not None or self._adopted is not None or self._leaving:
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
        if self.state not in DOWN:
            self._move(ServerState.DISCONNECTED)
        self._turns.refuse(self.not_connected)
        self._standing.wake()

    async def _live_contained(self, connections: trio.Nursery, adopted: Held | None = None) -> None:
        """One connection's life, and the one place where a failure of the server's or a fault of ours ends."""
        failure: ServerFailed | None = None
        try:
            await self._live(connections, adopted)
        except* Withdrawn:
            # Whoever withdrew the start has said what is wanted instead; if not, that it is not wanted.
            if self._wanted is None:
                self._want(ServerState.DISCONNECTED)
        except* ServerFailed as failures:
            failure = first_of(failures)
        except* Exception:  # a fault of ours in one server must not take the host down
            if self._raise_internal:
                raise
            failure = fault_of_ours(self.name)
        if failure is not None and self._wanted is None and not self._leaving:
            self._fail(failure, crashed=failure.exit_code is not None)

    async def _live(self, connections: trio.Nursery, held: Held | None) -> None:
        """A connection from its start, or one that an edit has started, until it is lost or taken down."""
        if held is None:
            self._attempt += 1
            self._retry_at = None
            self._turns.hold()
            held = Held(self, self._signing, next(self._generations))
            self._held = None
            # Until it is up, it ends with this scope; from then on, when it is retired, or with all of them.
            with self._starting:
                if self._stopped_for_edit is not None:
                    await self._stopped_for_edit.wait()
                self._held = held
                await connections.start(self._hold, held, self._prepared)
            if held.connection is not None and self._adopted is None:
                self._come_up(held)
        try:
            await self._serve_in_turn(connections, held)
        except Exception:
            # A fault of ours. It is told when nothing is left of the connection that it befell.
            for one in (self._held, self._adopted):
                if one is not None and one.connection is not None:
                    one.retire()
                    await one.ended.wait()
            self._adopted = None
            raise

    async def _serve_in_turn(self, connections: trio.Nursery, held: Held) -> None:
        """Serve a connection, and those that edits put in its place, until one is lost or taken down."""
        while held.connection is not None:
            if self._adopted is None:
                await self._serve(held, held.connection)
            if self._adopted is None:
                await held.ended.wait()
                if held.failure is not None:
                    raise held.failure
                return
            connections.start_soon(self._drain, held, held.connection)
            held, self._adopted = self._adopted, None
            if self._wanted is None and not self._leaving:
                self._woken = trio.Event()

    async def _hold(
        self,
        held: Held,
        prepare: Callable[[], Awaitable[MCPServerConfig]],
        task_status: trio.TaskStatus[Connection],
    ) -> None:
        """A connection from its start to its end. What fails before it is up belongs to whoever starts it."""
        known, self._known = self._known, None
        try:
            held.ending = await hold_connection(
                prepare,
                generation=held.generation,
                known=known,
                gate=self._gate,
                owner=self._owner,
                environ=self._environ,
                watcher=held,
                task_status=task_status,
            )
        except Exception as error:
            if held.connection is None:
                raise
            held.failure = error
        finally:
            held.ended.set()
        if held is self._held and held.ending is not None:
            news = self._standing.note(exit_code=held.ending.exit_code, exit_way=held.ending.exit_way)
            if news and self.state in (ServerState.FAILED, ServerState.RECONNECTING):
                self._standing.tell()

    async def _drain(self, held: Held, connection: Connection) -> None:
        """A connection that another one has replaced: its calls come to their end, within a bound, and then it ends."""
        with trio.move_on_after(min(self.config.max_call, _HANDOVER_SECONDS)):
            await self._turns.idle(connection)
        connection.retire()
        await held.ended.wait()
        if held.failure is not None:
            if self._raise_internal:
                raise held.failure
            logger.error("a connection of %r that was replaced ended badly", self.name, exc_info=held.failure)

    async def _prepared(self) -> MCPServerConfig:
        """Its turn to start has come."""
        try:
            config = await self._prepare()
        except ConfigError as error:
            raise ServerFailed(error.message, phase="config", remedy=error.remedy, server=self.name) from error
        if config is None:
            raise Withdrawn
        self._hidden.hide(config)
        self._move(ServerState.STARTING)
        return config

    def _come_up(self, held: Held) -> None:
        """A connection is the one in force from this moment on."""
        connection = held.connection
        if connection is None:
            raise AssertionError("it is not up")
        self._held = held
        self._known = connection.known
        self._attempt = 0
        self._was_up = True
        self._kept_until = self._retry_at = None
        self._up_since = trio.current_time()
        self._turns.offer(connection)
        self._standing.tools = connection.tools
        self._move(
            ServerState.CONNECTED,
            generation=connection.generation,
            protocol_version=connection.session.protocol_version,
            server_info=connection.session.server_info,
            warnings=connection.warnings,
        )

    async def _serve(self, held: Held, connection: Connection) -> None:
        """Serve calls over a connection until it is lost, replaced or a command comes; then let it come to an end."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.catalogs.follow, connection)
            nursery.start_soon(self._desk.lingering.run)
            nursery.start_soon(watch_health, held, connection, self.config, lambda: self._desk.busy)
            if held.loss is not None:
                # It was lost before it was served: while an edit was saved.
                self._woken.set()
            await self._woken.wait()
            nursery.cancel_scope.cancel()
        if self._adopted is not None:
            return
        self._up_since = None
        if self._wanted is None and not self._leaving:
            # Its process may take a while to end; that nothing can be called any more is true now.
            self._backoff.was_up(trio.current_time() - began)
            self._kept_until = trio.current_time() + _KEEP_SECONDS
            loss = held.loss or Ending()
            self._fail(loss_of(self.name, loss), loss, crashed=loss.exit_way == "own")
            connection.retire()
            return
        if self._leaving or self._wanted in DOWN:
            self._turns.refuse(self.not_connected)
        else:
            self._turns.hold()
        with trio.move_on_after(_DRAIN_SECONDS):
            await self._turns.idle(connection)
        connection.retire()

    # Edits: see _replacing.

    def told(self) -> None:
        """Something that is shown of it has changed."""
        self._standing.tell()

    def refuse_edit(self, why: str) -> None:
        """An edit that was made in the file cannot be followed."""
        self.config_error = why
        logger.warning("%s: an edit of its entry is not followed: %s", self.name, why)
        self._standing.tell()

    async def try_beside(self, connections: trio.Nursery, expanded: MCPServerConfig) -> Held:
        """Start a connection by another configuration beside the one in force.

        Raises:
            ServerFailed: It did not come up.
        """
        held = Held(self, self._signing, next(self._generations), in_force=False)
        self._hidden.hide(expanded)
        try:
            await connections.start(self._hold, held, partial(already, expanded))
        except* ServerFailed as failures:
            raise first_of(failures) from None
        finally:
            if sys.exception() is not None:
                held.retire()
        return held

    async def stop_for_edit(self) -> Callable[[], None]:
        """End the connection in force first, for a server that cannot run twice. Its calls wait.

        Returns:
            What lets it start again by what it was.
        """
        go_on = self._stopped_for_edit = trio.Event()

        def again() -> None:
            self._stopped_for_edit = None
            go_on.set()

        try:
            before = self._held
            if self.state not in DOWN and self.state is not ServerState.FAILED:
                self.want_now(ServerState.PENDING)
                if before is not None and before.connection is not None:
                    await before.ended.wait()
        except BaseException:
            again()
            raise
        return again

    def adopt(self, held: Held) -> None:
        """Put a connection in the place of the one in force, whatever this server is doing, unless it is to be down."""
        if self._wanted is not None or self._leaving or self.state is ServerState.DISCONNECTED:
            # It was told something at the last moment, or is to be down: that it would come up is known now.
            held.retire()
            return
        if self._held is not None:
            self._held.in_force = False
        held.in_force = True
        for state in WAY_UP[self.state]:
            self._move(state)
        self._backoff.begin_again()
        self._adopted = held
        self._signing.adopted(self.name)
        self._come_up(held)
        self._interrupt()

    # What a connection tells while it lives: see _held.Owner.

    def phase_reached(self, phase: Phase) -> None:
        """The connection has come so far."""
        if self.state is ServerState.STARTING and phase != "running":
            self._standing.note(phase=phase)
            self._standing.tell()

    def connection_lost(self) -> None:
        """The connection is lost."""
        self._woken.set()

    def mask(self, text: str) -> str:
        """A text without the server's secrets."""
        return self._hidden.mask(text)

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something."""
        self._said.log(level, logger, text)

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
        if self.state is ServerState.CONNECTED and connection.generation == self._standing.row.generation:
            self._standing.tools = connection.tools
            self._standing.note(warnings=connection.warnings)
            self._standing.tell()

    def _withdraw_offer(self) -> None:
        self._standing.tools = NO_TOOLS
        self.catalogs.withdraw()

    # Its state.

    def _move(self, state: ServerState, **changes: Any) -> None:
        if state is not ServerState.CONNECTED and not (self._kept_until is not None and state in _COMING_BACK):
            self._withdraw_offer()
        self._standing.move(state, attempt=self._attempt, **changes)
        if state in DOWN or state is ServerState.FAILED or state in NEEDS_SIGN_IN:
            self._turns.refuse(self.not_connected)
        self._standing.tell()
        self._standing.wake()

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
        down = state_after(failure)
        self._move(
            ServerState.RECONNECTING if comes_back else down,
            error=failure.message,
            error_kind="needs_reauth" if down in NEEDS_SIGN_IN else "fatal" if wait is None else "transient",
            phase=failure.phase,
            remedy=failure.remedy,
            retry_at=None if wait is None else rfc3339(time() + wait),
            exit_code=failure.exit_code,
            exit_way=exit_way,
        )
        if comes_back:
            self._turns.hold()
