"""A connection that is up: what it offers, how it may end, and who is told what happens on it.

How one comes up and is held is in ``_attempt``, ``_local`` and ``_remote``. The SDK is met behind :func:`protocol`
alone.

MCP specification: server/tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol

import trio
from attrs import define, field, frozen

from ..adapter import RemoteTool, parse_tools
from ..config import MCPServerConfig
from ..errors import AuthRequired, ServerFailed
from ..status import ExitWay, Phase
from ..transports._process import ServerProcess

__all__ = [
    "LAST_WORDS_SECONDS",
    "Connection",
    "Ending",
    "Watcher",
    "Withdrawn",
    "is_closed",
    "is_refusal",
    "leaves",
    "protocol",
]

# How long a process that has exited may keep its output open through a child before what it says counts no more.
LAST_WORDS_SECONDS: Final = 0.5
_MAX_WARNINGS: Final = 50


class Watcher(Protocol):
    """Who is told what happens on a connection while it happens."""

    def phase(self, phase: Phase) -> None:
        """The connection has come so far."""

    def process(self, process: ServerProcess) -> None:
        """A process was started."""

    def up(self, connection: Connection) -> None:
        """The connection is up."""

    def lost(self, ending: Ending) -> None:
        """The connection, which was up, is lost. Its process is ended next."""

    def mask(self, text: str) -> str:
        """A text without the server's secrets."""
        ...

    def log(self, level: str, logger: str | None, text: str) -> None:
        """The server has said something; the text is masked."""

    async def list_changed(self, kind: str) -> None:
        """One of the server's lists has changed."""

    async def resource_updated(self, uri: str) -> None:
        """A resource has changed."""

    async def unheard(self) -> None:
        """Something may have changed that was not heard."""

    async def signer(self, config: MCPServerConfig) -> Any:
        """What signs the requests to the server; ``None`` where the configuration says it all."""
        ...

    async def locked_out(self, config: MCPServerConfig, failure: AuthRequired, *, look: bool) -> AuthRequired:
        """The server does not let us in: what is known of signing in to it."""
        ...


class Withdrawn(Exception):
    """When its turn to start had come, the server was not wanted any more."""


@frozen
class Ending:
    """How a connection that was up has ended.

    Args:
        error: Why, in one sentence; ``None`` when we ended it.
        exit_code: The exit code of the process, where it exited; negative for a signal.
        exit_way: How the process ended.
        failure: What is known beyond that, of a remote server.
        at_once: Nothing is wrong but that it forgot the session: there is nothing to wait for.
    """

    error: str | None = None
    exit_code: int | None = None
    exit_way: ExitWay | None = None
    failure: ServerFailed | None = None
    at_once: bool = False


@frozen
class Known:
    """How a server spoke last time: the era, and the transport that it was reached over."""

    era: Any
    transport: str = ""


@define(eq=False)
class Connection:
    """A connection that is up.

    Args:
        generation: Its number.
        session: The protocol session.
        process: The server's process; none of a remote one.
        tools: What the server offers, by its own names, filtered by the configuration.
        warnings: What was wrong with it, without stopping it.
        tools_fresh_until: Until when the list of tools may be used without being read anew, by Trio's clock.
    """

    generation: int
    session: Any
    process: ServerProcess | None
    _config: MCPServerConfig
    tools: Mapping[str, RemoteTool] = field(factory=dict, init=False)
    warnings: tuple[str, ...] = field(default=(), init=False)
    tools_fresh_until: float = field(default=math.inf, init=False)
    _retired: trio.Event = field(factory=trio.Event, init=False)

    def retire(self) -> None:
        """End it: ``hold_connection`` tears it down and returns."""
        self._retired.set()

    @property
    def dispatcher(self) -> object:
        """The dispatcher, by whose identity a handler of the server's requests knows it."""
        return self.session.dispatcher

    @property
    def known(self) -> Known:
        """What the next connection need not find out again."""
        return Known(self.session.era, getattr(self.session.dispatcher, "kind", ""))

    @property
    def heard_at(self) -> float:
        """When the server said anything last, by Trio's clock."""
        at: float = self.session.dispatcher.heard_at
        return at

    async def read_tools(self) -> None:
        """Read the whole list of tools anew; what was offered before stays until the new list is complete."""
        if not self.session.offers("tools"):
            return
        asked_at = trio.current_time()
        page = await self.session.list_all("tools")
        parsed, warnings = parse_tools(page.items)
        tools = {tool.name: tool for tool in parsed if _offered(self._config, tool.name)}
        if tools != self.tools:
            # The same object tells its owner that nothing has changed.
            self.tools = tools
        self.tools_fresh_until = asked_at + page.fresh_seconds
        of_transport = getattr(self.session.dispatcher, "warnings", ())
        self.warnings = (*self.session.warnings, *of_transport, *page.warnings, *warnings)[:_MAX_WARNINGS]

    async def until_lost(self, closed: trio.Event) -> bool:
        """Wait until the connection is lost or retired; says whether it was lost."""
        async with trio.open_nursery() as nursery:

            async def until(event: trio.Event, patience: float = 0) -> None:
                await event.wait()
                with trio.move_on_after(patience):
                    await closed.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, closed)
            nursery.start_soon(until, self._retired)
            if self.process is not None:
                nursery.start_soon(until, self.process.exited, LAST_WORDS_SECONDS)
        return not self._retired.is_set()


def _offered(config: MCPServerConfig, tool: str) -> bool:
    """Whether the configuration lets a tool through, by its own name; what is denied is out, whatever allows it."""
    return any(fnmatchcase(tool, glob) for glob in config.allow) and not any(
        fnmatchcase(tool, glob) for glob in config.deny
    )


@cache
def protocol() -> Any:
    """The module that meets the SDK; imported when it is first needed, since that takes half a second."""
    return import_module("._protocol", __package__)


def is_refusal(error: BaseException) -> bool:
    """Whether an error is the server's own, or the end of its connection, and no fault of ours."""
    return all(isinstance(leaf, protocol().REFUSALS) for leaf in leaves(error))


def is_closed(error: BaseException) -> bool:
    """Whether an error means that the connection has ended."""
    return any(isinstance(leaf, protocol().ConnectionClosed) for leaf in leaves(error))


def leaves(error: BaseException) -> list[BaseException]:
    """The errors that a group is about; of an error that is no group, itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves(inner)]
