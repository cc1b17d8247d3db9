"""Whether a tool may be called, by rules. Pure.

Owns what a rule means and which of several counts. Does not own where rules are kept, nor who is asked.

A rule is ``{"tool": glob, "server": glob, "action": "allow" | "ask" | "deny"}``. ``tool`` matches full names and
``server`` the names of servers; a rule that leaves one out matches all of that kind. Of the rules that match, the most
specific one counts: one that names exactly this tool, else the one with more literal characters, else one that names
both a tool and a server. Between equals the stricter action counts, and without any rule the default does.

A rule that cannot be understood may have been meant to forbid this very tool, so while there is one, nothing is more
than ``ask``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from attrs import field, frozen

from .errors import Denied

__all__ = ["Action", "Permissions", "decide"]

Action = Literal["allow", "ask", "deny"]

_STRICTNESS: Final[Mapping[Action, int]] = {"allow": 0, "ask": 1, "deny": 2}
_KEYS: Final = frozenset({"tool", "server", "action"})
_WILDCARD: Final = re.compile(r"[*?]|\[!?\]?[^]]*\]")


def decide(rules: Iterable[Any], default: Action, *, tool: str, server: str = "") -> Action:
    """What the rules say about a tool.

    Args:
        rules: The rules, as they stand in the configuration.
        default: What holds where no rule matches.
        tool: The tool's full name.
        server: Its server's name; empty for a function of the host's own.
    """
    found: list[tuple[tuple[bool, int, bool, int], Action]] = []
    least: Action = "allow"
    for rule in rules:
        if not _is_understood(rule):
            least = "ask"
        elif _matches(rule.get("tool"), tool) and _matches(rule.get("server"), server):
            found.append((_rank(rule, tool), rule["action"]))
    action = max(found, key=lambda one: one[0])[1] if found else default
    return max(action, least, key=_STRICTNESS.__getitem__)


def _is_understood(rule: Any) -> bool:
    return (
        isinstance(rule, Mapping)
        and rule.keys() <= _KEYS
        and all(isinstance(rule.get(key), str | None) for key in _KEYS)
        and rule.get("action") in _STRICTNESS
    )


def _matches(pattern: str | None, name: str) -> bool:
    # A server's name may hold what would be a wildcard in a pattern.
    return pattern is None or pattern == name or fnmatchcase(name, pattern)


def _rank(rule: Mapping[str, Any], tool: str) -> tuple[bool, int, bool, int]:
    named = [rule[key] for key in ("tool", "server") if rule.get(key) is not None]
    literals = sum(len(_WILDCARD.sub("", pattern)) for pattern in named)
    return rule.get("tool") == tool, literals, len(named) == 2, _STRICTNESS[rule["action"]]


@frozen
class Permissions:
    """The rules in force.

    Args:
        rules: The rules, as they stand in the configuration.
        default: What holds where no rule matches.
    """

    rules: tuple[Any, ...] = ()
    default: Action = "allow"
    _decided: dict[tuple[str, str], Action] = field(factory=dict, init=False, eq=False, repr=False)

    def action(self, tool: str, server: str = "") -> Action:
        """What they say about a tool: see :func:`decide`. What was decided is kept, since every call asks."""
        action = self._decided.get((tool, server))
        if action is None:
            action = self._decided[tool, server] = decide(self.rules, self.default, tool=tool, server=server)
        return action

    def check(self, tool: str, server: str = "") -> None:
        """Let a call pass, or not.

        Raises:
            Denied: The rules forbid it; or somebody would have to be asked, and nobody can be yet.
        """
        action = self.action(tool, server)
        if action == "deny":
            raise Denied(
                f"{tool} is denied by the permissions",
                remedy="Nothing was sent. Change 'permissions' in the configuration if it should be allowed.",
                server=server or None,
            )
        if action == "ask":
            raise Denied(
                f"{tool} needs somebody's permission, and there is nobody who could be asked",
                remedy='Nothing was sent. Allow it by a rule with "action": "allow" under \'permissions\'.',
                server=server or None,
            )
