"""Keeping secrets out of what people and models get to see.

Owns the mask, and the finding of known secrets in texts and JSON, plain or as servers like to print them: quoted for a
URL, as base64, escaped in JSON. Does not know what is a secret: that is for whoever makes a :class:`Masker`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "MIN_LENGTH", "Masker"]

MASK: Final = "********"
"""What stands in the place of a secret, whatever its length."""

MIN_LENGTH: Final = 4
"""A shorter text is not searched for: it would be found everywhere."""

_MIN_PART = 8
"""A part of a secret (one of its lines, the stable middle of its base64) is not searched for when it is shorter."""


class Masker:
    """Replaces known secrets in texts and JSON values.

    Args:
        secrets: The secret texts. Those of fewer than :data:`MIN_LENGTH` characters are left alone.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._forms = frozenset(form for secret in secrets for form in _forms(secret))

    def mask(self, text: str) -> str:
        """``text`` with :data:`MASK` for every secret; those that overlap are one, so that no end of either is left."""
        found: list[tuple[int, int]] = []
        for form in self._forms:
            start = text.find(form)
            while start >= 0:
                found.append((start, start + len(form)))
                start = text.find(form, start + 1)
        if not found:
            return text
        pieces: list[str] = []
        done = 0
        for start, end in sorted(found):
            if start >= done:
                pieces += (text[done:start], MASK)
            done = max(done, end)
        return "".join((*pieces, text[done:]))

    def mask_value(self, value: Any, *, binary: frozenset[str] = frozenset()) -> Any:
        """A JSON value with every text in it masked, names included; what holds no secret comes back as it is.

        Args:
            value: The value.
            binary: Names under which a text is an encoded file, which is left alone.
        """
        if not self._forms:
            return value
        match value:
            case str():
                return self.mask(value)
            case dict():
                return {
                    self.mask_value(key): item
                    if key in binary and isinstance(item, str)
                    else self.mask_value(item, binary=binary)
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self.mask_value(item, binary=binary) for item in value]
            case int() | float() if not isinstance(value, bool) and str(value) in self._forms:
                return MASK
            case _:
                return value


def _forms(secret: str) -> Iterator[str]:
    """The ways in which a secret shows up in what programs print."""
    if len(secret) < MIN_LENGTH:
        return
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    data = secret.encode("utf-8", "surrogatepass")
    for quoted in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield quoted
        yield re.sub("%..", lambda escape: escape[0].lower(), quoted)
    for shift in range(3):
        # In base64 a text looks different by where in a group of three bytes it begins; the ends depend on neighbours.
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            encoded = alphabet(b"\0" * shift + data).decode().rstrip("=")
            middle = encoded[(0, 2, 3)[shift] : len(encoded) - (1 if (shift + len(data)) % 3 else 0)]
            if len(middle) >= _MIN_PART:
                yield middle
            if not shift:
                yield encoded
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _MIN_PART)
