from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.masking import MASK, Masker

SECRET = 'p@ss/wörd+"1"'


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr({"key": SECRET}),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"a:{SECRET}".encode()).decode(),
        base64.b64encode(f"me:{SECRET}\n".encode()).decode(),
        base64.b64encode(f"you:{SECRET}, and more".encode()).decode(),
    ],
)
def test_secret_01_a_secret_is_found_in_every_form_in_which_programs_print_it(form: str) -> None:
    masked = Masker([SECRET]).mask(f"before {form} after")
    assert MASK in masked
    assert form.strip('"') not in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


def test_what_is_left_of_a_base64_text_around_the_secret_gives_nothing_of_it_away() -> None:
    secret = "SECRET456SECRET456"
    for before in ("", "a", "ab", "abc"):
        masked = Masker([secret]).mask(base64.b64encode(f"{before}{secret}xyz".encode()).decode())
        head, _, tail = masked.partition(MASK)
        assert len(head) <= 6  # of "abcS": what stands before, and a letter that holds two bits of the secret
        assert len(tail) <= 7


def test_the_longest_secret_wins_and_overlapping_ones_leave_no_end() -> None:
    assert Masker(["abcd", "abcdefgh"]).mask("xabcdefghx") == f"x{MASK}x"
    assert Masker(["cdef", "abcdefgh"]).mask("xabcdefghx") == f"x{MASK}x"
    assert Masker(["abcdef", "defghi"]).mask("xabcdefghix") == f"x{MASK}x"
    assert Masker(["abcd"]).mask("abcdabcd") == MASK + MASK
    assert Masker(["aaaa"]).mask("aaaaa") == MASK


def test_short_texts_are_left_alone() -> None:
    assert Masker(["abc", ""]).mask("abcabc") == "abcabc"


def test_every_long_line_of_a_key_is_masked_because_output_is_read_in_lines() -> None:
    key = "-----BEGIN KEY-----\nMIIEvgIBADANBg\nkqhkiG9w0BAQEF\n"
    assert Masker([key]).mask("read MIIEvgIBADANBg") == f"read {MASK}"


def test_json_is_masked_in_names_values_and_numbers_and_keeps_its_shape() -> None:
    value = {"a": [f"x {SECRET}", 1, True, None, 2.5], SECRET: {"deep": (SECRET,)}, "pin": 123456}
    assert Masker([SECRET, "123456"]).mask_value(value) == {
        "a": [f"x {MASK}", 1, True, None, 2.5],
        MASK: {"deep": [MASK]},
        "pin": MASK,
    }
    assert Masker([]).mask_value(value) is value


def test_a_masker_does_not_show_what_it_looks_for() -> None:
    assert "hunter2" not in repr(Masker(["hunter2"]))


@given(st.lists(st.text(min_size=4, max_size=12), max_size=5), st.text(max_size=20), st.text(max_size=20))
def test_no_secret_is_left_in_any_text(secrets: list[str], before: str, after: str) -> None:
    masker = Masker(secrets)
    for secret in secrets:
        masked = masker.mask(f"{before}{secret}{after}")
        assert all(secret not in piece for piece in masked.split(MASK))
        assert masker.mask_value({"k": [f"{before}{secret}{after}"]}) == {"k": [masked]}
