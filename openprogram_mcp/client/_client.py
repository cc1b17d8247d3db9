"""One server, as its owner sees it: what is true of it, what it can be told, and the calls of its tools.

Does not own the names under which its tools are offered, nor the file that it was configured in. How it lives is in
``_supervisor``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from attrs import evolve

from ..adapter import AgentToolResult
from ..config import MCPServerConfig
from ..errors import NotConnected
from ..events import EventBus
from ..status import ServerState, ServerStatus
from ..transports._ownership import Instance
from ._calls import Call
from ._gate import StartGate
from ._replacing import Edit
from ._signing import NOBODY, Signing
from ._standing import NEEDS_SIGN_IN
from ._supervisor import Supervisor

__all__ = ["MCPClient"]


class MCPClient(Supervisor):
    """A server, from its configuration to the calls of its tools.

    ``ended`` is set when its life is over; ``catalogs`` has what it offers beside its tools; ``config_error`` says why
    an edit of its entry in the file was not followed.

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
        super().__init__(
            config,
            bus=bus,
            gate=gate,
            environ=environ,
            prepare=lambda: prepare(self),
            permit=permit,
            on_change=lambda: on_change(self),
            owner=Instance.claim(None) if owner is None else owner,
            signing=signing,
            raise_internal=raise_internal,
        )

    def status(self) -> ServerStatus:
        """Its status at this moment, without the full names of its tools, which its owner gives them."""
        process = self._process
        alive = process is not None and not process.exited.is_set()
        began = self._up_since if process is None else process.started_at if alive else None
        return evolve(
            self._standing.row,
            stderr=() if process is None else process.stderr.last(),
            pid=process.pid if process is not None and alive else None,
            uptime_seconds=None if began is None else round(trio.current_time() - began, 3),
            processes=0 if process is None or process.tree is None else process.tree.count,
            in_flight=self._turns.running,
            queued=self._turns.waiting,
            last_call=self._desk.last,
            warnings=(*self._standing.row.warnings, *self.catalogs.warnings),
        )

    async def settled(self) -> ServerStatus:
        """Wait until it is neither pending nor starting, nor about to be."""
        while self.unsettled:
            await self._standing.changed()
        return self.status()

    # Commands. Each is noted at once, in every state, and ends what is under way.

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
        self._edits.forget_by_hand()
        self.take(config)
        if config.enabled != enabled_before:
            self._want(ServerState.PENDING)

    async def edit(
        self,
        config: MCPServerConfig,
        expanded: MCPServerConfig,
        save: Callable[[], Awaitable[None]],
        *,
        force: bool = False,
    ) -> None:
        """Follow another configuration, if it comes up and can be saved; else nothing is changed.

        The new connection is made beside the one in force. Once it is up the configuration is saved, and with no
        checkpoint in between the new one takes the place of the old, which has its running calls come to their end.
        What needs no new connection is saved and followed at once. One that is switched off is not started, and one
        that needs a sign-in counts as up.

        Args:
            config: The new configuration, as it is stored.
            expanded: The same with the values of variables.
            save: Saves it.
            force: Save and follow it though it does not come up.

        Raises:
            ServerFailed: It did not come up; nothing was changed.
            RevisionConflict: The server was told something else meanwhile; nothing was changed.
            NotConnected: It is on its way out.
            Exception: What ``save`` raises; nothing was changed.
        """
        await self._edits.made(Edit(config, expanded, save, force=force))

    def follow(self, config: MCPServerConfig, expanded: MCPServerConfig) -> None:
        """Follow an edit that was made in the file: as :meth:`edit` does, without waiting for it.

        What does not come up leaves the connection in force where it is, and says why in ``config_error``.
        """
        self._edits.post(Edit(config, expanded, by_hand=True))

    def _refuse_if_disabled(self) -> None:
        if not self.config.enabled:
            raise NotConnected(f"server {self.name!r} is disabled", remedy="Enable it first.", server=self.name)

    # Signing in.

    def signed_in(self) -> None:
        """Somebody has signed in to it: it comes up by itself, where it was waiting for that."""
        self.sign_in_changed()
        if self.config.enabled and self.state in (*NEEDS_SIGN_IN, ServerState.FAILED, ServerState.RECONNECTING):
            self.connect()

    def sign_in_changed(self) -> None:
        """What is known of its sign-in has changed."""
        self._signing.hide(self.name)
        if not self.ended.is_set():
            self._standing.tell()

    def needs_registration(self, error: str, remedy: str | None) -> None:
        """It has turned out that nobody can sign in to it before a client id is given."""
        if self.state in NEEDS_SIGN_IN and self._wanted is None:
            remedy = None if remedy is None else self.mask(remedy)
            self._move(ServerState.NEEDS_CLIENT_REGISTRATION, error=self.mask(error), remedy=remedy)

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
