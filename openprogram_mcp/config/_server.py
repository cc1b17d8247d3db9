"""One server's configuration: every field of the interface, and what others need to know about it.

Owns the fields, the forms in which they are read and stored, and their expansion when a server starts. How they are
shown, and how an edit is merged into them, is in ``_shown``; files are for ``_document``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import attrs
from attrs import field, frozen

from ..errors import ConfigError
from ..masking import MIN_LENGTH
from ._convert import from_json, json_fields, refused, to_json
from ._expand import expanded
from ._hints import hints
from ._kinds import (
    Command,
    EnvMap,
    Flag,
    HeaderMap,
    InheritEnv,
    Kind,
    Seconds,
    Text,
    Texts,
    Url,
    Words,
    choice,
    server_name,
    split_command,
    whole,
)
from ._parts import Auth, ClientCredentialsAuth, Health, Reconnect, Source
from ._secrets import is_credential, is_secret, secret_parts, secrets_of_url, secrets_of_words
from ._shown import masks, merged, shown

__all__ = ["MCPServerConfig", "ServerType", "canonical", "canonical_name"]

ServerType = Literal["local", "http", "sse", "auto"]

_TYPE: Final = choice(
    "local",
    "http",
    "sse",
    "auto",
    aliases={"stdio": "local", "streamable-http": "http", "streamable_http": "http", "streamableHttp": "http"},
)

_ALIASES: Final[Mapping[str, str]] = {
    "transport": "type",
    "environment": "env",
    "serverUrl": "url",
    "httpUrl": "url",
    "disabled": "enabled",
}
"""Names that other programs give to our fields."""


_LOCAL: Final = {"only": "local"}
_REMOTE: Final = {"only": "remote"}
"""Marks of the fields that fit servers of one kind alone."""


@frozen(kw_only=True, repr=False)
class MCPServerConfig:
    """How to reach one server, and how to treat it.

    Times are in seconds. A server is *local* (a program that is started) or *remote* (``http``, ``sse``, or ``auto``,
    which finds out). In ``env`` a value of ``None`` takes a variable away. Fields that are not known are kept in
    ``unknown``. What is given in code is checked when it is saved; :meth:`from_dict` checks at once.
    """

    name: Annotated[str, Kind("a name of 1 to 128 characters, none of them / or a control character", server_name)]
    type: Annotated[ServerType, _TYPE] | None = None

    command: Command = field(default=(), metadata=_LOCAL)
    args: Words = field(default=(), metadata=_LOCAL)
    env: EnvMap = field(factory=dict, metadata=_LOCAL)
    cwd: Text | None = field(default=None, metadata=_LOCAL)
    inherit_env: InheritEnv = field(default="safe", metadata=_LOCAL)

    url: Url | None = field(default=None, metadata=_REMOTE)
    headers: HeaderMap = field(factory=dict, metadata=_REMOTE)
    auth: Auth | None = field(default=None, metadata=_REMOTE)
    ca_file: Text | None = field(default=None, metadata=_REMOTE)
    client_cert_file: Text | None = field(default=None, metadata=_REMOTE)
    client_key_file: Text | None = field(default=None, metadata=_REMOTE)
    verify: Flag = field(default=True, metadata=_REMOTE)

    enabled: Flag = True
    timeout_seconds: Seconds = 30.0
    startup_timeout_seconds: Seconds | None = None
    call_timeout_seconds: Seconds | None = None
    max_call_seconds: Seconds | None = None
    stop_timeout_seconds: Seconds = field(default=2.0, metadata=_LOCAL)
    max_concurrency: Annotated[int, whole(1, 1000)] = 8
    serialize: Annotated[Literal["writes", "all", "none"], choice("writes", "all", "none")] = "writes"
    reconnect: Reconnect | Literal[False] = field(factory=Reconnect)
    health: Health | None = None
    max_frame_bytes: Annotated[int, whole(1)] = 64 * 1024 * 1024
    max_result_chars: Annotated[int, whole(1)] = 100_000
    always_load: Flag = False
    allow: Texts = ("*",)
    deny: Texts = ()
    era: Annotated[Literal["auto", "legacy", "2026-07-28"], choice("auto", "legacy", "2026-07-28")] = "auto"
    stop_first: Flag = False
    share: Annotated[Literal["process", "directory"], choice("process", "directory")] = "directory"
    account: Text | None = None
    sandbox_state: Flag = False
    source: Source | None = None
    description: Text | None = None

    unknown: Mapping[str, Any] = field(factory=dict)
    expanded_secrets: frozenset[str] = field(default=frozenset(), eq=False, metadata={"memory": True})
    expanded_credentials: frozenset[str] = field(default=frozenset(), eq=False, metadata={"memory": True})

    def __repr__(self) -> str:
        return f"<MCPServerConfig {self.name!r}: {self.resolved_type}{'' if self.enabled else ', disabled'}>"

    @classmethod
    def from_dict(cls, name: str, data: Any, *, path: str | None = None) -> Self:
        """Read one entry of the file, or the body of a request.

        Args:
            name: The server's name; a ``name`` in ``data`` is not looked at.
            data: The JSON object.
            path: Where it stands, for errors; ``servers.NAME`` if not given.

        Raises:
            ConfigError: It does not fit. The message names every fault with its place, what was expected and what was
                found, but no secret.
        """
        path = path or f"servers.{name}"
        if isinstance(data, Mapping):
            data = {**canonical(data, path), "name": name}
        config = from_json(data, cls, path, server=name)
        if misfits := [(f"{path}{at}", what) for at, what in config._misfits()]:
            raise refused(misfits, name)
        return config

    def to_storage_dict(self) -> dict[str, Any]:
        """The entry as it stands in the file, secrets included, without the name and without what is the default."""
        stored: dict[str, Any] = to_json(self)
        del stored["name"]
        return stored

    def to_response_dict(self) -> dict[str, Any]:
        """The entry as the management API shows it: every field, and the mask in the place of each secret."""
        return shown(self)

    def merge_patch(self, patch: Any) -> Self:
        """The configuration after an edit.

        A field left out is kept, ``null`` puts its default back. A secret that is left out, or sent back as the mask,
        is kept; ``""`` or ``null`` deletes it; a changed ``auth.kind`` drops the secrets of the old kind.

        Raises:
            ConfigError: The result does not fit, or a mask stands where there is no secret.
        """
        at = f"servers.{self.name}"
        if not isinstance(patch, Mapping):
            raise ConfigError(f"{at}: expected an object of changes", path=at, server=self.name)
        patch = canonical(patch, at)
        if patch.pop("name", self.name) != self.name:
            raise ConfigError(f"{at}.name: a server cannot be renamed by an edit", path=f"{at}.name", server=self.name)
        return self.from_dict(self.name, merged(self, patch))

    @property
    def resolved_type(self) -> ServerType:
        """The type given; else ``auto`` where there is a URL and ``local`` where there is none."""
        return self.type or ("auto" if self.url else "local")

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments, one word each."""
        words = split_command(self.command) if isinstance(self.command, str) else tuple(self.command)
        return (*words, *self.args)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and yet looks like a mistake, each with the name of its field."""
        return tuple(hints(self))

    @property
    def startup_seconds(self) -> float:
        """How long a start may take, in seconds."""
        return self.timeout_seconds if self.startup_timeout_seconds is None else self.startup_timeout_seconds

    @property
    def call_seconds(self) -> float:
        """How long a call may take without a sign of progress, in seconds."""
        return self.timeout_seconds if self.call_timeout_seconds is None else self.call_timeout_seconds

    @property
    def max_call(self) -> float:
        """How long a call may take whatever its progress, in seconds."""
        return 10 * self.call_seconds if self.max_call_seconds is None else self.max_call_seconds

    def expand(self, environ: Mapping[str, str] | None = None, *, base: Path | None = None) -> Self:
        """The configuration with the values of ``${NAME}`` in it, for one start of the server. To be done once.

        Args:
            environ: The variables; those of this process if not given.
            base: What relative paths are relative to; the folder of the configuration file if not given.

        Raises:
            ConfigError: A variable is not set, or what came of it does not fit (a header of two lines). The path is
                that of the field.
        """
        return expanded(self, environ, base)

    def secret_values(self) -> tuple[str, ...]:
        """Every secret text in it, the longest first, for a :class:`~openprogram_mcp.masking.Masker`.

        Of an expanded configuration, the values of its variables too; of another, a reference is no secret.
        """
        return _longest_first({*self.expanded_secrets, *self._secrets(is_secret)})

    def credentials(self) -> tuple[str, ...]:
        """Those of :meth:`secret_values` that open a door, by their place, name or looks; the longest first.

        They are kept from models too. A project's name in ``env``, which is not shown in a log either, has to be left
        in what a tool answers: the model needs it for its next call.
        """
        return _longest_first({*self.expanded_credentials, *self._secrets(is_credential)})

    def _secrets(self, counts: Callable[[str, str], bool]) -> Iterator[str]:
        for name, value in (*self.env.items(), *self.headers.items()):
            yield from secret_parts(name, value or "", counts)
        for name in ("token", "client_secret"):
            yield from secret_parts(name, getattr(self.auth, name, None) or "")
        yield from secrets_of_url(self.url or "", counts)
        yield from secrets_of_words(self.argv)

    def fingerprint(self) -> str:
        """A hash of what a running connection depends on: equal fingerprints need no new connection.

        That is the program, its arguments, environment and folder; the URL, headers, sign-in and TLS files; the
        protocol era, the limit of a frame and the account. All else (timeouts, filters, texts, switches) takes
        effect on a connection that is already there. It is made of secrets too, so keep it in memory.
        """
        stored = {**self.to_storage_dict(), "type": self.resolved_type, "command": self.argv, "args": None}
        relevant = {key: stored.get(key) for key in _CONNECTION}
        return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()

    def _misfits(self) -> Iterator[tuple[str, str]]:
        """Faults that lie between fields, each with the end of its path."""
        local = self.resolved_type == "local"
        needed, given = ("command", self.command) if local else ("url", self.url)
        if not self.command and not self.url and not self.type:
            yield "", "expected a command (for a local server) or a url (for a remote one), got neither"
        elif not given:
            yield f".{needed}", f"is missing; a server of type {self.resolved_type} needs it"
        for one in json_fields(type(self)):
            only = one.metadata.get("only")
            if only == ("remote" if local else "local") and getattr(self, one.name) != _default(one):
                kind = "a local server" if local else "a server with a url"
                yield f".{one.name}", f"does not fit {kind} (its type is {self.resolved_type})"
        auth = self.auth
        if isinstance(auth, ClientCredentialsAuth) and bool(auth.client_secret) == bool(auth.private_key_file):
            yield ".auth", "expected either client_secret or private_key_file"
        for at in masks(self):
            yield at, "the mask stands for no value that is known; write the value, or leave it out to keep it"
        if self.reconnect and self.reconnect.max_seconds < self.reconnect.initial_seconds:
            yield ".reconnect.max_seconds", "expected not less than initial_seconds"


_CONNECTION: Final = (
    "type",
    "command",
    "env",
    "cwd",
    "inherit_env",
    "url",
    "headers",
    "auth",
    "ca_file",
    "client_cert_file",
    "client_key_file",
    "verify",
    "max_frame_bytes",
    "era",
    "share",
    "account",
    "sandbox_state",
)


def _longest_first(secrets: set[str]) -> tuple[str, ...]:
    return tuple(sorted((one for one in secrets if len(one) >= MIN_LENGTH), key=lambda one: (-len(one), one)))


def _default(one: attrs.Attribute[Any]) -> Any:
    return one.default.factory() if isinstance(one.default, attrs.Factory) else one.default  # type: ignore[arg-type, union-attr]  # the stubs show a function where there is a class


def canonical_name(key: str) -> str:
    """Our name for a field."""
    return _ALIASES.get(key, key)


def canonical(data: Mapping[str, Any], path: str) -> dict[str, Any]:
    """An entry with our names for the fields that other programs call otherwise.

    Raises:
        ConfigError: A field is there by two names.
    """
    entry: dict[str, Any] = {}
    for key, value in data.items():
        name = canonical_name(key)
        if name in entry or (name != key and name in data):
            raise ConfigError(f"{path}.{key}: is another name for {name}, which is given too", path=f"{path}.{key}")
        entry[name] = not value if key == "disabled" and isinstance(value, bool) else value
    return entry
