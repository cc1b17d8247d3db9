"""The page that a browser shows when it comes back from a sign-in."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Final

from attrs import frozen

__all__ = ["Page", "page"]

_SCRIPT: Final = "setTimeout(function () { window.close() }, 2000)"
_STYLE: Final = "body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:20vh auto;padding:0 1rem}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_POLICY: Final = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@frozen
class Page:
    """An answer to the browser."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


def page(status: int, title: str, *sentences: str) -> Page:
    """A plain page that says what happened and closes itself after two seconds, where the browser lets it.

    Args:
        status: Of HTTP.
        title: What happened.
        sentences: What to do now. All of it is escaped.
    """
    said = "".join(f"<p>{escape(one)}</p>" for one in sentences)
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>{said}<script>{_SCRIPT}</script></html>"
    ).encode()
    return Page(
        status,
        body,
        (
            ("content-type", "text/html; charset=utf-8"),
            ("content-length", str(len(body))),
            ("content-security-policy", _POLICY),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("connection", "close"),
        ),
    )
