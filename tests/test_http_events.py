"""Server-sent events, to the letter of the standard, however their bytes are split (NET-06)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.transports._events import Event, EventBuffer
from openprogram_mcp.transports.wire import Noise

WHOLE = (
    b"\xef\xbb\xbf:keepalive\r\n\r\nid: 1\r\nevent: message\r\n"
    b'data: {"jsonrpc":"2.0","id":2,\r\ndata: "result":{}}\r\n\r\n'
    b"retry: 20\rdata:x\r\rdata\n\ndata:  two spaces\n\nevent: heartbeat\ndata: z\n\nevent: empty\n\ndata: lost"
)
MEANT = [
    Event("message", b'{"jsonrpc":"2.0","id":2,\n"result":{}}'),
    Event("message", b"x"),
    Event("message", b""),
    Event("message", b" two spaces"),
    Event("heartbeat", b"z"),
]


def feed(buffer: EventBuffer, *pieces: bytes) -> list[Event | Noise]:
    return [event for piece in pieces for event in buffer.feed(piece)]


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12).map(sorted))
def test_a_stream_means_the_same_however_it_is_split(cuts: list[int]) -> None:
    ends = [0, *cuts, len(WHOLE)]
    buffer = EventBuffer(1000)
    assert feed(buffer, *(WHOLE[start:end] for start, end in itertools.pairwise(ends))) == MEANT
    assert (buffer.last_id, buffer.retry) == ("1", 0.02)


def test_a_stream_means_the_same_byte_by_byte() -> None:
    assert feed(EventBuffer(1000), *(bytes([byte]) for byte in WHOLE)) == MEANT


def test_an_event_that_ends_in_cr_is_given_before_anything_follows() -> None:
    assert EventBuffer(100).feed(b"data: x\r\r") == [Event("message", b"x")]


@pytest.mark.parametrize(
    ("stream", "last_id"),
    [
        (b"id: a\ndata: x\n\n", "a"),
        (b"id: a\n\n", "a"),  # without data it is no event, and counts all the same
        (b"id: a\ndata: x\n\nid\ndata: y\n\n", ""),
        (b"id: a\x00b\ndata: x\n\n", None),
        (b"id: a\ndata: x\n", None),  # not ended
        (b"id: a\n\ndata: x\n\n", "a"),
    ],
)
def test_the_last_id_is_that_of_events_that_have_ended(stream: bytes, last_id: str | None) -> None:
    buffer = EventBuffer(100)
    buffer.feed(stream)
    assert buffer.last_id == last_id


@pytest.mark.parametrize(
    ("line", "retry"), [(b"retry: 1500", 1.5), (b"retry:x", None), (b"retry: -1", None), (b"retry: " + b"9" * 30, 3600)]
)
def test_retry_is_a_number_of_milliseconds(line: bytes, retry: float | None) -> None:
    buffer = EventBuffer(100)
    buffer.feed(line + b"\n\n")
    assert buffer.retry == retry


def test_what_is_no_field_is_ignored() -> None:
    assert EventBuffer(100).feed(b" data: x\nDATA: y\nfoo: z\n:c\ndata: w\n\n") == [Event("message", b"w")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 1000])
def test_an_event_over_the_limit_is_told_and_costs_itself_alone(size: int) -> None:
    long = b'{"jsonrpc":"2.0","id":7,"result":' + b"x" * 500 + b"}"
    stream = b"data: " + long + b"\n\ndata: " + b"y" * 60 + b"\ndata: " + b"z" * 60 + b"\n\ndata: fine\n\n"
    buffer = EventBuffer(100)
    one, two, three = feed(buffer, *(stream[at : at + size] for at in range(0, len(stream), size)))
    assert isinstance(one, Noise)
    assert one.id == 7
    assert abs(one.size - len(long)) <= 6
    assert isinstance(two, Noise)
    assert three == Event("message", b"fine")


def test_events_of_exactly_the_limit_pass() -> None:
    buffer = EventBuffer(10)
    assert buffer.feed(b"data:0123456789\n\n") == [Event("message", b"0123456789")]
    assert isinstance(buffer.feed(b"data:0123456789a\n\n")[0], Noise)


def test_a_big_event_in_small_pieces_takes_time_in_proportion() -> None:
    buffer = EventBuffer(64 * 1024 * 1024)
    found = feed(buffer, b"data: ", *(b"x" * 4096 for _ in range(4096)), b"\n\n")
    assert [len(event.data) for event in found if isinstance(event, Event)] == [16 * 1024 * 1024]
