"""What is wrong with an HTTP request, in the eyes of a server that is strict."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connection import Request

__all__ = ["NoSession", "Refusal", "check_accept", "check_headers"]

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Whose name stands in the header ``Mcp-Name``, and where in the message."""


class Refusal(Exception):
    """A request that is not served: a status, and what is wrong with it."""

    def __init__(self, status: int, text: str, code: int = -32000, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.headers = headers


class NoSession(Refusal):
    """A request whose session is missing or not known, which a script may have its own answer to."""


def check_accept(request: Request, *kinds: str) -> None:
    accepted = [part.partition(";")[0].strip() for part in (request.header("accept") or "").split(",")]
    if any(kind not in accepted for kind in kinds):
        raise Refusal(406, f"Accept must name {' and '.join(kinds)}")


def check_headers(request: Request, message: dict[str, Any], version: Any) -> None:
    """The headers that 2026-07-28 requires say the same as the body (basic/transports, Streamable HTTP)."""
    params = message.get("params") or {}
    wanted = {"MCP-Protocol-Version": version, "Mcp-Method": message.get("method")}
    if message.get("method") in _NAMED:
        wanted["Mcp-Name"] = params.get(_NAMED[message["method"]])
    for name, value in wanted.items():
        given = request.header(name)
        if value is not None and (given is None or _decode(given) != value):
            raise Refusal(400, f"Header mismatch: {name}", -32020)


def _decode(value: str) -> str | None:
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
