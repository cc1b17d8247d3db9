"""``edit``: one server's entry in an editor, as JSON and without its secrets; tried, and then saved.

What comes back is compared with what was shown, and only what differs is changed: so a secret that stands there as its
mask stays, and what somebody else changes in other servers meanwhile stays too. Whoever changes the configuration while
the editor is open makes a conflict, which is told.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define

from ..errors import ConfigError, OpenProgramMCPError, RevisionConflict, StorageError
from ._editor import Draft, applied, changes
from ._output import Output, one_line
from ._parser import Options
from ._servers import is_up, print_verdict, without_defaults
from ._source import from_worker

if TYPE_CHECKING:
    from ..config import ConfigDocument
    from ..manager import MCPManager
    from ..web.client import WorkerClient
    from ._progress import Progress

__all__ = ["run_edit"]

_MASK = "********"

_HEAD = """\
// The server {name}. Save and close to try it; it is kept when it comes up. Delete everything to change nothing.
// {mask} stands for a secret: left as it is, the secret stays.
"""

_CONFLICT = "revision_conflict"


class _Place(Protocol):
    """Where the entry is."""

    def read(self) -> dict[str, Any]:
        """The entry without its secrets, and from now on what an edit is compared with."""
        ...

    def save(self, patch: Mapping[str, Any], *, force: bool) -> dict[str, Any]:
        """Change it; the server's row."""
        ...


def run_edit(options: Options, output: Output) -> int:
    """Change a server's configuration in an editor."""
    return from_worker(
        lambda worker: _edit(_OfWorker(worker, options.name), options, output),
        lambda: _edit(_OfFile(options.name, output), options, output),
    )


def _edit(place: _Place, options: Options, output: Output) -> int:
    shown = place.read()
    text = first = _as_text(options.name, shown)
    draft = Draft(f"{re.sub(r'[^A-Za-z0-9._-]', '_', options.name)[:60]}.jsonc")
    with draft.opened():
        while True:
            text, patch = draft.edit(text), {}
            try:
                edited = _parsed(text)
                patch = {} if edited is None else changes(shown, edited)
                if not patch:
                    return _unchanged(options.name, output)
                row = place.save(patch, force=options.force)
            except OpenProgramMCPError as error:
                problem = error.to_problem()
                again = _ask_again(problem, output)
                if not again:
                    if text != first:
                        draft.keep()
                        output.error_text(f"openprogram-mcp: what you wrote is in {draft.path}; delete it when done")
                    raise
                if problem.get("code") == _CONFLICT:
                    # What was written is put on top of what it says now, for whoever wrote it to see.
                    shown = place.read()
                    text = _as_text(options.name, applied(shown, patch))
                text = _with_problem(problem, text)
            else:
                print_verdict(row, output, *_notes(place))
                return 0 if is_up(row) or not row["enabled"] or options.force else 1


def _notes(place: _Place) -> list[str]:
    if isinstance(place, _OfFile):
        return [f"Saved in {place.path}. No worker is running; one is started with: openprogram-mcp worker"]
    return []


def _unchanged(name: str, output: Output) -> int:
    if output.json:
        output.value({"name": name, "changed": False})
    else:
        output.text(f"{name}: nothing was changed")
    return 0


@define
class _OfWorker:
    """The entry of a server of the worker."""

    _worker: WorkerClient
    _name: str
    _revision: str | None = None

    def read(self) -> dict[str, Any]:
        found, self._revision = self._worker.get_with_revision("servers", self._name)
        config = found["config"]
        if config is None:
            raise _unusable(self._name, str(found["config_error"] or found["error"]))
        return _form(config)

    def save(self, patch: Mapping[str, Any], *, force: bool) -> dict[str, Any]:
        row: dict[str, Any] = self._worker.patch(
            "servers", self._name, body=patch, revision=self._revision, force=force, patient=True
        )
        return row


class _OfFile:
    """The entry in the file, where there is no worker."""

    def __init__(self, name: str, output: Output) -> None:
        from ..paths import config_path

        self._name = name
        self._output = output
        self._document: ConfigDocument | None = None
        self.path = config_path()

    def read(self) -> dict[str, Any]:
        from ._oneshot import entry, saved_document

        document = self._document = saved_document(self._output)
        if self._name in document.broken:
            raise _unusable(self._name, document.broken[self._name].message)
        return _form(entry(document, self._name).to_response_dict())

    def save(self, patch: Mapping[str, Any], *, force: bool) -> dict[str, Any]:
        from ..config import load_document
        from ._oneshot import run_with_manager

        was, now = self._document, load_document()
        if now.error is not None:
            raise StorageError(now.error.message, remedy=now.error.remedy)
        if was is None or was.servers.get(self._name) != now.servers.get(self._name):
            raise RevisionConflict(
                f"The entry of {self._name!r} was changed by somebody else meanwhile; nothing was changed here",
                remedy="Edit what it says now",
                server=self._name,
            )

        async def work(manager: MCPManager, _progress: Progress) -> dict[str, Any]:
            return (await manager.update(self._name, patch, force=force, revision=now.revision)).to_dict()

        return run_with_manager(work, output=self._output, only=frozenset())


def _unusable(name: str, error: str) -> ConfigError:
    from ..paths import config_path

    # Its secrets cannot be told from the rest, and so it is not shown.
    return ConfigError(
        f"The entry of {name!r} cannot be understood: {error}", remedy=f"Correct it in {config_path()}", server=name
    )


def _form(config: Mapping[str, Any]) -> dict[str, Any]:
    """An entry for people: what somebody has chosen, each secret as its mask."""
    form = without_defaults(config)
    for key in ("env", "headers"):
        if form.get(key):
            form[key] = {name: one["masked"] for name, one in form[key].items()}
    if isinstance(form.get("auth"), dict):
        form["auth"] = {
            key: value for key, value in form["auth"].items() if not key.startswith("has_") and value is not None
        }
    return {key: value for key, value in form.items() if value not in ({}, [], None)}


def _as_text(name: str, form: Mapping[str, Any]) -> str:
    head = _HEAD.format(name=one_line(name, 128), mask=_MASK)
    return f"{head}{json.dumps(form, indent=2, ensure_ascii=False)}\n"


def _parsed(text: str) -> dict[str, Any] | None:
    """The entry that was written; ``None`` where everything was deleted.

    Raises:
        ConfigError: It is none.
    """
    from ..config._jsonc import Unreadable, parse

    if not re.sub(r"(?m)^\s*//.*$", "", text).strip():
        return None
    try:
        value = parse(text.encode()).value
    except Unreadable as fault:
        raise ConfigError(f"Line {fault.line}, column {fault.column}: {fault.what}", remedy="Correct it") from None
    if not isinstance(value, dict):
        raise ConfigError("Expected an object of the server's fields", remedy="Correct it")
    return value


def _with_problem(problem: Mapping[str, Any], text: str) -> str:
    """The text with what is wrong on its top, in the place of what was wrong before."""
    rest = re.sub(r"\A(?:// ERROR: .*\n|//        .*\n)+", "", text)
    lines = [str(problem.get("detail")), *(str(line) for line in list(problem.get("stderr") or [])[-5:])]
    lines += [str(problem["remedy"])] if problem.get("remedy") else []
    first, *more = [one_line(line, 300) for line in lines]
    return "".join([f"// ERROR: {first}\n", *(f"//        {line}\n" for line in more), rest])


def _ask_again(problem: Mapping[str, Any], output: Output) -> bool:
    """Tell what is wrong, and ask whether the editor is to be opened again; no, where nobody can be asked."""
    if output.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    output.problem(problem)
    print("Nothing was changed. Open the editor again? [Y/n] ", end="", file=sys.stderr, flush=True)  # noqa: T201 - a question stands where its answer is typed
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")
