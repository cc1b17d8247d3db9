"""What must hold whatever bytes a peer sends: of lines, of decoding, and of a whole dispatcher with calls on their way.

An input is four characters that tell how it is played, and then the bytes of the peer: how many calls wait, how long a
line may be, into which pieces the bytes are cut, and how often a message of ours is put between their lines. Those
messages must all arrive, whole and in order, whatever stands around them; calls that the bytes have not answered must
get the answers that stand at the end; nothing may be raised, logged as a fault of ours, or held in memory.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

import trio
import trio.testing
from attrs import define, field, frozen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND

from openprogram_mcp.transports import wire
from openprogram_mcp.transports.stdio import StdioDispatcher
from openprogram_mcp.transports.wire import UNSET, Envelope, LineBuffer, Noise

__all__ = ["HEADER", "MAX_BYTES", "Input", "check"]

HEADER: Final = 4
MAX_BYTES: Final = 16 * 1024
"""The longest input. A flood, in which notifications may be dropped, is longer."""

_LIMITS: Final = (16, 100, 1000, 100_000)
_MARK: Final = "\x02mark"


@frozen
class Input:
    """An input, read; in the four characters of its head digits mean what they say.

    Args:
        calls: How many calls wait.
        limit: The longest line that is accepted, in bytes.
        cut: The seed of the pieces; 0 for one piece, 1 for pieces of one byte.
        every: Behind every so many lines a message of ours is put.
        data: What the peer sends.
    """

    calls: int
    limit: int
    cut: int
    every: int
    data: bytes

    @classmethod
    def read(cls, raw: bytes) -> Input:
        """Read an input; whatever is missing is zero."""
        calls, limit, cut, every = raw[:HEADER].ljust(HEADER, b"0")
        return cls(
            calls % 8, _LIMITS[limit % 4], (cut - ord("0")) % 64, every % 4 + 1, raw[HEADER : HEADER + MAX_BYTES]
        )

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The bytes in pieces."""
        random = Random(self.cut)  # noqa: S311 - which pieces they are has to be the same each time
        start = 0
        while start < len(data):
            size = len(data) if self.cut == 0 else 1 if self.cut == 1 else random.choice((1, 2, 7, 60, 500, 5000))
            yield data[start : start + size]
            start += size


def check(raw: bytes) -> None:
    """Play an input.

    Raises:
        AssertionError: Something does not hold.
    """
    given = Input.read(raw)
    _check_lines(given)
    for line in given.data.split(b"\n"):
        _check_decoded(line)
    _check_dispatcher(given)


# Lines.


def _check_lines(given: Input) -> None:
    buffer = LineBuffer(given.limit)
    found: list[bytes | Noise] = []
    for piece in given.pieces(given.data):
        found += [line if isinstance(line, Noise) else bytes(line) for line in buffer.feed(piece)]
        assert buffer.buffered <= given.limit, "more is held of a line than a line may be long"
    found += [line if isinstance(line, Noise) else bytes(line) for line in buffer.finish()]
    assert buffer.buffered == 0, "something is held behind the end"
    lines = [line for line in given.data.split(b"\n") if line]
    assert len(found) == len(lines), "a line was lost, joined or made up"
    for got, line in zip(found, lines, strict=True):
        if len(line) <= given.limit:
            assert got == line, "a line was changed"
        else:
            assert isinstance(got, Noise), "a line over the limit was accepted"
            # The same as in one piece, id and all.
            assert [got] == LineBuffer(given.limit).feed(line + b"\n"), "a line over the limit hangs on its pieces"
            assert (got.size, got.sample) == (len(line), line[:80]), "a line over the limit is not told as it was"


# Decoding.


def _check_decoded(line: bytes) -> None:
    message = wire.decode(line)
    assert message is None or isinstance(message, (Envelope, Noise, list)), "what was decoded is none of the kinds"
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        assert isinstance(message, Envelope), "a JSON object was not read"
        _check_envelope(message, value)
    elif isinstance(value, list):
        objects = [item for item in value if isinstance(item, dict)]
        assert isinstance(message, list if objects else Noise), "a batch was not read"
        for got, item in zip(message if isinstance(message, list) else (), objects, strict=True):
            _check_envelope(got, item)
    else:
        assert isinstance(message, Noise), "what is no object was read as a message"


def _check_envelope(message: Envelope, value: Mapping[str, Any]) -> None:
    for name in Envelope.__struct_fields__:
        got = getattr(message, name)
        assert (got is UNSET) == (name not in value), "a member was lost or made up"
        assert got is UNSET or _same(got, value[name]), "a member was changed"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


# What a dispatcher has to make of it, said a second time and as simply as can be.


@define(eq=False)
class _Expected:
    """What comes of lines: how calls end, and what is asked and told, in order."""

    given: Input
    waiting: set[int] = field(init=False)
    ended: dict[int, dict[str, Any] | None] = field(factory=dict)
    """By call: its result; ``None`` for an error."""
    told: list[str] = field(factory=list)
    asked: Counter[Any] = field(factory=Counter)

    def __attrs_post_init__(self) -> None:
        self.waiting = set(range(1, self.given.calls + 1))

    def take(self, line: bytes) -> None:
        """Take a line."""
        if len(line) > self.given.limit:
            (noise,) = LineBuffer(self.given.limit).feed(line + b"\n")
            message: Any = noise
        else:
            message = wire.decode(line) if line else None
        if isinstance(message, Noise):
            self._end(message.id, None)
            return
        for item in message if isinstance(message, list) else [message]:
            if item is not None:
                self._take(item)

    def _take(self, item: Envelope) -> None:
        is_id = isinstance(item.id, (int, str)) and not isinstance(item.id, bool)
        if isinstance(item.method, str):
            if is_id:
                self.asked[_key(item.id)] += 1
            else:
                self.told.append(item.method)
            return
        result = None if item.result is UNSET else item.result
        error = None if item.error is UNSET else item.error
        outcome = result if isinstance(result, dict) and error is None else None
        if item.id is UNSET or item.id is None:
            if item.error is not UNSET and item.error and len(self.waiting) == 1:
                self._end(next(iter(self.waiting)), None)
        elif is_id:
            self._end(item.id, outcome)

    def _end(self, request_id: Any, outcome: dict[str, Any] | None) -> None:
        number = request_id
        if isinstance(request_id, str):
            try:
                number = int(request_id)
            except ValueError:
                return
        if number in self.waiting:
            self.waiting.discard(number)
            self.ended[number] = outcome


def _key(request_id: Any) -> tuple[type, Any]:
    return type(request_id), request_id


# A whole dispatcher.


@define(eq=False)
class _Link:
    """What the peer sends, piece by piece, and what it is sent."""

    pieces: Iterator[bytes]
    written: bytearray = field(factory=bytearray)
    begin: trio.Event = field(factory=trio.Event)
    read: trio.Event = field(factory=trio.Event)
    go_on: trio.Event = field(factory=trio.Event)
    last: list[bytes] = field(factory=list)
    received: int = 0
    direct: bool = True

    async def receive(self) -> bytes:
        await self.begin.wait()
        self.received += 1
        if self.received % 8 == 0:
            await trio.lowlevel.checkpoint()
        for piece in self.pieces:
            return piece
        self.read.set()
        await self.go_on.wait()
        return self.last.pop(0) if self.last else b""

    def try_send(self, data: bytes | memoryview) -> int:
        self.written += data
        return len(data)

    async def wait_sendable(self) -> None:
        await trio.lowlevel.checkpoint()


class _Faults(logging.Handler):
    """What our own code logs as its fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self.found.append(f"{record.getMessage()}: {cause!r}")


_logger: Final = logging.getLogger("openprogram_mcp.transports")


def _lines_with_marks(given: Input) -> list[bytes]:
    """The peer's lines, with messages of ours between them."""
    lines = given.data.split(b"\n")
    done: list[bytes] = []
    for number, line in enumerate(lines, 1):
        done.append(line)
        if number % given.every == 0 or number == len(lines):
            done.append(wire.encode_notification(f"{_MARK} {number}", {"n": number})[:-1])
    return done


def _check_dispatcher(given: Input) -> None:
    faults = _Faults()
    propagates, _logger.propagate = _logger.propagate, False
    _logger.addHandler(faults)
    try:
        trio.run(_dispatched, given, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)
    finally:
        _logger.removeHandler(faults)
        _logger.propagate = propagates
    assert not faults.found, f"our own code failed: {faults.found[0]}"


async def _dispatched(given: Input) -> None:
    lines = _lines_with_marks(given)
    expected = _Expected(given)
    for line in lines:
        expected.take(line)
    link = _Link(given.pieces(b"\n".join(lines) + b"\n"))
    met: list[str] = []
    told: list[str] = []
    asked: Counter[Any] = Counter()
    outcomes: dict[int, Any] = {}
    heard: dict[int, list[float]] = {}

    async def on_request(context: Any, method: str, params: Any) -> dict[str, Any]:
        assert isinstance(method, str)
        assert params is None or isinstance(params, dict)
        asked[_key(context.request_id)] += 1
        if method.startswith("w"):
            await trio.sleep_forever()
        if method.startswith("r"):
            raise MCPError(METHOD_NOT_FOUND, "no")
        return {"method": method}

    async def on_notify(_context: Any, method: str, params: Any) -> None:
        assert params is None or isinstance(params, dict)
        told.append(method)

    def intercept(method: str, params: Any) -> bool:
        assert params is None or isinstance(params, dict)
        met.append(method)
        return False

    async def call(number: int) -> None:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            assert all(type(value) is float and math.isfinite(value) for value in (progress, total or 0.0))
            assert message is None or isinstance(message, str)
            assert number not in outcomes, "progress was told after the end of its call"
            heard.setdefault(number, []).append(progress)

        try:
            # As it would mint them itself, if these tasks began in their order.
            options: CallOptions = {"on_progress": on_progress, "request_id": number}
            outcomes[number] = await dispatcher.send_raw_request("call", None, options)
        except MCPError as error:
            outcomes[number] = error

    dispatcher = StdioDispatcher(link, max_frame_bytes=given.limit)
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run, on_request, on_notify, intercept)
        for number in range(1, given.calls + 1):
            nursery.start_soon(call, number)
        await trio.testing.wait_all_tasks_blocked()
        link.begin.set()
        await link.read.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert dispatcher._lines.buffered <= given.limit, "more is held than a line may be long"
        assert not dispatcher._inbound._notifications, "a notification was not handed over"
        assert dispatcher.in_flight == len(expected.waiting), "a call was forgotten"
        for number in sorted(expected.waiting):
            last = wire.encode_result(number, {"last": number})
            expected.take(last[:-1])
            link.last.append(last)
        link.go_on.set()
    for number in range(1, given.calls + 1):
        outcome, wanted = outcomes.get(number), expected.ended.get(number)
        if wanted is None:
            assert isinstance(outcome, MCPError), "a call did not fail"
        else:
            assert _same(outcome, wanted), "a call did not get its own answer"
    assert dispatcher.in_flight == 0, "a call was forgotten"
    assert met == expected.told, "a notification was lost, joined or moved on its way to the interceptor"
    assert told == expected.told, "a notification was lost or moved on its way to its handler"
    for values in heard.values():
        assert values == sorted(values), "progress was told out of order"
    _check_written(bytes(link.written), expected.asked, asked, given.calls)


def _check_written(written: bytes, expected: Counter[Any], asked: Counter[Any], calls: int) -> None:
    """Everything written is whole messages; each request of the peer's was served or refused, and answered once."""
    assert written.endswith(b"\n") or not written
    messages = [json.loads(line) for line in written.splitlines()]
    assert sum("method" in message for message in messages) == calls, "not every call was written, or one twice"
    answers = [message for message in messages if "method" not in message]
    refused = Counter(
        _key(message["id"])
        for message in answers
        if message.get("error", {}).get("message") == "too many requests at once"
    )
    assert asked + refused == expected, "a request was lost, or made up"
    assert Counter(_key(message["id"]) for message in answers) <= expected, "a request was answered twice"
