"""The exchanges that are written by hand: everything that any dispatcher has to get right, one small story each.

The numbers are those of the list that any dispatcher has to keep, see ``POINTS`` in test_exchanges.
"""

from __future__ import annotations

from typing import Final

from ._asking import ASKING
from ._hearing import HEARING
from ._serving import SERVING
from ._story import Exchange

__all__ = ["EXCHANGES", "Exchange"]

EXCHANGES: Final[tuple[Exchange, ...]] = (*ASKING, *HEARING, *SERVING)
