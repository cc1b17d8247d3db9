"""What the dispatchers over HTTP have in common: who asks, who is told, when it ends, and how one request is sent.

A request is made in its caller's own task, so that a fate is truthful (what could not connect was never sent), closing
the scope closes exactly that response, and nothing stands between the bytes and their caller. A request that fails,
fails alone. What ends the connection is that nothing can be sent any more, that the server forgot the session, or that
it wants a sign-in: then :attr:`HttpDispatcher.failure` says why, nothing new is begun, and what is on its way may come
to its end.

Which requests belong to one connection and where its streams are is the business of ``http`` and ``_sse``.

MCP specification: basic/transports; basic/patterns/cancellation and progress; JSON-RPC 2.0.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final

import httpx2
import trio
from mcp.shared.dispatcher import (
    CallOptions,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.transport_context import TransportContext

from ..errors import ServerFailed
from . import wire
from ._asked import Asked
from ._clock import CallClock
from ._hearing import Hearing
from ._http_answers import content_type, impatient
from ._http_client import origin
from ._inbound import Inbound
from ._outbox import Fate
from ._pauses import Pauses
from ._requests import CLOSED, TIMED_OUT, ConnectionClosed, RequestOptions, with_meta
from ._tracing import Tracer
from .wire import Noise, correlation_key

__all__ = ["HttpDispatcher"]

logger = logging.getLogger(__name__)

_REDIRECTS: Final = 5
# How long what is on its way may take to come to its end once nothing new is begun.
_LAST_ANSWERS_SECONDS: Final = 2.0
# How long a word that wants no answer may take, and how many of them may be on their way.
_WORD_SECONDS: Final = 10.0
_WORDS_AT_ONCE: Final = 256
_REST_SECONDS: Final = 1.0
_REFUSAL_BYTES: Final = 64 * 1024


class HttpDispatcher(Dispatcher[TransportContext]):
    """JSON-RPC over HTTP, one exchange a request.

    Single use: it runs once, and after its end every request fails with :class:`ConnectionClosed`.

    Args:
        client: Makes the requests; belongs to somebody else, who closes it.
        url: The address.
        headers: Headers of every request, by names in lower case.
        credentials: Whether they say who we are.
        max_frame_bytes: The largest message that is accepted; a larger one costs only its own request.
        on_noise: Told what is no message.
        on_sent: Told, once, when a request has left us.
    """

    kind = "http"

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        *,
        headers: Mapping[str, bytes] | None = None,
        credentials: bool = False,
        max_frame_bytes: int = 64 * 1024 * 1024,
        on_noise: Callable[[Noise], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        self._client = client
        self.max_bytes = max_frame_bytes
        self._url = httpx2.URL(url).copy_with(fragment=None)
        self._headers = dict(headers or {})
        self._credentials = credentials
        self._on_sent = on_sent
        self._outstanding = wire.Outstanding()
        self._clock = CallClock(self._set_timers)
        self._inbound = Inbound(self, self._post, TransportContext(kind=self.kind, can_send_request=True))
        self._hearing = Hearing(self._outstanding, self._inbound, self._clock, on_noise)
        self._pauses = Pauses()
        self._tracer = Tracer()
        self._left = trio.lowlevel.ParkingLot()
        self._state = "new"
        self._words = 0
        self._words_lost = 0
        self._nursery: trio.Nursery | None = None
        self.ended = trio.Event()
        """Set when nothing new is begun any more."""
        self.over = trio.Event()
        """Set when nothing is on its way any more either."""
        self.failure: ServerFailed | None = None
        """Why it ended, where that was not our doing."""
        self.forgotten = False
        """Whether it ended because the server does not know its session any more."""
        self.initialize_status = 0
        """The status with which ``initialize`` was refused, if it was."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._state in ("leaving", "closed")

    @property
    def in_flight(self) -> int:
        """How many requests of ours wait for an answer."""
        return len(self._outstanding)

    @property
    def dropped(self) -> int:
        """How many messages found nobody, and how many words of ours could not be sent."""
        return self._hearing.late + self._inbound.dropped + self._words_lost

    @property
    def heard_at(self) -> float:
        """When the peer said anything last, by Trio's clock; 0 before it has."""
        return self._hearing.heard_at

    def standing_still(self) -> AbstractContextManager[None]:
        """Let the limits of all requests stand still, while somebody is asked on whom the peer may depend."""
        return self._clock.standing_still()

    @property
    def phase(self) -> str:
        """Where a failure falls at this moment."""
        return "running" if self._state != "new" else "connect"

    # What we ask and tell.

    @trio.lowlevel.enable_ki_protection
    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its result.

        Args:
            method: The method.
            params: Its parameters; copied where something is added to them, never changed.
            opts: See :class:`~._requests.RequestOptions`. Limits are in seconds.

        Raises:
            MCPError: The peer answered with an error; or ``REQUEST_TIMEOUT``, when a limit ran out.
            HttpRefused: HTTP said no, and nobody said more.
            RequestLost: It was lost alone; its fate says whether it may have run.
            ConnectionClosed: The connection ended first.
            RuntimeError: The dispatcher does not run yet.
            ValueError: The given ``request_id`` is in use, or is none.
        """
        if self._state != "running":
            if self._state == "new":
                raise RuntimeError(f"{type(self).__name__}.send_raw_request called before run()")
            # Who tries again at once must let others learn that the connection has ended.
            await trio.lowlevel.checkpoint()
            raise ConnectionClosed
        options: RequestOptions = opts or {}  # type: ignore[assignment]  # the SDK's own callers give its own options
        asked = self._asked(method, params, options)
        self._outstanding.add(asked)
        try:
            with self._tracer.traced(method, params, asked.wire_id) as trace:
                on_progress = asked.on_progress is not None or options.get("wants_progress", False)
                meta = {**trace.meta, "progressToken": asked.wire_id} if on_progress else trace.meta
                asked.params = with_meta(params, meta) if meta else params
                self._arm(asked, options)
                try:
                    await self._ask(asked)
                finally:
                    if not asked.settled or asked.outcome is TIMED_OUT:
                        self._abandoned(asked, tell=options.get("cancel_on_abandon", True))
                    await asked.silence()
                trace.outcome(asked.outcome)
        finally:
            self._outstanding.remove(asked)
            if self._left:
                self._left.unpark_all()
        return self._seen(asked, self._hearing.result(method, asked, asked.fate))

    def _asked(self, method: str, params: Mapping[str, Any] | None, options: RequestOptions) -> Asked:
        wire_id = self._outstanding.id_for(options.get("request_id"))
        on_progress = options.get("on_progress")
        asked = Asked(
            key=correlation_key(wire_id),
            wake=_nothing,
            progress=None if on_progress is None else [],
            wire_id=wire_id,
            method=method,
            params=params,
            headers=options.get("headers") or {},
            fate=options.get("fate") or Fate(),
            on_progress=on_progress,
            clock=self._clock,
            task=trio.lowlevel.current_task(),
        )
        asked.wake = partial(self._wake, asked)
        return asked

    def _arm(self, asked: Asked, options: RequestOptions) -> None:
        timeout, hard = options.get("timeout"), options.get("hard_timeout")
        if timeout is None and hard is None:
            return
        asked.arm(self._clock.now(), timeout, hard)
        asked.set_timer()

    def _set_timers(self) -> None:
        for slot in self._outstanding:
            if isinstance(slot, Asked):
                slot.set_timer()

    async def _ask(self, asked: Asked) -> None:
        """The exchange, within its limits. Comes back when there is an outcome."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            with asked.scope:
                await self._exchange(asked)
        except MCPError:
            # Its stream may have broken while its answer came on another one.
            if not asked.settled or asked.outcome is CLOSED:
                raise
        if asked.settle(TIMED_OUT):
            asked.expired = "hard" if asked.hard_deadline <= self._clock.now() else "idle"
        elif asked.outcome is not CLOSED:
            await asked.told()

    async def _may_be_sent(self, asked: Asked) -> bool:
        """Wait as long as the server wants to be left alone; false where that is longer than the request may take."""
        left = await self._pauses.over(min(asked.scope.deadline, trio.current_effective_deadline()))
        if left is not None:
            asked.settle(impatient(self._pauses.status, left))
            return False
        if self._state != "running":
            raise ConnectionClosed
        return True

    @abstractmethod
    async def _exchange(self, asked: Asked) -> None:
        """Send a request and take what comes, until it is settled.

        Raises:
            MCPError: What became of it instead.
        """

    def _seen(self, asked: Asked, result: dict[str, Any]) -> dict[str, Any]:
        """A result on its way to its caller."""
        del asked
        return result

    def _abandoned(self, asked: Asked, *, tell: bool) -> None:
        """Nobody waits any more: tell the server, where it has got the request."""
        if not asked.issued or self._state != "running" or not self._speaks_legacy:
            return
        self._hearing.gave_up(asked, asked.fate)
        if tell:
            self._post(wire.encode_notification("notifications/cancelled", {"requestId": asked.wire_id}))

    @property
    def _speaks_legacy(self) -> bool:
        """Whether the peer takes notifications: over HTTP there are none of ours in the modern era."""
        return True

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification, without waiting. After the end of the connection it is dropped."""
        del opts
        if self._state == "running" and self._speaks_legacy:
            self._post(wire.encode_notification(method, params))

    def _post(self, line: bytes) -> None:
        if self._state != "running":
            return
        if self._words >= _WORDS_AT_ONCE:
            self._words_lost += 1
            return
        if self._start(self._say, line):
            self._words += 1

    def _start(self, task: Callable[..., Awaitable[object]], *args: Any) -> bool:
        """Start a task of the connection; false when the connection has ended, whenever that was."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(task, *args)
        return True

    @trio.lowlevel.enable_ki_protection
    async def _say(self, line: bytes) -> None:
        try:
            with trio.move_on_after(_WORD_SECONDS) as limit:
                await self._say_word(line)
            if limit.cancelled_caught:
                self._words_lost += 1
        finally:
            self._words -= 1

    @abstractmethod
    async def _say_word(self, line: bytes) -> None:
        """Send a message that wants no answer. What becomes of it is told to nobody."""

    # Its end.

    def lose(self, failure: ServerFailed) -> None:
        """Nothing new is begun from now on. What has not left us ends at once."""
        if self._state == "running":
            self._state = "leaving"
            self.failure = failure
            for slot in self._outstanding:
                if not slot.issued:
                    slot.give_up(CLOSED)
            self.ended.set()

    def _close(self) -> None:
        """Wake everybody who waits. Synchronous, since it may run in a cancelled scope; idempotent."""
        self._state = "closed"
        # From here on it takes no tasks.
        self._nursery = None
        self._hearing.end()
        self._outstanding.settle_all(CLOSED)
        self.ended.set()
        self.over.set()

    @trio.lowlevel.enable_ki_protection
    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until it ends or the caller cancels this.

        ``task_status.started()`` is called when requests can be sent.
        """
        if self._state != "new":
            raise RuntimeError(f"a {type(self).__name__} runs once")
        try:
            async with trio.open_nursery() as nursery:
                try:
                    self._nursery = nursery
                    self._hearing.begin(nursery, on_request, on_notify_intercept)
                    nursery.start_soon(self._inbound.deliver, on_notify)
                    self._state = "running"
                    self._begin(nursery)
                    task_status.started()
                    await self.ended.wait()
                    with trio.move_on_after(_LAST_ANSWERS_SECONDS):
                        while any(_ends_by_itself(slot) for slot in self._outstanding):
                            await self._left.park()
                    nursery.cancel_scope.cancel()
                finally:
                    # The callers are woken before the handlers are waited for, whatever the way out; and who is
                    # cancelled together with us must not find a nursery that is closed to what he has to say.
                    self._close()
        finally:
            await self._farewell()

    def _begin(self, nursery: trio.Nursery) -> None:
        """Start what the connection needs from its first moment."""

    async def _farewell(self) -> None:
        """The last word to the server; bounded, also in a cancelled scope."""

    # One HTTP request.

    async def _send(
        self, method: str, url: httpx2.URL, headers: Mapping[str, bytes], body: bytes = b"", asked: Asked | None = None
    ) -> httpx2.Response:
        """Send one HTTP request, and give its response, still to be read; who gets it closes it.

        Redirects within the origin are followed, method and body kept; another origin gets nothing of ours.

        Raises:
            httpx2.RequestError: It did not get through.
        """
        extensions = {} if asked is None else {"trace": asked.trace}
        for left in reversed(range(_REDIRECTS)):
            named = [(name.encode(), value) for name, value in {**self._headers, **headers}.items()]
            request = httpx2.Request(method, url, headers=named, content=body, extensions=extensions)
            if self._client.cookies:
                # A balancer may tell by them which of its servers has our session.
                self._client.cookies.set_cookie_header(request)
            response = await self._client.send(request, stream=True, follow_redirects=False)
            self._hearing.heard()
            if asked is not None and not asked.issued:
                asked.written()
            told, self._on_sent = self._on_sent, None
            if told is not None:
                told()
            following = self._followed(method, response)
            if following is None or not left:
                return response
            await self.put_away(response)
            if response.status_code in (301, 308) and url == self._url:
                self._url = following
            url = following
        raise AssertionError("the last response is given back")

    @staticmethod
    def _followed(method: str, response: httpx2.Response) -> httpx2.URL | None:
        """Where a response sends us, if we go there."""
        if not response.has_redirect_location or (response.status_code == 303 and method != "GET"):
            return None
        sent = response.request.url
        try:
            location = sent.join(response.headers["location"])
        except httpx2.InvalidURL:
            return None
        if origin(location) != origin(sent) and not _upgraded(sent, location):
            return None
        return location.copy_with(userinfo=sent.userinfo, fragment=None)

    @staticmethod
    async def put_away(response: httpx2.Response) -> None:
        """Close a response. A short body is read first, so that its connection can be used again."""
        size: str = response.headers.get("content-length", "")
        unread = not response.is_stream_consumed and not response.is_closed
        try:
            if unread and size.isdigit() and int(size) <= _REFUSAL_BYTES:
                with trio.move_on_after(_REST_SECONDS), suppress(httpx2.RequestError):
                    await response.aread()
        finally:
            await response.aclose()

    async def _read(self, response: httpx2.Response) -> bytes | Noise:
        """A whole body, if it is within the limit."""
        pieces: list[bytes] = []
        size = 0
        chunks = response.aiter_bytes()
        try:
            async for chunk in chunks:
                self._hearing.heard()
                pieces.append(chunk)
                size += len(chunk)
                if size > self.max_bytes:
                    return wire.oversized(size, pieces[0][:1024])
        finally:
            await chunks.aclose()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _refusal(self, response: httpx2.Response) -> bytes:
        """The first bytes of what a refusal says; none where that is not JSON."""
        if content_type(response) != "application/json":
            return b""
        said = b""
        chunks = response.aiter_bytes()
        try:
            async for chunk in chunks:
                said += chunk
                if len(said) > _REFUSAL_BYTES:
                    return b""
        except httpx2.RequestError:
            return b""
        finally:
            await chunks.aclose()
        return said

    # Who is woken.

    def _wake(self, asked: Asked) -> None:
        if trio.lowlevel.current_task() is asked.task:
            return  # it looks itself
        if asked.settled:
            self._interrupt(asked)
        elif self._nursery is not None:
            asked.tell_beside(self._nursery)

    def _interrupt(self, asked: Asked) -> None:
        """Somebody else has settled a request: end its exchange."""
        asked.scope.cancel()


def _nothing() -> None:
    return


def _upgraded(sent: httpx2.URL, location: httpx2.URL) -> bool:
    """Whether a redirect leads from http to https of the same host, on their usual ports."""
    return (
        sent.host == location.host
        and (sent.scheme, location.scheme) == ("http", "https")
        and sent.port is None
        and location.port is None
    )


def _ends_by_itself(slot: wire.Slot) -> bool:
    """Whether a request is on its way whose answer may yet come. Who listens gets none while all is well."""
    listens = isinstance(slot, Asked) and slot.method == "subscriptions/listen"
    return slot.issued and not slot.settled and not listens
