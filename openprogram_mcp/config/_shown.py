"""A server's configuration as it is shown, and the merge of an edit that was made on what was shown. Pure.

What is shown holds the mask in the place of every secret. An edit may send it back as it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..masking import MASK
from ._convert import json_fields, plain
from ._jsonc import same
from ._kinds import split_command
from ._secrets import masked_url, masked_words

if TYPE_CHECKING:
    from ._server import MCPServerConfig

__all__ = ["masks", "merged", "shown"]

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
    """The stored form after an edit, whose fields go by our names; what it sends back as it was shown is kept as it is.

    A mask that stands for nothing is still in it: :func:`masks` finds it.
    """
    was, seen = config.to_storage_dict(), shown(config)
    result = dict(was)
    for key, value in patch.items():
        old = was.get(key)
        if key in seen and same(value, seen[key]):
            continue
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merged_list(value, seen.get(key), old)
        elif not isinstance(value, Mapping):
            result[key] = value
        elif key == "auth":
            kept = old if isinstance(old, Mapping) and value.get("kind", old["kind"]) == old["kind"] else {}
            result[key] = _merged_map({name: one for name, one in value.items() if name[:4] != "has_"}, kept)
        else:
            result[key] = _merged_map(value, old if isinstance(old, Mapping) else {})
    return result


def _merged_map(patch: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for name, value in patch.items():
        if value == MASK or (isinstance(value, Mapping) and value.get("masked") == MASK):
            result.setdefault(name, MASK)
        elif value is None or value == "":
            result.pop(name, None)
        else:
            result[name] = value
    return result


def _merged_list(patch: list[Any], seen: Any, old: Any) -> list[Any]:
    """The words of an edit, with the old words in the place of those that were sent back masked."""
    if not isinstance(seen, list) or not isinstance(old, list):
        return patch
    hidden = [(masked, word) for masked, word in zip(seen, old, strict=True) if masked != word]
    words: list[Any] = []
    for word in patch:
        pair = next((one for one in hidden if one[0] == word), None)
        if pair:
            hidden.remove(pair)
        words.append(pair[1] if pair else word)
    return words


def masks(config: MCPServerConfig) -> Iterator[str]:
    """Where a mask stands in a configuration as if it were a secret, as ends of paths."""
    found = {
        "command": " ".join(config.argv),
        "url": config.url,
        **{f"{key}.{name}": one for key in _SECRET_MAPS for name, one in getattr(config, key).items()},
        **{f"auth.{name}": getattr(config.auth, name, None) for name in _AUTH_SECRETS},
    }
    return (f".{key}" for key, one in found.items() if one and MASK in one)
