"""Progress on a terminal: a line for each server that is starting, with its state and seconds, and one for a call.

Drawn on stderr and gone when the command has its answer. In a pipe, and with ``--json``, nothing is drawn.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from ..status import ServerState, ServerStatus
from ._output import Output, one_line
from ._styles import STYLES

if TYPE_CHECKING:
    from ..manager import MCPManager

__all__ = ["Progress", "call_line"]

_FRAME_SECONDS = 0.1
_WAITING = frozenset({ServerState.PENDING, ServerState.STARTING, ServerState.RECONNECTING})


def call_line(tool: str, progress: float, total: float | None, message: str | None) -> str:
    """How far a call is, in one line."""
    done = f"{min(max(progress / total, 0), 1):4.0%}" if total else f"{progress:g}"
    return one_line(f"{tool}  {done}  {message or ''}".rstrip(), 200)


@define
class Progress:
    """Draws progress while it is entered; nothing where it is not wanted.

    Args:
        output: Says whether it is wanted.
    """

    _output: Output
    _live: Any = field(default=None, init=False)
    _call: str | None = field(default=None, init=False)
    _began: dict[str, float] = field(factory=dict, init=False)
    _took: dict[str, float] = field(factory=dict, init=False)

    def __enter__(self) -> Progress:
        if self._output.live:
            from rich.console import Console
            from rich.live import Live

            # Its own refresh thread is not used: it would draw while the loop changes what is drawn.
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Draw no more: what follows is said to a human."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def call(self, tool: str, progress: float, total: float | None, message: str | None) -> None:
        """Tell how far a call is."""
        self._call = call_line(tool, progress, total, message)

    async def draw(self, manager: MCPManager) -> None:
        """Draw until it is left."""
        while self._live is not None:
            self._live.update(self._lines(manager.status().values()), refresh=True)
            await trio.sleep(_FRAME_SECONDS)

    def _lines(self, servers: Any) -> Any:
        from rich.text import Text

        lines = Text(no_wrap=True, overflow="ellipsis")
        for status in servers:
            # Those that are not wanted in this command have been taken down.
            if status.status not in (ServerState.DISABLED, ServerState.DISCONNECTED):
                self._line(lines, status)
        if self._call:
            lines.append(f"{self._call}\n")
        lines.rstrip()
        return lines

    def _line(self, lines: Any, status: ServerStatus) -> None:
        now = trio.current_time()
        began = self._began.setdefault(status.name, now)
        if status.status in _WAITING:
            self._took.pop(status.name, None)
            seconds = now - began
        else:
            seconds = self._took.setdefault(status.name, now - began)
        lines.append(f"{one_line(status.name, 40):<24} ")
        lines.append(f"{status.status:<12}", style=STYLES[str(status.status)])
        lines.append(f" {seconds:5.1f} s")
        said = status.error or (status.stderr[-1] if status.stderr and status.status in _WAITING else None)
        if said:
            lines.append(f"  {one_line(said, 80)}", style="dim")
        lines.append("\n")
