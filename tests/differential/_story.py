"""An exchange with its name, and what it is about."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from .steps import PeerStopsReading, Run, Step, says

__all__ = ["Exchange", "story"]


@frozen
class Exchange:
    """A story, and which points of the list it is about."""

    name: str
    points: frozenset[int]
    steps: tuple[Step, ...]

    @property
    def needs_a_full_pipe(self) -> bool:
        """Whether the peer stops reading in it, which a stream in memory does not let us feel."""
        return any(isinstance(step, PeerStopsReading) for step in self.steps)


_NOTHING_MORE: Final = says({"method": "still there"})
"""At the end of a story: the connection lives, and nothing that was said before is left in it."""


def story(name: str, *steps: Step, points: tuple[int, ...] = (), running: bool = True, ends: bool = False) -> Exchange:
    start: tuple[Step, ...] = (Run(),) if running else ()
    end: tuple[Step, ...] = () if ends else (_NOTHING_MORE,)
    return Exchange(name, frozenset(points), (*start, *steps, *end))
