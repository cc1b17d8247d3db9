"""What the routes share: answers as JSON, and how a problem is described in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Response

from ..errors import ReadOnly
from ._json import encode
from ._problems import PROBLEM_MEDIA_TYPE
from ._schemas import Problem

__all__ = ["answer", "problems", "refuse_when"]

_DESCRIPTIONS = {
    401: "No valid owner token",
    403: "Refused: a foreign host or origin, a permission rule, or a read-only worker",
    404: "No such server or tool",
    422: "The request does not fit, or the server did not come up",
    502: "The connection to the server was lost",
    503: "The server is not connected",
    504: "A budget ran out",
}


def answer(value: Any, status_code: int = 200) -> Response[Any]:
    """A JSON answer."""
    return Response(encode(value), status_code=status_code, media_type="application/json")


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The problems that a route may answer with, besides those of every route."""
    return {
        status: ResponseSpec(
            data_container=Problem,
            description=_DESCRIPTIONS[status],
            media_type=PROBLEM_MEDIA_TYPE,
            generate_examples=False,
        )
        for status in (401, 403, *statuses)
    }


def refuse_when(read_only: bool, what: str) -> None:
    """Refuse a change.

    Raises:
        ReadOnly: The worker was started with ``--read-only``.
    """
    if read_only:
        raise ReadOnly(f"The worker is read-only: {what} is refused", remedy="Start it without --read-only")
