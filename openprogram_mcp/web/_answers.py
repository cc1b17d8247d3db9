"""What the routes share: answers as JSON, and how a problem is described in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import trio
from litestar import Request
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from litestar.response import Response

from ..errors import OpenProgramMCPError, ReadOnly
from ._json import encode
from ._problems import PROBLEM_MEDIA_TYPE
from ._schemas import Problem
from ._sse import cancel_when_closed

__all__ = ["OPEN", "ServerName", "answer", "problems", "refuse_when", "while_open"]

T = TypeVar("T")

OPEN: list[dict[str, list[str]]] = [{}]
"""The security of a route that is answered without a token: nothing is enough."""

ServerName = Annotated[str, Parameter(description="The server's name, percent-encoded.")]
"""The server that a route is about."""

_DESCRIPTIONS = {
    400: "The body, or what stands in the address, cannot be read",
    401: "No valid owner token",
    403: "Refused: a foreign host or origin, a permission rule, or a read-only worker",
    404: "No such server or tool",
    408: "The body came too slowly",
    409: "It is there already, or was changed by somebody else meanwhile",
    413: "The body is too large",
    422: "The request does not fit, or the server did not come up",
    500: "The configuration file cannot be read or written",
    502: "The connection to the server was lost",
    503: "The server is not connected",
    504: "A budget ran out",
}


def answer(value: Any, status_code: int = 200, *, revision: str | None = None) -> Response[Any]:
    """A JSON answer; with the revision of the configuration that it tells of, as its entity tag."""
    headers = None if revision is None else {"ETag": f'"{revision}"'}
    return Response(encode(value), status_code=status_code, media_type="application/json", headers=headers)


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


async def while_open(request: Request[Any, Any, Any], work: Callable[[], Awaitable[T]]) -> T | None:
    """Do something for as long as its client wants it: closing the request cancels it.

    Returns:
        What came of it; ``None`` where the client has gone, and nobody reads it.

    Raises:
        OpenProgramMCPError: What ``work`` raised, not in a group.
    """
    result: T | None = None
    failure: OpenProgramMCPError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_when_closed, request.receive, nursery.cancel_scope)
        try:
            result = await work()
        except OpenProgramMCPError as error:
            # Kept and raised below: here it would come out as a group of one.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result
