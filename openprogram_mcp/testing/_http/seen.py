"""What a server over HTTP was asked, as values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from .exchange import Ended, Exchange

__all__ = ["HttpRequest"]


@frozen
class HttpRequest:
    """One HTTP request, and what became of it so far. Times are of Trio's clock, in seconds."""

    number: int
    """Its number, from 1 on."""
    connection: int
    """The number of the connection on which it came, from 1 on."""
    time: float
    """When it was whole."""
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    """Names as they were written."""
    body: bytes
    session: str | None
    """The session that it belongs to, or that its answer gave."""
    status: int | None
    """The status of the response, once that has begun."""
    answered: float | None
    """When the response began."""
    ended: float | None
    """When it was whole, or its connection closed."""
    ended_by: Ended | None
    """``answered``: it was whole. ``client`` and ``server``: who closed the connection before that."""

    @classmethod
    def of(cls, exchange: Exchange) -> HttpRequest | None:
        """What there is to say of an exchange; ``None`` where it has no request."""
        request = exchange.request
        if request is None:
            return None
        session = exchange.session.id if exchange.session else None
        path, _, query = request.target.partition("?")
        return cls(
            exchange.number,
            exchange.connection.number,
            exchange.time,
            request.method,
            path,
            query,
            tuple(request.headers),
            request.body,
            session,
            exchange.status,
            exchange.answered,
            exchange.ended,
            exchange.ended_by,
        )

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name; the first, where there are several."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def message(self) -> Any:
        """The JSON value in its body; ``None`` where there is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def rpc(self) -> str | None:
        """The method of the JSON-RPC message in it."""
        message = self.message
        return message.get("method") if isinstance(message, dict) else None
