"""The checks of ``doctor``: each looks at one thing, changes nothing, and says what to do. Starts no server."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from .. import paths
from ..config import ConfigDocument, MCPServerConfig, load_document
from ..errors import OpenProgramMCPError
from ..transports._census import left_behind
from ..web.client import WorkerClient
from ..web.worker_file import WorkerInfo, find_worker

__all__ = ["Check", "check_all"]

_VERSION_SECONDS = 5.0

_INSTALL = {
    "node": "Install Node.js (https://nodejs.org)",
    "npm": "Install Node.js (https://nodejs.org), which brings npm",
    "npx": "Install Node.js (https://nodejs.org), which brings npx",
    "uv": "Install uv (https://docs.astral.sh/uv)",
    "uvx": "Install uv (https://docs.astral.sh/uv), which brings uvx",
    "docker": "Install Docker, or Podman with its docker command",
    "deno": "Install Deno (https://deno.com)",
    "bunx": "Install Bun (https://bun.sh), which brings bunx",
    "bun": "Install Bun (https://bun.sh)",
}
_NEEDS = {"npx": ("node",), "npm": ("node",), "uvx": ("uv",)}


@frozen
class Check:
    """One finding. ``level`` is ``ok``, ``note``, ``warning`` or ``error``; ``subject`` is a server or a file."""

    level: Literal["ok", "note", "warning", "error"]
    subject: str
    text: str
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"level": self.level, "subject": self.subject, "text": self.text, "remedy": self.remedy}


def check_all() -> list[Check]:
    """Everything, in the order in which one would look."""
    document = load_document()
    return [
        *_check_files(),
        *_check_document(document),
        *(check for config in document.servers.values() for check in _check_server(config, document)),
        *_check_worker(),
    ]


def _check_files() -> Iterator[Check]:
    directory = paths.get_state_dir()
    if not directory.exists():
        yield Check("note", "state directory", f"{directory} does not exist yet", "It is made when it is needed")
        return
    yield from _check_mode("state directory", directory, 0o700)
    for path in sorted({paths.config_path(), paths.worker_path(), paths.config_path().with_suffix(".json.bak")}):
        if path.exists():
            yield from _check_mode(path.name, path, 0o600)
    tokens = paths.tokens_dir()
    if tokens.is_dir():
        yield from _check_mode(tokens.name, tokens, 0o700)
        for path in sorted(tokens.iterdir()):
            yield from _check_mode(f"{tokens.name}/{path.name}", path, 0o600)


def _check_mode(subject: str, path: Path, wanted: int) -> Iterator[Check]:
    try:
        found = path.stat()
    except OSError as error:
        yield Check("error", subject, f"{path}: {error.strerror}", "Check who owns it")
        return
    if os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        yield Check("warning", subject, f"{path} can be read by others (mode {mode:04o})", f"chmod {wanted:o} {path}")
    elif not os.access(path, os.R_OK | os.W_OK):
        yield Check("error", subject, f"{path} cannot be read and written by you", "Check who owns it")
    else:
        yield Check("ok", subject, str(path))


def _check_document(document: ConfigDocument) -> Iterator[Check]:
    subject = "configuration"
    if document.error is not None:
        yield Check("error", subject, document.error.message, document.error.remedy)
        return
    if not document.path.exists():
        yield Check("note", subject, f"{document.path} does not exist: no servers", "Write it, or try --demo-if-empty")
        return
    for warning in document.warnings:
        yield Check("warning", subject, warning)
    for name, error in document.broken.items():
        yield Check("error", name, error.message, error.remedy)
    yield Check("ok", subject, f"{len(document.servers)} servers")


def _check_server(config: MCPServerConfig, document: ConfigDocument) -> Iterator[Check]:
    name = config.name
    if not config.enabled:
        yield Check("note", name, "is disabled; not checked further")
        return
    try:
        expanded = config.expand(base=document.path.parent)
    except OpenProgramMCPError as error:
        yield Check("error", name, error.message, error.remedy or "Set the variable, or give ${NAME:-default}")
        return
    if expanded.resolved_type == "local":
        yield from _check_program(expanded)
    else:
        yield from _check_address(expanded)


def _check_program(config: MCPServerConfig) -> Iterator[Check]:
    name, program = config.name, config.argv[0]
    if config.cwd is not None and not Path(config.cwd).is_dir():
        yield Check("error", name, f"its cwd {config.cwd} is not a directory", "Make it, or change cwd")
        return
    search = config.env.get("PATH") or os.environ.get("PATH") or os.defpath
    found = _which(program, search, config.cwd)
    short = Path(program).name
    if found is None:
        path = "its PATH" if config.env.get("PATH") else "your PATH"
        where = f"is not on {path}" if os.sep not in program else "does not exist or cannot be run"
        remedy = _INSTALL.get(short, "Check its spelling, install it, or write where it is")
        yield Check("error", name, f"its program {program} {where}", remedy)
        return
    place = program if found == program else f"{program} is {found}"
    yield Check("ok", name, f"{place}{_version_of(short, found)}")
    for needed in _NEEDS.get(short, ()):
        if shutil.which(needed, path=search) is None:
            yield Check("error", name, f"{program} needs {needed}, which is not on the same PATH", _INSTALL[needed])


def _which(program: str, search: str, cwd: str | None) -> str | None:
    if os.sep in program:
        # A relative program is looked for where the server is started.
        return shutil.which(str(Path(cwd or ".") / program))
    return shutil.which(program, path=search)


def _version_of(short: str, program: str) -> str:
    if short not in _INSTALL:
        return ""
    try:
        ran = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = ran.stdout.split("\n", 1)
    return f" ({lines[0].strip()})" if ran.returncode == 0 and lines[0].strip() else ""


def _check_address(config: MCPServerConfig) -> Iterator[Check]:
    bad = False
    for key in ("ca_file", "client_cert_file", "client_key_file"):
        path = getattr(config, key)
        if path is not None and not os.access(path, os.R_OK):
            bad = True
            yield Check("error", config.name, f"its {key} {path} cannot be read", "Check the path and who owns it")
    if config.verify is False:
        yield Check("warning", config.name, "its certificate is not checked (verify is false)", "Use ca_file instead")
    if not bad:
        yield Check("ok", config.name, f"`openprogram-mcp test {config.name}` tells whether it can be reached")


def _check_worker() -> Iterator[Check]:
    info = find_worker()
    if info is not None:
        yield Check("ok", "worker", f"process {info.pid} runs at {info.url}")
        yield from _check_processes(info)
    elif paths.worker_path().exists():
        yield Check("note", "worker", f"{paths.worker_path().name} was left behind by one that is gone; it is ignored")
    else:
        yield Check("note", "worker", "none is running")
    left = left_behind(paths.instances_dir())
    if left:
        text = f"{left} were left behind by a host that was killed"
        yield Check("note", "processes", text, "The next worker, or command that starts servers, ends them")


def _check_processes(info: WorkerInfo) -> Iterator[Check]:
    try:
        found = WorkerClient(info).get("servers")
    except OpenProgramMCPError as error:
        yield Check("warning", "worker", error.message, error.remedy)
        return
    owned, leaked = found.get("processes_owned"), found.get("processes_leaked")
    if owned is None:
        return  # a worker of an older version does not count
    if leaked:
        text = f"{leaked} lived on after their server had been stopped"
        yield Check("error", "processes", text, "That is a defect: please report it, with the worker's log")
    else:
        yield Check("ok", "processes", f"{owned} belong to the worker's servers, and none outlived its server")
