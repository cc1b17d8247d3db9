"""Routes about tools: the list, and calling one."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from math import isfinite
from secrets import token_hex
from typing import Annotated, Any

import trio
from attrs import define, field
from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, Parameter
from litestar.response import Response

from ..errors import InvalidArguments, OpenProgramMCPError, UnknownTool
from . import views
from ._answers import answer, problems, refuse_when
from ._problems import own_fault
from ._schemas import CallRequest, CallResult, ToolList
from ._sse import EventStream, Writer, cancel_when_closed, frame
from .app import API

__all__ = ["routes"]

_MAX_CALL_ID = 128
_MAX_WAITING_PROGRESS = 64
_NO_ARGUMENTS = CallRequest()


def routes(api: API) -> list[HTTPRouteHandler]:
    """The handlers."""

    @get(
        "/api/mcp/tools",
        summary="Every tool that can be called",
        operation_id="mcp.tools",
        responses=problems(),
        tags=["tools"],
    )
    async def list_tools() -> Response[ToolList]:
        await api.manager.freshen_tools()
        return answer(views.tool_list(api.manager))

    @post(
        "/api/mcp/tools/{name:str}/call",
        status_code=200,
        summary="Call a tool",
        description=(
            "Closing the request cancels the call. With `Accept: text/event-stream` the answer is a stream of the "
            "events `progress` and, at the end, `result` or `error`."
        ),
        operation_id="mcp.call",
        responses=problems(400, 404, 408, 413, 422, 502, 503, 504),
        tags=["tools"],
    )
    async def call_tool(
        name: Annotated[str, Parameter(description="The tool's full name.")],
        request: Request[Any, Any, Any],
        data: Annotated[CallRequest, Body()] = _NO_ARGUMENTS,
    ) -> Response[CallResult]:
        call = _Call(api, name, data)
        if "text/event-stream" in request.headers.get("accept", ""):
            return EventStream(call.stream, stop=None, heartbeat_seconds=api.heartbeat_seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when_closed, request.receive, nursery.cancel_scope)
            await call.run(None)
            nursery.cancel_scope.cancel()
        if call.error is not None:
            raise call.error
        # Where the client has closed the request there is nobody to read this.
        return answer(call.result)

    return [list_tools, call_tool]


ProgressCallback = Callable[[float, float | None, str | None], Awaitable[None]]


@define
class _Call:
    """One call on behalf of one request."""

    _api: API
    _name: str
    _request: CallRequest
    call_id: str = field(init=False)
    result: dict[str, Any] | None = field(default=None, init=False)
    error: OpenProgramMCPError | None = field(default=None, init=False)
    _progress: deque[dict[str, Any]] = field(factory=lambda: deque(maxlen=_MAX_WAITING_PROGRESS), init=False)
    _news: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        limit = self._request.timeout_seconds
        if limit is not None and not (limit > 0 and isfinite(limit)):
            raise InvalidArguments(
                f"timeout_seconds: expected a number of seconds above 0, got {limit:g}", path="timeout_seconds"
            )
        call_id = self._request.call_id
        if call_id is not None and not 0 < len(call_id) <= _MAX_CALL_ID:
            raise InvalidArguments(f"call_id: expected 1 to {_MAX_CALL_ID} characters", path="call_id")
        self.call_id = call_id or token_hex(8)
        if self._api.read_only:
            self._refuse_writing()

    def _refuse_writing(self) -> None:
        # A read-only worker still answers questions: a tool that says it only reads may be called.
        tool = self._api.manager.registry.get(self._name)
        if tool is None:
            raise UnknownTool(f"No tool is called {self._name!r}")
        refuse_when(not tool.annotations.get("readOnlyHint"), f"to call {self._name!r}, which may write,")

    async def run(self, on_progress: ProgressCallback | None) -> None:
        """Call the tool; what came of it stands in ``result`` or ``error``."""
        try:
            result = await self._api.manager.call_tool(
                self._name,
                self._request.arguments,
                timeout=self._request.timeout_seconds,
                on_progress=on_progress,
                call_id=self.call_id,
            )
        except OpenProgramMCPError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - a stream that has begun can only tell it as its last event
            self.error = own_fault(f"The call of {self._name!r}", error)
        else:
            self.result = views.call_result(result, self.call_id)

    async def stream(self, writer: Writer) -> None:
        """Call the tool and write what happens."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_progress, writer)
            await self.run(self._take_progress)
            nursery.cancel_scope.cancel()
        await self._flush(writer)
        if self.error is not None:
            await writer.write(frame("error", self.error.to_problem()))
        else:
            await writer.write(frame("result", self.result))

    async def _take_progress(self, progress: float, total: float | None, message: str | None) -> None:
        # A client that reads slowly must not slow the call down: the oldest news is dropped.
        self._progress.append({"call_id": self.call_id, "progress": progress, "total": total, "message": message})
        self._news.set()

    async def _write_progress(self, writer: Writer) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            await self._flush(writer)

    async def _flush(self, writer: Writer) -> None:
        while self._progress:
            await writer.write(frame("progress", self._progress.popleft()))
