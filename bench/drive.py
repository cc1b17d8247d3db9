"""The callers, the same for every client: so many at a time, each its share of the calls, each call timed."""

from __future__ import annotations

import gc
import json
from collections.abc import Awaitable, Callable
from statistics import median, quantiles
from time import perf_counter

from .rows import Row

__all__ = ["drive"]

Call = Callable[[int], Awaitable[int]]
"""Calls the tool of server number so-and-so and gives the length of the text that came back."""

Side = Callable[[Callable[[int], Awaitable[None]], int], Awaitable[None]]
"""Runs a function so many times side by side, each with its number."""

_WARM_UP = 30


async def drive(row: Row, call: Call, side_by_side: Side) -> None:
    """Make the calls of a row and print the figures as one line of JSON."""
    latencies: list[float] = []

    async def caller(number: int) -> None:
        server = number % row.servers
        for _ in range(row.calls // row.callers):
            started = perf_counter()
            length = await call(server)
            latencies.append(perf_counter() - started)
            if length != row.size:
                raise AssertionError(f"a result of {length} bytes instead of {row.size}")

    for server in range(row.servers):
        for _ in range(_WARM_UP if row.size < 10_000 else 3):
            await call(server)
    gc.collect()
    started = perf_counter()
    await side_by_side(caller, row.callers)
    seconds = perf_counter() - started
    print(
        json.dumps(
            {
                "rate": len(latencies) / seconds,
                "latency": median(latencies) * 1e6,
                "p95": quantiles(latencies, n=20)[-1] * 1e6,
                "calls": len(latencies),
            }
        )
    )
