"""The GET stream of a legacy session, on which the server speaks by itself.

A server need not have one. What it refuses for good is not asked for again; a stream that ends is opened anew, more and
more slowly while nothing comes on it.

MCP specification: basic/transports, Streamable HTTP, "Listening for Messages from the Server" (2025-11-25).
"""

from __future__ import annotations

from typing import Protocol

import httpx2
import trio
from attrs import define, field

from ._events import EventBuffer
from ._http_answers import content_type
from ._pauses import Resumption

__all__ = ["GetStream"]

# With these a server takes back a stream that was there; anything else may be the word of what stands before it.
_GONE = frozenset({404, 405, 410})
# So many tries to open it again that find nobody, and the server is down.
_NOBODY_THERE = 2


class _Owner(Protocol):
    """Whose stream it is."""

    max_bytes: int

    async def open_get(self, last_id: str | None) -> httpx2.Response: ...

    def take_events(self, buffer: EventBuffer, chunk: bytes) -> bool: ...

    def get_stream_lost(self, error: Exception) -> None: ...

    def get_stream_refused(self, status: int) -> None: ...

    async def get_stream_again(self) -> None: ...


@define(eq=False)
class GetStream:
    """The GET stream of one session.

    ``hears`` tells whether it is open; ``settled`` is set once it has been, or cannot be for now.
    """

    _owner: _Owner
    hears: bool = field(default=False, init=False)
    settled: trio.Event = field(factory=trio.Event, init=False)
    _was_open: bool = field(default=False, init=False)
    # Whether something may have been said before it was open for the first time.
    _late: bool = field(default=False, init=False)
    _nobody: int = field(default=0, init=False)

    async def opened(self, seconds: float) -> None:
        """Wait until it is open, or cannot be for now. Where it is opened later, what was said before is unheard.

        Args:
            seconds: For how long at most.
        """
        with trio.move_on_after(seconds):
            await self.settled.wait()
        self._late = not self._was_open

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Keep it open as long as that makes sense."""
        resumption = Resumption()
        buffer = EventBuffer(self._owner.max_bytes)
        while await self._once(buffer, resumption) and not resumption.hopeless:
            self.settled.set()
            buffer = EventBuffer(self._owner.max_bytes, buffer.last_id, buffer.retry)
            await trio.sleep(resumption.wait(buffer.retry))
        self.settled.set()
        if self._was_open:
            # It is heard no more, and what it said since the stream broke was not heard either.
            await self._owner.get_stream_again()

    async def _once(self, buffer: EventBuffer, resumption: Resumption) -> bool:
        """One stream, to its end; says whether to try again."""
        owner, began = self._owner, trio.current_time()
        try:
            response = await owner.open_get(buffer.last_id)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._nobody += 1
            if self._was_open and self._nobody >= _NOBODY_THERE:
                owner.get_stream_lost(error)
                return False
            resumption.failed()
            return True
        except httpx2.RequestError:
            resumption.failed()
            return True
        self._nobody = 0
        try:
            status = response.status_code
            if response.is_success and content_type(response) == "text/event-stream":
                again = (self._was_open or self._late) and buffer.last_id is None
                self._was_open = self.hears = True
                self._late = False
                self.settled.set()
                if again:
                    # Nothing in it says where the last one broke off: what came in between is lost.
                    await owner.get_stream_again()
                if await self._hear(response, buffer):
                    resumption.ended(heard=True)
                else:
                    resumption.useless(lasted=trio.current_time() - began)
                return True
            if status >= 500 or status == 429 or (self._was_open and status not in _GONE):
                resumption.failed()
                return True
            # It has none, or none any more: it is asked with POST alone.
            if self._was_open:
                owner.get_stream_refused(status)
            return False
        finally:
            self.hears = False
            await response.aclose()

    async def _hear(self, response: httpx2.Response, buffer: EventBuffer) -> bool:
        """Take what comes until the stream ends or breaks; says whether anything came."""
        heard, last_id = False, buffer.last_id
        chunks = response.aiter_bytes()
        try:
            async for chunk in chunks:
                heard = self._owner.take_events(buffer, chunk) or heard
        except httpx2.RequestError:
            pass  # it ends in one way or the other
        finally:
            await chunks.aclose()
        return heard or buffer.last_id != last_id
