"""``tools`` and ``call``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import OpenProgramMCPError, UnknownTool, WorkerUnreachable
from ._arguments import read_arguments
from ._output import Output, one_line
from ._parser import Options
from ._source import from_worker

if TYPE_CHECKING:
    from ..manager import MCPManager
    from ..web.client import WorkerClient
    from ._progress import Progress

__all__ = ["run_call", "run_tools"]


def run_tools(_options: Options, output: Output) -> int:
    """All tools that can be called."""
    found = from_worker(lambda worker: worker.get("tools"), lambda: _own_tools(output))
    if output.json:
        output.value(found)
    elif output.terminal:
        output.table(
            ("TOOL", "SERVER", ""),
            [((tool["name"], "bold"), tool["server"], one_line(_about(tool), 120)) for tool in found["tools"]],
        )
    else:
        for tool in found["tools"]:
            output.row(tool["name"], tool["server"], one_line(_about(tool), 200))
    return 0


def _about(tool: Mapping[str, Any]) -> str:
    """What it does, and first that a call of it would wait."""
    about: str = tool["description"]
    return f"(waits for its server) {about}" if tool.get("waiting") else about


def run_call(options: Options, output: Output) -> int:
    """Call a tool and print its answer."""
    arguments = read_arguments(options.pairs, options.args)
    try:
        result = from_worker(
            lambda worker: _ask(worker, options, arguments, output), lambda: _own_call(options, arguments, output)
        )
    except OpenProgramMCPError as error:
        raise _with_hint(error, options.pairs) from None
    if output.json:
        output.value(result)
    else:
        _print_result(result, output)
    return 1 if result["is_error"] else 0


def _ask(worker: WorkerClient, options: Options, arguments: Mapping[str, Any], output: Output) -> Any:
    body = {"arguments": arguments, "timeout_seconds": options.timeout, "call_id": None}
    if not output.live:
        return worker.post("tools", options.tool, "call", body=body, patient=True)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from ..web.client import ProblemAnswer
    from ._progress import call_line

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        for event, data in worker.stream("tools", options.tool, "call", body=body):
            if event == "progress":
                line = call_line(options.tool, data["progress"], data["total"], data["message"])
                live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            elif event == "error":
                raise ProblemAnswer(data)
            elif event == "result":
                return data
    raise WorkerUnreachable("The worker ended before it had answered", remedy="Look at its log and start it again")


def _own_tools(output: Output) -> Any:
    from ..web import views
    from ._oneshot import run_with_manager, saved_document

    saved_document(output)

    async def work(manager: MCPManager, _progress: Progress) -> Any:
        await manager.started.wait()
        return views.tool_list(manager)

    return run_with_manager(work, output=output)


def _own_call(options: Options, arguments: dict[str, Any], output: Output) -> Any:
    from secrets import token_hex

    from ..web import views
    from ._oneshot import could_own, run_with_manager, saved_document

    document = saved_document(output)
    if not document.servers and not document.broken:
        raise UnknownTool(
            f"No tool is called {options.tool!r}: no worker runs, and nothing is configured in {document.path}",
            remedy="To try it with the demo server, run in another terminal: openprogram-mcp worker --demo-if-empty",
        )
    owners = could_own(options.tool, document.servers)
    call_id = token_hex(8)

    async def work(manager: MCPManager, progress: Progress) -> Any:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            progress.call(options.tool, done, total, message)

        for name in owners:
            # A start has a limit of its own, which --timeout is not about.
            await manager.wait_settled(name)
        result = await manager.call_tool(
            options.tool, arguments, timeout=options.timeout, on_progress=on_progress, call_id=call_id
        )
        return views.call_result(result, call_id)

    return run_with_manager(work, output=output, only=owners)


def _print_result(result: Mapping[str, Any], output: Output) -> None:
    write = output.error_text if result["is_error"] else output.text
    for block in result["content"]:
        if block.get("type") == "text":
            write(block["text"])
        else:
            size = len(block.get("data", "")) * 3 // 4
            write(f"[{block.get('type')}: {block.get('mimeType')}, {size} bytes; --json shows it]")


def _with_hint(error: OpenProgramMCPError, pairs: list[str]) -> OpenProgramMCPError:
    """An argument that does not fit, with what to type when it was typed as text but meant as a number or a list."""
    if error.to_problem().get("code") != "invalid_arguments" or not error.path:
        return error
    key = error.path.partition(".")[0].partition("[")[0]
    typed = next((pair for pair in pairs if pair.startswith(f"{key}=")), None)
    if typed is None or error.remedy:
        return error
    from ..web.client import ProblemAnswer

    hint = f"{key}= gives text; for a number, a flag or a list write {typed.replace('=', ':=', 1)}"
    return ProblemAnswer({**error.to_problem(), "remedy": hint})
