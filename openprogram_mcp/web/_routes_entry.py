"""Routes by which a browser gets in: making a link, and opening it."""

from __future__ import annotations

import time
from typing import Annotated, Any

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import Response

from ..errors import Unauthorized
from ..status import rfc3339
from ._answers import OPEN, answer, problems
from ._schemas import EntryLink
from ._sessions import LINK_PATH, LINK_SECONDS
from .app import API

__all__ = ["routes"]

# A page that goes on by itself, not a redirect: after a redirect, a link that was opened from another page (a mail, a
# terminal in the browser) would still count as coming from there, and the cookie would not be sent.
_GO_ON = (
    b'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/mcp">'
    b'<title>openprogram_mcp</title><p><a href="/mcp">Go on</a></p>\n'
)


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""

    @post(
        "/api/mcp/link",
        status_code=200,
        summary="A link that lets a browser in",
        description="It works once, within a minute.",
        operation_id="mcp.link",
        responses=problems(),
        tags=["worker"],
    )
    async def new_link(request: Request[Any, Any, Any]) -> Response[EntryLink]:
        # The guard has seen to it that the host is one of ours.
        address = f"{request.scope['scheme']}://{request.headers['host']}"
        url = f"{address}{LINK_PATH}?code={api.sessions.new_link()}"
        return answer({"url": url, "expires_at": rfc3339(time.time() + LINK_SECONDS)})

    @get(
        LINK_PATH,
        summary="Let a browser in",
        description="Answers with a page that sets a cookie and goes on. It needs no token: the code is one.",
        operation_id="mcp.enter",
        security=OPEN,
        media_type="text/html",
        responses=problems(),
        tags=["worker"],
    )
    async def enter(code: Annotated[str, Parameter(description="The code of the link.")] = "") -> Response[str]:
        cookie = api.sessions.enter(code)
        if cookie is None:
            raise Unauthorized("This link does not work any more", remedy="Make a new one: it works once, for a minute")
        return Response(_GO_ON, media_type="text/html", headers={"Set-Cookie": cookie})  # type: ignore[arg-type]  # bytes pass

    return [new_link, enter]
