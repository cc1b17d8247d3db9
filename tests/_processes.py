"""Real server processes for tests: started, and never left."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from openprogram_mcp.testing import FakeServer
from openprogram_mcp.transports._launch import Launch, prepare_launch
from openprogram_mcp.transports._process import ServerProcess, start_process
from openprogram_mcp.transports.stdio import StdioDispatcher
from tests._by_hand import ignore, refuse

ENV = {"PATH": os.environ.get("PATH", os.defpath)}
PYTHON = (sys.executable, "-S", "-E")


@asynccontextmanager
async def started(
    command: Launch | FakeServer | list[str], told: list[str] | None = None, stop: float = 5.0
) -> AsyncIterator[ServerProcess]:
    """A process, stopped at exit unless the test has done that."""
    if isinstance(command, FakeServer):
        command = command.command
    launch = command if isinstance(command, Launch) else prepare_launch("s", command, ENV, None)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            process = await start_process(
                nursery, "s", launch, mask=str, on_stderr=lambda line: None if told is None else told.append(line)
            )
            try:
                yield process
            finally:
                await process.stop(stop)


@asynccontextmanager
async def talking(process: ServerProcess, fake: FakeServer | None = None) -> AsyncIterator[StdioDispatcher]:
    """A dispatcher over its pipes; with a fake that has said that it is up."""
    dispatcher = StdioDispatcher(process.link())
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run, refuse, ignore)
        if fake is not None:
            await dispatcher.send_raw_request("ping", None)
        yield dispatcher
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(fake: FakeServer, stop: float = 5.0) -> AsyncIterator[ServerProcess]:
    """A fake that is up, and has nobody who talks to it any more."""
    async with started(fake, stop=stop) as process:
        async with talking(process, fake):
            pass
        yield process
