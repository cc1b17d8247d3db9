"""A cancel, or Ctrl-C, may fall anywhere while a remote server is served: nothing is left, and the next call works.

The server runs in a process of its own, so that the steps that are counted are ours alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import trio

from openprogram_mcp import MCPManager, open_manager
from openprogram_mcp.client._connection import protocol
from openprogram_mcp.status import ServerState

from ._strike import (
    descriptors,
    run_cancelled_at,
    run_interrupted_at,
    strike_a_running_manager,
    strike_every_step,
)

Report = Callable[[str, object], None]

_SERVER = """
import sys, trio
from openprogram_mcp.testing import FakeHttpServer, do
async def main():
    fake = FakeHttpServer(era=sys.argv[1], transport=sys.argv[2])
    fake.tool("echo", do.echo(), read_only=True)
    fake.tool("count", do.progress(1), do.progress(2), do.reply("done"))
    async with fake.serving():
        print(fake.url, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture(autouse=True)
def _sdk() -> None:
    """The SDK is imported before steps are counted: the import is one step of a thread, and long."""
    protocol()


@pytest.fixture(params=["modern http", "legacy http", "legacy sse"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, *request.param.split()], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


async def _whole_life(url: str) -> None:
    entry = {"url": url, "type": "sse" if url.endswith("/sse") else "http"}
    async with open_manager({"f": entry}, raise_internal=True) as manager:
        await manager.started.wait()

        async def on_progress(*_progress: object) -> None:
            return

        await manager.call_tool("f__count", {}, on_progress=on_progress)
        await manager.restart("f")
        assert (await manager.call_tool("f__echo", {"a": 1})).is_error is False


_strides = pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.long)])


@_strides
@pytest.mark.parametrize("strike", [run_cancelled_at, run_interrupted_at])
def test_a_whole_life_can_be_ended_at_any_step_and_nothing_is_left(
    url: str, strike: Callable[..., bool], stride: int, record_property: Report
) -> None:
    assert not strike(10**9, lambda: _whole_life(url))
    before = descriptors()

    def run(at: int) -> bool:
        struck = strike(at, lambda: _whole_life(url))
        assert descriptors() == before, f"a descriptor is left after step {at}"
        return struck

    record_property("steps", strike_every_step(run, at_least=60, stride=stride))


def test_a_call_can_be_cancelled_at_any_step_and_the_next_one_works(url: str, record_property: Report) -> None:
    async def piece(manager: MCPManager) -> None:
        await manager.call_tool("f__count", {})

    async def after(manager: MCPManager) -> None:
        with trio.fail_after(10):
            assert manager.server("f").status is ServerState.CONNECTED
            assert not (await manager.call_tool("f__echo", {"text": "after"})).is_error
        row = manager.server("f")
        assert (row.in_flight, row.queued) == (0, 0)

    entry = {"url": url, "type": "sse" if url.endswith("/sse") else "http"}
    record_property("steps", strike_a_running_manager(entry, piece, after, at_least=4))
