"""Streamable HTTP: every request is a POST of its own, answered with JSON or with a stream of events.

Both eras. Up to 2025-11-25 there are sessions: an id that comes with the answer to ``initialize``, a GET stream on
which the server speaks by itself, streams that are taken up again where they broke, and ``notifications/cancelled``.
From 2026-07-28 on there is none of that: each request says what it is in headers, and closing its response cancels it.
Which era a request is of, it says itself, in its ``_meta``.

MCP specification: basic/transports, Streamable HTTP (2025-11-25 and 2026-07-28).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

import httpx2
import trio
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, NAME_BEARING_METHODS, encode_header_value
from mcp_types import INVALID_REQUEST, PROTOCOL_VERSION_META_KEY, UNSUPPORTED_PROTOCOL_VERSION

from ..errors import ServerFailed
from . import wire
from ._asked import Asked
from ._events import EventBuffer
from ._get_stream import GetStream
from ._http_answers import (
    HttpRefused,
    content_type,
    credentials_refused,
    error_in,
    lacks_scope,
    means_session_lost,
    refused,
    retry_after,
    status_words,
)
from ._http_base import HttpDispatcher
from ._http_client import origin, unreachable
from ._param_headers import ParamHeaders
from ._pauses import Resumption
from ._requests import ConnectionClosed, RequestLost, SessionLost
from .wire import Noise

__all__ = ["StreamableDispatcher"]

_ACCEPT: Final = b"application/json, text/event-stream"
_JSON: Final = b"application/json"
_VERSION: Final = "mcp-protocol-version"
_SESSION: Final = "mcp-session-id"
# The revision that brought the header which names the revision.
_FIRST_WITH_VERSION: Final = "2025-06-18"
_FAREWELL_SECONDS: Final = 1.0
_REST_SECONDS: Final = 1.0


class StreamableDispatcher(HttpDispatcher):
    """JSON-RPC over Streamable HTTP. See :class:`~._http_base.HttpDispatcher` for its arguments.

    ``on_unheard`` may be set to who is to know that something the server said by itself may not have been heard.
    """

    kind = "streamable-http"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_unheard: Callable[[], Awaitable[None]] | None = None
        self._session: bytes | None = None
        self._legacy_version: str | None = None
        self._params = ParamHeaders()
        self._get_stream = GetStream(self)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was wrong with the tools, for this transport."""
        return self._params.warnings

    @property
    def _speaks_legacy(self) -> bool:
        return self._legacy_version is not None

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification; after the end of the connection, and in the modern era, it is dropped.

        Only ``notifications/initialized`` is waited for: what follows may not overtake it.
        """
        if method != "notifications/initialized":
            await super().notify(method, params, opts)
        elif self._state == "running" and self._speaks_legacy:
            await self._say_word(wire.encode_notification(method, params))
            self._start(self._get_stream.run)

    async def hears(self, seconds: float) -> None:
        """Wait until the server can speak by itself, in the era in which that takes a stream.

        Args:
            seconds: For how long at most. What it says before the stream is open counts as unheard then.
        """
        if self._speaks_legacy:
            await self._get_stream.opened(seconds)

    # A request.

    async def _exchange(self, asked: Asked) -> None:
        body = wire.encode_request(asked.wire_id, asked.method, asked.params)
        fresh = False
        while await self._may_be_sent(asked):
            session = None if asked.method == "initialize" else self._session
            try:
                response = await self._send("POST", self._url, self._headers_of(asked, session), body, asked)
            except httpx2.RequestError as error:
                if asked.issued:
                    raise RequestLost("the connection broke before the answer came") from error
                if fresh or isinstance(error, (httpx2.ConnectError, httpx2.TimeoutException, httpx2.ProxyError)):
                    raise self._unreachable(error) from error
                # A connection from before that the server has closed meanwhile; nothing of it was sent.
                fresh = True
                continue
            if response.is_success:
                if asked.method == "initialize":
                    self._session = response.headers.get(_SESSION, "").encode("latin-1") or None
                await self._take_response(response, asked)
                return
            try:
                again = await self._refused(response, asked, session)
            finally:
                await self.put_away(response)
            if not again:
                return

    def _headers_of(self, asked: Asked, session: bytes | None) -> dict[str, bytes]:
        headers = {"accept": _ACCEPT, "content-type": _JSON}
        params = asked.params or {}
        modern = (params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
        if isinstance(modern, str):
            headers[_VERSION] = modern.encode("latin-1", "replace")
            headers[MCP_METHOD_HEADER] = asked.method.encode("latin-1", "replace")
            name = params.get(NAME_BEARING_METHODS.get(asked.method, ""))
            if isinstance(name, str):
                headers[MCP_NAME_HEADER] = encode_header_value(name).encode()
            if asked.method == "tools/call" and isinstance(name, str):
                headers |= self._params.of(name, params.get("arguments"))
        elif asked.method != "initialize":
            headers |= self.session_headers(session)
        for name, value in asked.headers.items():
            headers[name.lower()] = value.encode()
        return headers

    def session_headers(self, session: bytes | None) -> dict[str, bytes]:
        """What names the session and the revision, in every legacy request but the first."""
        headers = {} if session is None else {_SESSION: session}
        if self._legacy_version is not None and self._legacy_version >= _FIRST_WITH_VERSION:
            headers[_VERSION] = self._legacy_version.encode()
        return headers

    async def _take_response(self, response: httpx2.Response, asked: Asked) -> None:
        kind = content_type(response)
        if kind == "text/event-stream":
            await self._follow(response, asked)
            return
        try:
            if kind == "application/json":
                body = await self._read(response)
                if isinstance(body, Noise):
                    self._hearing.take(body, asked)
                elif not body.strip():
                    asked.settle(_no_answer(response, kind))
                else:
                    self._hearing.take(body, asked)
                    await asked.tell()
                if not asked.settled:
                    self._lost_answer(asked, "what it answered was for another request")
            elif response.status_code == 202 and self._get_stream.hears:
                # Against the specification, and seen: the answer comes on the GET stream.
                await self.put_away(response)
                await trio.sleep_forever()
            else:
                asked.settle(_no_answer(response, kind))
        except httpx2.RequestError as error:
            raise RequestLost("the connection broke before the answer was complete") from error
        finally:
            await self.put_away(response)

    async def _follow(self, response: httpx2.Response, asked: Asked) -> None:
        """Take the events of a response until the answer is among them, across breaks where that can be."""
        buffer = EventBuffer(self.max_bytes)
        try:
            if await self._hear(response, buffer, asked):
                return
        except httpx2.RequestError as error:
            lost: Exception | None = error
        else:
            lost = None
        resumption = Resumption()
        while buffer.last_id is not None and self._speaks_legacy:
            await trio.sleep(resumption.wait(buffer.retry))
            try:
                response = await self.open_get(buffer.last_id)
                if not response.is_success or content_type(response) != "text/event-stream":
                    await response.aclose()
                    if response.status_code < 500:
                        break
                    resumption.failed()
                else:
                    before = buffer.last_id
                    buffer = EventBuffer(self.max_bytes, before, buffer.retry)
                    if await self._hear(response, buffer, asked):
                        return
                    resumption.ended(heard=buffer.last_id != before)
            except httpx2.RequestError as error:
                lost = error
                resumption.failed()
            if resumption.hopeless:
                break
        self._lost_answer(asked, "the stream of its answer ended without the answer", lost)

    @staticmethod
    def _lost_answer(asked: Asked, why: str, cause: Exception | None = None) -> None:
        if asked.garbled is None:
            raise RequestLost(why) from cause
        asked.settle(asked.garbled)

    async def _hear(self, response: httpx2.Response, buffer: EventBuffer, asked: Asked) -> bool:
        """Take the events of a stream until the answer is among them; false when it ends without."""
        chunks = response.aiter_bytes()
        handed_over = False
        try:
            async for chunk in chunks:
                self._hearing.take_events(buffer, chunk, asked)
                if asked.progress:
                    await asked.tell()
                if asked.settled:
                    if not response.is_closed:
                        # Read to its end, it leaves a connection that can be used again; its caller need not wait.
                        handed_over = self._start(self._hear_rest, response, chunks, buffer)
                    return True
            return False
        finally:
            if not handed_over:
                await chunks.aclose()
                await response.aclose()

    async def _hear_rest(
        self, response: httpx2.Response, chunks: AsyncGenerator[bytes, None], buffer: EventBuffer
    ) -> None:
        try:
            with trio.move_on_after(_REST_SECONDS):
                async for chunk in chunks:
                    self._hearing.take_events(buffer, chunk, None)
        except httpx2.RequestError:
            pass  # what was wanted is there
        finally:
            await chunks.aclose()
            await response.aclose()

    def _seen(self, asked: Asked, result: dict[str, Any]) -> dict[str, Any]:
        if asked.method == "initialize":
            version = result.get("protocolVersion")
            self._legacy_version = version if isinstance(version, str) and version.isascii() else ""
        elif asked.method == "tools/list" and not self._speaks_legacy:
            return self._params.learn(result)
        return result

    # Refusals.

    async def _refused(self, response: httpx2.Response, asked: Asked, session: bytes | None) -> bool:
        """Take a response that is no success; says whether the request is to be sent again.

        Raises:
            ConnectionClosed: It is the end of the connection.
            RequestLost: Nobody knows what became of it.
        """
        status = response.status_code
        if status in (429, 503):
            wait = retry_after(response)
            if wait is not None or status == 429:
                asked.not_run()
                self._pauses.ask(status, wait)
                return True
        scope = lacks_scope(response)
        if scope is not None and asked.method not in ("initialize", "server/discover"):
            # It is about what was asked, and not about who asks.
            asked.not_run()
            asked.settle(scope)
            return False
        if status == 401 or (status == 403 and "www-authenticate" in response.headers):
            asked.not_run()
            self.lose(credentials_refused(response, given=self._credentials, phase=self.phase))
            raise ConnectionClosed
        error = error_in(await self._refusal(response))
        if asked.method == "initialize" and (error is None or error[0].code != UNSUPPORTED_PROTOCOL_VERSION):
            self.initialize_status = status
        if session is not None and means_session_lost(status, error):
            asked.not_run()
            self._lose_session(status)
            raise SessionLost
        if error is not None:
            asked.settle(error[0])
        elif response.has_redirect_location:
            asked.settle(_elsewhere(response))
        elif status in (502, 503):
            # There is a gateway and nobody behind it.
            if status == 503:
                asked.not_run()
            if asked.method not in ("initialize", "server/discover"):
                self.lose(_down(status))
                raise ConnectionClosed if status == 503 else RequestLost(f"a gateway lost it ({status_words(status)})")
            asked.settle(refused(response))
        elif status == 504:
            raise RequestLost(f"a gateway gave it up ({status_words(status)})")
        else:
            asked.settle(refused(response))
        return False

    def _unreachable(self, error: Exception) -> MCPError:
        why = unreachable(error, self._url)
        self.lose(ServerFailed(why.message, phase="connect", transient=why.transient, remedy=why.remedy))
        return ConnectionClosed()

    def _lose_session(self, status: int) -> None:
        self._session = None
        self.forgotten = True
        self.lose(
            ServerFailed(
                f"it does not know our session any more ({status_words(status)})",
                phase="running",
                transient=True,
                remedy="A new one is made; see whether the server was restarted, or forgets sessions too soon.",
            )
        )

    # Words that want no answer, and the GET stream.

    def take_events(self, buffer: EventBuffer, chunk: bytes) -> bool:
        """Take the messages in a piece of the GET stream; says whether there were any."""
        return self._hearing.take_events(buffer, chunk, None)

    async def _say_word(self, line: bytes) -> None:
        session = self._session
        headers = {"accept": _ACCEPT, "content-type": _JSON, **self.session_headers(session)}
        try:
            response = await self._send("POST", self._url, headers, line)
        except httpx2.RequestError:
            return  # the next request will see what is wrong
        try:
            if session is not None and response.status_code in (400, 404, 410):
                error = error_in(await self._refusal(response))
                if means_session_lost(response.status_code, error):
                    self._lose_session(response.status_code)
        finally:
            await self.put_away(response)

    async def open_get(self, last_id: str | None) -> httpx2.Response:
        """The response to a GET, to be read as a stream.

        Raises:
            httpx2.RequestError: It did not get through.
        """
        headers = {"accept": b"text/event-stream", "cache-control": b"no-store", **self.session_headers(self._session)}
        if last_id is not None:
            headers["last-event-id"] = last_id.encode()
        return await self._send("GET", self._url, headers)

    def get_stream_lost(self, error: Exception) -> None:
        """The GET stream was there, and nobody answers any more."""
        self._unreachable(error)

    def get_stream_refused(self, status: int) -> None:
        """The GET stream was there, and is refused now."""
        if status in (404, 410) and self._session is not None:
            self._lose_session(status)

    async def get_stream_again(self) -> None:
        """The GET stream was away, and what the server said meanwhile was not heard."""
        if self.on_unheard is not None:
            await self.on_unheard()

    async def _farewell(self) -> None:
        """Tell the server that the session is not needed any more."""
        session = self._session
        if session is None or self.failure is not None:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _FAREWELL_SECONDS):
            try:
                response = await self._send("DELETE", self._url, self.session_headers(session))
                await response.aclose()
            except httpx2.RequestError:
                return


def _no_answer(response: httpx2.Response, kind: str) -> MCPError:
    said = status_words(response.status_code)
    if response.status_code in (202, 204) or kind == "application/json":
        return MCPError(code=INVALID_REQUEST, message=f"it took the request and answers nothing ({said})")
    what = f"it answered with {kind[:80] or 'no content type'} where JSON or a stream of events was due ({said})"
    return HttpRefused(response.status_code, what, remedy="Correct 'url': this is no MCP server, or a page before it.")


def _elsewhere(response: httpx2.Response) -> MCPError:
    sent = response.request.url
    to = "an address that cannot be read"
    with contextlib.suppress(httpx2.InvalidURL):
        to = origin(sent.join(response.headers["location"]))
    return HttpRefused(
        response.status_code,
        f"it sends us from {origin(sent)} to {to}, which is not followed ({status_words(response.status_code)})",
        remedy="Put the address it sends us to into 'url', if you trust it.",
    )


def _down(status: int) -> ServerFailed:
    return ServerFailed(
        f"it is not there at the moment ({status_words(status)})",
        phase="running",
        transient=True,
        remedy="See whether the server is up; a gateway in front of it answers.",
    )
