"""Routes about what servers offer beside their tools: resources, prompts, completions.

None of them changes anything, so a read-only worker answers them too. Closing a request withdraws it, as with a call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from urllib.parse import unquote

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter
from litestar.response import Response

from ._answers import ServerName, answer, problems, while_open
from ._schemas import (
    Completion,
    CompletionRequest,
    PromptList,
    PromptRequest,
    PromptResult,
    ResourceContents,
    ResourceList,
)
from .app import API

__all__ = ["routes"]

_FAILURES = (400, 404, 408, 413, 422, 502, 503, 504)
_PARTS_BEFORE_PROMPT = len(["", "api", "mcp", "servers", "name", "prompts"])
_NO_ARGUMENTS = PromptRequest()


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""
    manager = api.manager

    @get(
        "/api/mcp/servers/{name:str}/resources",
        summary="A server's resources and their templates",
        operation_id="mcp.resources.list",
        responses=problems(*_FAILURES),
        tags=["resources and prompts"],
    )
    async def list_resources(name: ServerName, request: Request[Any, Any, Any]) -> Response[ResourceList]:
        async def listed() -> dict[str, Any]:
            return {
                "resources": await manager.resources(name),
                "resourceTemplates": await manager.resource_templates(name),
            }

        return await _answered(request, listed)

    @get(
        "/api/mcp/servers/{name:str}/resources/read",
        summary="The contents of a resource",
        operation_id="mcp.resources.read",
        responses=problems(*_FAILURES),
        tags=["resources and prompts"],
    )
    async def read_resource(
        name: ServerName,
        uri: Annotated[str, Parameter(description="The resource's URI.")],
        request: Request[Any, Any, Any],
    ) -> Response[ResourceContents]:
        return await _answered(request, lambda: manager.read_resource(name, uri))

    @get(
        "/api/mcp/servers/{name:str}/prompts",
        summary="A server's prompts",
        operation_id="mcp.prompts.list",
        responses=problems(*_FAILURES),
        tags=["resources and prompts"],
    )
    async def list_prompts(name: ServerName, request: Request[Any, Any, Any]) -> Response[PromptList]:
        async def listed() -> dict[str, Any]:
            return {"prompts": await manager.prompts(name)}

        return await _answered(request, listed)

    @post(
        "/api/mcp/servers/{name:str}/prompts/{prompt:path}",
        status_code=200,
        summary="A prompt, filled in",
        operation_id="mcp.prompts.get",
        responses=problems(*_FAILURES),
        tags=["resources and prompts"],
    )
    async def get_prompt(
        name: ServerName,
        prompt: Annotated[str, Parameter(description="The prompt's name, percent-encoded.")],
        request: Request[Any, Any, Any],
        data: Annotated[PromptRequest, Body()] = _NO_ARGUMENTS,
    ) -> Response[PromptResult]:
        called = _as_sent(request, prompt)
        return await _answered(request, lambda: manager.get_prompt(name, called, data.arguments))

    @post(
        "/api/mcp/servers/{name:str}/complete",
        status_code=200,
        summary="What an argument of a prompt or of a resource's template may be",
        operation_id="mcp.complete",
        responses=problems(*_FAILURES),
        tags=["resources and prompts"],
    )
    async def complete(
        name: ServerName, request: Request[Any, Any, Any], data: Annotated[CompletionRequest, Body()]
    ) -> Response[Completion]:
        return await _answered(request, lambda: manager.complete(name, data.ref, data.argument, context=data.context))

    return [list_resources, read_resource, list_prompts, get_prompt, complete]


def _as_sent(request: Request[Any, Any, Any], prompt: object) -> str:
    """A prompt's name, which may have slashes of its own: the framework makes one of several, and begins with one."""
    raw: bytes | None = request.scope.get("raw_path")
    parts = [] if raw is None else raw.decode("latin-1").split("/", _PARTS_BEFORE_PROMPT)
    return unquote(parts[-1]) if len(parts) > _PARTS_BEFORE_PROMPT else str(prompt).removeprefix("/")


async def _answered(request: Request[Any, Any, Any], ask: Callable[[], Awaitable[dict[str, Any]]]) -> Response[Any]:
    """What the server answers; withdrawn when the client closes the request."""
    return answer(await while_open(request, ask))
