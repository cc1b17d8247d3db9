"""HTTP+SSE, the transport before Streamable HTTP: one stream of events brings everything, and messages are POSTed.

The stream's first event names the address for the POSTs. It may be no other origin's: what we send there holds our
credentials. The stream is the connection: when it ends, so does everything, and a new one is a new session.

MCP specification: basic/transports, HTTP with SSE (2024-11-05); RFC 3986, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx2
import trio
from mcp.shared.dispatcher import CallOptions

from ..errors import ServerFailed
from . import wire
from ._asked import Asked
from ._events import EventBuffer
from ._http_answers import content_type, credentials_refused, error_in, lacks_scope, refused, retry_after, status_words
from ._http_base import HttpDispatcher
from ._http_client import origin, unreachable
from ._requests import ConnectionClosed, RequestLost, SessionLost
from .wire import Noise

__all__ = ["SseDispatcher"]

# How long a POST may still take once its answer is there.
_REST_SECONDS: Final = 1.0
# How long a stream may take to name the address for messages, which is the first thing it has to say.
_ENDPOINT_SECONDS: Final = 5.0
_NO_SSE: Final = "Correct 'url': an SSE server's often ends in /sse."


class SseDispatcher(HttpDispatcher):
    """JSON-RPC over HTTP+SSE. See :class:`~._http_base.HttpDispatcher` for its arguments."""

    kind = "sse"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._endpoint: httpx2.URL | None = None
        self._opened = trio.Event()
        self._named = trio.Event()
        self.there = False
        """Whether this transport is what answers at the address."""

    def _begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._hear)
        nursery.start_soon(self._expect_endpoint)

    @trio.lowlevel.enable_ki_protection
    async def _expect_endpoint(self) -> None:
        await self._opened.wait()
        with trio.move_on_after(_ENDPOINT_SECONDS):
            await self._named.wait()
        if not self._named.is_set():
            self._end(_bad_endpoint("its stream of events does not begin with an address for messages", _NO_SSE))

    # The stream.

    @trio.lowlevel.enable_ki_protection
    async def _hear(self) -> None:
        try:
            response = await self._send(
                "GET", self._url, {"accept": b"text/event-stream", "cache-control": b"no-store"}
            )
        except httpx2.RequestError as error:
            why = unreachable(error, self._url)
            self._end(ServerFailed(why.message, phase="connect", transient=why.transient, remedy=why.remedy))
            return
        chunks = response.aiter_bytes()
        try:
            if not response.is_success or content_type(response) != "text/event-stream":
                self._end(self._no_stream(response))
                return
            self._opened.set()
            buffer = EventBuffer(self.max_bytes)
            async for chunk in chunks:
                self._hearing.heard()
                for event in buffer.feed(chunk):
                    if isinstance(event, Noise):
                        self._hearing.take(event, None)
                    elif event.type == "endpoint":
                        self._take_endpoint(event.data)
                    elif event.type == "message" and event.data:
                        self._hearing.take(event.data, None)
                await self._inbound.let_deliver()
            self._end(self._stream_over("it ended its stream of events"))
        except httpx2.RequestError:
            self._end(self._stream_over("its stream of events broke"))
        finally:
            await chunks.aclose()
            await response.aclose()

    def _no_stream(self, response: httpx2.Response) -> ServerFailed:
        status = response.status_code
        if status == 401 or (status == 403 and "www-authenticate" in response.headers):
            self.there = True
            return credentials_refused(response, given=self._credentials, phase="connect")
        if response.is_success:
            return ServerFailed(
                f"it has no stream of events at this address, but {content_type(response)[:80] or 'something else'}",
                phase="connect",
                remedy=_NO_SSE,
            )
        refusal = refused(response)
        return ServerFailed(refusal.message, phase="connect", transient=refusal.transient, remedy=refusal.remedy)

    @staticmethod
    def _stream_over(what: str) -> ServerFailed:
        return ServerFailed(
            what,
            phase="running",
            transient=True,
            remedy="See whether the server was restarted, or a proxy between us ends idle streams.",
        )

    def _take_endpoint(self, data: bytes) -> None:
        if self._named.is_set():
            return
        self.there = True
        try:
            endpoint = self._url.join(data.decode("utf-8", "replace").strip())
        except httpx2.InvalidURL:
            endpoint = None
        if endpoint is None or endpoint.scheme not in ("http", "https"):
            self._end(_bad_endpoint("it names an address for messages that is none", "Report this to its makers."))
        elif origin(endpoint) != origin(self._url):
            self._end(
                _bad_endpoint(
                    f"it names an address for messages at {origin(endpoint)}, while it is at {origin(self._url)}; "
                    "nothing is sent to another origin",
                    "Correct the server's own idea of its public address, or use that origin in 'url'.",
                )
            )
        else:
            # Who the address is for is said by 'url' alone.
            self._endpoint = endpoint.copy_with(userinfo=self._url.userinfo, fragment=None)
            self._named.set()

    def _end(self, failure: ServerFailed) -> None:
        """Without its stream nothing can be answered any more."""
        self.lose(failure)
        self._close()

    # A request.

    async def _exchange(self, asked: Asked) -> None:
        await self._named.wait()
        body = wire.encode_request(asked.wire_id, asked.method, asked.params)
        again = True
        while again and await self._may_be_sent(asked):
            if self._endpoint is None:
                raise ConnectionClosed
            # The answer may overtake the end of its own POST, which is then not waited for much longer.
            with trio.CancelScope() as asked.posting:
                again = await self._post_request(self._endpoint, body, asked)
            asked.posting = None
            again = again and not asked.settled
        if not asked.settled:
            await trio.sleep_forever()

    def _interrupt(self, asked: Asked) -> None:
        if asked.posting is not None:
            asked.posting.deadline = trio.current_time() + _REST_SECONDS
        else:
            super()._interrupt(asked)

    async def _post_request(self, endpoint: httpx2.URL, body: bytes, asked: Asked) -> bool:
        """Send a request; says whether it is to be sent again."""
        headers = {"content-type": b"application/json", **{name: one.encode() for name, one in asked.headers.items()}}
        try:
            response = await self._send("POST", endpoint, headers, body, asked)
        except httpx2.RequestError as error:
            if asked.issued:
                raise RequestLost("the connection broke while it was sent") from error
            why = unreachable(error, endpoint)
            self._end(ServerFailed(why.message, phase="connect", transient=why.transient, remedy=why.remedy))
            raise ConnectionClosed from error
        try:
            if response.is_success:
                if content_type(response) == "application/json":
                    # Some answer right here.
                    said = await self._read(response)
                    if not isinstance(said, Noise) and said.strip():
                        self._hearing.take(said, asked)
                return False
            return await self._post_refused(response, asked)
        except httpx2.RequestError:
            return False  # it has arrived; the answer comes by the stream
        finally:
            await self.put_away(response)

    async def _post_refused(self, response: httpx2.Response, asked: Asked) -> bool:
        status = response.status_code
        if status in (429, 503):
            asked.not_run()
            self._pauses.ask(status, retry_after(response))
            return True
        scope = lacks_scope(response)
        if scope is not None and asked.method != "initialize":
            asked.not_run()
            asked.settle(scope)
            return False
        if status == 401 or (status == 403 and "www-authenticate" in response.headers):
            asked.not_run()
            self._end(credentials_refused(response, given=self._credentials, phase="running"))
            raise ConnectionClosed
        if status in (404, 410):
            # The stream is there, and its session is not.
            asked.not_run()
            self.forgotten = True
            self._end(self._stream_over(f"it does not know our session any more ({status_words(status)})"))
            raise SessionLost
        error = error_in(await self._refusal(response))
        if error is None and status in (502, 504):
            # There is a gateway, and what became of the request behind it nobody knows. Its stream tells how that is.
            raise RequestLost(f"a gateway lost it ({status_words(status)})")
        asked.settle(refused(response) if error is None else error[0])
        return False

    async def _say_word(self, line: bytes) -> None:
        await self._named.wait()
        if self._endpoint is None:
            return
        try:
            response = await self._send("POST", self._endpoint, {"content-type": b"application/json"}, line)
            await self.put_away(response)
        except httpx2.RequestError:
            return  # the next request will see what is wrong

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification. Only ``notifications/initialized`` is waited for: what follows may not overtake it."""
        if method == "notifications/initialized" and self._state == "running":
            await self._say_word(wire.encode_notification(method, params))
        else:
            await super().notify(method, params, opts)


def _bad_endpoint(what: str, remedy: str) -> ServerFailed:
    return ServerFailed(what, phase="connect", remedy=remedy)
