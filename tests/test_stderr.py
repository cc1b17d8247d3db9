"""Standard error as lines: bounded, masked, and fit to be shown."""

from __future__ import annotations

import logging
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.masking import Masker
from openprogram_mcp.transports._stderr import StderrLines

SECRET = "sk-0123456789abcdefghijklmnopqrstuvwxyz"


def lines_of(*chunks: bytes, mask: bool = False) -> tuple[StderrLines, list[str]]:
    told: list[str] = []
    lines = StderrLines(Masker([SECRET]).mask if mask else str, told.append)
    for chunk in chunks:
        lines.feed(chunk)
    return lines, told


@given(st.lists(st.text(alphabet="ab é漢😀", max_size=30)), st.lists(st.integers(0, 3000)))
def test_lines_are_the_same_however_they_are_split(texts: list[str], places: list[int]) -> None:
    data = "".join(f"{text}\n" for text in texts).encode()
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    _, told = lines_of(*(data[start:end] for start, end in pairwise(at)))
    assert told == [text.rstrip() for text in texts if text.rstrip()]


@given(st.lists(st.binary(max_size=200)))
def test_no_bytes_make_it_raise_and_what_is_told_can_be_shown(chunks: list[bytes]) -> None:
    lines, told = lines_of(*chunks)
    lines.finish()
    for line in told:
        assert line.strip()
        assert all(character == "\t" or character.isprintable() or ord(character) > 0x9F for character in line)
        line.encode()


def test_the_last_lines_are_kept_and_an_unfinished_one_among_them() -> None:
    lines, told = lines_of(b"one\ntwo\nthree\nOk to proceed? (y) ")
    assert lines.last(2) == ("three", "Ok to proceed? (y)")
    assert told == ["one", "two", "three"]
    lines.finish()
    lines.finish()
    assert told[-1] == "Ok to proceed? (y)"
    assert lines.last() == ("one", "two", "three", "Ok to proceed? (y)")


def test_a_progress_bar_is_its_last_state() -> None:
    lines, told = lines_of(*(b"\r%3d %% done" % number for number in range(1001)))
    assert lines.last() == ("1000 % done",)
    assert told == []
    lines.feed(b"\rready\r\nnext\r\n")
    lines.feed(b"last\r")
    lines.feed(b"\n")
    assert told == ["ready", "next", "last"]


def test_control_sequences_are_taken_out_and_a_secret_within_them_is_found() -> None:
    coloured = b"\x1b[1;31mtoken \x1b[0m" + SECRET[:10].encode() + b"\x1b[0m" + SECRET[10:].encode() + b"\x07\n"
    _, told = lines_of(coloured, b"\x1b]0;title\x07\x1b[2K\x1b[1Gready\x00\n", b"a\tb\n", mask=True)
    assert told == ["token ********", "ready", "a\tb"]


@pytest.mark.parametrize("ended", [True, False])
def test_stdio_07_a_line_without_an_end_is_cut_and_takes_no_memory(ended: bool) -> None:
    lines, told = lines_of()
    tracemalloc.start()
    try:
        for _ in range(64):
            lines.feed(b"x" * 262_144 + b"\n" * ended)
            told.clear()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert sum(map(len, lines.last(1000))) <= 64 * 1024 + 8192


def test_many_short_lines_are_bounded_too() -> None:
    lines, told = lines_of(b"x\n" * 10_000)
    assert len(told) == 10_000
    assert len(lines.last(10_000)) == 200


@pytest.mark.parametrize("in_one", [True, False])
def test_a_secret_is_never_shown_in_two_halves_wherever_a_long_line_is_cut(in_one: bool) -> None:
    for place in (0, 100, *range(3900, 4110), *range(8000, 8200, 3), 12_000):
        data = b"x" * place + SECRET.encode() + b"y" * (12_100 - place)
        chunks = [data] if in_one else [data[start : start + 700] for start in range(0, len(data), 700)]
        lines, told = lines_of(*chunks, mask=True)
        lines.finish()
        shown = "".join(told)
        assert shown == "x" * place + "********" + "y" * (12_100 - place)
        assert "".join(lines.last(100)) == shown


@pytest.mark.parametrize("text", ["漢字" * 5000, "x" + "😀" * 5000, "é" * 9999], ids=["three", "four", "two"])
def test_a_long_line_is_not_cut_through_a_character(text: str) -> None:
    data = text.encode()
    lines, told = lines_of(*(data[start : start + 1000] for start in range(0, len(data), 1000)))
    lines.finish()
    assert "".join(told) == text


def test_no_line_is_longer_than_can_be_shown() -> None:
    _, told = lines_of(b"x" * 10_000 + b"\n")
    assert [len(line) for line in told] == [4096, 4096, 1808]


def test_a_listener_that_raises_costs_its_line_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def listen(line: str) -> None:
        raise ZeroDivisionError(line)

    lines = StderrLines(str, listen)
    with caplog.at_level(logging.ERROR):
        lines.feed(b"one\ntwo\n")
    assert lines.last() == ("one", "two")
    assert "ZeroDivisionError" in caplog.text
