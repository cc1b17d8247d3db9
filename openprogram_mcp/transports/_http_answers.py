"""What an HTTP status means for a request, for its session and for its server. Told by status and code, never by text.

MCP specification: basic/transports, Streamable HTTP (2025-11-25 and 2026-07-28); RFC 9110, RFC 6585.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND

from ..errors import AuthRequired, ServerFailed
from . import wire
from ._requests import outcome_of
from .wire import Envelope

__all__ = [
    "HttpRefused",
    "content_type",
    "credentials_refused",
    "error_in",
    "impatient",
    "lacks_scope",
    "means_session_lost",
    "refused",
    "retry_after",
    "status_words",
]

# What servers answer instead of 404 where a session is not known to them, in an error that names no request.
_SESSION_CODES: Final = frozenset({-32000, -32001})
_NOT_THERE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


class HttpRefused(MCPError):
    """An answer of HTTP where one of MCP was wanted. It is the request's own; no peer can send it as it is.

    Args:
        status: The status of the response.
        what: What came, in words.
        remedy: What to do about it.
        transient: Time may mend it.
        retry_after: For how many seconds the server wants to be left alone.
    """

    def __init__(
        self, status: int, what: str, *, remedy: str, transient: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(code=METHOD_NOT_FOUND if status in _NOT_THERE else INTERNAL_ERROR, message=what)
        self.status = status
        self.remedy = remedy
        self.transient = transient
        self.retry_after = retry_after


def status_words(status: int) -> str:
    """A status as people know it."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def content_type(response: httpx2.Response) -> str:
    """The media type of a response, without its parameters."""
    named: str = response.headers.get("content-type", "")
    return named.partition(";")[0].strip().lower()


def error_in(body: bytes) -> tuple[MCPError, Any] | None:
    """The error of JSON-RPC in the body of a refusal, and the id that it names; ``None`` where there is none."""
    message = wire.decode(body)
    if not isinstance(message, Envelope) or not isinstance(message.error, dict):
        return None
    outcome = outcome_of(message)
    if not isinstance(outcome, MCPError) or not isinstance(message.error.get("code"), int):
        return None
    return outcome, None if message.id is wire.UNSET else message.id


def means_session_lost(status: int, error: tuple[MCPError, Any] | None) -> bool:
    """Whether a refusal of a request that named a session means that the server does not know the session any more."""
    if status == HTTPStatus.NOT_FOUND:
        # With this code it is the method that is unknown.
        return error is None or error[0].code != METHOD_NOT_FOUND
    if status == HTTPStatus.GONE:
        return True
    return (
        status == HTTPStatus.BAD_REQUEST and error is not None and error[1] is None and error[0].code in _SESSION_CODES
    )


def retry_after(response: httpx2.Response) -> float | None:
    """For how many seconds a server wants to be left alone, where it says so."""
    value: str = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def impatient(status: int, seconds: float) -> HttpRefused:
    """What a request is told that may not wait as long as the server wants to be left alone."""
    return HttpRefused(
        status,
        f"it asks us to wait {seconds:.0f} s ({status_words(status)})",
        remedy="Ask it less often; or give the call, or the start, more time.",
        transient=True,
        retry_after=seconds,
    )


def credentials_refused(response: httpx2.Response, *, given: bool, phase: str) -> ServerFailed:
    """What 401, or 403 with a challenge, means.

    Args:
        response: The refusal.
        given: The configuration has credentials of its own.
        phase: Where it happened.
    """
    said = status_words(response.status_code)
    challenges = tuple(response.headers.get_list("www-authenticate"))
    if given:
        return AuthRequired(
            f"it rejected the configured credentials ({said})",
            phase=phase,
            remedy="Replace the token in 'auth', or the 'Authorization' header.",
            challenges=challenges,
            rejected=True,
        )
    return AuthRequired(
        f"it wants a sign-in ({said})",
        phase=phase,
        remedy="Give it a token: 'auth' of kind 'bearer', or an 'Authorization' header.",
        challenges=challenges,
    )


def lacks_scope(response: httpx2.Response) -> HttpRefused | None:
    """What a refusal means that is about one request: the credentials are good, and do not reach that far."""
    if response.status_code != HTTPStatus.FORBIDDEN:
        return None
    if extract_field_from_www_auth(response, "error") != "insufficient_scope":
        return None
    scope = extract_field_from_www_auth(response, "scope")
    return HttpRefused(
        HTTPStatus.FORBIDDEN,
        "insufficient scope" if scope is None else f"insufficient scope: it wants {scope[:200]}",
        remedy="Sign in again, and consent to that: openprogram-mcp auth.",
    )


def refused(response: httpx2.Response) -> HttpRefused:
    """What any other status means that is not success."""
    status = response.status_code
    said = status_words(status)
    match status:
        case HTTPStatus.NOT_FOUND | HTTPStatus.METHOD_NOT_ALLOWED | HTTPStatus.GONE:
            what, remedy = f"no MCP server answers at this address ({said})", "Correct 'url'; its path counts."
        case HTTPStatus.FORBIDDEN:
            what = f"it refuses us ({said})"
            remedy = "See whether the credentials suffice, and whether it allows this host and origin."
        case _ if status >= 500:
            what, remedy = f"it failed ({said})", "See the server's own log."
        case _:
            what, remedy = f"it refused the request ({said})", "See the server's documentation and its log."
    return HttpRefused(status, what, remedy=remedy, transient=status >= 500 or status in (408, 425, 429))
