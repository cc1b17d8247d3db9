"""What is asked of one server beside calls of its tools: each within its limits, and with one truthful outcome.

A request takes a turn as a call does that only reads, runs in its caller's task, and is made once more on the next
connection where the first one is lost: none of these has an effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio
from attrs import define

from ..adapter import limit_texts
from ..config import MCPServerConfig
from ..errors import ServerFailed, ServerGone, TimedOut
from ._connection import Connection, protocol
from ._failures import would_wait_for_itself
from ._hidden import Hidden
from ._turns import Turns

__all__ = ["Inquiries"]


@define(eq=False)
class Inquiries:
    """Where one server is asked for something.

    Args:
        config: Gives the configuration in force.
        turns: The request queue.
        ticket: Gives a place in it.
        hasten: Told that somebody has to wait for the server.
        hidden: What nobody is to see.
    """

    _config: Callable[[], MCPServerConfig]
    _turns: Turns[Connection]
    _ticket: Callable[[], int]
    _hasten: Callable[[], None]
    _hidden: Hidden

    @trio.lowlevel.enable_ki_protection
    async def connected(self, method: str) -> Connection:
        """A connection; waits for one that is on its way."""
        connection = self._turns.connection
        if connection is None:
            async with self._turn(method) as connection:
                pass
        return connection

    @asynccontextmanager
    @trio.lowlevel.enable_ki_protection
    async def _turn(self, method: str) -> AsyncIterator[Connection]:
        """A turn in the queue: beside calls that may run side by side, behind one that must run alone."""
        alone = self._config().serialize == "all"
        connection = self._turns.acquire_nowait(alone=alone)
        if connection is None:
            if self._turns.serves(protocol().serving_request.get()):
                raise would_wait_for_itself(self._config().name, f"{method} was asked")
            self._hasten()
            seconds = self._config().call_seconds
            with trio.move_on_after(seconds):
                connection = await self._turns.acquire(alone=alone, ticket=self._ticket())
            if connection is None:
                raise TimedOut(
                    f"{method} waited {seconds:g} s for its turn on server {self._config().name!r}",
                    budget="queue",
                    seconds=seconds,
                    remedy="Nothing was sent. Look at the server's status, and ask again.",
                    server=self._config().name,
                )
        try:
            yield connection
        finally:
            self._turns.release(connection)

    @trio.lowlevel.enable_ki_protection
    async def ask(
        self,
        method: str,
        params: Mapping[str, Any],
        key: str | None,
        form: type,
        offered: Callable[[Any], bool],
        *,
        whole: bool = False,
    ) -> dict[str, Any]:
        """Make a request, and once more on the next connection where this one is lost.

        Args:
            method: The method.
            params: Its parameters.
            key: What the answer has to hold, or ``None``.
            form: What that has to be.
            offered: Whether a session's server advertises what is asked for; if not, it is not asked.
            whole: Give the result as it came, for somebody who checks its bytes before anybody sees it.

        Returns:
            The result as the server sent it, its texts within ``max_result_chars`` and without its credentials.

        Raises:
            NotConnected: The server is down.
            ServerFailed: It refused, or its answer cannot be used.
            ServerGone: The connection was lost, twice.
            TimedOut: It did not answer in time.
        """
        with self.explained(method):
            for last in (False, True):
                async with self._turn(method) as connection:
                    if not offered(connection.session):
                        raise self.failed(f"it does not offer what {method} asks for")
                    try:
                        with self.limited(method):
                            raw: dict[str, Any] = await connection.session.ask(method, params)
                    except protocol().ConnectionClosed:
                        self._turns.withdraw(connection)
                        await trio.lowlevel.checkpoint_if_cancelled()
                        if last:
                            raise
                        continue
                if key is not None and not isinstance(raw.get(key), form):
                    raise self.failed(f"its answer to {method} holds no {key}")
                if whole:
                    return raw
                return limit_texts(self._hidden.conceal(raw), self._config().max_result_chars)
        raise AssertionError("the second try returns or raises")

    @contextmanager
    def limited(self, method: str) -> Iterator[None]:
        """The limit of one request: that of a call."""
        seconds = self._config().call_seconds
        with trio.move_on_after(seconds) as limit:
            yield
        if limit.cancelled_caught:
            raise TimedOut(
                f"{method}: server {self._config().name!r} did not answer within {seconds:g} s",
                budget="call",
                seconds=seconds,
                remedy="Raise 'call_timeout_seconds' if it needs longer.",
                server=self._config().name,
            )

    @contextmanager
    def explained(self, method: str) -> Iterator[None]:
        """What the SDK raises, as what we raise."""
        sdk = protocol()
        try:
            yield
        except sdk.ConnectionClosed as error:
            raise ServerGone(
                f"the connection to server {self._config().name!r} was lost before {method} was answered",
                may_have_run=False,
                remedy="Ask again when the server is back.",
                server=self._config().name,
            ) from error
        except sdk.BrokenAnswer as error:
            raise self.failed(error.message) from error
        except sdk.MCPError as error:
            said = error.message[:300] or "no reason given"
            raise self.failed(f"it refused {method}: {said} (code {error.code})") from error

    def conceal(self, value: Any) -> Any:
        """What the server said, without its credentials."""
        return self._hidden.conceal(value)

    def failed(self, message: str) -> ServerFailed:
        """That the server did not do what it was asked."""
        return ServerFailed(
            self._hidden.mask(message),
            phase="running",
            remedy="List what it offers, and look at its status and its standard error.",
            server=self._config().name,
        )
