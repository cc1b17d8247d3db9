"""The configuration file as a whole: reading it, changing it, saving it.

Reading never fails: what is wrong with the file, or with one entry, is told in the document. Saving writes what changed
since reading and nothing else, so that two who edit different entries both keep their edit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

import attrs
from attrs import field, frozen

from .. import paths
from ..errors import ConfigError, RevisionConflict, StorageError, UnknownServer
from ..storage import ABSENT, PrivateFile
from ._convert import json_fields, plain
from ._jsonc import Document, Repeated, Unreadable, parse, same
from ._kinds import Kind, Mismatch, choice, is_object, list_of, whole
from ._server import MCPServerConfig, canonical_name

__all__ = ["ConfigDocument", "load_configs", "load_document", "save_configs", "save_document"]

_log = logging.getLogger("openprogram_mcp.config")

_SETTINGS: Final[Mapping[str, Kind]] = {
    "roots": Kind("a list of roots", list_of(is_object("uri"))),
    "permissions": Kind("a list of rules", list_of(is_object("action"))),
    "permission_default": choice("allow", "ask", "deny"),
    "tool_names": choice("plain", "mcp"),
    "start_limit": whole(1, 1000),
    "model": is_object(),
}
"""What the file holds beside the servers."""

_WHEN_WRONG: Final[Mapping[str, Mapping[str, Any]]] = {
    "permissions": {"permission_default": "ask"},
    "permission_default": {"permission_default": "ask"},
}
"""What a setting that cannot be understood changes: a rule that got lost must not allow what it forbade."""


@frozen
class _Origin:
    """What a document was read from."""

    text: Document
    key: str = "servers"

    @property
    def entries(self) -> dict[str, Any]:
        """The servers as they stand in the file."""
        return dict(self.text.value.get(self.key) or {})


_NEW: Final = _Origin(Document("{}\n", {}))


@frozen(kw_only=True)
class ConfigDocument:
    """The configuration file at one moment, and the edits made to it since.

    ``servers`` are those that can be used, in the order of the file; ``broken`` says why the others cannot. With an
    ``error`` the file as a whole cannot be read: there are no servers then, and it cannot be saved.
    """

    path: Path
    revision: str = ABSENT
    servers: Mapping[str, MCPServerConfig] = field(factory=dict)
    broken: Mapping[str, ConfigError] = field(factory=dict)
    error: ConfigError | None = None
    warnings: tuple[str, ...] = ()
    roots: tuple[Mapping[str, Any], ...] = ()
    permissions: tuple[Mapping[str, Any], ...] = ()
    permission_default: Literal["allow", "ask", "deny"] = "allow"
    tool_names: Literal["plain", "mcp"] = "plain"
    start_limit: int = 8
    model: Mapping[str, Any] | None = field(default=None, repr=False)
    unknown: Mapping[str, Any] = field(factory=dict, repr=False)
    origin: _Origin = field(default=_NEW, repr=False, eq=False)

    def with_server(self, config: MCPServerConfig) -> Self:
        """The document with this server, in the place of one of the same name or at the end.

        Raises:
            ConfigError: The configuration was made in code, and it does not fit.
        """
        checked = MCPServerConfig.from_dict(config.name, config.to_storage_dict())
        broken = {name: error for name, error in self.broken.items() if name != config.name}
        return attrs.evolve(self, servers={**self.servers, config.name: checked}, broken=broken)

    def without_server(self, name: str) -> Self:
        """The document without this server.

        Raises:
            UnknownServer: There is none of that name, not even a broken one.
        """
        if name not in self.servers and name not in self.broken:
            raise UnknownServer(f"no server is called {name!r}", server=name)
        return attrs.evolve(
            self,
            servers={one: config for one, config in self.servers.items() if one != name},
            broken={one: error for one, error in self.broken.items() if one != name},
        )

    def with_roots(self, roots: Iterable[Mapping[str, Any]]) -> Self:
        """The document with these roots (specification: client/roots, "Root"), in the place of those it has.

        Args:
            roots: Each with its ``uri``, and a ``name`` where it has one.

        Raises:
            ConfigError: One of them is no ``file://`` URI.
        """
        given = tuple(dict(root) for root in roots)
        for number, root in enumerate(given):
            if not str(root.get("uri")).startswith("file://"):
                at = f"roots.{number}.uri"
                raise ConfigError(f"{at}: expected a file:// URI", path=at, remedy="Give a folder as file:///its/path.")
        return attrs.evolve(self, roots=given)


def load_document(path: Path | None = None) -> ConfigDocument:
    """Read the configuration file.

    Args:
        path: The file; the one in the state directory if not given.

    Returns:
        The document. Without a file it is empty; what is wrong with the file, or with one entry, is in it.
    """
    path = path or paths.config_path()
    try:
        snapshot = PrivateFile(path).read()
    except StorageError as error:
        return ConfigDocument(path=path, error=ConfigError(error.message, remedy=error.remedy))
    return _read(path, snapshot.data, snapshot.revision)


def save_document(document: ConfigDocument, *, expected: str | None = None) -> ConfigDocument:
    """Write the edits of a document to its file.

    Only what was edited is written: comments, unknown fields, broken entries and the edits that others made elsewhere
    in the file meanwhile stay. Where comments are lost all the same, the file as it was is kept beside it as ``.bak``.

    Args:
        document: What was read, and edited.
        expected: The revision that the file must still have as a whole. Without it, it is enough that nobody else has
            changed the entries that were edited.

    Returns:
        The document as it is now in the file.

    Raises:
        RevisionConflict: Somebody else has changed what was edited; nothing was written.
        StorageError: The file cannot be read, or not be written; nothing was changed.
    """
    file = PrivateFile(document.path)
    with file.locked():
        snapshot = file.read()
        if expected is not None and snapshot.revision != expected:
            raise _conflict("the configuration", None)
        now = _read(document.path, snapshot.data, snapshot.revision)
        for error in (document.error, now.error):
            if error:
                raise StorageError(
                    f"The configuration is not saved, because the file cannot be read. {error.message}",
                    remedy=error.remedy,
                )
        value = _edited(document, now)
        if same(value, now.origin.text.value):
            return now
        text = now.origin.text.changed(value)
        data = text.data
        if not same(parse(data).value, value):
            raise AssertionError("the changed text does not hold the changed value")
        if snapshot.data and text.comments != now.origin.text.comments:
            PrivateFile(document.path.with_name(f"{document.path.name}.bak")).write(snapshot.data)
        return _read(document.path, data, file.write(data, expected=snapshot.revision))


def load_configs(path: Path | None = None) -> list[MCPServerConfig]:
    """The servers of the configuration file, in its order; none when it is missing or cannot be read.

    What is wrong is logged, one line each.
    """
    document = load_document(path)
    for error in (document.error, *document.broken.values()):
        if error:
            _log.warning("%s", error.message)
    return list(document.servers.values())


def save_configs(configs: Iterable[MCPServerConfig], path: Path | None = None) -> None:
    """Make these the servers of the configuration file. Those not among them go; broken entries stay.

    Raises:
        ConfigError: One of them does not fit.
        RevisionConflict: Somebody else is changing the same servers.
        StorageError: The file cannot be read, or not be written; nothing was changed.
    """
    read = load_document(path)
    document = attrs.evolve(read, servers={})
    for config in configs:
        document = document.with_server(config)
    save_document(document, expected=None if read.error else read.revision)


def _read(path: Path, data: bytes | None, revision: str) -> ConfigDocument:
    if data is None:
        return ConfigDocument(path=path)
    try:
        text = parse(data)
    except Unreadable as fault:
        return _unreadable(path, revision, fault.what, fault.line, fault.column)
    if not isinstance(text.value, dict):
        return _unreadable(path, revision, "expected an object")
    warnings: list[str] = []
    key = "servers"
    if "mcpServers" in text.value:
        if key in text.value:
            warnings.append("mcpServers: is not read, because there is servers too")
        else:
            key = "mcpServers"
            warnings.append("mcpServers: is read as servers, which is its name here")
    entries = text.value.get(key)
    if not isinstance(entries, dict | None):
        what = "is given more than once" if isinstance(entries, Repeated) else "expected an object of servers by name"
        return _unreadable(path, revision, f"{key}: {what}")
    servers: dict[str, MCPServerConfig] = {}
    broken: dict[str, ConfigError] = {}
    for name, entry in (entries or {}).items():
        try:
            _refuse_repeated(entry, f"servers.{name}", name)
            servers[name] = MCPServerConfig.from_dict(name, entry)
        except ConfigError as error:
            broken[name] = error
    settings = _settings(text.value, warnings)
    warnings += [f"servers.{name}.{warning}" for name, config in servers.items() for warning in config.warnings]
    warnings += _twins(entries or {})
    return ConfigDocument(
        path=path,
        revision=revision,
        servers=servers,
        broken=broken,
        warnings=tuple(warnings),
        unknown={name: value for name, value in text.value.items() if name not in {key, *_SETTINGS}},
        origin=_Origin(text, key),
        **settings,
    )


def _unreadable(path: Path, revision: str, what: str, line: int = 1, column: int = 1) -> ConfigDocument:
    error = ConfigError(
        f"{path}:{line}:{column}: {what}",
        remedy="Correct the file. Until then no servers are read from it, and nothing is saved to it.",
    )
    return ConfigDocument(path=path, revision=revision, error=error)


def _settings(value: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    instead: dict[str, Any] = {}
    for name, kind in _SETTINGS.items():
        if value.get(name) is not None:
            try:
                if isinstance(value[name], Repeated):
                    raise Mismatch("one value", f"{len(value[name])} of them")
                found[name] = kind(value[name])
            except Mismatch as error:
                warnings.append(f"{'.'.join((name, *error.at))}: {error}; it is not used")
                instead |= _WHEN_WRONG.get(name, {})
    return found | instead


def _refuse_repeated(value: Any, path: str, server: str) -> None:
    """Raise ConfigError for a name that stands more than once in an object."""
    match value:
        case Repeated():
            raise ConfigError(
                f"{path}: is given {len(value)} times",
                path=path,
                server=server,
                remedy="Keep one of them, or give them different names.",
            )
        case dict() | list():
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                _refuse_repeated(one, f"{path}.{key}", server)


def _twins(names: Iterable[str]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            yield f"servers.{name}: differs from {other} in upper and lower case only"


def _edited(document: ConfigDocument, now: ConfigDocument) -> dict[str, Any]:
    """The value of the file as it is now, with the edits of a document in it."""
    read = _read(document.path, document.origin.text.data, document.revision)
    was, entries = document.origin.entries, now.origin.entries
    value = dict(now.origin.text.value)
    for name in {**read.servers, **read.broken, **document.servers}:
        before, after = read.servers.get(name), document.servers.get(name)
        if before == after and (after or name in document.broken):
            continue
        if not same(was.get(name), entries.get(name)):
            raise _conflict(f"the server {name!r}", name)
        if after:
            entries[name] = _entry(was.get(name), before, after)
        else:
            entries.pop(name, None)
    if not same(entries, now.origin.entries):
        value[now.origin.key] = entries
    for name in _SETTINGS:
        if getattr(document, name) != getattr(read, name):
            if not same(document.origin.text.value.get(name), value.get(name)):
                raise _conflict(name, None)
            value[name] = plain(getattr(document, name))
    return value


def _entry(was: Any, before: MCPServerConfig | None, after: MCPServerConfig) -> dict[str, Any]:
    """One entry after an edit: a field that means what it meant stays as somebody wrote it."""
    stored = after.to_storage_dict()
    if before is None:
        return stored
    fields = {one.name for one in json_fields(MCPServerConfig)}
    entry: dict[str, Any] = {}
    for key, value in was.items():
        name = canonical_name(key)
        if name not in fields:
            if name in stored:
                entry[key] = stored.pop(name)
        elif name == "name" or getattr(before, name) == getattr(after, name):
            entry[key] = value
            stored.pop(name, None)
        elif name in stored:
            entry[name] = _same_words(value, getattr(before, name), stored.pop(name))
    return entry | stored


def _same_words(was: Any, before: Any, now: Any) -> Any:
    """Values of a map that mean what they meant (``8080`` is ``"8080"``) as somebody wrote them."""
    if not (isinstance(was, dict) and isinstance(before, Mapping) and isinstance(now, dict)):
        return now
    return {name: was[name] if name in was and before.get(name) == one else one for name, one in now.items()}


def _conflict(what: str, server: str | None) -> RevisionConflict:
    return RevisionConflict(
        f"Somebody else has changed {what} since it was read; nothing was written.",
        remedy="Read it again and repeat the change.",
        server=server,
    )
