"""``list`` and ``show``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._output import Output, one_line
from ._parser import Options
from ._source import from_worker
from ._styles import STYLES

if TYPE_CHECKING:
    from ..manager import MCPManager
    from ._progress import Progress

__all__ = ["is_up", "print_server", "print_verdict", "run_list", "run_show", "without_defaults"]

_SIGNS_IN = frozenset({"needs_auth", "needs_client_registration"})


def run_list(_options: Options, output: Output) -> int:
    """All servers and their states."""
    found = from_worker(lambda worker: worker.get("servers"), lambda: _own_list(output))
    if output.json:
        output.value(found)
    elif not found["servers"]:
        _say_empty(output)
    elif output.terminal:
        output.table(
            ("SERVER", "STATE", "TOOLS", ""),
            [
                (row["name"], (row["status"], STYLES.get(row["status"], "")), row["tool_count"], summary(row))
                for row in found["servers"]
            ],
        )
    else:
        for row in found["servers"]:
            output.row(row["name"], row["status"], row["tool_count"], summary(row))
    # A worker of an older version does not tell these.
    if not output.json and (problem := found.get("config_error")):
        output.error_text(f"openprogram-mcp: the configuration file cannot be read: {problem}")
        output.error_text("What it said before stays in force. Correct the file; the worker follows at once.")
    if not output.json and (leaked := found.get("processes_leaked")):
        output.error_text(f"openprogram-mcp: {leaked} processes lived on after their server had been stopped")
    return 0


def run_show(options: Options, output: Output) -> int:
    """One server: its state, its configuration and its tools."""
    name = options.name
    found = from_worker(lambda worker: worker.get("servers", name), lambda: _own_show(name, output))
    if output.json:
        output.value(found)
    else:
        print_server(found, output)
    return 0


def summary(row: Mapping[str, Any]) -> str:
    """What there is to say about a server besides its state."""
    if row["error"]:
        return f"{row['phase']}: {row['error']}" if row["phase"] else str(row["error"])
    if row["config_error"]:
        return f"not in force: {row['config_error']}"
    if row["ready"]:
        info = row["server_info"] or {}
        return " ".join(str(info[key]) for key in ("name", "version") if info.get(key))
    return ""


def print_server(row: Mapping[str, Any], output: Output) -> None:
    """A server's row, and its tools, for people."""
    lines = [("name", row["name"]), ("state", row["status"]), ("type", row["type"])]
    lines += [(key.replace("_", " "), row[key]) for key in ("description", "error", "phase", "exit_code", "exit_way")]
    lines += [("stderr", line) for line in row["stderr"] if row["error"]]
    lines += [("remedy", row["remedy"]), ("config error", row["config_error"])]
    lines += [("warning", warning) for warning in row["warnings"]]
    info = row["server_info"] or {}
    lines += [
        ("server", " ".join(str(info[key]) for key in ("name", "version") if info.get(key))),
        ("protocol", row["protocol_version"]),
        ("pid", row["pid"]),
        ("processes", row.get("processes") or None),
        ("uptime", None if row["uptime_seconds"] is None else f"{row['uptime_seconds']:.1f} s"),
    ]
    config = without_defaults(row.get("config") or {})
    lines += [("config", f"{key} = {json.dumps(value, ensure_ascii=False)}") for key, value in config.items()]
    descriptions = {tool["name"]: tool["description"] for tool in row.get("tool_schemas", [])}
    lines += [("tool", f"{name}  {one_line(descriptions.get(name, ''), 100)}".rstrip()) for name in row["tools"]]
    lines += [("skill", f"{skill['name']}  {one_line(skill['description'], 100)}") for skill in row.get("skills", [])]
    shown = [(key, value) for key, value in lines if value not in (None, "")]
    if output.terminal:
        output.table(("", ""), [((key, "bold"), value) for key, value in shown])
    else:
        for key, value in shown:
            output.row(key, value)


def is_up(row: Mapping[str, Any]) -> bool:
    """Whether a server has come up. One that waits for a sign-in has: nothing is wrong with its configuration."""
    return bool(row["ready"]) or row["status"] in _SIGNS_IN


def print_verdict(row: Mapping[str, Any], output: Output, *notes: str) -> None:
    """What came of a command about one server: its row as JSON; or a line, and on stderr what there is to do.

    Args:
        row: The server.
        output: Where it goes.
        notes: What else is to be told, a line each; on stderr.
    """
    if output.json:
        output.value(row)
        return
    said = str(row["status"])
    if row["ready"]:
        said += f", {row['tool_count']} {'tool' if row['tool_count'] == 1 else 'tools'}"
    if row["error"]:
        said += f": {summary(row)}"
    output.text(one_line(f"{row['name']}: {said}", 2000))
    lines = [f"  {one_line(line)}" for line in row["stderr"][-5:] if row["error"]]
    lines += [one_line(str(row["remedy"]))] if row["remedy"] else []
    for line in (*lines, *notes):
        output.error_text(line)


def without_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """What somebody has chosen."""
    from ..config import MCPServerConfig

    defaults = MCPServerConfig(name="any").to_response_dict()
    return {key: value for key, value in config.items() if key == "type" or value != defaults.get(key)}


def _own_list(output: Output) -> Any:
    from ._oneshot import run_with_manager, saved_document

    saved_document(output)

    async def work(manager: MCPManager, _progress: Progress) -> Any:
        from ..web import views

        await manager.started.wait()
        await manager.count_processes()
        return views.server_list(manager)

    return run_with_manager(work, output=output)


def _own_show(name: str, output: Output) -> Any:
    from ..web import views
    from ._oneshot import run_with_manager, saved_document, unknown_server

    document = saved_document(output)
    if name not in document.servers and name not in document.broken:
        raise unknown_server(name, [*document.servers, *document.broken])

    async def work(manager: MCPManager, _progress: Progress) -> Any:
        await manager.wait_settled(name)
        await manager.count_processes()
        return await views.server_detail(manager, name)

    return run_with_manager(work, output=output, only={name})


def _say_empty(output: Output) -> None:
    from ..paths import config_path

    output.error_text(f"No servers are configured in {config_path()}")
    output.error_text("To try a demo server: openprogram-mcp worker --demo-if-empty")
