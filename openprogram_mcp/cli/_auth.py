"""``auth``: sign in to a server, see what is kept of that, and forget it.

The address is told here and the browser opened from here, by whoever is asked for it: the worker may run where nobody
sits. Who ends the command gives the sign-in up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import trio

from ..auth._browser import forwarding_hint, open_browser
from ..errors import InvalidArguments, OpenProgramMCPError, UsageError
from ._output import Output, one_line
from ._parser import Options
from ._servers import summary
from ._source import from_worker

if TYPE_CHECKING:
    from ..manager import MCPManager
    from ..web.client import WorkerClient
    from ._progress import Progress

__all__ = ["run_auth"]


def run_auth(options: Options, output: Output) -> int:
    """Sign in, or say what is known of a sign-in."""
    if options.pending:
        return _pending(output)
    if options.cancel is not None:
        return _cancel(options.cancel, output)
    if options.name is None:
        raise UsageError("The name of a server is missing", remedy="See openprogram-mcp auth --help")
    if options.status:
        return _status(options.name, output)
    if options.forget:
        return _forget(options.name, output)
    row = from_worker(lambda worker: _with_worker(worker, options, output), lambda: _alone(options, output))
    if output.json:
        output.value(row)
    else:
        output.row(row["name"], row["status"], row["tool_count"], summary(row))
    return 0 if row["ready"] else 1


# Signing in.


def _with_worker(worker: WorkerClient, options: Options, output: Output) -> Any:
    name = options.name
    begun = worker.post("servers", name, "auth", patient=True)
    try:
        _tell(begun, output)
        if options.paste:
            return worker.post("servers", name, "auth", "callback", body=_answer(_pasted(output)), patient=True)
        if not options.no_browser and not trio.run(open_browser, begun["authorization_url"]):
            _tell_no_browser(begun, output)
        return worker.post("servers", name, "auth", "authenticate", patient=True, wait="true")
    except KeyboardInterrupt:
        _give_up(worker, begun["state"])
        raise
    except UsageError:
        _give_up(worker, begun["state"])
        raise


def _give_up(worker: WorkerClient, state: str) -> None:
    try:
        worker.delete("auth", "pending", state)
    except OpenProgramMCPError:
        return  # it is over, or the worker is


def _alone(options: Options, output: Output) -> Any:
    from ._oneshot import entry, run_with_manager, saved_document

    name = entry(saved_document(output), options.name).name

    async def work(manager: MCPManager, progress: Progress) -> Any:
        await manager.wait_settled(name)
        progress.stop()
        begun = (await manager.start_auth(name)).to_dict()
        _tell(begun, output)
        if options.paste:
            line = await trio.to_thread.run_sync(_pasted, output, abandon_on_cancel=True)
            answer = _answer(line)
            row = await manager.finish_auth(name, answer.get("code"), redirect_url=answer.get("redirect_url"))
            return row.to_dict()
        if not options.no_browser and not await open_browser(begun["authorization_url"]):
            _tell_no_browser(begun, output)
        return (await manager.wait_auth(name)).to_dict()

    return run_with_manager(work, output=output, only={name})


def _tell(begun: dict[str, Any], output: Output) -> None:
    said: Callable[[str], None] = output.error_text if output.json else output.text
    said(f"Sign in to {one_line(begun['server'])} at:")
    said(begun["authorization_url"])
    output.flush()
    hint = forwarding_hint(urlsplit(begun["redirect_uri"]).port)
    if hint is not None:
        output.error_text(hint)


def _tell_no_browser(begun: dict[str, Any], output: Output) -> None:
    output.error_text(f"No browser could be opened; go to the address yourself, until {begun['expires_at']}.")


def _pasted(output: Output) -> str:
    output.error_text("Then paste the address that the browser ends on, or the code in it:")
    return sys.stdin.readline()


def _answer(line: str) -> dict[str, str]:
    """What was pasted, as the management API takes it."""
    text = line.strip()
    if not text:
        raise UsageError("Nothing was pasted", remedy="Start the sign-in again")
    if "://" in text or "code=" in text:
        return {"redirect_url": text if "?" in text else f"?{text}"}
    return {"code": text}


# What is kept.


def _status(name: str, output: Output) -> int:
    def ask(worker: WorkerClient) -> Any:
        row = worker.get("servers", name)
        return {"server": name, **row["auth"], "authorization_url": row["authorization_url"]}

    found = from_worker(ask, lambda: _own_status(name, output))
    if output.json:
        output.value(found)
    else:
        output.row(name, found["kind"], found["state"])
        if found["authorization_url"]:
            output.row("sign in at", found["authorization_url"])
    return 0


def _own_status(name: str, output: Output) -> Any:
    from .. import paths
    from ..auth.tokens import TokenStore
    from ..auth.ways import auth_status
    from ._oneshot import entry, saved_document

    config = entry(saved_document(output), name).expand()
    kept = TokenStore.of(paths.tokens_dir(), name, config.account).read()
    return {"server": name, **auth_status(config, kept).to_dict(), "authorization_url": None}


def _forget(name: str, output: Output) -> int:
    from_worker(lambda worker: worker.delete("servers", name, "auth"), lambda: _own_forget(name, output))
    if not output.json:
        output.text(f"Nothing is kept any more of a sign-in to {one_line(name)}.")
    return 0


def _own_forget(name: str, output: Output) -> None:
    from .. import paths
    from ..auth.tokens import TokenStore
    from ._oneshot import entry, saved_document

    config = entry(saved_document(output), name)
    store = TokenStore.of(paths.tokens_dir(), name, config.account)

    async def forget() -> None:
        async with store.transaction():
            await trio.to_thread.run_sync(store.remove)

    if store.path.exists():
        trio.run(forget)


def _pending(output: Output) -> int:
    found: list[dict[str, Any]] = from_worker(lambda worker: worker.get("auth", "pending"), list)
    if output.json:
        output.value(found)
    else:
        for one in found:
            output.row(one["server"], one["state"], f"until {one['expires_at']}", one["authorization_url"])
    return 0


def _cancel(state: str, output: Output) -> int:
    del output

    def nobody() -> None:
        raise InvalidArguments("No worker runs, so that no sign-in waits", path="state")

    from_worker(lambda worker: worker.delete("auth", "pending", state), nobody)
    return 0
