"""A management API over a real manager, in a thread of its own, for clients that block.

Nothing that a request makes up is really started: a process is one in memory where its program is ours, and none
otherwise; a remote server is never reached, and whoever tries finds a proxy that is not there.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from openprogram_mcp.client import _local
from openprogram_mcp.client._remote import RemoteWay
from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.testing import FakeServer
from openprogram_mcp.web.server import serve

from ._in_memory import MemoryWorld
from ._living import managed

__all__ = ["SERVERS", "TOKEN", "ApiThread", "api_thread"]

TOKEN = "the-owners-token"

SERVERS: dict[str, Any] = {
    "good": {"command": [sys.executable, "good"], "env": {"KEY": "SECRET-of-good"}},
    "off": {"command": "x", "enabled": False},
    "remote": {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "SECRET-of-remote"}},
    "broken": {"command": 7},
}
"""What is configured at first."""


def _good() -> FakeServer:
    return (
        FakeServer()
        .tool("echo", input_schema={"type": "object", "properties": {"text": {"type": "string"}}})
        .resource("file:///a", text="text")
        .prompt("greet", "Hello!")
    )


@define(eq=False)
class ApiThread:
    """The thread, and where it can be reached."""

    url: str = ""
    _ready: threading.Event = field(factory=threading.Event, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _token: trio.lowlevel.TrioToken | None = field(default=None, init=False)
    _stop: trio.Event = field(factory=trio.Event, init=False)

    def start(self) -> None:
        """Start it, and wait until it answers and its servers have had their verdicts."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait(30)
        if not self.url:
            self.stop()
            raise AssertionError("it did not start")

    def stop(self) -> None:
        """End it. What went wrong in it comes out here."""
        assert self._thread is not None
        if self._token is not None and self._thread.is_alive():
            self._token.run_sync_soon(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as failure:  # noqa: BLE001 - raised again where it is stopped
            self._failure = failure
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with pytest.MonkeyPatch.context() as patches:
            async with trio.open_nursery() as nursery:
                world = MemoryWorld(nursery, _good)

                async def start_process(owner: trio.Nursery, server: str, launch: Any, **options: Any) -> Any:
                    if launch.argv[0] != sys.executable:
                        raise ServerFailed("It is not started in a test", phase="spawn", server=server)
                    return await world._start(owner, server, launch, **options)

                async def unreachable(way: RemoteWay) -> None:
                    way._attempt.enter("connect")
                    await trio.lowlevel.checkpoint()
                    raise ServerFailed("It is not reached in a test", phase="connect", transient=True)

                patches.setattr(_local, "start_process", start_process)
                patches.setattr(RemoteWay, "hold", unreachable)
                for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                    patches.setenv(name, "http://127.0.0.1:9")
                async with managed() as manager, trio.open_nursery() as serving:
                    await manager.started.wait()
                    options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "token": TOKEN, "shutdown": self._stop}
                    address = await serving.start(lambda **given: serve(manager, **options, **given))
                    self.url = address.url
                    self._ready.set()
                nursery.cancel_scope.cancel()


@contextmanager
def api_thread(file: Path) -> Iterator[ApiThread]:
    """One for the time of the block, whose configuration is in this file."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_text(json.dumps({"servers": SERVERS}))
    thread = ApiThread()
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()
