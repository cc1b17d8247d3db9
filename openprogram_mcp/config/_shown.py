"""A server's configuration as it is shown, and the merge of an edit that was made on what was shown. Pure.

What is shown holds the mask in the place of every secret. An edit may send it back as it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..errors import ConfigError
from ..masking import MASK
from ._convert import json_fields, plain
from ._jsonc import same
from ._kinds import split_command
from ._secrets import masked_url, masked_words

if TYPE_CHECKING:
    from ._server import MCPServerConfig

__all__ = ["merged", "shown"]

_SECRET_MAPS: Final = ("env", "headers")
_AUTH_SECRETS: Final = ("token", "client_secret")


def shown(config: MCPServerConfig) -> dict[str, Any]:
    """Every field, defaults included, with masks for secrets; no unknown field, for nobody knows what it holds."""
    last = "" if isinstance(config.command, str) or not config.command else config.command[-1]
    form = {one.name: _shown(getattr(config, one.name)) for one in json_fields(type(config)) if one.name != "name"}
    return form | {
        "type": config.resolved_type,
        "command": _shown_command(config.command),
        "args": masked_words(config.args, last),
        "url": None if config.url is None else masked_url(config.url),
        **{key: {name: _shown_secret(one) for name, one in getattr(config, key).items()} for key in _SECRET_MAPS},
    }


def _shown(value: Any) -> Any:
    if not attrs.has(type(value)):
        return plain(value)
    form = {one.name: _shown(getattr(value, one.name)) for one in json_fields(type(value))}
    for name in _AUTH_SECRETS:
        if name in form:
            form |= {name: MASK if form[name] else None, f"has_{name}": bool(form[name])}
    return {"kind": value.kind, **form} if hasattr(value, "kind") else form


def _shown_secret(value: str | None) -> dict[str, Any]:
    return {"has_value": value is not None, "masked": None if value is None else MASK}


def _shown_command(command: str | tuple[str, ...]) -> str | list[str]:
    if not isinstance(command, str):
        return masked_words(command)
    words = split_command(command)
    hidden = masked_words(words)
    return command if hidden == list(words) else shlex.join(hidden)


def merged(config: MCPServerConfig, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The stored form after an edit; what is sent back as it was shown is kept as it is.

    Args:
        config: What is edited.
        patch: The edit, with our names for its fields.

    Raises:
        ConfigError: A mask stands where there is no secret to keep.
    """
    was, seen = config.to_storage_dict(), shown(config)
    result = dict(was)
    for key, value in patch.items():
        if key in seen and same(value, seen[key]):
            continue
        path = f"servers.{config.name}.{key}"
        old = was.get(key)
        if value is None:
            result.pop(key, None)
        elif not isinstance(value, Mapping):
            result[key] = _unmasked(value, seen.get(key), old, path)
        elif key == "auth":
            kept = old if isinstance(old, Mapping) and value.get("kind", old["kind"]) == old["kind"] else {}
            told = {name: one for name, one in value.items() if not name.startswith("has_")}
            result[key] = _merged_map(told, kept, path)
        else:
            result[key] = _merged_map(value, old if isinstance(old, Mapping) else {}, path)
    return result


def _merged_map(patch: Mapping[str, Any], old: Mapping[str, Any], path: str) -> dict[str, Any]:
    result = dict(old)
    for name, value in patch.items():
        if _is_mask(value):
            if old.get(name) is None:
                raise _nothing_behind(f"{path}.{name}")
        elif value is None or value == "":
            result.pop(name, None)
        else:
            result[name] = _unmasked(value, None, None, f"{path}.{name}")
    return result


def _unmasked(value: Any, seen: Any, old: Any, path: str) -> Any:
    """A value with the old words in the place of those that were sent back masked."""
    if isinstance(value, list) and isinstance(seen, list) and isinstance(old, list):
        left = list(zip(seen, old, strict=True))
        words = list(value)
        for index, word in enumerate(words):
            pair = next((one for one in left if isinstance(word, str) and MASK in word and one[0] == word), None)
            if pair:
                left.remove(pair)
                words[index] = pair[1]
        return [_unmasked(word, None, None, f"{path}.{index}") for index, word in enumerate(words)]
    if isinstance(value, str) and MASK in value:
        raise _nothing_behind(path)
    return value


def _is_mask(value: Any) -> bool:
    return value == MASK or (isinstance(value, Mapping) and value.get("masked") == MASK)


def _nothing_behind(path: str) -> ConfigError:
    return ConfigError(
        f"{path}: the mask stands for no value that is known",
        path=path,
        remedy="Write the value itself, or leave the field out to keep what it holds.",
    )
