"""``worker``: keeps servers connected and serves their tools over HTTP, until it is told to stop.

Its order is that of its death, read backwards: the log is written to the end; the lock and ``mcp_worker.json`` go when
nothing answers any more; the manager puts its servers away when no request is left; requests end first.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from secrets import token_urlsafe
from shlex import quote
from shutil import which
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from .. import __version__, paths
from ..config import ConfigDocument, MCPServerConfig, load_document
from ..errors import OpenProgramMCPError
from ..manager import open_manager
from ..web.worker_file import WorkerInfo, hold_worker_lock, publish_worker
from ._log import LibraryLog, WorkerLog
from ._output import Output
from ._parser import Options
from ._signals import obeyed_signals

if TYPE_CHECKING:
    from ..manager import MCPManager
    from ..web.server import Address

__all__ = ["run_worker"]

TOKEN_VARIABLE = "OPENPROGRAM_MCP_TOKEN"  # noqa: S105 - the name of a variable, not a token
"""Gives the owner token instead of a random one. For ``--secondary``, which writes its token nowhere."""

_PACKAGE = "openprogram_mcp"


def run_worker(options: Options, output: Output) -> int:
    """Run a worker until a signal ends it; ``--json`` is ``--log-format json``."""
    # Taken out of the environment, which a server with inherit_env "all" is given whole.
    token = os.environ.pop(TOKEN_VARIABLE, None)
    worker = _Worker(options, WorkerLog(output.json or options.log_format == "json"), token)
    trio.run(worker.main)
    if worker.failure is not None:
        raise worker.failure
    return 0


@define
class _Worker:
    _options: Options
    _log: WorkerLog
    _given_token: str | None = field(repr=False)
    failure: OpenProgramMCPError | None = field(default=None, init=False)
    _stop: trio.Event = field(factory=trio.Event, init=False)

    async def main(self) -> None:
        with trio.open_signal_receiver(*obeyed_signals()) as arriving:
            async with trio.open_nursery() as logging_nursery:
                await logging_nursery.start(self._log.write)
                with _libraries_logged(self._log):
                    async with trio.open_nursery() as root:
                        root.start_soon(self._obey, arriving, root.cancel_scope)
                        try:
                            await self._run(root)
                        except OpenProgramMCPError as error:
                            # Kept and raised outside: here it would come out as a group of one.
                            self.failure = error
                        root.cancel_scope.cancel()
                await self._log.close()
                logging_nursery.cancel_scope.cancel()

    async def _obey(self, arriving: AsyncIterator[int], root: trio.CancelScope) -> None:
        for number in self._options.early_signals[:1]:
            self._take(number)
        async for number in arriving:
            if self._stop.is_set():
                self._log.say("stopping at once")
                root.cancel()
            else:
                self._take(number)

    def _take(self, number: int) -> None:
        self._log.say(f"stopping ({signal.Signals(number).name})")
        self._stop.set()

    async def _run(self, root: trio.Nursery) -> None:
        with ExitStack() as held:
            if not self._options.secondary:
                # In a thread, because for a moment it waits to learn the process of a worker that has just begun.
                await trio.to_thread.run_sync(held.enter_context, hold_worker_lock())
            document = await trio.to_thread.run_sync(load_document)
            guests = self._guests(document)
            if self._stop.is_set():
                return
            async with open_manager(guests=guests, read_only=self._options.read_only) as manager:
                await root.start(self._log.follow, manager.events, lambda: manager.status().values())
                await self._serve(manager, document, held, demo=bool(guests))
        self._log.say("stopped")

    def _guests(self, document: ConfigDocument) -> list[MCPServerConfig]:
        """The demo server, where nothing is configured and it is wanted."""
        if document.error is not None:
            self._log.say(document.error.message, level="error")
        for warning in document.warnings:
            self._log.say(warning, level="warning")
        for name, error in document.broken.items():
            self._log.say(error.message, level="warning", server=name)
        configured = document.error is not None or document.servers or document.broken
        if configured or not self._options.demo_if_empty:
            return []
        return [MCPServerConfig.from_dict("demo", {"command": [sys.executable, "-m", "openprogram_mcp.demo"]})]

    async def _serve(self, manager: MCPManager, document: ConfigDocument, held: ExitStack, *, demo: bool) -> None:
        options = self._options
        token = self._given_token or token_urlsafe(32)
        # It takes a while, and the servers, which are starting, do not need us for it.
        server = await trio.to_thread.run_sync(import_module, "openprogram_mcp.web.server")
        serve = partial(
            server.serve,
            manager,
            host=options.host,
            port=options.port,
            token=token,
            read_only=options.read_only,
            shutdown=self._stop,
        )
        failure: OpenProgramMCPError | None = None
        async with trio.open_nursery() as nursery:
            try:
                address: Address = await nursery.start(serve)
                if not options.secondary:
                    info = WorkerInfo.of_this_process(url=address.url, token=token)
                    await trio.to_thread.run_sync(held.enter_context, publish_worker(info))
                self._greet(address, document, demo=demo)
            except OpenProgramMCPError as error:
                # Kept and raised below: here it would come out as a group of one.
                failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _greet(self, address: Address, document: ConfigDocument, *, demo: bool) -> None:
        options = self._options
        if not options.secondary:
            access = f"its token is in {paths.worker_path()}"
        elif self._given_token:
            access = f"its token is that of {TOKEN_VARIABLE}"
        else:
            access = f"to nobody but /healthz, since {TOKEN_VARIABLE} gives no token"
        self._log.say(
            f"worker {__version__}, process {os.getpid()}, serves at {address.url} ({access})", url=address.url
        )
        if not address.is_loopback:
            self._log.say("other machines may reach it, and nothing is encrypted", level="warning")
        if document.error is not None:
            # Why it cannot be read was said before; nothing is known about what is in it.
            return
        names = (
            "demo"
            if demo
            else ", ".join(name for name in document.origin.entries if name in {**document.servers, **document.broken})
        )
        if demo:
            self._log.say(f"nothing is configured in {document.path}: the demo server is used, and not saved")
        elif names:
            self._log.say(f"servers of {document.path}: {names}")
        else:
            self._log.say(f"nothing is configured in {document.path}; --demo-if-empty would use a demo server")
        if options.secondary or not names:
            return
        command = own_command(options)
        self._log.plain("", "Try in a second terminal:", f"  {command} list", f"  {command} tools")
        if demo:
            self._log.plain(f"  {command} call demo__echo text=hello", f"  {command} call demo__add a:=2 b:=40")
        self._log.plain("Ctrl-C stops the worker and its servers.", "")


def own_command(options: Options) -> str:
    """What to type in another terminal to reach this program, and this state directory."""
    parts = ["openprogram-mcp"] if which("openprogram-mcp") else [_beside_python() or f"{sys.executable} -m {_PACKAGE}"]
    if options.state_dir is not None or os.environ.get(paths.STATE_DIR_VARIABLE):
        parts.append(f"--state-dir {quote(str(paths.get_state_dir()))}")
    return " ".join(parts)


def _beside_python() -> str | None:
    script = Path(sys.executable).with_name("openprogram-mcp")
    if not script.exists():
        return None
    here = Path.cwd()
    return quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


@contextmanager
def _libraries_logged(log: WorkerLog) -> Iterator[None]:
    handler = LibraryLog(log, trio.lowlevel.current_trio_token())
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
