"""Every exception of a request as a problem document (RFC 9457), translated in this one place.

Our own errors say themselves what they are. The framework's are given a code each; what is left is a fault of ours: it
is logged with its traceback and answered without one.
"""

from __future__ import annotations

import logging
from typing import Any

from litestar import Request
from litestar.exceptions import HTTPException, ValidationException
from litestar.response import Response

from ..errors import InvalidArguments, OpenProgramMCPError
from ._json import encode

__all__ = ["EXCEPTION_HANDLERS", "PROBLEM_MEDIA_TYPE", "own_fault"]

PROBLEM_MEDIA_TYPE = "application/problem+json"

_logger = logging.getLogger(__name__)

_FRAMEWORK_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def _problem(status: int, code: str, detail: str, remedy: str | None = None) -> dict[str, Any]:
    """A problem that no class of ours stands for."""
    return {
        "type": f"urn:openprogram-mcp:error:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "detail": detail,
        "code": code,
        "remedy": remedy,
        "path": None,
        "server": None,
    }


def _response(problem: dict[str, Any]) -> Response[bytes]:
    """The problem as a response."""
    return Response(encode(problem), status_code=problem["status"], media_type=PROBLEM_MEDIA_TYPE)


def _ours(_request: Request[Any, Any, Any], error: OpenProgramMCPError) -> Response[bytes]:
    return _response(error.to_problem())


def _invalid(_request: Request[Any, Any, Any], error: ValidationException) -> Response[bytes]:
    faults = error.extra if isinstance(error.extra, list) else []
    first: dict[str, Any] = faults[0] if faults and isinstance(faults[0], dict) else {}
    # "data" is the framework's name for the whole body.
    path = None if first.get("key") == "data" else first.get("key")
    message = first.get("message", error.detail)
    return _response(InvalidArguments(f"{path or 'The body'}: {message}", path=path).to_problem())


def _framework(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    code = _FRAMEWORK_CODES.get(error.status_code, "bad_request")
    if error.status_code >= 500:
        return _internal(request, error)
    detail = error.detail
    if error.status_code in (404, 405):
        detail = f"{request.method} {request.url.path} is not a route of this API"
    response = _response(_problem(error.status_code, code, detail))
    if error.headers:
        response.headers.update(error.headers)
    return response


def _too_deep(_request: Request[Any, Any, Any], _error: RecursionError) -> Response[bytes]:
    return _response(_problem(400, "bad_request", "The body is nested too deeply"))


def _internal(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    return _response(own_fault(f"{request.method} {request.url.path}", error).to_problem())


def own_fault(what: str, error: Exception) -> OpenProgramMCPError:
    """A fault of ours: logged here with its traceback, and told without one, since it may hold anything."""
    _logger.error("%s failed", what, exc_info=error)
    return OpenProgramMCPError("A fault of the worker's own; its log says more", remedy="Report it with that log")


EXCEPTION_HANDLERS: dict[int | type[Exception], Any] = {
    OpenProgramMCPError: _ours,
    ValidationException: _invalid,
    HTTPException: _framework,
    RecursionError: _too_deep,
    Exception: _internal,
}
