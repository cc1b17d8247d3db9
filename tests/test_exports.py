"""The public surface. A new name here is a decision; a name that goes is a break."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import openprogram_mcp
from openprogram_mcp.status import ServerStatus

PUBLIC = {
    "AgentTool",
    "AgentToolResult",
    "MCPManager",
    "MCPServerConfig",
    "OpenProgramMCPError",
    "ServerState",
    "ServerStatus",
    "ToolRegistry",
    "load_configs",
    "load_mcp_servers",
    "open_manager",
    "save_configs",
    "server_status",
    "shutdown_mcp_servers",
}

ROOMS = sorted(
    name
    for _, name, _ in pkgutil.iter_modules(openprogram_mcp.__path__)
    if not name.startswith("_") and name not in {"demo", "cli"}
)
"""The modules of the package that are there to be imported."""

SLOW = {"mcp", "trio", "litestar", "hypercorn", "pydantic", "jsonschema", "httpx", "httpx2", "anyio", "asyncio"}
"""What only a command that works with servers, or serves, may pay for."""


def _imported_by(program: str, *, argv: tuple[str, ...] = ()) -> set[str]:
    """The slow modules that a program has loaded when it ends."""
    report = (
        f"import sys, json\ntry:\n    {program}\nexcept SystemExit:\n    pass\n"
        "print()\nprint(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", report, *argv], capture_output=True, text=True, check=True)
    return SLOW & set(json.loads(done.stdout.splitlines()[-1]))


def test_the_public_names_are_these() -> None:
    assert set(openprogram_mcp.__all__) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_there(name: str) -> None:
    value = getattr(openprogram_mcp, name)
    assert value.__doc__, "and says what it is"
    assert name in dir(openprogram_mcp)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = openprogram_mcp.nothing


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_says_what_it_exports_and_has_it(room: str) -> None:
    module = importlib.import_module(f"openprogram_mcp.{room}")
    assert module.__doc__
    exported = getattr(module, "__all__", [])
    assert exported or hasattr(module, "__path__"), "a package may leave it to its modules"
    assert [name for name in exported if not hasattr(module, name)] == []


def test_importing_the_package_imports_nothing_slow() -> None:
    assert _imported_by("import openprogram_mcp") == set()


def test_names_that_describe_a_configuration_do_not_cost_the_sdk() -> None:
    assert "mcp" not in _imported_by("from openprogram_mcp import MCPServerConfig, ToolRegistry, ServerStatus")


def test_the_manager_can_be_imported_without_the_sdk() -> None:
    assert "mcp" not in _imported_by("from openprogram_mcp import open_manager")


@pytest.mark.parametrize("command", ["", "worker", "list", "show", "tools", "call", "test", "config-path", "doctor"])
def test_help_imports_nothing_slow(command: str) -> None:
    argv = (*command.split(), "--help")
    assert _imported_by("from openprogram_mcp.cli import main; sys.exit(main())", argv=argv) == set()


class _Worker(BaseHTTPRequestHandler):
    """A worker's API as far as the commands need it."""

    def do_GET(self) -> None:
        row = {**ServerStatus(name="s", type="local").to_dict(), "config": {}, "tool_schemas": []}
        self._answer({"version": 1, "servers": [row], "tools": [], **row})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"call_id": "1", "content": [], "text": "", "is_error": False, "details": {}})

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def worker(state_dir: Path) -> Iterator[None]:
    """Something that answers as a worker of the state directory."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Worker) as server:
        info = {"version": 1, "pid": os.getpid(), "started_at": "", "token": "t", "instance": "i"}
        state_dir.mkdir()
        url = f"http://127.0.0.1:{server.server_port}"
        (state_dir / "mcp_worker.json").write_text(json.dumps({**info, "url": url}))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("command", ["list", "show s", "tools", "call s__t a=1"])
@pytest.mark.parametrize("form", ["", "--json"])
def test_a_command_that_only_talks_to_the_worker_imports_nothing_slow(command: str, form: str) -> None:
    program = "from openprogram_mcp.cli import main; code = main(); assert code == 0, code"
    assert _imported_by(program, argv=(*command.split(), *form.split())) == set()
