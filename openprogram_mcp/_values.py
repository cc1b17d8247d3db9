"""Values that are made for every call: frozen for the type checkers, plain at run time.

attrs makes the fields of a frozen class one by one past the guard that freezes them, which takes three times as long
as plain assignment. A call makes four such values. What is not made for every call, and what users are
given, is ``attrs.frozen``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import define

__all__ = ["quick_frozen"]

if TYPE_CHECKING:
    from attrs import frozen as quick_frozen
else:
    quick_frozen = partial(define, unsafe_hash=True)
