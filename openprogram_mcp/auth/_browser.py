"""Opening a browser, where there is one that does not take the terminal."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import webbrowser
from contextlib import suppress
from typing import Final

import trio

__all__ = ["forwarding_hint", "open_browser"]

_OPEN_SECONDS: Final = 10.0
_TEXT_BROWSERS: Final = frozenset({"w3m", "links", "elinks", "lynx", "www-browser"})


async def open_browser(url: str) -> bool:
    """Open a browser at an address; says whether that seems to have worked. Never raises, never waits for long."""
    with trio.move_on_after(_OPEN_SECONDS):
        return await trio.to_thread.run_sync(_open, url, abandon_on_cancel=True)
    return False


def _open(url: str) -> bool:
    if sys.platform not in ("win32", "darwin") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER")
    ):
        return False  # nothing but text browsers, which would take the terminal
    try:
        browser = webbrowser.get()
        if getattr(browser, "basename", None) in _TEXT_BROWSERS:
            return False
        return bool(browser.open(url))
    except (webbrowser.Error, OSError):
        return False


def forwarding_hint(port: int | None) -> str | None:
    """How to reach a port of this machine from another one, for who sits there; ``None`` where nobody does."""
    if port is None or not os.environ.get("SSH_CONNECTION"):
        return None
    user, host = "USER", "HOST"
    with suppress(OSError, KeyError, ImportError):
        user, host = getpass.getuser(), socket.gethostname()
    forward = f"ssh -L {port}:127.0.0.1:{port} {user}@{host}"
    return f"Over SSH, first forward the port from the machine with the browser: {forward}"
