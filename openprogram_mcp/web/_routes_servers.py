"""Routes about servers: their status, and starting and stopping them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from ..status import ServerStatus
from . import views
from ._answers import OPEN, ServerName, answer, problems, refuse_when
from ._schemas import ConfigLocation, Health, ServerDetail, ServerList, ServerRow, ShortServer
from .app import API, openapi_document

__all__ = ["routes"]


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""
    manager = api.manager
    document: dict[str, Any] = {}

    @get("/healthz", summary="Whether the worker lives", operation_id="mcp.health", security=OPEN, tags=["worker"])
    async def healthz() -> Response[Health]:
        return answer(views.health(manager))

    @get("/api/openapi.json", include_in_schema=False)
    async def openapi() -> Response[dict[str, Any]]:
        if not document:
            document.update(openapi_document(api))
        return answer(document)

    @get(
        "/api/mcp/config-path",
        summary="Where the configuration is",
        operation_id="mcp.config_path",
        responses=problems(),
        tags=["worker"],
    )
    async def config_path() -> Response[ConfigLocation]:
        return answer(views.config_location())

    @get(
        "/api/mcp/servers",
        summary="Every server's status",
        operation_id="mcp.status",
        responses=problems(),
        tags=["servers"],
    )
    async def list_servers() -> Response[ServerList]:
        await manager.count_processes()
        return answer(views.server_list(manager), revision=manager.document.revision)

    @get(
        "/api/mcp/servers/{name:str}",
        summary="One server",
        operation_id="mcp.show",
        responses=problems(404),
        tags=["servers"],
    )
    async def show_server(name: ServerName) -> Response[ServerDetail]:
        await manager.freshen_tools()
        await manager.count_processes()
        return answer(await views.server_detail(manager, name), revision=manager.document.revision)

    @get("/mcp", summary="Every server in short", operation_id="mcp.short", responses=problems(), tags=["servers"])
    async def short_list() -> Response[list[ShortServer]]:
        return answer(views.short_list(manager))

    def action(verb: str, summary: str, act: Callable[[str], Awaitable[ServerStatus]]) -> HTTPRouteHandler:
        @post(
            f"/api/mcp/servers/{{name:str}}/{verb}",
            status_code=200,
            summary=summary,
            operation_id=f"mcp.{verb}",
            responses=problems(404, 422, 503),
            tags=["servers"],
        )
        async def handle(name: ServerName) -> Response[ServerRow]:
            refuse_when(api.read_only, f"to {verb} {name!r}")
            return answer((await act(name)).to_dict())

        return handle

    return [
        healthz,
        openapi,
        config_path,
        list_servers,
        show_server,
        short_list,
        action("restart", "Stop it and start it anew", manager.restart),
        action("connect", "Start it", manager.connect),
        action("disconnect", "Stop it until it is connected again; not saved", manager.disconnect),
    ]
