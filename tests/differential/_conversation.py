"""Tool calls over a whole session: the SDK's own client, and our session with what our client does to a result.

The server is a list of replies, one for each request that comes to it behind the opening, which each era has its own
of. What is compared is every frame that the client wrote, and what each caller got.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import mcp_types as types
import trio
import trio.testing
from attrs import define, field, frozen
from mcp import Client
from mcp.client.session import ClientSession, ElicitationFnT
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from opentelemetry import trace
from pydantic import ValidationError

from openprogram_mcp.adapter import RemoteTool, convert_call_result, parse_tools
from openprogram_mcp.client._calls import _output_fault
from openprogram_mcp.session import BrokenAnswer, Session, _modern_meta, open_session
from openprogram_mcp.session._negotiation import CLIENT_INFO
from openprogram_mcp.transports.stdio import RequestOptions

from ._sides import OurSide, SdkSide, Side
from ._stage import SPAN, run_seeded, shown
from .steps import IdOf, line

__all__ = ["NO_TOOLS", "THIS", "UNUSABLE", "Call", "Conversation", "Era", "Held", "hold"]

Era = Literal["legacy", "2026-07-28"]
THIS: Final = IdOf("this")
"""The id of the request that a reply is to."""

UNUSABLE: Final = "unusable"
"""What a caller gets where the answer cannot be used, however that is said."""

NO_TOOLS: Final = "no tools"
"""What every caller gets where the list of tools cannot be used."""


@frozen
class Call:
    """A call of a tool."""

    tool: str = "tool"
    arguments: Mapping[str, Any] = field(factory=dict)
    hears_progress: bool = False
    traced: bool = False
    timeout: float | None = None
    cancelled_after: float | None = None


@frozen
class Conversation:
    """A conversation about tools.

    Args:
        replies: What the server says to each request behind the opening, all at once.
        calls: What the client calls, one after the other.
        tools: The tools of the first list.
        answers_input: How a person fills a form in, where the client says that it has somebody to ask.
        eras: In which eras it can be held.
    """

    replies: tuple[tuple[Mapping[str, Any], ...], ...]
    calls: tuple[Call, ...] = (Call(),)
    tools: tuple[Mapping[str, Any], ...] = ({"name": "tool", "inputSchema": {"type": "object"}},)
    answers_input: ElicitationFnT | None = None
    eras: tuple[Era, ...] = ("legacy", "2026-07-28")


@frozen
class Held:
    """What one side made of a conversation.

    Args:
        asked: The requests and notifications that the client wrote, each with its time in seconds.
        answered: Its answers to what the server asked, which have no order among each other.
        outcomes: What each caller got.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    outcomes: tuple[str, ...]


_CAPABILITIES: Final = {"tools": {"listChanged": True}}


def _opening(era: Era, tools: tuple[Mapping[str, Any], ...]) -> list[tuple[Mapping[str, Any], ...]]:
    listed = {"tools": list(tools)}
    if era == "legacy":
        info = {"name": "server", "version": "1"}
        initialized = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": _CAPABILITIES, "serverInfo": info}
        return [({"id": THIS, "result": initialized},), ({"id": THIS, "result": listed},)]
    stamp = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    discovered = {"supportedVersions": [LATEST_MODERN_VERSION], "capabilities": _CAPABILITIES, **stamp}
    return [({"id": THIS, "result": discovered},), ({"id": THIS, "result": {**listed, **stamp}},)]


@define(eq=False)
class _Server:
    """The server's end."""

    nursery: trio.Nursery
    replies: list[tuple[Mapping[str, Any], ...]]
    frames: list[str] = field(factory=list)
    side: Side = field(init=False)
    began: float = field(factory=trio.current_time)
    over: bool = False

    def hear(self, message: Mapping[str, Any]) -> None:
        if self.over:
            return
        kept = {key: value for key, value in message.items() if key != "jsonrpc"}
        if message.get("method") == "notifications/cancelled":
            kept["params"] = {key: value for key, value in message["params"].items() if key != "reason"}
        self.frames.append(f"{trio.current_time() - self.began:.2f} {shown(kept)}")
        if "method" in message and "id" in message and self.replies:
            says = b"".join(line(reply, {"this": message["id"]}) for reply in self.replies.pop(0))
            if says:
                self.nursery.start_soon(self.side.feed, says)

    async def outcomes(self, call: Callable[[Call], Awaitable[Any]], conversation: Conversation) -> list[str]:
        """What each caller got."""
        outcomes: list[str] = []
        for wanted in conversation.calls:
            outcomes.append(await _outcome(call, wanted))
            await trio.testing.wait_all_tasks_blocked()
        self.over = True
        return outcomes


async def _sdk(conversation: Conversation, era: Era, server: _Server) -> list[str]:
    side = SdkSide(server.nursery, server.hear, lambda: None)
    server.side = side

    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        yield side.streams

    client = Client(
        transport(),
        mode="legacy" if era == "legacy" else "auto",
        client_info=CLIENT_INFO,
        log_level="info",
        elicitation_callback=conversation.answers_input,
        cache=None,
    )
    async with client:
        try:
            await client.list_tools()
        except ValidationError:
            return [NO_TOOLS]

        async def call(wanted: Call) -> Any:
            heard = _unheard if wanted.hears_progress else None
            return _dumped(await client.call_tool(wanted.tool, dict(wanted.arguments), wanted.timeout, heard))

        return await server.outcomes(call, conversation)


async def _ours(conversation: Conversation, era: Era, server: _Server) -> list[str]:
    side = OurSide(server.nursery, server.hear, lambda: None)
    server.side = side
    async with _our_session(side, conversation, era) as session:
        listed, _ = parse_tools((await session.list_all("tools")).items)
        tools = {tool.name: tool for tool in listed}

        async def relist() -> None:
            again, _ = parse_tools((await session.list_all("tools")).items)
            tools.update({tool.name: tool for tool in again})

        async def call(wanted: Call) -> Any:
            def options() -> RequestOptions:
                options = RequestOptions()
                if wanted.timeout is not None:
                    options["timeout"] = wanted.timeout
                if wanted.hears_progress:
                    options["on_progress"] = _unheard
                return options

            raw = await session.call_tool(wanted.tool, wanted.arguments, options, relist=relist)
            return _as_our_client_takes_it(tools.get(wanted.tool), raw)

        return await server.outcomes(call, conversation)


def _as_our_client_takes_it(tool: RemoteTool | None, raw: dict[str, Any]) -> Any:
    fault = None if tool is None else _output_fault(tool, raw)
    converted = convert_call_result(raw)
    if fault is not None or (converted.is_error and not raw.get("isError")):
        raise BrokenAnswer(fault or converted.text)
    try:
        # The SDK's reading of the same result, so that what it fills in and leaves out does not count.
        return _dumped(types.CallToolResult.model_validate(raw, by_name=False))
    except ValidationError:
        return {"read": converted.text}


def _dumped(result: types.CallToolResult) -> Any:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


@asynccontextmanager
async def _our_session(side: Side, conversation: Conversation, era: Era) -> AsyncIterator[Session]:
    if conversation.answers_input is None:
        async with open_session(side.dispatcher, server="server", era=era) as session:
            yield session
        return
    # A session that offers to ask a person, as open_session does not yet.
    client = ClientSession(
        dispatcher=side.dispatcher,
        client_info=CLIENT_INFO,
        log_level="info",
        elicitation_callback=conversation.answers_input,
    )
    async with client:
        await (client.initialize() if era == "legacy" else client.discover())
        meta = _modern_meta(client)
        if meta:
            meta[CLIENT_CAPABILITIES_META_KEY] = {"elicitation": {"form": {}, "url": {}}}
        yield Session(client, side.dispatcher, meta)


async def _unheard(progress: float, total: float | None, message: str | None) -> None:
    del progress, total, message
    await trio.lowlevel.checkpoint()


async def _outcome(call: Callable[[Call], Awaitable[Any]], wanted: Call) -> str:
    with trio.CancelScope() as scope:
        if wanted.cancelled_after is not None:
            scope.deadline = trio.current_time() + wanted.cancelled_after
        try:
            if wanted.traced:
                with trace.use_span(SPAN):
                    result = await call(wanted)
            else:
                result = await call(wanted)
        except (BrokenAnswer, ValidationError, RuntimeError):
            return UNUSABLE
        except MCPError as error:
            return f"error {error.code} {error.message}"
        return f"result {shown(result)}"
    return "cancelled"


def hold(side: Literal["sdk", "ours"], conversation: Conversation, era: Era, *, seed: int = 0) -> Held:
    """Hold a conversation on one side."""

    async def main(clock: trio.testing.MockClock) -> Held:
        clock.autojump_threshold = 0
        async with trio.open_nursery() as nursery:
            server = _Server(nursery, [*_opening(era, conversation.tools), *conversation.replies])
            outcomes = await (_sdk if side == "sdk" else _ours)(conversation, era, server)
            nursery.cancel_scope.cancel()
        asked = [frame for frame in server.frames if '"method"' in frame]
        answered = [frame for frame in server.frames if '"method"' not in frame]
        return Held(tuple(asked), tuple(sorted(answered)), tuple(outcomes))

    held: Held = run_seeded(main, seed=seed)
    return held
