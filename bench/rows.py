"""What is measured: one row each, the same for every client."""

from __future__ import annotations

from attrs import asdict, evolve, frozen

__all__ = ["ROWS", "Row", "from_dict", "quick", "to_dict"]


@frozen
class Row:
    """One measurement.

    Args:
        name: What it is called on the command line.
        title: What a reader sees.
        callers: How many tasks call at the same time.
        servers: How many servers they are spread over.
        calls: How many calls are made in all.
        size: The size of a result in bytes.
        transport: ``stdio`` or ``http``.
        figure: What is compared: ``rate`` (calls a second) or ``latency`` (the median, in microseconds).
        reach: The ratio to the SDK on asyncio that we want to reach.
    """

    name: str
    title: str
    callers: int
    servers: int
    calls: int
    size: int
    transport: str
    figure: str
    reach: float


ROWS = (
    Row("alone", "one call alone, 100 B", 1, 1, 3000, 100, "stdio", "latency", 0.75),
    Row("one", "64 callers, 1 server", 64, 1, 19200, 100, "stdio", "rate", 4.0),
    Row("eight", "64 callers, 8 servers", 64, 8, 19200, 100, "stdio", "rate", 4.0),
    Row("large", "1 MB results, one at a time", 1, 1, 80, 1_000_000, "stdio", "latency", 0.5),
    Row("http-alone", "one call alone, 100 B", 1, 1, 1200, 100, "http", "latency", 1.0),
    Row("http-one", "64 callers, 1 server", 64, 1, 3840, 100, "http", "rate", 1.0),
    Row("http-eight", "64 callers, 8 servers", 64, 8, 3840, 100, "http", "rate", 1.0),
    Row("http-large", "1 MB results, one at a time", 1, 1, 80, 1_000_000, "http", "latency", 1.0),
)


def quick(row: Row) -> Row:
    """The row with a sixth of the calls."""
    return evolve(row, calls=max(row.calls // 6, row.callers * 5, 20))


def to_dict(row: Row) -> dict[str, object]:
    """For the command line of a client."""
    return asdict(row)


def from_dict(data: dict[str, object]) -> Row:
    """From the command line of a client."""
    return Row(**data)  # type: ignore[arg-type]  # written by to_dict
