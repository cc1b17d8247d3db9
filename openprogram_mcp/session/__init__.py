"""One protocol session over a Dispatcher: the era is negotiated, tools are listed and called, changes are listened for.

The SDK's ``ClientSession`` owns the typed layer: capabilities, stamps of an era, what the server asks of us, and
listening. Ours is what it lacks: negotiation that costs an old server little and never locks up a slow one (see
``_negotiation``), every page of a list with an end to it, and calls whose results stay as the server sent them, so that
one odd block or tool costs only itself.

MCP specification: server/tools, basic/patterns/mrtr (input required), server/utilities/pagination.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, Literal, cast

import mcp_types as types
import trio
from attrs import define, field, frozen
from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import listen
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ..transports.stdio import RequestOptions
from ._negotiation import CLIENT_INFO, ClosedWhileProbing, Era, negotiate

__all__ = [
    "BrokenAnswer",
    "ClosedWhileProbing",
    "Era",
    "ListKind",
    "ListName",
    "Page",
    "Session",
    "SessionHooks",
    "open_session",
]

logger = logging.getLogger(__name__)

ListKind = Literal["tools", "resources", "prompts"]
"""What a server advertises, and tells the changes of."""

Offered = Literal["tools", "resources", "prompts", "skills"]
"""What a server advertises; skills by an extension."""

ListName = Literal["tools", "resources", "resource_templates", "prompts", "skills"]
"""What it can be asked a list of."""

_MAX_PAGES: Final = 1000
_MAX_EMPTY_PAGES: Final = 10
_MAX_ITEMS: Final = 100_000
_MAX_INPUT_ROUNDS: Final = 10
_STATE_ONLY_WAIT_SECONDS: Final = (0.05, 0.1, 0.2, 0.25)
_KINDS: Final[tuple[ListKind, ...]] = ("tools", "resources", "prompts")
_SKILLS: Final = "io.modelcontextprotocol/skills"
_LISTS: Final[Mapping[ListName, tuple[Offered, str, str]]] = {
    "tools": ("tools", "tools/list", "tools"),
    "resources": ("resources", "resources/list", "resources"),
    "resource_templates": ("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts", "prompts/list", "prompts"),
    "skills": ("skills", "skills/list", "skills"),
}
"""Of each list: who advertises it, how it is asked for, and the key that it stands under."""

_LONGEST_TTL_SECONDS: Final = 24 * 3600.0
_LOG_LEVEL: Final = "info"
_NOT_OFFERED: Final = frozenset({"sampling/createMessage", "elicitation/create", "roots/list"})
"""What a server may ask of a client that says so. We do not, and the SDK would answer with a code of its own."""

_InputRequired: Final = TypeAdapter(types.InputRequiredResult)


class BrokenAnswer(MCPError):
    """The server's answer breaks the rules of the protocol, so that it means nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(INTERNAL_ERROR, what)


async def _nobody(*_args: object) -> None:
    return


@frozen(kw_only=True)
class SessionHooks:
    """What a session tells its owner. Each is awaited in the order in which the server spoke.

    Args:
        on_log: A log message: its level, its logger and its text.
        on_list_changed: A list has changed.
        on_resource_updated: A resource has changed: its URI.
    """

    on_log: Callable[[str, str | None, str], Awaitable[None]] = _nobody
    on_list_changed: Callable[[ListKind], Awaitable[None]] = _nobody
    on_resource_updated: Callable[[str], Awaitable[None]] = _nobody


@frozen
class Page:
    """A whole list, all its pages together, and what was wrong with them.

    ``fresh_seconds`` is how long it may be used without being read again, counted from the moment it was asked for.
    """

    items: list[Any]
    warnings: tuple[str, ...] = ()
    fresh_seconds: float = 0.0


@define(eq=False)
class Session:
    """A session that was negotiated. Made by :func:`open_session`."""

    _client: ClientSession
    dispatcher: Dispatcher[Any]
    _meta: Mapping[str, Any] = field(factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def protocol_version(self) -> str:
        """The negotiated revision."""
        return self._client.protocol_version or ""

    @property
    def era(self) -> Era:
        """Which of the two ways of speaking was negotiated."""
        return "2026-07-28" if self.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"

    @property
    def server_info(self) -> dict[str, Any] | None:
        """The server's name and version as it gave them."""
        info = self._client.server_info
        return None if info is None else {"name": info.name, "version": info.version}

    @property
    def instructions(self) -> str | None:
        """What the server says about its use."""
        return self._client.instructions

    def offers(self, kind: Offered) -> bool:
        """Whether the server advertises a list. What it does not advertise is not asked for."""
        capabilities = self._client.server_capabilities
        if kind == "skills":
            return _SKILLS in (getattr(capabilities, "extensions", None) or {})
        return capabilities is not None and getattr(capabilities, kind) is not None

    @property
    def can_subscribe(self) -> bool:
        """Whether the server says that it tells changes of single resources."""
        resources = getattr(self._client.server_capabilities, "resources", None)
        return bool(getattr(resources, "subscribe", False))

    @property
    def can_complete(self) -> bool:
        """Whether the server says that it completes arguments."""
        return getattr(self._client.server_capabilities, "completions", None) is not None

    async def list_all(self, name: ListName) -> Page:
        """Every page of a list.

        Ends, with a warning, at a cursor that came before, and at limits that no honest server meets.

        Raises:
            BrokenAnswer: The first answer holds no list.
            MCPError: The server refused, or the connection ended.
        """
        kind, method, key = _LISTS[name]
        fresh = math.inf
        items: list[Any] = []
        warnings: list[str] = []
        cursors: set[str] = set()
        cursor: str | None = None
        empty = 0
        for _ in range(_MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            raw = await self._request(method, params)
            found = raw.get(key)
            if raw.get("resultType", "complete") != "complete" or not isinstance(found, list):
                if cursor is None:
                    raise BrokenAnswer(f"its answer to {method} holds no list of {_said(name)}")
                warnings.append(f"a page of {method} held no list of {_said(name)}; what came so far is used")
                break
            items.extend(found)
            fresh = min(fresh, self._fresh_seconds(kind, raw))
            empty = 0 if found else empty + 1
            cursor = raw.get("nextCursor")
            if not isinstance(cursor, str):
                break
            if cursor in cursors or empty >= _MAX_EMPTY_PAGES or len(items) >= _MAX_ITEMS:
                warnings.append(f"{method} does not come to an end; what came so far is used")
                break
            cursors.add(cursor)
        else:
            warnings.append(f"{method} has more than {_MAX_PAGES} pages; the rest was left out")
        return Page(items, tuple(warnings), fresh)

    def _fresh_seconds(self, kind: Offered, raw: Mapping[str, Any]) -> float:
        """How long a page may be used (specification: server/utilities/caching).

        2026-07-28 has ``ttlMs``; where it is missing or is no length of time, the page is stale at once. Before, a list
        holds until the server tells that it has changed; tools do so even where it does not say that it would.
        """
        if self.era == "legacy":
            return math.inf if kind == "tools" or self._tells(kind) else 0.0
        ttl = raw.get("ttlMs")
        if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not ttl > 0:
            return 0.0
        return min(ttl, _LONGEST_TTL_SECONDS * 1000) / 1000

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """A request that has no method of its own here, and its result as the server sent it.

        Rounds in which the server asks for input are played here. The caller bounds it.

        Raises:
            BrokenAnswer: What it answered is against the protocol.
            MCPError: The server answered with an error.
            ConnectionClosed: The connection ended first.
        """

        async def send(given: Mapping[str, Any]) -> dict[str, Any]:
            return await self._request(method, given)

        raw = await send(params)
        if raw.get("resultType") == "input_required" and self.era != "legacy":
            return await self._play_input_rounds(params, send, raw)
        return raw

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        options: Callable[[], RequestOptions],
        *,
        relist: Callable[[], Awaitable[None]] | None = None,
        while_asked: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> dict[str, Any]:
        """Call a tool and give its result as the server sent it.

        Rounds in which the server asks for input are played here, each as a new request.

        Args:
            name: The tool's own name.
            arguments: As the model gave them; nothing is added.
            options: Makes the limits and callbacks of each request; asked anew for each round.
            relist: Reads the tools anew; called once for each request that the server refuses because of an outdated
                schema.
            while_asked: Entered while the server waits for input of ours, in which no time of its own passes.

        Raises:
            BrokenAnswer: What it answered is against the protocol.
            MCPError: The server answered with an error, or a limit ran out.
            ConnectionClosed: The connection ended first.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        raw = await self._call(params, options, relist)
        if raw.get("resultType") == "input_required" and self.era != "legacy":
            return await self._play_input_rounds(
                params, lambda given: self._call(given, options, relist), raw, while_asked
            )
        return raw

    async def _call(
        self,
        params: Mapping[str, Any],
        options: Callable[[], RequestOptions],
        relist: Callable[[], Awaitable[None]] | None,
    ) -> dict[str, Any]:
        try:
            return await self._request("tools/call", params, options())
        except MCPError as refusal:
            return await self._call_again(refusal, params, options, relist)

    async def _call_again(
        self,
        refusal: MCPError,
        params: Mapping[str, Any],
        options: Callable[[], RequestOptions],
        relist: Callable[[], Awaitable[None]] | None,
    ) -> dict[str, Any]:
        """Once more, where it was refused because we know an outdated schema."""
        if refusal.code != HEADER_MISMATCH or self.era == "legacy" or relist is None:
            raise refusal
        try:
            await relist()
        except MCPError as error:
            # What the call was refused for is what its caller is told.
            raise refusal from error
        return await self._request("tools/call", params, options())

    async def _play_input_rounds(
        self,
        params: Mapping[str, Any],
        send: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
        raw: dict[str, Any],
        while_asked: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> dict[str, Any]:
        waits = 0
        for _ in range(_MAX_INPUT_ROUNDS):
            try:
                asked = _InputRequired.validate_python(raw, by_name=False)
            except ValidationError:
                raise BrokenAnswer("it asks for input in a form that cannot be read") from None
            again = dict(params)
            if asked.input_requests:
                waits = 0
                with while_asked():
                    again["inputResponses"] = await self._answers(asked.input_requests)
            else:
                # It has a state alone, as the type sees to: it is not ready yet.
                await trio.sleep(_STATE_ONLY_WAIT_SECONDS[min(waits, 3)])
                waits += 1
            if asked.request_state is not None:
                again["requestState"] = asked.request_state
            raw = await send(again)
            if raw.get("resultType") != "input_required":
                return raw
        raise BrokenAnswer(f"it has asked for input more than {_MAX_INPUT_ROUNDS} times")

    async def _answers(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        refused: list[str] = []

        async def ask(key: str, request: Any) -> None:
            context = ClientRequestContext(session=self._client, request_id=key)
            answer = await self._client.dispatch_input_request(context, request)
            if isinstance(answer, types.ErrorData):
                refused.append(f"{request.method} ({answer.message})")
                nursery.cancel_scope.cancel()
            else:
                answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)

        async with trio.open_nursery() as nursery:
            for key, request in requests.items():
                nursery.start_soon(ask, key, request)
        if refused:
            raise BrokenAnswer(f"it asks for what it was not offered: {refused[0]}")
        return answers

    def _request(
        self, method: str, params: Mapping[str, Any], options: RequestOptions | None = None
    ) -> Awaitable[dict[str, Any]]:
        if self._meta:
            params = {**params, "_meta": {**(params.get("_meta") or {}), **self._meta}}
        return self.dispatcher.send_raw_request(method, params, options)

    async def probe(self) -> None:
        """Ask what costs a server next to nothing, to see that it answers: ``ping``, or what stands in its place.

        Raises:
            MCPError: It answered with an error, which is an answer too; or the connection ended.
        """
        method = "ping" if self.era == "legacy" else "server/discover"
        await self._request(method, {}, {"cancel_on_abandon": False})

    @property
    def wants_listener(self) -> bool:
        """Whether the server tells changes of its lists, and only to those who listen."""
        return self.era != "legacy" and self.tells_changes

    @property
    def tells_changes(self) -> bool:
        """Whether the server says that it tells changes of any of its lists."""
        return any(self._tells(kind) for kind in _KINDS)

    async def listen(
        self,
        changed: Callable[[ListKind], Awaitable[None]] = _nobody,
        listening: Callable[[], Awaitable[None]] = _nobody,
        *,
        uris: Sequence[str] = (),
    ) -> None:
        """Listen for changes, where the server's era wants to be asked for them, until the stream ends.

        The hooks of the session are told what comes as well, whatever the era.

        Args:
            changed: Told each change of a list.
            listening: Told when the server has agreed to tell some of it. What has changed before that is not told.
            uris: Listen for changes of these resources, in place of changes of the lists.

        Raises:
            MCPError: The server refused, or the connection ended.
            SubscriptionLost: The stream ended before its time.
        """
        if self.era == "legacy":
            return
        tools, resources, prompts = (not uris and self._tells(kind) for kind in _KINDS)
        if not (tools or resources or prompts or uris):
            return
        kinds: dict[str, ListKind] = {f"{kind.title()}ListChanged": kind for kind in _KINDS}
        async with listen(
            self._client,
            tools_list_changed=tools,
            resources_list_changed=resources,
            prompts_list_changed=prompts,
            resource_subscriptions=uris,
        ) as events:
            if not any(events.honored.model_dump().values()):
                return
            await listening()
            async for event in events:
                kind = kinds.get(type(event).__name__)
                if kind is not None:
                    await changed(kind)

    def _tells(self, kind: Offered) -> bool:
        capability = getattr(self._client.server_capabilities, kind, None)
        return bool(getattr(capability, "list_changed", False))


@asynccontextmanager
async def open_session(
    dispatcher: Dispatcher[Any],
    *,
    server: str,
    era: Literal["auto", "legacy", "2026-07-28"] = "auto",
    known_era: Era | None = None,
    hooks: SessionHooks | None = None,
) -> AsyncIterator[Session]:
    """A negotiated session over a dispatcher that does not run yet; it runs in here.

    The caller bounds it: nothing in here has a limit of its own but the probe.

    Args:
        dispatcher: The connection.
        server: The server's name, for errors.
        era: What the configuration says; ``auto`` finds out.
        known_era: What was found out before; no probe then.
        hooks: Who is told what the server says.

    Raises:
        ServerFailed: In phase ``initialize``: the server refused, or speaks no revision of ours.
        ClosedWhileProbing: Try again with ``legacy``.
        ConnectionClosed: The connection ended.
    """
    hooks = hooks or SessionHooks()

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        text = params.data if isinstance(params.data, str) else _json_text(params.data)
        await hooks.on_log(params.level, params.logger, text)

    async def on_message(message: IncomingMessage) -> None:
        match message:
            case types.ToolListChangedNotification():
                await hooks.on_list_changed("tools")
            case types.ResourceListChangedNotification():
                await hooks.on_list_changed("resources")
            case types.PromptListChangedNotification():
                await hooks.on_list_changed("prompts")
            case types.ResourceUpdatedNotification(params=params):
                await hooks.on_resource_updated(params.uri)
            case _:
                pass

    client = ClientSession(
        dispatcher=_Sieve(dispatcher),
        client_info=CLIENT_INFO,
        logging_callback=on_log,
        message_handler=on_message,
        log_level=cast("Any", _LOG_LEVEL),
    )
    async with client:
        warnings = await negotiate(client, dispatcher, server, era, known_era)
        yield Session(client, dispatcher, _modern_meta(client), tuple(warnings))


@define(eq=False)
class _Sieve(Dispatcher[Any]):
    """The dispatcher as the SDK is shown it: what we do not offer is refused before the SDK sees it."""

    _dispatcher: Dispatcher[Any]

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        return await self._dispatcher.send_raw_request(method, params, opts)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        await self._dispatcher.notify(method, params, opts)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async def offered(
            context: DispatchContext[Any], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            if method in _NOT_OFFERED:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
            return await on_request(context, method, params)

        await self._dispatcher.run(offered, on_notify, on_notify_intercept, task_status=task_status)


def _said(name: ListName) -> str:
    return name.replace("_", " ")


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _modern_meta(client: ClientSession) -> dict[str, Any]:
    """What every request of the modern era carries; nothing in the legacy era."""
    version = client.protocol_version
    if version not in MODERN_PROTOCOL_VERSIONS:
        return {}
    return {
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True),
        CLIENT_CAPABILITIES_META_KEY: {},
        LOG_LEVEL_META_KEY: _LOG_LEVEL,
    }
