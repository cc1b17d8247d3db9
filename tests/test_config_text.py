"""JSON as people write it: what is read, where a fault is, and what an edit leaves as it was."""

from __future__ import annotations

import json
import time
from typing import Any

import json5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.config._jsonc import Document, Repeated, Unreadable, parse, same


def changed(text: str, value: dict[str, Any]) -> str:
    after = parse(text.encode()).changed(value)
    assert same(parse(after.data).value, value)
    return after.text


def test_conf_01_comments_trailing_commas_mark_and_line_ends_are_read() -> None:
    text = (
        '\ufeff{ // c\r\n "mcpServers": { "a": {"command":"x",}, /* b\r\n */ '
        '"u": "http://u//v", "s": "/* , } */", }, }\r\n'
    )
    document = parse(text.encode())
    assert document.value == {"mcpServers": {"a": {"command": "x"}, "u": "http://u//v", "s": "/* , } */"}}
    assert document.data == text.encode()
    assert document.comments == ["// c", "/* b\r\n */"]


@pytest.mark.parametrize(
    ("data", "what", "line", "column"),
    [
        (b"", "the file is empty", 1, 1),
        (b" \r\n\t", "the file is empty", 1, 1),
        ('{"servers": {}}'.encode("utf-16"), "UTF-16", 1, 1),
        ('{"servers": {}}'.encode("utf-16-be"), "UTF-16", 1, 1),
        ('{"servers": {}}'.encode("utf-16-le"), "UTF-16", 1, 1),
        ('{"servers": {}}'.encode("utf-32"), "UTF-16", 1, 1),
        (b'{\n "a": "\xff"}', "a byte that is not UTF-8", 2, 8),
        (b'{\n "a": {"b": 1', "expecting ',' delimiter", 2, 14),
        (b'{"a": 1}{', "extra data", 1, 9),
        (b'{ // c\n  "a": 1 /* b\n */ x }', "expecting ',' delimiter", 3, 5),
        (b'{ // c\n  "a": 1,, }', "expecting property name", 2, 10),
        (b"{ , }", "expecting property name", 1, 3),
        (b"{'a': 1}", "expecting property name", 1, 2),
        (b'{"a": "b\nc"}', "invalid control character", 1, 9),
        (b'{"a": 1} /* b', "extra data", 1, 10),
        (b'{"a": "b', "unterminated string", 1, 7),
        (b"[" * 200_000, "nested too deeply", 1, 1),
        (b'{"a": ' + b"1" * 10_000 + b"}", "too many digits", 1, 1),
    ],
)
def test_conf_01_what_cannot_be_read_is_told_with_its_place(data: bytes, what: str, line: int, column: int) -> None:
    with pytest.raises(Unreadable) as raised:
        parse(data)
    assert what in raised.value.what
    assert (raised.value.line, raised.value.column) == (line, column)


def test_conf_08_a_name_given_twice_keeps_both_values() -> None:
    value = parse(b'{"a": 1, "b": {"c": 1, "c": 2, "c": 1}, "a": 2}').value
    assert value == {"a": Repeated([1, 2]), "b": {"c": Repeated([1, 2, 1])}}
    assert not same(Repeated([1, 2]), [1, 2])


TEXT = """\
{
    // the file
    "servers": {  // all of them
        // about a
        "a": {"command": "x", "args": [1,  2],},  // after a

        /* about b */
        "b": {
            "url": "https://h//",  // of b
            "headers": {"A": "b"}
        },
        "c": {"command": "z"}  // after c
    },
    "other": 1.50e3,
}
"""


def test_an_edit_touches_the_value_that_changed_and_nothing_else() -> None:
    value = parse(TEXT.encode()).value
    value["servers"]["b"]["url"] = "https://new"
    value["servers"]["a"]["enabled"] = False
    assert changed(TEXT, value) == TEXT.replace("https://h//", "https://new").replace(
        "[1,  2],}", '[1,  2], "enabled": false,}'
    )


def test_new_members_are_indented_as_the_others_and_the_commas_are_right() -> None:
    value = parse(TEXT.encode()).value
    value["servers"]["b"]["enabled"] = False
    value["servers"]["d"] = {"command": "new"}
    assert changed(TEXT, value) == TEXT.replace(
        '"headers": {"A": "b"}\n', '"headers": {"A": "b"},\n            "enabled": false\n'
    ).replace(
        '"c": {"command": "z"}  // after c\n',
        '"c": {"command": "z"},  // after c\n        "d": {\n          "command": "new"\n        }\n',
    )


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("a", '        // about a\n        "a": {"command": "x", "args": [1,  2],},  // after a\n'),
        ("c", '        "c": {"command": "z"}  // after c\n'),
    ],
)
def test_a_member_goes_with_its_own_comments_and_no_others(name: str, gone: str) -> None:
    value = parse(TEXT.encode()).value
    del value["servers"][name]
    assert changed(TEXT, value).replace("},\n    },", "}\n    },") == TEXT.replace(gone, "").replace(
        "},\n    },", "}\n    },"
    )


def test_all_members_may_go_and_come_again() -> None:
    value = parse(TEXT.encode()).value
    empty = changed(TEXT, {**value, "servers": {}})
    assert empty == '{\n    // the file\n    "servers": {  // all of them\n    },\n    "other": 1.50e3,\n}\n'
    assert changed(empty, {**value, "servers": {"n": 1}}) == empty.replace(
        "// all of them\n", '// all of them\n      "n": 1\n'
    )


@pytest.mark.parametrize(
    ("text", "value", "after"),
    [
        ("{}\n", {"a": {"b": 1}}, '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ('{"a": {"b": 1}}', {"a": {"b": 1, "c": {"d": [2]}}}, '{"a": {"b": 1, "c": {"d": [2]}}}'),
        ('{"a": 1, "b": 2}', {"b": 2}, '{ "b": 2}'),
        ('{"a": 1, "b": 2}', {"a": 1}, '{"a": 1}'),
        ('{"a": 1 // x\n}', {"a": 1, "b": 2}, '{"a": 1, // x\n  "b": 2\n}'),
        ('{"a": 1, // x\n"b": 2, "c": 3}', {"a": 1, "c": 3}, '{"a": 1, // x\n  "c": 3}'),
        ('{"a": 1, // x\n"b": 2 }', {"a": 1}, '{"a": 1 // x\n}'),
        ("{ // x\n}", {"a": 1}, '{ // x\n  "a": 1\n}'),
        ("{/* x */}", {"a": 1}, '{ "a": 1/* x */}'),
        ('{\r\n\t"a": 1\r\n}', {"a": 1, "b": {"c": 2}}, '{\r\n\t"a": 1,\r\n\t"b": {\r\n\t  "c": 2\r\n\t}\r\n}'),
        ('{"a": 1, "a": 2, "b": 3}', {"a": Repeated([1, 2]), "b": 4}, '{"a": 1, "a": 2, "b": 4}'),
        ('{"a": 1, "a": 2, "b": 3}', {"a": 5, "b": 3}, '{"a": 5, "b": 3}'),
        ('{"a": 1, "a": 2, "b": 3}', {"b": 3}, '{ "b": 3}'),
        ('{"a": 1\n , "b": 2\n}', {"a": 1, "b": 2, "c": 3}, '{"a": 1,\n  "b": 2,\n  "c": 3\n}'),
        ('{"a": "é"}', {"a": "ü\ud800"}, '{"a": "\\u00fc\\ud800"}'),
        ('{"a": NaN, "b": 1}', {"a": float("nan"), "b": 2}, '{"a": NaN, "b": 2}'),
        ('{"a": 1}', {"a": True}, '{"a": true}'),
    ],
)
def test_an_edit_of_any_layout_gives_the_value_asked_for(text: str, value: dict[str, Any], after: str) -> None:
    assert changed(text, value) == after


def test_mark_and_end_of_the_file_stay() -> None:
    assert parse(b'\xef\xbb\xbf {"a": 1} // end').changed({"a": 2}).data == b'\xef\xbb\xbf {"a": 2} // end'


def test_a_large_file_with_comments_is_read_and_changed_at_once() -> None:
    servers = {f"server {number}": {"command": "x", "args": ["-y", "x"], "env": {"A": "b"}} for number in range(10_000)}
    text = "// a comment\n" + json.dumps({"servers": servers}, indent=2)
    began = time.perf_counter()
    document = parse(text.encode())
    servers["server 5000"] = {"command": "y"}
    assert len(document.changed({"servers": servers}).text) < len(text)
    assert time.perf_counter() - began < 10  # half a second; a reader in pure Python takes minutes


names = st.text(st.sampled_from('ab"\\/*,{}é\n '), max_size=4)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))
objects = st.dictionaries(names, values, max_size=5)
gaps = st.sampled_from(["", " ", "\n", "\r\n  ", '// c, } "\n', "/* , { */", "/* \n * // */ ", " // é\n  ", "\t"])


@st.composite
def texts(draw: st.DrawFn, value: Any) -> str:
    """A value, written with any blanks, comments and trailing commas."""

    def gap() -> str:
        return draw(gaps)

    match value:
        case dict() | list():
            pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
            members = [
                gap() + ("" if name is None else f"{json.dumps(name)}{gap()}:{gap()}") + draw(texts(one)) + gap()
                for name, one in pairs
            ]
            trailing = draw(st.sampled_from(["", ","])) + gap() if members else ""
            first, last = "{}" if isinstance(value, dict) else "[]"
            return f"{first}{','.join(members) or gap()}{trailing}{last}"
        case _:
            return json.dumps(value, ensure_ascii=draw(st.booleans()))


@given(st.data(), objects)
def test_any_text_with_comments_is_read_as_its_value_and_as_json5_reads_it(data: st.DataObject, value: Any) -> None:
    text = data.draw(gaps) + data.draw(texts(value)) + data.draw(gaps)
    assert same(parse(text.encode()).value, value)
    assert json5.loads(text) == value


@given(st.data(), objects, objects)
def test_any_edit_of_any_text_gives_the_value_asked_for(data: st.DataObject, old: Any, new: Any) -> None:
    kept = {name: value for name, value in old.items() if data.draw(st.booleans())}
    text = data.draw(texts(old))
    document = parse(text.encode())
    for value in (new, kept, {**kept, **new}, {**new, "nested": old}, dict.fromkeys(old, new)):
        after = document.changed(value)
        assert same(parse(after.data).value, value)
        assert Document(after.text, value).changed(value).text == after.text


@given(st.data(), objects)
def test_an_edit_of_nothing_changes_nothing(data: st.DataObject, value: Any) -> None:
    text = data.draw(texts(value))
    assert parse(text.encode()).changed(value).text == text
