"""How a browser gets in without the token ever standing in an address: a link that works once, and the cookie it sets.

Whoever has the token makes a link; opening it within a minute gives the browser a cookie, which is good for some hours
and for this worker alone. Neither is the token, and neither is kept here: only hashes of them are.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from secrets import token_urlsafe

import trio
from attrs import define, field

__all__ = ["LINK_PATH", "LINK_SECONDS", "SESSION_SECONDS", "Sessions"]

LINK_PATH = "/mcp/enter"
"""Where a link leads; its code is the only secret that ever stands in an address."""

LINK_SECONDS = 60.0
SESSION_SECONDS = 12 * 3600.0
_MAX_LINKS = 16
_MAX_SESSIONS = 64
_MAX_COOKIES = 16


@define
class Sessions:
    """The links that wait and the browsers that are in, of one worker.

    Args:
        port: The port it is served at: cookies do not know ports, and two workers must not take each other's.
        clock: Gives the time in seconds.
    """

    port: int = 0
    clock: Callable[[], float] = trio.current_time
    _links: dict[bytes, float] = field(factory=dict, init=False, repr=False)
    _sessions: dict[bytes, float] = field(factory=dict, init=False, repr=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"openprogram_mcp_{self.port}"

    def new_link(self) -> str:
        """The code of a new link. The oldest of too many stops working."""
        return _begin(self._links, self.clock() + LINK_SECONDS, _MAX_LINKS)

    def enter(self, code: str) -> str | None:
        """Spend the code of a link.

        Returns:
            The value of the ``Set-Cookie`` header; ``None`` where the code is not one that works, or works no more.
        """
        deadline = self._links.pop(_hash(code), None)
        if deadline is None or deadline <= self.clock():
            return None
        session = _begin(self._sessions, self.clock() + SESSION_SECONDS, _MAX_SESSIONS)
        # Not for scripts, not for requests that begin on other sites. Not Secure: it is plain HTTP on this machine.
        return f"{self.cookie}={session}; Path=/; Max-Age={SESSION_SECONDS:.0f}; HttpOnly; SameSite=Strict"

    def knows(self, cookies: list[str]) -> bool:
        """Whether one of these ``Cookie`` headers has the cookie of a browser that is in."""
        found = [value for header in cookies[:_MAX_COOKIES] for name, value in _pairs(header) if name == self.cookie]
        now = self.clock()
        # Another program on this machine may have put a cookie of the same name beside ours.
        return any(self._sessions.get(_hash(value), 0.0) > now for value in found[:_MAX_COOKIES])


def _begin(kept: dict[bytes, float], deadline: float, limit: int) -> str:
    secret = token_urlsafe(32)
    while len(kept) >= limit:
        del kept[min(kept, key=kept.__getitem__)]
    kept[_hash(secret)] = deadline
    return secret


def _hash(secret: str) -> bytes:
    """What is looked up instead of a secret: how long that takes says nothing about the secret."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _pairs(header: str) -> list[tuple[str, str]]:
    return [(name.strip(), value.strip()) for name, _, value in (part.partition("=") for part in header.split(";"))]
