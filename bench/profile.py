"""Where the processor time of a call goes, by samples: ``python -m bench.profile [ROW]``.

Prints, for each function of ours and of Trio's, in how many of the samples it was at work (itself or what it called).
A sampler in the process itself is coarse, but it slows nothing down; a tracing profiler would measure itself.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType

import trio
from attrs import evolve

from .client_ours import main as run_row
from .rows import ROWS

_INTERVAL_SECONDS = 0.0007
_SHOWN = 40
# The system's own clock may be no finer than 4 ms: more calls, for enough samples.
_LONGER = 8
_CALLER = "bench/drive.py caller"
_HOME = str(Path(__file__).parent.parent)


def main(name: str = "one") -> None:
    """Run a row of the benchmark with our client and print the profile."""
    row = next(row for row in ROWS if row.name == name)
    row = evolve(row, calls=row.calls * _LONGER)
    server = [sys.executable, str(Path(__file__).parent / "fast_server.py")]
    samples: Counter[str] = Counter()
    total = 0

    def sample(_signal: int, frame: FrameType | None) -> None:
        nonlocal total
        seen = set()
        while frame is not None:
            code = frame.f_code
            file = code.co_filename.rpartition("site-packages/")[2].removeprefix(_HOME).lstrip("/")
            seen.add(f"{file} {code.co_name}")
            frame = frame.f_back
        # What came before the first call is the start, and that is not what is asked.
        if total or _CALLER in seen:
            total += 1
            samples.update(seen)

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_SECONDS, _INTERVAL_SECONDS)
    try:
        trio.run(partial(run_row, row, [server] * row.servers))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({"row": name, "samples": total}))
    for function, count in samples.most_common(_SHOWN):
        print(f"{count / total:6.1%}  {function}")


if __name__ == "__main__":
    main(*sys.argv[1:])
