"""JSON-RPC over lines without I/O: whatever bytes come, and however they are split."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openprogram_mcp.transports import wire
from openprogram_mcp.transports.wire import UNSET, Envelope, LineBuffer, Noise, Outstanding, Slot

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    """Data in pieces, cut at these places (taken modulo its length)."""
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    for start, end in pairwise(at):
        yield data[start:end]


def fed(buffer: LineBuffer, chunks: Iterator[bytes]) -> list[bytes | Noise]:
    lines = [line for chunk in chunks for line in buffer.feed(chunk)] + buffer.finish()
    return [line if isinstance(line, Noise) else bytes(line) for line in lines]


def slot(key: int | str = 1, wakes: list[None] | None = None) -> Slot:
    return Slot(key, lambda: None if wakes is None else wakes.append(None))


# Lines.


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" "))), st.lists(st.integers(0, 4000)))
def test_lines_are_the_same_however_they_are_split(lines: list[bytes], places: list[int]) -> None:
    data = b"\n".join(lines)
    assert fed(LineBuffer(1000), cut(data, places)) == [line for line in lines if line]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30), st.lists(st.integers(0, 4000), max_size=60), st.booleans()
)
def test_a_line_over_the_limit_costs_only_itself_and_is_not_kept(
    sizes: list[int], places: list[int], ended: bool
) -> None:
    limit = 20
    data = b"\n".join(b"%c" % (97 + number % 26) * size for number, size in enumerate(sizes)) + b"\n" * ended
    buffer = LineBuffer(limit)
    seen: list[bytes | Noise] = []
    for chunk in cut(data, places):
        for line in buffer.feed(chunk):
            seen.append(line if isinstance(line, Noise) else bytes(line))
        assert buffer.buffered <= limit
    seen += [line if isinstance(line, Noise) else bytes(line) for line in buffer.finish()]
    assert [line.size if isinstance(line, Noise) else len(line) for line in seen] == sizes
    assert [isinstance(line, Noise) for line in seen] == [size > limit for size in sizes]


def test_only_a_line_feed_ends_a_line() -> None:
    separators = "\u2028\u2029\u0085\r\v\f\x1c\x1d\x1e"
    (line,) = LineBuffer(1000).feed(separators.encode() + b"\n")
    assert line == separators.encode()


def test_a_last_line_without_an_end_counts_and_is_given_once() -> None:
    buffer = LineBuffer(1000)
    assert buffer.feed(b'{"a"') == []
    assert fed(buffer, iter((b":1}",))) == [b'{"a":1}']
    assert buffer.finish() == []


def test_an_endless_line_takes_no_memory() -> None:
    buffer = LineBuffer(64 * 1024)
    chunk = b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(1000):
            assert buffer.feed(chunk) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024
    (noise, line) = buffer.feed(b"\nnext\n")
    assert isinstance(noise, Noise)
    assert noise.size == 65_536_000
    assert line == b"next"


def test_the_work_is_linear_in_the_bytes_however_small_the_pieces() -> None:
    def seconds(size: int) -> float:
        buffer = LineBuffer(1 << 30)
        piece = b"x" * 50
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(size // 50):
                buffer.feed(piece)
            buffer.feed(b"\n")
            best = min(best, time.perf_counter() - started)
        return best

    # Ten times the bytes: a hundred times the work where it is quadratic.
    assert seconds(5_000_000) < 35 * seconds(500_000)


# Decoding.


@given(st.binary(max_size=300))
@example(b"[" * 50_000)
@example(b'{"a":' * 50_000)
@example(b"9" * 10_000)
@example(b'{"id":' + b"9" * 10_000 + b"}")
@example(b'{"id":1,"result":{"x":' + b"[" * 3000)
@example(b"\xff\xfe{\x00}\x00")
@example(b"null")
@example(b"[]")
@example(b"[[]]")
@example(b'"text"')
def test_no_bytes_make_decoding_raise(data: bytes) -> None:
    message = wire.decode(data)
    assert message is None or isinstance(message, (Envelope, list, Noise))


@given(st.text(alphabet='{}[]",:\\ "idmethod0123456789resultnul', max_size=60))
def test_nothing_that_looks_like_json_makes_decoding_raise(text: str) -> None:
    wire.decode(text.encode())


@given(JSON_VALUES, st.integers() | st.text(), st.booleans())
def test_what_is_encoded_is_decoded_to_the_same(value: object, request_id: int | str, ascii_only: bool) -> None:
    message = {"jsonrpc": "2.0", "id": request_id, "result": {"value": value}}
    envelope = wire.decode(json.dumps(message, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    assert isinstance(envelope, Envelope)
    assert envelope.id == request_id
    if "\\ud" not in json.dumps(message):
        assert envelope.result == {"value": value}


@given(JSON_VALUES)
def test_a_frame_is_one_line_and_reads_back_as_it_was(value: object) -> None:
    line = wire.encode_request(7, "tools/call", {"value": value})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line) == {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"value": value}}


def test_an_unpaired_surrogate_goes_out_escaped() -> None:
    line = wire.encode_request(1, "m", {"text": "half \ud83d of one"})
    assert rb"half \ud83d of one" in line
    assert json.loads(line)["params"]["text"] == "half \ud83d of one"


def test_empty_params_are_left_out_of_requests() -> None:
    assert json.loads(wire.encode_request(1, "ping", None)) == {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert json.loads(wire.encode_request(1, "ping", {})) == {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (b'\xef\xbb\xbf{"id":1,"result":{}}', {}),
        (b'  {"id":1,"result":{}}\r', {}),
        (b'{"id":1,"result":{"t":"a\xffb"}}', {"t": "a\ufffdb"}),
        (b'{"id":1,"result":{"t":"tab\there"}}', {"t": "tab\there"}),
        (b'{"id":1,"result":{"n":1e400}}', {"n": float("inf")}),
        (b'{"id":1,"result":{"n":Infinity}}', {"n": float("inf")}),
        (b'{"id":1,"result":{"n":123456789012345678901234567890}}', {"n": 123456789012345678901234567890}),
    ],
    ids=["BOM", "CRLF", "invalid UTF-8", "bare tab", "out of range", "Infinity", "large integer"],
)
def test_what_real_servers_send_is_read(line: bytes, result: object) -> None:
    envelope = wire.decode(line)
    assert isinstance(envelope, Envelope)
    assert (envelope.id, envelope.result) == (1, result)


def test_a_batch_is_its_messages_and_one_odd_item_costs_itself() -> None:
    batch = wire.decode(b'[{"id":1,"result":{}},7,{"method":"m"}]')
    assert isinstance(batch, list)
    assert [item.id for item in batch] == [1, UNSET]


@pytest.mark.parametrize("line", [b"Server started", b"[INFO] ready", b"42", b"true", b"[1,2]", b"[]", b"{oops}"])
def test_what_is_no_message_is_noise_and_says_how_it_began(line: bytes) -> None:
    noise = wire.decode(line)
    assert isinstance(noise, Noise)
    assert (noise.size, noise.id, noise.sample) == (len(line), None, line)


@pytest.mark.parametrize("line", [b"", b"  ", b"\r", b"\xef\xbb\xbf"])
def test_a_blank_line_is_nothing(line: bytes) -> None:
    assert wire.decode(line) is None


# Whose answer it was.


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":12,"result":{"text":"%s"}}', 12),
        (b'{"jsonrpc":"2.0","id":"a b","result":{"text":"%s"}}', "a b"),
        (b'{"id": 12 , "jsonrpc": "2.0", "result": {"text":"%s"}}', 12),
        (b'{"jsonrpc":"2.0","id":12,"error":{"code":1,"message":"%s"}}', 12),
        (b'{"jsonrpc":"2.0","result":{"text":"%s"},"id":12}', 12),
        (b'{"result":{"text":"%s"},"id":12,"jsonrpc":"2.0"}', 12),
        (b'{"jsonrpc":"2.0","id":12,"result":{"method":"%s"}}', 12),
        (b'{"jsonrpc":"2.0","id":12,"method":"sampling/createMessage","params":{"text":"%s"}}', None),
        (b'{"jsonrpc":"2.0","method":"sampling/createMessage","params":{"text":"%s"},"id":12}', None),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"text":"%s"}}', None),
        (b'{"jsonrpc":"2.0","result":{"text":"%s","id":12}}', None),
        (b'{"jsonrpc":"2.0","id":true,"result":{"text":"%s"}}', None),
        (b'{"jsonrpc":"2.0","id":null,"error":{"message":"%s"}}', None),
        (b'%s {"id":12,"result":{}}', None),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_an_oversized_answer_is_known_by_its_id_and_nothing_else_is(
    line: bytes, request_id: int | str | None, whole: bool
) -> None:
    buffer = LineBuffer(4000)
    data = line % (b"x" * 5000) + b"\n"
    noise, after = fed(buffer, iter((data, b"after\n") if whole else (data[:4500], data[4500:] + b"after\n")))
    assert isinstance(noise, Noise)
    assert (noise.id, noise.size) == (request_id, len(data) - 1)
    assert after == b"after"


def test_the_id_at_the_end_of_an_oversized_answer_may_come_in_any_pieces() -> None:
    data = b'{"jsonrpc":"2.0","result":{"text":"%s"},"id":12}\n' % (b"x" * 5000)
    for size in range(1, 30):
        buffer = LineBuffer(4000)
        lines = [line for start in range(0, len(data), size) for line in buffer.feed(data[start : start + size])]
        (noise,) = lines
        assert isinstance(noise, Noise)
        assert noise.id == 12


def test_an_answer_that_is_no_json_is_known_by_its_id() -> None:
    noise = wire.decode(b'{"jsonrpc":"2.0","id":5,"result":{"broken":}}')
    assert isinstance(noise, Noise)
    assert noise.id == 5


# Ids and slots.


@given(st.integers() | st.text())
def test_an_id_and_its_text_are_one_to_correlation(request_id: int | str) -> None:
    assert wire.correlation_key(request_id) == wire.correlation_key(str(request_id))


def test_a_number_as_long_as_a_book_is_an_id_like_any_other_text() -> None:
    digits = "9" * (sys.get_int_max_str_digits() + 1)
    assert wire.correlation_key(digits) == digits


@pytest.mark.parametrize("value", [True, False, None, 1.5, [], {}, UNSET])
def test_what_is_neither_text_nor_integer_is_no_id(value: object) -> None:
    assert wire.as_request_id(value) is None
    outstanding = Outstanding()
    outstanding.add(slot(1))
    outstanding.add(slot(0))
    assert outstanding.find(value) is None


def test_ids_are_minted_past_those_in_use() -> None:
    outstanding = Outstanding()
    outstanding.add(slot(wire.correlation_key("1")))
    outstanding.add(slot(2))
    assert outstanding.mint() == 3


def test_an_id_in_use_is_refused() -> None:
    outstanding = Outstanding()
    outstanding.add(slot(7))
    with pytest.raises(ValueError, match="already in flight"):
        outstanding.add(slot(wire.correlation_key("7")))


def test_removing_a_request_does_not_remove_another_of_its_id() -> None:
    outstanding = Outstanding()
    first, second = slot(7), slot(7)
    outstanding.add(first)
    outstanding.remove(first)
    outstanding.add(second)
    outstanding.remove(first)
    assert outstanding.find(7) is second


def test_the_first_outcome_wins_and_wakes_once() -> None:
    wakes: list[None] = []
    waiting = slot(1, wakes)
    assert waiting.settle("first")
    assert not waiting.settle("second")
    assert (waiting.outcome, len(wakes)) == ("first", 1)


def test_an_answer_without_an_id_is_for_the_one_request_that_was_written_and_waits() -> None:
    outstanding = Outstanding()
    written, queued, answered = slot(1), slot(2), slot(3)
    for one in (written, queued, answered):
        outstanding.add(one)
    assert outstanding.only() is None
    written.issued = answered.issued = True
    answered.settle({})
    assert outstanding.only() is written
    queued.issued = True
    assert outstanding.only() is None


def test_progress_that_goes_backwards_is_refused_and_does_not_move_the_limit() -> None:
    waiting = slot(1)
    waiting.idle, waiting.deadline, waiting.progress = 10.0, 10.0, []
    assert waiting.heard(2.0, None, None, now=1.0)
    assert waiting.heard(2.0, None, None, now=2.0)
    assert waiting.deadline == 12.0
    assert not waiting.heard(1.0, None, None, now=5.0)
    assert waiting.deadline == 12.0
    assert [progress for progress, _, _ in waiting.progress] == [2.0, 2.0]


def test_progress_does_not_move_the_hard_limit() -> None:
    waiting = slot(1)
    waiting.idle, waiting.deadline, waiting.hard_deadline = 10.0, 10.0, 15.0
    waiting.heard(1.0, None, None, now=9.0)
    assert waiting.deadline == 15.0


def test_progress_that_nobody_takes_is_held_within_bounds_and_the_newest_stays() -> None:
    waiting = slot(1)
    waiting.progress = []
    for number in range(100_000):
        waiting.heard(float(number), None, None, now=0.0)
    assert len(waiting.progress) <= 1024
    assert waiting.progress[-1][0] == 99_999.0


def test_settling_all_tells_each_that_waits_and_leaves_those_that_have_their_outcome() -> None:
    outstanding = Outstanding()
    wakes: list[None] = []
    waiting, answered = slot(1, wakes), slot(2)
    outstanding.add(waiting)
    outstanding.add(answered)
    answered.settle("answer")
    outstanding.settle_all("closed")
    outstanding.settle_all("closed")
    assert (waiting.outcome, answered.outcome, len(wakes)) == ("closed", "answer", 1)
