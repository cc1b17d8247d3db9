"""The management API: what a running worker answers over HTTP, and the client that asks it.

Importing this package imports neither Hypercorn nor Litestar: a command that only talks to a running worker needs
``web.client`` and ``web.worker_file`` alone. ``serve`` is looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    if name == "serve":
        return import_module(".server", __name__).serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
