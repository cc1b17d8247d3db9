"""Opening a manager: the root nursery, and what comes out of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import trio

from ..config import ConfigDocument, MCPServerConfig, load_document
from ..paths import get_state_dir
from ..registry import ToolRegistry
from ..transports._ownership import Instance, sweep
from ._manager import MCPManager
from ._signals import ended_by_signals

__all__ = ["open_manager"]

logger = logging.getLogger(__name__)

# All servers end side by side; each bounds itself, and this bounds them all.
_SHUTDOWN_SECONDS: Final = 60.0


@asynccontextmanager
async def open_manager(
    configs: Iterable[MCPServerConfig] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    only: Collection[str] | None = None,
    guests: Collection[MCPServerConfig] = (),
    state_dir: str | Path | None = None,
    registry: ToolRegistry | None = None,
    environ: Mapping[str, str] | None = None,
    read_only: bool = False,
    raise_internal: bool = False,
) -> AsyncIterator[MCPManager]:
    """Open the root nursery and start the servers; at the end, stop them all and leave nothing behind.

    Does not wait for the servers: ``await manager.started.wait()`` does, and a call of a tool waits for its own server.
    What the body raises comes out as it was raised. A SIGTERM or SIGHUP that nobody handles ends the body and the
    servers before it ends the process.

    Args:
        configs: The servers, as objects or as they stand in the file, by name; without it, those of the saved
            configuration. What is given here is never saved.
        only: Of these servers, let only those of these names live; the others are not there.
        guests: Servers that live here too, beside those of the saved configuration, and are not saved unless somebody
            edits them.
        state_dir: The state directory, instead of the usual one.
        registry: Where the tools are offered; a new one without it.
        environ: The variables for ``${VAR}`` and for the servers' processes, instead of our own.
        read_only: Refuse every change.
        raise_internal: Let a fault of this package out instead of making it a server's status; for tests.

    Yields:
        The manager.

    Raises:
        ConfigError: An entry of ``configs`` is not valid. One of the file is told in its status instead.
    """
    ending = trio.CancelScope()
    async with ended_by_signals(ending.cancel):
        opened = _opened(
            configs,
            ending,
            only=only,
            guests=guests,
            state_dir=state_dir,
            registry=registry,
            environ=environ,
            read_only=read_only,
            raise_internal=raise_internal,
        )
        async with opened as manager:
            yield manager


@asynccontextmanager
async def _opened(
    configs: Iterable[MCPServerConfig] | Mapping[str, Mapping[str, Any]] | None,
    ending: trio.CancelScope,
    *,
    only: Collection[str] | None,
    guests: Collection[MCPServerConfig],
    state_dir: str | Path | None,
    registry: ToolRegistry | None,
    environ: Mapping[str, str] | None,
    read_only: bool,
    raise_internal: bool,
) -> AsyncIterator[MCPManager]:
    """See :func:`open_manager`; ``ending`` is cancelled to end the body alone."""
    path = (Path(state_dir) if state_dir is not None else get_state_dir()) / "mcp_servers.json"
    document = await trio.to_thread.run_sync(load_document, path) if configs is None else _in_memory(configs, path)
    instances = path.with_name("instances")
    # Where there is nothing to start, nothing is written either.
    known = bool(document.servers or guests) or await trio.Path(path.parent).exists()
    owner = await trio.to_thread.run_sync(Instance.claim, instances if known else None)
    manager = MCPManager(
        document,
        saved=configs is None,
        owner=owner,
        only=only,
        guests=guests,
        registry=registry,
        environ=environ,
        read_only=read_only,
        raise_internal=raise_internal,
    )
    raised: BaseException | None = None
    try:
        await manager.look_at_sign_ins()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run)
            nursery.start_soon(_clean_up, instances)
            try:
                with ending:
                    yield manager
            except BaseException as error:
                if nursery.cancel_scope.cancel_called:
                    # A fault of ours has ended the servers, and the body with them: the nursery tells both.
                    raise
                # Raised again below, outside of the nursery, which would wrap it into a group.
                raised = error
            finally:
                manager.close()
                # The end is bounded. It is not shielded: a scope that is shielded while tasks in it are being cancelled
                # trips Trio itself, and a server that is cancelled reaps its process behind a shield of its own.
                nursery.cancel_scope.deadline = trio.current_time() + _SHUTDOWN_SECONDS
    except BaseException as fault:
        if raised is None:
            raise
        # That the servers were cancelled besides, from where the body was or from outside of it, adds nothing.
        if any(not isinstance(error, trio.Cancelled) for error in _leaves(fault)):
            raise BaseExceptionGroup("the body and the servers failed", [raised, fault]) from None
    finally:
        owner.close()
    if raised is not None:
        try:
            raise raised
        finally:
            # Its traceback holds this frame.
            del raised


async def _clean_up(instances: Path) -> None:
    """End what hosts have left behind that were killed hard."""
    try:
        swept = await sweep(instances)
    except OSError as error:
        logger.warning("what killed hosts may have left behind could not be looked for: %s", error)
        return
    for instance in swept:
        logger.warning("ended what instance %s had left behind when it was killed", instance[:8])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _in_memory(configs: Iterable[MCPServerConfig] | Mapping[str, Mapping[str, Any]], path: Path) -> ConfigDocument:
    document = ConfigDocument(path=path)
    if isinstance(configs, Mapping):
        named = cast("Mapping[str, Mapping[str, Any]]", configs)
        configs = [MCPServerConfig.from_dict(name, dict(data)) for name, data in named.items()]
    for config in configs:
        document = document.with_server(config)
    return document
