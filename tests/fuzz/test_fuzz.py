"""The search for bytes that break a connection: what it starts from holds, and what it looks for it would find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openprogram_mcp.transports import _hearing, wire
from openprogram_mcp.transports._inbound import Inbound
from openprogram_mcp.transports.wire import LineBuffer, Noise, Outstanding, Slot

from .__main__ import FOUND, ROOT, SEEDS, main, played, reproducer, with_hypothesis
from ._target import MAX_BYTES, Input, check

ALL_SEEDS = sorted(SEEDS.iterdir())


@pytest.mark.parametrize("seed", ALL_SEEDS, ids=lambda path: path.name)
def test_what_the_search_starts_from_holds(seed: Path) -> None:
    data = seed.read_bytes()
    assert len(data) <= MAX_BYTES
    check(data)
    # The same in one piece, and byte by byte.
    check(data[:2] + b"0" + data[3:])
    check(data[:2] + b"1" + data[3:])


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_hold(data: bytes) -> None:
    check(data)


def test_an_input_that_is_too_short_is_one_all_the_same() -> None:
    assert Input.read(b"") == Input.read(b"0000")
    check(b"")


# Faults, planted one by one: the seeds alone find each.

Real = Callable[..., Any]


def _loses_the_start_of_a_split_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(self: Any, piece: bytes) -> None:
        self._partial = bytearray(piece)

    monkeypatch.setattr(LineBuffer, "_hold", hold)


def _ends_lines_at_other_separators(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Real = LineBuffer.feed

    def feed(self: Any, chunk: bytes) -> Any:
        return real(self, chunk.replace(b"\xe2\x80\xa8", b"\n"))

    monkeypatch.setattr(LineBuffer, "feed", feed)


def _keeps_what_is_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(self: Any, piece: bytes) -> None:
        self._partial += piece

    monkeypatch.setattr(LineBuffer, "_hold", hold)


def _raises_while_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_decode_slowly", lambda line: line.decode())


def _reads_a_number_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Real = wire.decode

    def decode(line: bytes) -> Any:
        message = real(line)
        if isinstance(message, wire.Envelope) and message.id == 99:
            message.id = 1
        return message

    monkeypatch.setattr(wire, "decode", decode)


def _trips_over_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hearing, "as_number", float)


def _forgets_to_tell_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outstanding, "remove", lambda self, slot: None)


def _mixes_calls_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Real = Outstanding.find

    def find(self: Any, request_id: object) -> Slot | None:
        found: Slot | None = real(self, request_id)
        return found or self.only()

    monkeypatch.setattr(Outstanding, "find", find)


def _drops_every_third_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Real = Inbound.take_notification
    count = 0

    def take(self: Any, *args: Any) -> None:
        nonlocal count
        count += 1
        if count % 3:
            real(self, *args)

    monkeypatch.setattr(Inbound, "take_notification", take)


def _answers_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Real = wire.encode_result
    monkeypatch.setattr(wire, "encode_result", lambda request_id, result: real(request_id, result) * 2)


@pytest.mark.parametrize(
    "plant",
    [
        _loses_the_start_of_a_split_line,
        _ends_lines_at_other_separators,
        _keeps_what_is_over_the_limit,
        _raises_while_decoding,
        _reads_a_number_as_another,
        _trips_over_a_message,
        _forgets_to_tell_a_call,
        _mixes_calls_up,
        _drops_every_third_notification,
        _answers_twice,
    ],
)
def test_a_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((Exception, BaseExceptionGroup)):  # each fault is found in its own way
        for seed in ALL_SEEDS:
            check(seed.read_bytes())


# Work.


class _Counted(bytearray):
    """A bytearray that counts the bytes that are moved in it."""

    moved = 0

    def __iadd__(self, piece: Any) -> Any:
        _Counted.moved += len(piece)
        return super().__iadd__(piece)

    def __add__(self, piece: Any) -> Any:
        _Counted.moved += len(self) + len(piece)
        return _Counted(super().__add__(piece))

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        _Counted.moved += len(found) if isinstance(at, slice) else 1
        return found

    def split(self, sep: Any = None, maxsplit: Any = -1) -> Any:
        _Counted.moved += len(self)
        return super().split(sep, maxsplit)

    def find(self, *args: Any) -> Any:
        _Counted.moved += len(self)
        return super().find(*args)


@pytest.mark.parametrize("piece", [1, 50, 5000])
def test_the_bytes_moved_for_a_line_are_linear_in_its_length(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "bytearray", _Counted, raising=False)

    def moved(size: int, limit: int) -> int:
        _Counted.moved = 0
        buffer = LineBuffer(limit)
        for _ in range(size // piece):
            assert buffer.feed(b"x" * piece) == []
        (line,) = buffer.feed(b"\n")
        assert (line.size if isinstance(line, Noise) else len(line)) == size
        return _Counted.moved

    for size in (10_000, 100_000):
        # Each byte once, and the first and last thousand once more where they tell whose answer it was.
        assert size <= moved(size, 1 << 30) <= size + 10
        # Over the limit, nothing is moved that is not held.
        assert moved(size, 5000) <= 5000 + piece + 3000


# The command.


def test_what_breaks_is_kept_and_can_be_played_again(capsys: pytest.CaptureFixture[str]) -> None:
    data = b"0000 a test of the search"

    def breaks(_data: bytes) -> None:
        raise AssertionError("as planted")

    with pytest.raises(AssertionError, match="as planted"):
        played(breaks, data)
    said = capsys.readouterr().err
    path = FOUND / said.rstrip().rpartition("/")[2]
    assert repr(data) in said
    try:
        assert path.read_bytes() == data
        again = subprocess.run(
            [sys.executable, *said.rstrip().rpartition("python")[2].partition(" ")[2].split()],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert again.stdout == "1 played, and nothing broke.\n"
    finally:
        path.unlink()


def test_without_atheris_hypothesis_looks_and_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    main(["--seconds", "1"])
    said = capsys.readouterr().out
    assert "atheris is not installed here" in said
    assert "inputs in 1 s, and nothing broke." in said
    monkeypatch.setattr(LineBuffer, "finish", lambda self: [])
    with pytest.raises(AssertionError):
        with_hypothesis(30)
    said = capsys.readouterr().err
    assert "This input breaks it: " in said
    (FOUND / said.rstrip().rpartition("/")[2]).unlink()


def test_asking_for_atheris_where_there_is_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    with pytest.raises(SystemExit, match="atheris is not installed"):
        main(["--engine", "atheris"])


def test_a_reproducer_names_a_file_below_the_repository() -> None:
    said = reproducer(b"0000")
    path = ROOT / said.rpartition(" ")[2]
    assert path.read_bytes() == b"0000"
    path.unlink()
