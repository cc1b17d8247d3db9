"""Commands without a worker: a manager of their own, with the servers they need, for as long as they need it.

It owns the run: signals, progress on the terminal, and an end that leaves no child. What a command does with the
manager is the command's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

import trio

from ..config import ConfigDocument, MCPServerConfig, load_document
from ..errors import OpenProgramMCPError, UnknownServer
from ..manager import open_manager
from ._output import Output
from ._progress import Progress
from ._signals import Interrupted, obeyed_signals

if TYPE_CHECKING:
    from ..manager import MCPManager

__all__ = [
    "could_own",
    "entry",
    "run_with_manager",
    "saved_document",
    "unknown_server",
]

T = TypeVar("T")

_HASHED = re.compile(r"_(?:[0-9a-f]{8}|[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{40})__")


def saved_document(output: Output) -> ConfigDocument:
    """The saved configuration; what is odd about it is told on stderr.

    Raises:
        ConfigError: The file cannot be read.
    """
    document = load_document()
    if document.error is not None:
        raise document.error
    for warning in document.warnings:
        output.error_text(f"openprogram-mcp: {warning}")
    return document


def entry(document: ConfigDocument, name: str) -> MCPServerConfig:
    """One server of the configuration.

    Raises:
        ConfigError: Its entry is wrong.
        UnknownServer: There is none of this name.
    """
    if name in document.broken:
        raise document.broken[name]
    if name not in document.servers:
        raise unknown_server(name, [*document.servers, *document.broken])
    return document.servers[name]


def unknown_server(name: str, known: Iterable[str]) -> UnknownServer:
    """The error for a name that is not configured, with the one that was probably meant."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    if near:
        remedy = f"Did you mean {near[0]!r}?"
    elif names:
        remedy = f"Configured are: {', '.join(names)}"
    else:
        remedy = "Nothing is configured yet; `openprogram-mcp config-path` says where to"
    return UnknownServer(f"No server is called {name!r}", remedy=remedy, server=name)


def could_own(tool: str, servers: Iterable[str]) -> set[str]:
    """The servers that a tool's full name could belong to.

    All that could share the name are among them, so that starting these alone gives the same names as starting all. A
    name with a hash in it comes from a collision or was cut: then it could be anybody's.
    """
    names = set(servers)
    if _HASHED.search(tool):
        return names
    bare = tool.removeprefix("mcp__")
    prefixes = {name: re.sub(r"[^A-Za-z0-9_-]", "_", name) + "__" for name in names}
    return {name for name in names if tool.startswith(prefixes[name]) or bare.startswith(prefixes[name])}


def run_with_manager(
    work: Callable[[MCPManager, Progress], Awaitable[T]],
    *,
    output: Output,
    configs: Sequence[MCPServerConfig] | None = None,
    only: Collection[str] | None = None,
) -> T:
    """Run a manager, do ``work`` with it, and put everything away.

    The first signal cancels the work, and what it waits for; a second one also cuts short the orderly end.

    Args:
        work: Given the manager, whose servers are starting, and the progress to tell.
        output: Where progress is drawn.
        configs: The servers, instead of those that are configured.
        only: Start no others than these.

    Raises:
        Interrupted: A signal ended it.
        OpenProgramMCPError: What ``work`` or the manager raised.
    """
    return trio.run(_run, work, output, configs, only)


async def _run(
    work: Callable[[MCPManager, Progress], Awaitable[T]],
    output: Output,
    configs: Sequence[MCPServerConfig] | None,
    only: Collection[str] | None,
) -> T:
    received: list[int] = []
    results: list[T] = []
    failure: OpenProgramMCPError | None = None
    with trio.open_signal_receiver(*obeyed_signals()) as signals:
        async with trio.open_nursery() as root:
            work_scope = trio.CancelScope()
            root.start_soon(_obey, signals, received, [work_scope, root.cancel_scope])
            try:
                async with open_manager(configs, only=only) as manager:
                    with work_scope, Progress(output) as progress:
                        root.start_soon(progress.draw, manager)
                        results.append(await work(manager, progress))
            except OpenProgramMCPError as error:
                # Kept and raised below: here it would come out as a group of one.
                failure = error
            root.cancel_scope.cancel()
    if received:
        raise Interrupted(received[0])
    if failure is not None:
        raise failure
    return results[0]


async def _obey(signals: AsyncIterator[int], received: list[int], scopes: Sequence[trio.CancelScope]) -> None:
    async for number in signals:
        scopes[min(len(received), len(scopes) - 1)].cancel()
        received.append(number)
