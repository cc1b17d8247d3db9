"""The names under which a model sees tools.

Owns: how a server's name and a tool's name make one name that every model API accepts, and how collisions end. Does not
own: the way back. A name is looked up in the registry's table, never split, since ``a__b`` + ``c`` and ``a`` + ``b__c``
read the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

__all__ = ["MAX_NAME", "NameStyle", "assign_names", "clash_warnings", "namespace_tool_name"]

NameStyle = Literal["plain", "mcp"]
"""``plain`` is ``server__tool``, ``mcp`` is ``mcp__server__tool``."""

Pair = tuple[str, str]

MAX_NAME: Final = 64
"""The longest name that all model APIs accept, in characters."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_SERVER_SHARE: Final = 16
"""So many characters of the server's name stay, however long the tool's name is."""

_DIGITS: Final = (0, 8, 16, 32, 40)
"""Hexadecimal digits of the hash at each level of `assign_names`; the last, 160 bits, leaves no equal pairs."""


def namespace_tool_name(server: str, tool: str, *, style: NameStyle = "plain") -> str:
    """The name of a tool that collides with no other. Pure: it depends on its arguments alone.

    Every character outside ``[A-Za-z0-9_-]`` becomes ``_``. A name over 64 characters is cut, keeps the tool's end, and
    carries a hash of the original names.

    Args:
        server: The server's name, as configured.
        tool: The tool's name on the wire.
        style: ``plain`` or ``mcp``.
    """
    return _name(server, tool, style, 0)


def assign_names(pairs: Iterable[Pair], *, style: NameStyle = "plain") -> dict[Pair, str]:
    """A name for each (server, tool) pair: unique, and dependent on the set of pairs alone, never on their order.

    Where names collide, every pair concerned gets a hash of its original names, so that none of them owns the plain
    one. A hashed name may in turn be another tool's plain name; then both move to a longer hash. Every pair moves at
    most four times, so that the work is bounded whatever names a hostile server picks.

    Args:
        pairs: Server's name as configured, tool's name on the wire. A pair that stands there twice counts once.
        style: ``plain`` or ``mcp``.

    Returns:
        The names, in the order of the pairs.
    """
    level = dict.fromkeys(pairs, 0)
    names = {pair: _name(*pair, style, 0) for pair in level}
    users: dict[str, set[Pair]] = {}
    for pair, name in names.items():
        users.setdefault(name, set()).add(pair)
    clashing = {name for name, owners in users.items() if len(owners) > 1}
    while clashing:
        # All movers of a round are chosen before any of them moves: that is what makes the order irrelevant.
        movers = [pair for name in clashing for pair in users[name] if level[pair] < len(_DIGITS) - 1]
        taken: set[str] = set()
        for pair in movers:
            users[names[pair]].discard(pair)
            level[pair] += 1
            name = names[pair] = _name(*pair, style, _DIGITS[level[pair]])
            users.setdefault(name, set()).add(pair)
            taken.add(name)
        clashing = {name for name in taken if len(users[name]) > 1}
    return names


def clash_warnings(names: Mapping[Pair, str], *, style: NameStyle = "plain") -> dict[Pair, str]:
    """A sentence for each pair that could not have its plain name, for the status of its server.

    Args:
        names: What `assign_names` gave.
        style: The style it was given.
    """
    return {
        (server, tool): f"tool {json.dumps(tool[:100])} is offered as {name}, since another has the name {plain}"
        for (server, tool), name in names.items()
        if name != (plain := _name(server, tool, style, 0))
    }


def _name(server: str, tool: str, style: NameStyle, digits: int) -> str:
    prefix = "mcp__" if style == "mcp" else ""
    safe_server = _UNSAFE.sub("_", server)
    safe_tool = _UNSAFE.sub("_", tool)
    if not digits:
        name = f"{prefix}{safe_server}__{safe_tool}"
        if len(name) <= MAX_NAME:
            return name
        digits = _DIGITS[1]
    # The hash stands with the server, so that the name still ends with the tool's end, which tells most to a reader.
    mark = f"_{_digest(server, tool)[:digits]}__"
    room = MAX_NAME - len(prefix) - len(mark)
    kept_server = safe_server[: max(room - len(safe_tool), min(_SERVER_SHARE, room // 2))]
    kept_tool = safe_tool[max(0, len(safe_tool) - (room - len(kept_server))) :]
    return f"{prefix}{kept_server}{mark}{kept_tool}"


def _digest(server: str, tool: str) -> str:
    # JSON keeps the border between the two names, and takes lone surrogates, which UTF-8 does not.
    return hashlib.sha256(json.dumps([server, tool]).encode()).hexdigest()
