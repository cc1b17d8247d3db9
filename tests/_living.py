"""One server's client without a manager, and managers whose faults come out: for tests of both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from openprogram_mcp import MCPManager, MCPServerConfig, ServerState, ServerStatus, open_manager
from openprogram_mcp.adapter import AgentToolResult, RemoteTool
from openprogram_mcp.client import Call, MCPClient, StartGate
from openprogram_mcp.events import Event, EventBus, StatusChanged

__all__ = ["Living", "events_of", "living", "managed", "started", "until"]

managed: Callable[..., AbstractAsyncContextManager[MCPManager]] = partial(open_manager, raise_internal=True)
"""A manager that lets a fault of ours out."""


def events_of(bus: EventBus, *kinds: type[Event]) -> list[Any]:
    """All events so far, of these kinds only where there are any."""
    return [record.event for record in bus.since(0)[0] if not kinds or isinstance(record.event, kinds)]


async def started(manager: MCPManager) -> None:
    """Wait until every server has had its first verdict."""
    with trio.fail_after(20):
        await manager.started.wait()


async def until(
    manager: MCPManager, name: str, *states: ServerState, where: Callable[[ServerStatus], bool] = lambda _row: True
) -> ServerStatus:
    """Wait until a server is in one of these states."""
    with trio.fail_after(10), manager.events.subscribe() as events:
        row = manager.server(name)
        while row.status not in states or not where(row):
            event = (await anext(events)).event
            if isinstance(event, StatusChanged) and event.server == name:
                row = event.status
        return row


@define(eq=False)
class Living:
    """A client that lives, and what was heard of it."""

    client: MCPClient
    gate: StartGate
    bus: EventBus
    states: list[ServerState] = field(factory=list)
    go_on: Callable[[], None] = lambda: None
    _moved: trio.Event = field(factory=trio.Event)

    def note(self, client: MCPClient) -> None:
        if not self.states or self.states[-1] is not client.state:
            self.states.append(client.state)
        moved, self._moved = self._moved, trio.Event()
        moved.set()

    async def until(self, state: ServerState) -> None:
        with trio.fail_after(10):
            while self.client.state is not state:
                await self._moved.wait()

    async def settled(self) -> ServerStatus:
        with trio.fail_after(10):
            return await self.client.settled()

    async def call(self, tool: str, timeout: float | None = None, **arguments: Any) -> AgentToolResult:
        return await self.call_remote(self.client.tools[tool], timeout, **arguments)

    async def call_remote(self, tool: RemoteTool, timeout: float | None = None, **arguments: Any) -> AgentToolResult:
        with trio.fail_after(10):
            return await self.client.call_tool(Call(tool, arguments, "call", tool.name, timeout))


@asynccontextmanager
async def living(
    config: MCPServerConfig,
    *,
    gate: StartGate | None = None,
    run: bool = True,
    leave: bool = True,
    prepared: bool = True,
) -> AsyncIterator[Living]:
    """A client in a nursery of its own, which ends when it is cancelled.

    Args:
        config: Its configuration.
        gate: Where it waits for its turn.
        run: Whether it runs.
        leave: Whether it is asked to leave at the end, and has to.
        prepared: Whether it is given a configuration when its turn has come.
    """
    gate = gate or StartGate(8)
    bus = EventBus()

    async def prepare(client: MCPClient) -> MCPServerConfig | None:
        await trio.lowlevel.checkpoint()
        if client.leaving or not client.config.enabled or not prepared:
            return None
        return client.config.expand(os.environ, base=Path.cwd())

    def changed(client: MCPClient) -> None:
        life.note(client)

    client = MCPClient(
        config,
        bus=bus,
        gate=gate,
        environ=os.environ,
        prepare=prepare,
        permit=lambda _tool: None,
        on_change=changed,
        raise_internal=True,
    )
    life = Living(client, gate, bus)
    async with trio.open_nursery() as nursery:
        if run:
            nursery.start_soon(client.run)
        yield life
        if leave and run:
            client.leave()
            with trio.fail_after(15):
                await client.ended.wait()
        nursery.cancel_scope.cancel()
