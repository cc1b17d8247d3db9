"""JSON of the management API: one encoder, which no tool's answer can make fail."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["encode"]

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """A JSON value as UTF-8.

    What other people's servers answer is passed through here. Text that is no valid Unicode (half of a surrogate pair)
    and integers beyond 64 bits are legal in JSON but not for the fast encoder; they take the slow way.
    """
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return json.dumps(value, default=str).encode()
