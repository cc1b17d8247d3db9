"""The colours of states on a terminal."""

from __future__ import annotations

__all__ = ["STYLES"]

STYLES = {
    "connected": "green",
    "pending": "dim",
    "starting": "yellow",
    "reconnecting": "yellow",
    "failed": "red",
    "needs_auth": "magenta",
    "needs_client_registration": "magenta",
    "disconnected": "dim",
    "disabled": "dim",
}
