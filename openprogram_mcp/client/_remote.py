"""A server somewhere else: reached over Streamable HTTP, or over HTTP+SSE, the transport before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from ..errors import AuthRequired, ServerFailed
from ._connection import Ending, is_closed, protocol

if TYPE_CHECKING:
    from ._attempt import Attempt

__all__ = ["RemoteWay"]

_TRANSPORTS: Final[Mapping[str, tuple[str, ...]]] = {"auto": ("http", "sse"), "http": ("http",), "sse": ("sse",)}
_ASKED: Final[Mapping[str, str]] = {
    "connect": "anything",
    "initialize": "initialize",
    "list_tools": "tools/list",
}
# What a server answers that only knows the older transport (basic/transports, "Backwards Compatibility").
_ANSWERS_OF_OLD_SERVERS: Final = frozenset({400, 404, 405})
# How long connections may take to be closed.
_CLOSE_SECONDS: Final = 1.0


@define(eq=False)
class RemoteWay:
    """See ``_attempt.Way``."""

    _attempt: Attempt
    ending: Ending = field(factory=Ending, init=False)
    _dispatcher: Any = field(default=None, init=False)

    async def hold(self) -> None:
        """Reach it over the transport that it is configured for; with ``auto``, over the older one if it answers so."""
        attempt = self._attempt
        attempt.enter("connect")
        # What follows waits for the network: nobody has to wait for that.
        attempt.slot.give_back()
        sdk = await trio.to_thread.run_sync(protocol)
        client = await sdk.open_client(attempt.config, auth=await attempt.watcher.signer(attempt.config))
        try:
            await self._hold(client)
        except Exception:
            dispatcher = self._dispatcher
            refusal = None if dispatcher is None else dispatcher.failure
            if dispatcher is not None and isinstance(refusal, AuthRequired) and not refusal.rejected:
                # Before it was up there is time to see what a sign-in would need.
                look = attempt.phase != "running"
                dispatcher.failure = await attempt.watcher.locked_out(attempt.config, refusal, look=look)
            raise
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
                await client.aclose()

    async def _hold(self, client: Any) -> None:
        newer, *older = _TRANSPORTS[self._attempt.config.resolved_type]
        known = "" if self._attempt.known is None else self._attempt.known.transport
        # It is not asked again what it has refused before, unless it has moved on since.
        if known in older and await self._tried(known, client):
            return
        try:
            await self._over(newer, client)
        except Exception as error:
            # Whatever else is said in that answer: a server of the older transport would give it, too.
            if not older or self._dispatcher.initialize_status not in _ANSWERS_OF_OLD_SERVERS:
                raise
            first = error
        else:
            return
        if not await self._tried(older[0], client):
            # It has neither; what it said to the newer one says more.
            raise first from None

    async def _tried(self, older: str, client: Any) -> bool:
        """Try the older transport; false where it is none of the server's."""
        try:
            await self._over(older, client)
        except Exception:
            failure = self._dispatcher.failure
            if self._dispatcher.there or (failure is not None and failure.transient):
                raise
            self._dispatcher = None
            return False
        return True

    async def _over(self, transport: str, client: Any) -> None:
        attempt, sdk = self._attempt, protocol()
        self._dispatcher = dispatcher = sdk.make_remote(
            transport, client, attempt.config, attempt.watcher, lambda: attempt.enter("initialize")
        )
        hears = None
        if transport == "http":
            dispatcher.on_unheard = attempt.watcher.unheard
            hears = dispatcher.hears
        # The older transport is older than the newer era: to ask about that would be in vain.
        known_era = "legacy" if transport == "sse" and attempt.config.era == "auto" else attempt.known_era
        opened = sdk.open_over(dispatcher, dispatcher.ended, attempt.config, known_era, attempt.watcher)
        await attempt.serve(opened, None, self._lost, hears)

    async def _lost(self) -> None:
        """Nothing new can be sent. What is on its way may come to its end."""
        failure = self._dispatcher.failure
        if isinstance(failure, AuthRequired) and not failure.rejected:
            failure = await self._attempt.watcher.locked_out(self._attempt.config, failure, look=False)
        if failure is not None:
            failure = self._told(failure, failure.phase)
        self.ending = Ending(
            "the connection ended" if failure is None else failure.message,
            failure=failure,
            at_once=self._dispatcher.forgotten,
        )
        self._attempt.watcher.lost(self.ending)
        await self._dispatcher.over.wait()

    # Failures, said so that they can be acted upon.

    def explained(self, failure: BaseException) -> BaseException:
        """A failure with what HTTP said of it."""
        sdk, phase = protocol(), self._attempt.phase
        known = None if self._dispatcher is None else self._dispatcher.failure
        if known is not None:
            # Whatever followed from it.
            return self._told(known, "connect" if known.phase == "connect" else phase)
        cause: Any = failure.__cause__ if isinstance(failure, ServerFailed) else failure
        if isinstance(cause, sdk.HttpRefused):
            return self._failure(cause.message, cause.remedy, cause.transient, phase, cause.retry_after)
        if isinstance(cause, sdk.RequestLost) or is_closed(cause or failure):
            asked = _ASKED.get(phase, phase)
            return self._failure(
                f"the connection was lost before it answered {asked}",
                "See the server's own log, and what stands between us: a proxy, a gateway.",
                True,
                phase,
            )
        if isinstance(failure, ServerFailed):
            return self._told(failure, failure.phase)
        return failure

    def too_slow(self) -> ServerFailed:
        """It did not come up in time."""
        phase, seconds = self._attempt.phase, self._attempt.config.startup_seconds
        return self._failure(
            f"it did not answer {_ASKED.get(phase, phase)} within {seconds:g} s",
            "See whether the server is up; raise 'startup_timeout_seconds' if it needs longer.",
            True,
            phase,
        )

    def gave_up(self) -> ServerFailed | None:
        """There is nothing but errors and the limit."""
        return None

    def _told(self, failure: ServerFailed, phase: str) -> ServerFailed:
        if isinstance(failure, AuthRequired):
            mask = self._attempt.watcher.mask
            return AuthRequired(
                mask(failure.message),
                phase=phase,
                challenges=failure.challenges,
                rejected=failure.rejected,
                registration=failure.registration,
                remedy=None if failure.remedy is None else mask(failure.remedy),
                server=self._attempt.config.name,
            )
        return self._failure(failure.message, failure.remedy, failure.transient, phase)

    def _failure(
        self, message: str, remedy: str | None, transient: bool, phase: str, retry_after: float | None = None
    ) -> ServerFailed:
        mask = self._attempt.watcher.mask
        return ServerFailed(
            mask(message),
            phase=phase,
            transient=transient,
            retry_after=retry_after,
            remedy=None if remedy is None else mask(remedy),
            server=self._attempt.config.name,
        )
