"""The documents say what is so: links lead somewhere, tables name what the code has, marked code blocks run.

A Python block under ``<!-- runs -->`` is run, with the demo and two real servers configured; a ``text`` block right
behind it must be what it prints.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

from openprogram_mcp import errors, events
from openprogram_mcp.status import TRANSITIONS, ServerState, ServerStatus
from tests import servers

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
REFERENCE = ROOT / "docs" / "reference"

_FENCE = re.compile(r"^(`{3,})(\w*)[^\n]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


def _name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def _read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def _anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", _read(document)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", _read(document))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (document.parent / path).resolve() if path else document
        if not other.exists() or (anchor and anchor not in _anchors(other)):
            broken.append(target)
    assert broken == []


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in reached or document not in DOCUMENTS:
            continue
        reached.add(document)
        targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", _read(document))
        waiting += [(document.parent / target).resolve() for target in targets]
    assert {_name(document) for document in DOCUMENTS} - {_name(document) for document in reached} == set()


# The reference names what the code has.


def _codes_in_tables(document: Path) -> set[str]:
    """What stands in code marks in the first cell of a table's rows."""
    cells = re.findall(r"^\| *((?:`[^`]+`[, ]*)+)[^|]*\|", _read(document), re.MULTILINE)
    return {code for cell in cells for code in re.findall(r"`([^`]+)`", cell)}


def _subclasses(root: type[Any]) -> set[type[Any]]:
    return {root, *(below for child in root.__subclasses__() for below in _subclasses(child))}


def test_the_errors_are_all_there_with_their_status_and_keys() -> None:
    text = _read(REFERENCE / "errors.md")
    for kind in _subclasses(errors.OpenProgramMCPError):
        if kind.__module__ != errors.__name__:
            continue
        row = next((line for line in text.splitlines() if line.startswith(f"| `{kind.code}` | {kind.status} |")), None)
        assert row, f"{kind.__name__} ({kind.code}, {kind.status}) has no row"
        assert kind.code == "internal" or f"`{kind.__name__}`" in row
        own = set(inspect.signature(kind).parameters) - {"message", "remedy", "server", "path", "transient"}
        assert {key for key in own if f"`{key}`" not in row} == set(), kind.__name__


def test_the_events_are_all_there_with_their_keys() -> None:
    text = _read(REFERENCE / "events.md")
    common = {"server", "directory", "mask"}
    for kind in _subclasses(events.Event):
        if kind.type == "Event":
            continue
        row = next((line for line in text.splitlines() if line.startswith(f"| `{kind.type}` |")), None)
        assert row, f"{kind.type} has no row"
        keys = {field.name for field in attrs.fields(kind)} - common
        assert "the same" in row or {key for key in keys if f"`{key}`" not in row} == set(), kind.type


def test_the_states_are_all_there_and_the_diagram_is_the_table() -> None:
    document = REFERENCE / "states.md"
    assert {str(state) for state in ServerState} <= _codes_in_tables(document)
    drawn = runpy.run_path(str(ROOT / "tools" / "states.py"))["diagram"]()
    assert f"    {ServerState.PENDING} --> {ServerState.STARTING}\n" in drawn
    assert drawn.count(" --> ") == sum(len(states) for states in TRANSITIONS.values())
    assert drawn in _read(document), "draw it anew: python tools/states.py"


def test_the_row_of_a_server_is_the_one_that_is_shown() -> None:
    blocks = [body for _, language, body in _FENCE.findall(_read(REFERENCE / "http.md")) if language == "json"]
    rows = [json.loads(block) for block in blocks if block.startswith('{"name": "time"')]
    assert [list(row) for row in rows] == [list(ServerStatus(name="time", type="local").to_dict())]


def test_the_fields_of_the_configuration_are_all_there() -> None:
    from openprogram_mcp.config import ConfigDocument, MCPServerConfig

    named = _codes_in_tables(REFERENCE / "configuration.md")
    stored = {field.name for field in attrs.fields(MCPServerConfig) if not field.metadata.get("memory")}
    server = stored - {"name", "unknown"}
    assert server - named == set()
    of_the_file = {"servers", "start_limit", "tool_names", "roots", "permissions", "permission_default", "model"}
    assert of_the_file <= {field.name for field in attrs.fields(ConfigDocument)}
    assert named - server - of_the_file == {
        "kind",
        "none",
        "bearer",
        "oauth",
        "client_credentials",
        "enterprise",
        "workload",
        "${NAME}",
        "${NAME:-default}",
        "$$",
    }


def test_the_commands_and_their_options_are_all_there() -> None:
    from openprogram_mcp.cli._parser import build_parser

    text = _read(REFERENCE / "command-line.md")
    parser = build_parser()
    commands: dict[str, Any] = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    assert [name for name in commands if not re.search(rf"^\| `{name}[ `]", text, re.MULTILINE)] == []
    options = {
        option
        for command in (parser, *commands.values())
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert {option for option in options if not re.search(rf"`{option}[ `]", text)} == set()


def test_the_environment_variables_are_all_there() -> None:
    text = _read(REFERENCE / "command-line.md")
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "openprogram_mcp").rglob("*.py"))
    used = {name for source in sources for name in re.findall(r"\"(OPENPROGRAM_[A-Z_]+)\"", source)}
    assert {name for name in used if f"| `{name}` |" not in text} == set()


def test_the_routes_are_those_of_the_openapi_document() -> None:
    from openprogram_mcp.web.app import API, openapi_document

    class Nobody:
        """A manager of which only the names of its methods are asked for."""

        def __getattr__(self, name: str) -> Any:
            return name

    document = openapi_document(API(Nobody()))  # type: ignore[arg-type]  # no route is called
    served = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods} | {
        "GET /api/openapi.json"
    }
    described = re.findall(
        r"^\| `((?:GET|POST|PUT|PATCH|DELETE) [^`]+)` \|", _read(REFERENCE / "http.md"), re.MULTILINE
    )
    assert set(described) == served


# Code blocks.


class Block(NamedTuple):
    """A Python block of a document."""

    document: Path
    line: int
    code: str
    runs: bool
    prints: str | None

    def __str__(self) -> str:
        return f"{_name(self.document)}:{self.line}"


def _python_blocks() -> list[Block]:
    found = []
    for document in DOCUMENTS:
        text = _read(document)
        for match in _FENCE.finditer(text):
            if match[2] == "python":
                before, behind = text[: match.start()], text[match.end() :]
                output = re.match(r"\s*```text\n(.*?)^```$", behind, re.MULTILINE | re.DOTALL)
                runs = bool(re.search(r"<!-- runs -->\s*\Z", before))
                line = before.count("\n") + 1
                found.append(Block(document, line, match[3], runs, output[1] if output else None))
    return found


@pytest.mark.parametrize("block", _python_blocks(), ids=str)
def test_python_blocks_are_python(block: Block) -> None:
    ast.parse(block.code)


@pytest.mark.real
@pytest.mark.parametrize("block", [block for block in _python_blocks() if block.runs], ids=str)
def test_python_blocks_that_are_marked_run(block: Block, state_dir: Path, tmp_path: Path) -> None:
    state_dir.mkdir(mode=0o700)
    configured = {
        "demo": {"command": [sys.executable, "-m", "openprogram_mcp.demo"]},
        "time": {"command": servers.argv("time")},
        "git": {"command": servers.argv("git")},
    }
    (state_dir / "mcp_servers.json").write_text(json.dumps({"servers": configured}))
    program = tmp_path / "block.py"
    program.write_text(block.code)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if block.prints is not None:
        assert done.stdout == block.prints


def test_something_is_run() -> None:
    assert {_name(block.document) for block in _python_blocks() if block.runs} >= {"README.md"}
