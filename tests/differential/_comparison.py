"""What two sides made of the same exchange, held against each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from attrs import frozen

from ._stage import Seen

__all__ = ["Contrast", "contrast"]

_REASON = re.compile(r'"reason":"[^"]*",?')


@frozen
class Contrast:
    """What only one of two sides showed.

    Args:
        sdk: What only the SDK's did.
        ours: What only ours did.
    """

    sdk: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()


def contrast(sdk: Iterable[Seen], ours: Iterable[Seen], *, loose: bool = False) -> Contrast:
    """Compare what was seen, channel by channel.

    Callers that end in the same step have no order among each other. What the SDK says as the reason of a cancellation
    is left out everywhere: it is for people, and ours gives none.

    Args:
        sdk: What was seen of the SDK's dispatcher.
        ours: What was seen of ours.
        loose: What happens in one step on one channel has no order, but for what the interceptor meets.
    """
    theirs, mine = _channels(sdk, loose), _channels(ours, loose)
    only_theirs: list[str] = []
    only_mine: list[str] = []
    for channel in sorted(theirs.keys() | mine.keys()):
        one, other = theirs.get(channel, []), mine.get(channel, [])
        if one == other:
            continue
        more, less = Counter(one) - Counter(other), Counter(other) - Counter(one)
        if more or less:
            only_theirs += [text for text in one if text in more]
            only_mine += [text for text in other if text in less]
        else:
            only_theirs.append(f"order: {one}")
            only_mine.append(f"order: {other}")
    return Contrast(tuple(only_theirs), tuple(only_mine))


def _channels(seen: Iterable[Seen], loose: bool) -> dict[str, list[str]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for item in seen:
        found.setdefault(item.channel, []).append((item.step, _REASON.sub("", str(item))))
    return {
        channel: [
            text for _, text in (sorted(lines) if channel == "call" or (loose and channel != "intercept") else lines)
        ]
        for channel, lines in found.items()
    }
