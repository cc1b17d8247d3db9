"""``${NAME}``, ``${NAME:-default}`` and ``$$`` in texts of the configuration. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from attrs import define, field

from .. import paths
from ..errors import ConfigError
from ._convert import json_fields
from ._kinds import HEADER, URL, Kind, Mismatch, split_command
from ._parts import ClientCredentialsAuth, EnterpriseAuth, WorkloadAuth
from ._secrets import REFERENCE, is_credential, is_secret

if TYPE_CHECKING:
    from ._server import MCPServerConfig

__all__ = ["expanded"]

_Config = TypeVar("_Config", bound="MCPServerConfig")


@define
class _Expander:
    """Puts the values of variables in their places, and remembers which of them are secrets.

    A lone ``$`` is a dollar sign. What was put in is not looked at again. ``${NAME:-default}`` takes the default for a
    variable that is empty, too, as a shell does.

    Args:
        environ: The variables.
        server: The server whose configuration it is, for the error.
    """

    environ: Mapping[str, str] = field(repr=False)
    server: str
    secrets: set[str] = field(factory=set, repr=False)
    credentials: set[str] = field(factory=set, repr=False)

    def __call__(self, text: str, path: str) -> str:
        """The text with the values in it.

        Raises:
            ConfigError: A variable is not set, or a ``${`` begins none of the forms; ``path`` is the place given.
        """

        def value_of(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name, default = match["name"], match["default"]
            if name is None:
                raise ConfigError(
                    f"{path}: a ${{ in it begins neither ${{NAME}} nor ${{NAME:-default}}",
                    path=path,
                    server=self.server,
                    remedy="Write $$ for a dollar sign that is meant as such.",
                )
            value = self.environ.get(name)
            if default is not None:
                value = value or default.replace("$$", "$")
            if value is None:
                raise ConfigError(
                    f"{path}: the environment variable {name} is not set",
                    path=path,
                    server=self.server,
                    remedy=f"Set {name} where the worker is started, or write ${{{name}:-default}}.",
                )
            if is_secret(name, value):
                self.secrets.add(value)
            if is_credential(name, value):
                self.credentials.add(value)
            return value

        return REFERENCE.sub(value_of, text)


def expanded(config: _Config, environ: Mapping[str, str] | None, base: Path | None) -> _Config:
    """The configuration with values in the place of references, and whole paths: ``MCPServerConfig.expand``."""
    at = f"servers.{config.name}"
    fill = _Expander(os.environ if environ is None else environ, server=config.name)
    folder = paths.config_path().parent if base is None else base

    def words(values: tuple[str, ...], where: str) -> tuple[str, ...]:
        return tuple(fill(one, f"{where}.{index}") for index, one in enumerate(values))

    def file(text: str | None, where: str) -> str | None:
        return None if text is None else str(folder / Path(fill(text, where)).expanduser())

    def checked(kind: Kind, text: str, where: str) -> str:
        try:
            return str(kind(fill(text, where)))
        except Mismatch as error:
            raise ConfigError(f"{where}: {error}", path=where, server=config.name) from None

    command = config.command
    program = words(split_command(command) if isinstance(command, str) else command, f"{at}.command")
    if program:
        program = (os.path.expanduser(program[0]), *program[1:])  # noqa: PTH111 - a Path would take ./ away
    auth = config.auth
    if auth is not None:
        texts = {one.name: getattr(auth, one.name) for one in json_fields(type(auth))}
        filled: dict[str, Any] = {
            key: fill(one, f"{at}.auth.{key}") for key, one in texts.items() if isinstance(one, str)
        }
        if isinstance(auth, ClientCredentialsAuth):
            filled["private_key_file"] = file(auth.private_key_file, f"{at}.auth.private_key_file")
        elif isinstance(auth, EnterpriseAuth | WorkloadAuth):
            filled["assertion_file"] = file(auth.assertion_file, f"{at}.auth.assertion_file")
        auth = attrs.evolve(auth, **filled)
    return attrs.evolve(
        config,
        command=program,
        args=words(config.args, f"{at}.args"),
        env={key: None if one is None else fill(one, f"{at}.env.{key}") for key, one in config.env.items()},
        cwd=file(config.cwd, f"{at}.cwd"),
        url=None if config.url is None else checked(URL, config.url, f"{at}.url"),
        headers={key: checked(HEADER, one, f"{at}.headers.{key}") for key, one in config.headers.items()},
        auth=auth,
        ca_file=file(config.ca_file, f"{at}.ca_file"),
        client_cert_file=file(config.client_cert_file, f"{at}.client_cert_file"),
        client_key_file=file(config.client_key_file, f"{at}.client_key_file"),
        expanded_secrets=frozenset(fill.secrets),
        expanded_credentials=frozenset(fill.credentials),
    )
