"""``add``: a server is started, and saved once it is up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import OpenProgramMCPError, UsageError
from ._output import Output
from ._parser import Options
from ._servers import is_up, print_verdict
from ._source import from_worker

if TYPE_CHECKING:
    from ..manager import MCPManager
    from ._progress import Progress

__all__ = ["config_of", "run_add"]


def run_add(options: Options, output: Output) -> int:
    """Add a server."""
    config, name, force = config_of(options), options.name, options.force
    notes: list[str] = []
    try:
        row = from_worker(
            lambda worker: worker.post("servers", body={"name": name, "config": config}, patient=True, force=force),
            lambda: _add_to_file(name, config, notes, output, force=force),
        )
    except OpenProgramMCPError as error:
        raise _with_force(error) from None
    print_verdict(row, output, *notes)
    return 0 if is_up(row) or not row["enabled"] or force else 1


def config_of(options: Options) -> dict[str, Any]:
    """The entry that was typed.

    Raises:
        UsageError: It is neither a command nor a URL, or both, or its options do not fit it.
    """
    url, words = options.url, options.words
    how = f"Write: openprogram-mcp add {options.name} -- COMMAND ARGUMENT…  or: openprogram-mcp add {options.name} URL"
    if url is not None and words:
        raise UsageError("Both a URL and a command are given", remedy=how)
    if url is None and not words:
        raise UsageError("Neither a command nor a URL is given", remedy=how)
    if url is not None and "://" not in url:
        raise UsageError(f"{url!r} is not a URL; before a command there has to be --", remedy=how)
    if url is not None and options.env:
        raise UsageError("--env is for a program; a remote server is sent headers", remedy="Use --header KEY:VALUE")
    if url is None and options.header:
        raise UsageError("--header is for a remote server; a program has variables", remedy="Use --env KEY=VALUE")
    config: dict[str, Any] = {"command": words} if url is None else {"url": url}
    for key, pairs in (("env", options.env), ("headers", options.header)):
        if len(dict(pairs)) < len(pairs):
            raise UsageError("A variable or header is given twice", remedy="Give each once")
        if pairs:
            config[key] = dict(pairs)
    if options.timeout is not None:
        config["timeout_seconds"] = options.timeout
    if options.disabled:
        config["enabled"] = False
    return config


def _add_to_file(name: str, config: dict[str, Any], notes: list[str], output: Output, *, force: bool) -> dict[str, Any]:
    from ..config import MCPServerConfig
    from ..storage import make_private_folder
    from ._oneshot import run_with_manager, saved_document

    server = MCPServerConfig.from_dict(name, config)
    document = saved_document(output)
    # A server that is started leaves a sign of whose it is, in case we are killed.
    make_private_folder(document.path.parent)

    async def work(manager: MCPManager, _progress: Progress) -> dict[str, Any]:
        return (await manager.add(server, force=force)).to_dict()

    row = run_with_manager(work, output=output, only=frozenset())
    notes.append(f"Saved in {document.path}. No worker is running; one is started with: openprogram-mcp worker")
    return row


def _with_force(error: OpenProgramMCPError) -> OpenProgramMCPError:
    """What came of it, with what can be done where it did not come up."""
    from ..web.client import ProblemAnswer

    problem = error.to_problem()
    if problem.get("code") != "server_failed":
        return error
    remedy = " ".join(filter(None, (problem.get("remedy"), "Nothing was saved; --force saves it all the same.")))
    return ProblemAnswer({**problem, "remedy": remedy})
