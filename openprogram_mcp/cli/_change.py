"""``rm``, ``enable``, ``disable``, ``connect``, ``disconnect``, ``restart``: one word about one server.

With a worker they go to it. Without one, what is saved is saved in the file, under its lock; what only a running server
has is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._output import Output
from ._parser import Options
from ._servers import is_up, print_verdict
from ._source import from_worker, no_worker

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import ConfigDocument
    from ..manager import MCPManager
    from ._progress import Progress

__all__ = ["run_connect", "run_disable", "run_disconnect", "run_enable", "run_restart", "run_rm"]


def run_rm(options: Options, output: Output) -> int:
    """Remove a server."""
    name = options.name
    from_worker(lambda worker: worker.delete("servers", name, patient=True), lambda: _remove_from_file(name, output))
    if output.json:
        output.value({"name": name, "removed": True})
    else:
        output.text(f"{name}: removed")
    return 0


def run_enable(options: Options, output: Output) -> int:
    """Enable a server, and bring it up."""
    return _switch(options.name, output, enabled=True)


def run_disable(options: Options, output: Output) -> int:
    """Take a server down for good."""
    return _switch(options.name, output, enabled=False)


def run_connect(options: Options, output: Output) -> int:
    """Bring a server of the worker up."""
    return _tell_worker("connect", options.name, output)


def run_disconnect(options: Options, output: Output) -> int:
    """Take a server of the worker down, until it is connected again."""
    return _tell_worker("disconnect", options.name, output)


def run_restart(options: Options, output: Output) -> int:
    """Bring a server of the worker up anew."""
    return _tell_worker("restart", options.name, output)


def _tell_worker(verb: str, name: str, output: Output) -> int:
    def nobody() -> Any:
        raise no_worker(f"without one no server is connected that could be told to {verb}")

    row = from_worker(lambda worker: worker.post("servers", name, verb, patient=True), nobody)
    print_verdict(row, output)
    return 0 if verb == "disconnect" or is_up(row) else 1


def _switch(name: str, output: Output, *, enabled: bool) -> int:
    notes: list[str] = []
    verb = "enable" if enabled else "disable"
    row = from_worker(
        lambda worker: worker.post("servers", name, verb, patient=True),
        lambda: _switch_in_file(name, notes, output, enabled=enabled),
    )
    if enabled and not is_up(row):
        notes.append("It is enabled all the same, and is started with every worker.")
    print_verdict(row, output, *notes)
    return 0 if not enabled or is_up(row) else 1


def _switch_in_file(name: str, notes: list[str], output: Output, *, enabled: bool) -> Any:
    from attrs import evolve

    from ._oneshot import entry, run_with_manager, saved_document

    saved_document(output)

    def switched(document: ConfigDocument) -> ConfigDocument:
        return document.with_server(evolve(entry(document, name), enabled=enabled))

    path = _change_file(switched)
    notes.append(f"Saved in {path}. No worker is running; one is started with: openprogram-mcp worker")

    async def work(manager: MCPManager, _progress: Progress) -> Any:
        return (await manager.wait_settled(name)).to_dict()

    return run_with_manager(work, output=output, only={name})


def _remove_from_file(name: str, output: Output) -> None:
    from ._oneshot import run_with_manager, saved_document, unknown_server

    document = saved_document(output)
    if name not in document.servers and name not in document.broken:
        raise unknown_server(name, [*document.servers, *document.broken])

    async def work(manager: MCPManager, _progress: Progress) -> None:
        await manager.remove(name)

    # The manager, because there may be more to forget than the entry; and no server, because none is needed.
    run_with_manager(work, output=output, only=frozenset())


def _change_file(change: Callable[[ConfigDocument], ConfigDocument]) -> Path:
    """Change the configuration file. Nobody who keeps to its lock comes between the reading and the writing."""
    from .. import paths
    from ..config import load_document, save_document
    from ..storage import PrivateFile

    path = paths.config_path()
    with PrivateFile(path).locked():
        document = load_document(path)
        if document.error is not None:
            raise document.error
        save_document(change(document))
    return path
