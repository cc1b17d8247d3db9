"""Routes that change which servers there are: adding, editing and removing them, switching them, trying one out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any

from litestar import Request, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, HeaderParameter, Parameter
from litestar.response import Response

from ..config import MCPServerConfig
from ..errors import ConfigError, InvalidArguments
from ..status import ServerStatus
from . import views
from ._answers import ServerName, answer, problems, refuse_when, while_open
from ._schemas import RootList, ServerRow
from .app import API

__all__ = ["routes"]

Force = Annotated[bool, Parameter(description="Save it though it does not come up.")]
IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match", description="Only if the configuration is at this revision: the ETag of an answer."
    ),
]

_TAGS = re.compile(r'(?:W/)?"([^"]*)"')
_NAME_OF_A_TRIAL = "test"


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""
    manager = api.manager

    def row(status: ServerStatus | None, status_code: int = 200) -> Response[Any]:
        # Where there is no status the client has closed the request, and nobody reads this.
        value = None if status is None else status.to_dict()
        return answer(value, status_code, revision=manager.document.revision)

    def expected(if_match: str | None) -> str | None:
        return _revision(if_match, manager.document.revision)

    @post(
        "/api/mcp/servers",
        status_code=201,
        summary="Add a server",
        description=(
            'The body is `{"name", …configuration}`, or `{"name", "config"}`. It is started first, and saved once '
            "it is up; a server that wants a sign-in counts as up, and one with `enabled: false` is saved unstarted. "
            "Closing the request takes it back."
        ),
        operation_id="mcp.add",
        responses=problems(400, 408, 409, 413, 422, 500, 503),
        tags=["servers"],
    )
    async def add_server(
        request: Request[Any, Any, Any], data: Annotated[dict[str, Any], Body()], force: Force = False
    ) -> Response[ServerRow]:
        refuse_when(api.read_only, "to add a server")
        config = _new_server(data)
        return row(await while_open(request, partial(manager.add, config, force=force)), 201)

    @patch(
        "/api/mcp/servers/{name:str}",
        summary="Edit a server",
        description=(
            "What is left out is kept, and `null` puts the default back. Secrets: one that is left out, or sent back "
            "as its mask, is kept; an empty text or `null` deletes it; changing `auth.kind` drops those of the other "
            "kind. The new connection is made before the old one goes; what does not come up changes nothing. Closing "
            "the request takes it back."
        ),
        operation_id="mcp.update",
        responses=problems(400, 404, 408, 409, 413, 422, 500, 503),
        tags=["servers"],
    )
    async def update_server(
        name: ServerName,
        request: Request[Any, Any, Any],
        data: Annotated[dict[str, Any], Body()],
        if_match: IfMatch = None,
        force: Force = False,
    ) -> Response[ServerRow]:
        refuse_when(api.read_only, f"to edit {name!r}")
        edit = partial(manager.update, name, data, force=force, revision=expected(if_match))
        return row(await while_open(request, edit))

    @delete(
        "/api/mcp/servers/{name:str}",
        status_code=204,
        summary="Remove a server",
        operation_id="mcp.remove",
        responses=problems(400, 404, 409, 422, 500),
        tags=["servers"],
    )
    async def remove_server(name: ServerName, if_match: IfMatch = None) -> None:
        refuse_when(api.read_only, f"to remove {name!r}")
        await manager.remove(name, revision=expected(if_match))

    def switch(verb: str, summary: str, act: Callable[[str], Awaitable[ServerStatus]]) -> HTTPRouteHandler:
        @post(
            f"/api/mcp/servers/{{name:str}}/{verb}",
            status_code=200,
            summary=summary,
            operation_id=f"mcp.{verb}",
            responses=problems(404, 409, 422, 500),
            tags=["servers"],
        )
        async def handle(name: ServerName) -> Response[ServerRow]:
            refuse_when(api.read_only, f"to {verb} {name!r}")
            return row(await act(name))

        return handle

    @post(
        "/api/mcp/test",
        status_code=200,
        summary="Try a configuration",
        description=(
            "It is started, looked at, and stopped; nothing is saved and no tool is offered. The answer is its row, "
            "also where it did not come up. `name` may be left out. Closing the request ends it."
        ),
        operation_id="mcp.test",
        responses=problems(400, 408, 413, 422),
        tags=["servers"],
    )
    async def test_server(
        request: Request[Any, Any, Any], data: Annotated[dict[str, Any], Body()]
    ) -> Response[ServerRow]:
        # It starts a program of the caller's choice, which whoever may only look must not.
        refuse_when(api.read_only, "to start a server")
        config = _new_server({"name": _NAME_OF_A_TRIAL, **data})
        status = await while_open(request, partial(manager.test, config))
        return answer(None if status is None else status.to_dict())

    @get(
        "/api/mcp/roots",
        summary="The roots that servers are told of",
        operation_id="mcp.roots.list",
        responses=problems(),
        tags=["roots"],
    )
    async def list_roots() -> Response[RootList]:
        return answer(views.root_list(manager), revision=manager.document.revision)

    @put(
        "/api/mcp/roots",
        summary="Set the roots that servers are told of",
        operation_id="mcp.roots.set",
        responses=problems(400, 408, 409, 413, 422, 500),
        tags=["roots"],
    )
    async def set_roots(data: Annotated[RootList, Body()], if_match: IfMatch = None) -> Response[RootList]:
        refuse_when(api.read_only, "to set the roots")
        await manager.set_roots([root.to_dict() for root in data.roots], revision=expected(if_match))
        return answer(views.root_list(manager), revision=manager.document.revision)

    return [
        add_server,
        update_server,
        remove_server,
        switch("enable", "Enable it, save that, and start it", manager.enable),
        switch("disable", "Stop it for good, and save that", manager.disable),
        test_server,
        list_roots,
        set_roots,
    ]


def _new_server(data: Mapping[str, Any]) -> MCPServerConfig:
    """The configuration in a body that gives its name.

    Raises:
        ConfigError: It does not fit; the path names the place.
    """
    name = data.get("name")
    if not isinstance(name, str):
        raise ConfigError("name: expected the server's name", path="name", remedy='Send {"name": …, "command": …}.')
    fields = {key: value for key, value in data.items() if key != "name"}
    if "config" in fields:
        config = fields.pop("config")
        if fields:
            beside = min(fields)
            raise ConfigError(f"{beside}: stands beside config, which holds all fields", path=beside, server=name)
        if not isinstance(config, Mapping):
            raise ConfigError("config: expected an object", path="config", server=name)
        fields = dict(config)
    return MCPServerConfig.from_dict(name, fields)


def _revision(if_match: str | None, current: str) -> str | None:
    """The revision that an ``If-Match`` header (RFC 9110, 13.1.1) asks for; of several, the one in force."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = [part.strip() for part in if_match.split(",")]
    found = [match[1] for match in map(_TAGS.fullmatch, tags) if match]
    if not found or len(found) != len(tags):
        raise InvalidArguments('If-Match: expected "REVISION", as an ETag gives it', path="If-Match")
    return current if current in found else found[0]
