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

__all__ = ["print_server", "run_list", "run_show"]


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
    # A worker of an older version does not count.
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
    config = _without_defaults(row.get("config") or {})
    lines += [("config", f"{key} = {json.dumps(value, ensure_ascii=False)}") for key, value in config.items()]
    descriptions = {tool["name"]: tool["description"] for tool in row.get("tool_schemas", [])}
    lines += [("tool", f"{name}  {one_line(descriptions.get(name, ''), 100)}".rstrip()) for name in row["tools"]]
    shown = [(key, value) for key, value in lines if value not in (None, "")]
    if output.terminal:
        output.table(("", ""), [((key, "bold"), value) for key, value in shown])
    else:
        for key, value in shown:
            output.row(key, value)


def _without_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
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
        return views.server_detail(manager, name)

    return run_with_manager(work, output=output, only={name})


def _say_empty(output: Output) -> None:
    from ..paths import config_path

    output.error_text(f"No servers are configured in {config_path()}")
    output.error_text("To try a demo server: openprogram-mcp worker --demo-if-empty")
