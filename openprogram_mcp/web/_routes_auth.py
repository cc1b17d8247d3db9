"""Routes about signing in to servers."""

from __future__ import annotations

from typing import Annotated

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter
from litestar.response import Response

from ..errors import UsageError
from ._answers import ServerName, answer, problems, refuse_when
from ._schemas import AuthAnswer, PendingAuth, ServerRow
from .app import API

__all__ = ["routes"]

Wait = Annotated[bool, Parameter(description="Only wait for the sign-in that is under way; begin none.")]
# The framework keeps the name of "state" for itself.
State = Annotated[str, Parameter(description="The state of the sign-in, as its start gave it.")]


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""
    manager = api.manager

    @post(
        "/api/mcp/servers/{name:str}/auth",
        status_code=200,
        summary="Begin a sign-in; no browser is opened",
        operation_id="mcp.auth.start",
        responses=problems(404, 422),
        tags=["signing in"],
    )
    async def start_auth(name: ServerName) -> Response[PendingAuth]:
        refuse_when(api.read_only, f"a sign-in to {name!r}")
        return answer((await manager.start_auth(name)).to_dict())

    @post(
        "/api/mcp/servers/{name:str}/auth/authenticate",
        status_code=200,
        summary="Sign in with a browser on the worker's machine, and wait for the end of it",
        operation_id="mcp.auth.authenticate",
        responses=problems(404, 422, 504),
        tags=["signing in"],
    )
    async def authenticate(name: ServerName, wait: Wait = False) -> Response[ServerRow]:
        refuse_when(api.read_only, f"a sign-in to {name!r}")
        row = await (manager.wait_auth(name) if wait else manager.authenticate(name))
        return answer(row.to_dict())

    @post(
        "/api/mcp/servers/{name:str}/auth/callback",
        status_code=200,
        summary="Give a sign-in its answer by hand",
        operation_id="mcp.auth.callback",
        responses=problems(400, 404, 408, 413, 422),
        tags=["signing in"],
    )
    async def finish_auth(name: ServerName, data: Annotated[AuthAnswer, Body()]) -> Response[ServerRow]:
        refuse_when(api.read_only, f"a sign-in to {name!r}")
        if (data.code is None) == (data.redirect_url is None):
            raise UsageError("expected either code (and state), or redirect_url")
        row = await manager.finish_auth(name, data.code, data.state, redirect_url=data.redirect_url)
        return answer(row.to_dict())

    @delete(
        "/api/mcp/servers/{name:str}/auth",
        status_code=204,
        summary="Forget tokens and registration",
        operation_id="mcp.auth.remove",
        responses=problems(404),
        tags=["signing in"],
    )
    async def clear_auth(name: ServerName) -> None:
        refuse_when(api.read_only, f"to forget the sign-in to {name!r}")
        await manager.clear_auth(name)

    @get(
        "/api/mcp/auth/pending",
        summary="Sign-ins that wait for somebody",
        operation_id="mcp.auth.pending",
        responses=problems(),
        tags=["signing in"],
    )
    async def pending_auth() -> Response[list[PendingAuth]]:
        return answer([one.to_dict() for one in manager.pending_auth()])

    @delete(
        "/api/mcp/auth/pending/{sign_in:str}",
        status_code=204,
        summary="Give a sign-in up",
        operation_id="mcp.auth.cancel",
        responses=problems(422),
        tags=["signing in"],
    )
    async def cancel_auth(sign_in: State) -> None:
        refuse_when(api.read_only, "to give a sign-in up")
        manager.cancel_auth(sign_in)

    return [start_auth, authenticate, finish_auth, clear_auth, pending_auth, cancel_auth]
