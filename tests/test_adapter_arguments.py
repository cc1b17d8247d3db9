"""Arguments are checked before anything is sent: a fault is named, what cannot be judged is left to the server."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from openprogram_mcp.adapter import _arguments, check_arguments
from openprogram_mcp.errors import InvalidArguments

Schema = dict[str, Any]


def _fault(schema: Schema, arguments: dict[str, Any]) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        check_arguments(schema, arguments)
    return caught.value


def _properties(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ({"type": "integer"}, "x", "a: expected a whole number, got a text"),
        ({"type": "integer"}, True, "a: expected a whole number, got true or false"),
        ({"type": "integer"}, 1.5, "a: expected a whole number, got a number"),
        ({"type": ["string", "null"]}, {}, "a: expected a text or null, got an object"),
        ({"type": "boolean"}, None, "a: expected true or false, got null"),
        ({"type": "array", "items": {"type": "string"}}, ["x", 1], "a.1: expected a text, got a whole number"),
        ({"type": "array"}, "[1,2]", "a: expected a list, got a text"),
        ({"enum": ["x", "y"]}, "z", 'a: expected one of ["x","y"]'),
        ({"const": 1}, 2, "a: expected 1"),
        ({"type": "number", "minimum": 1}, 0, "a: expected at least 1"),
        ({"type": "number", "exclusiveMaximum": 1}, 1, "a: expected less than 1"),
        ({"type": "string", "minLength": 3}, "x", "a: expected at least 3 characters"),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, "12", 'a: expected a text that matches "^[0-9]{4}$"'),
        ({"type": "array", "uniqueItems": True}, [1, 1], "a: expected items that differ from each other"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "x", "a: fits none, or more than one, of the forms"),
        ({"not": {"type": "string"}}, "x", "a: has a form that the tool does not take"),
        ({"contains": {"const": 1}}, [2], "a: does not fit the tool's schema (contains)"),
    ],
)
def test_the_fault_names_the_argument_and_what_was_expected(part: Schema, value: Any, said: str) -> None:
    fault = _fault(_properties(a=part), {"a": value})
    assert fault.message.startswith(said)
    assert fault.path == said.partition(":")[0]


def test_a_missing_argument_is_named_by_its_path() -> None:
    schema = _properties(filters={"type": "array", "items": {**_properties(name={}), "required": ["name"]}})
    assert _fault({**_properties(b={}), "required": ["b"]}, {}).path == "b"
    fault = _fault(schema, {"filters": [{"name": 1}, {}]})
    assert fault.path == "filters.1.name"
    assert fault.message == "filters.1.name: this argument is missing"
    assert _fault({"type": "object", "dependentRequired": {"a": ["b"]}}, {"a": 1}).path == "b"


def test_an_argument_the_tool_does_not_have_is_named_with_those_it_has() -> None:
    fault = _fault({**_properties(text={}, limit={}), "additionalProperties": False}, {"txt": 1})
    assert fault.path == "txt"
    assert fault.message == "txt: the tool has no argument of this name; it has text, limit"


def test_no_value_stands_in_an_error() -> None:
    schema = _properties(
        a={"enum": ["x"]}, b={"type": "integer"}, c={"anyOf": [{"const": 1}, {"const": 2}]}, d={"pattern": "^x$"}
    )
    for name in "abcd":
        assert "hunter2" not in _fault(schema, {name: "hunter2"}).message


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"text": "x"},
        {"text": "x", "n": 3, "tags": ["a", "b"], "mode": "fast", "maybe": None, "inner": {"x": 1.5}, "more": object},
    ],
)
def test_what_fits_is_accepted(arguments: dict[str, Any]) -> None:
    schema = _properties(
        text={"type": "string", "description": "d"},
        n={"type": "integer", "minimum": 1, "maximum": 9},
        tags={"type": "array", "items": {"type": "string"}},
        mode={"type": "string", "enum": ["fast", "slow"]},
        maybe={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        inner=_properties(x={"type": "number"}),
    )
    arguments = {name: value for name, value in arguments.items() if name != "more"}
    check_arguments(schema, arguments)


def test_common_arguments_are_judged_without_importing_the_validator() -> None:
    program = (
        "import sys; from openprogram_mcp.adapter import check_arguments\n"
        "b = {'type': 'array', 'items': {'type': 'integer'}}\n"
        "s = {'type': 'object', 'properties': {'a': {'type': 'string'}, 'b': b}}\n"
        "check_arguments(s, {'a': 'x', 'b': [1]})\n"
        "print('jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_schema_07_null_and_absence_are_told_apart() -> None:
    schema = {**_properties(x={"type": "string", "default": None}), "additionalProperties": False}
    check_arguments(schema, {})
    assert _fault(schema, {"x": None}).path == "x"


def test_http_null_for_what_stands_in_a_header_too_is_for_the_server_to_judge() -> None:
    marked = {"type": "boolean", "x-mcp-header": "Verbose"}
    schema = _properties(verbose=marked, inner=_properties(deep=marked), plain={"type": "boolean"})
    check_arguments(schema, {"verbose": None, "inner": {"deep": None}, "plain": True})
    assert _fault(schema, {"verbose": None, "plain": None}).path == "plain"
    assert _fault(schema, {"verbose": "no"}).path == "verbose"
    assert _fault({**schema, "required": ["verbose"]}, {"verbose": None}).path == "verbose"


def test_schema_03_a_reference_is_followed_and_one_to_nothing_allows_anything() -> None:
    schema = _properties(a={"$ref": "#/$defs/A"}, b={"$ref": "#/$defs/Gone"}, c={"type": "integer"})
    schema["$defs"] = {"A": {"type": "object", "properties": {"next": {"$ref": "#/$defs/A"}}, "required": ["x"]}}
    check_arguments(schema, {"a": {"x": 1, "next": {"x": 2}}, "b": object})
    assert _fault(schema, {"a": {"x": 1, "next": {}}}).path == "a.next.x"
    assert _fault(schema, {"b": 1, "c": "x"}).path == "c", "the rest is judged all the same"


def test_schema_03_a_remote_reference_is_never_fetched() -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/schema.json"
        check_arguments(_properties(a={"$ref": url}, b={"$dynamicRef": url}), {"a": 1, "b": 2})
        server.shutdown()
    assert asked == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "file"}}},
        {"type": "object", "properties": {"a": {"required": True}}},
        {"type": "object", "properties": {"a": {"pattern": "[["}}},
        {"type": "object", "properties": {"a": {"pattern": "\\p{L}"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"$ref": "#"},
    ],
)
def test_what_is_no_valid_schema_is_left_to_the_server(schema: Schema) -> None:
    check_arguments(schema, {"a": "x"})


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (_properties(a=True), {"a": 1}),
        (_properties(a={"anyOf": 7}), {"a": 1}),
        (_properties(a={"anyOf": [True]}), {"a": 1}),
        (_properties(a={"type": "integer", "minimum": "1"}), {"a": 1}),
        (_properties(a={"type": "string", "enum": 7}), {"a": "x"}),
        (_properties(a={"type": ["string", "integer"]}), {"a": 1}),
        ({**_properties(a={}), "required": True}, {"a": 1}),
        ({**_properties(a={}), "required": 7}, {"a": 1}),
        ({**_properties(a={}), "required": [7]}, {"a": 1}),
        ({"type": "object", "properties": 7}, {"a": 1}),
    ],
)
def test_odd_schemas_stop_no_call(schema: Schema, arguments: dict[str, Any]) -> None:
    check_arguments(schema, arguments)


@pytest.mark.parametrize("value", ["x", [], 7, None, True])
def test_what_is_no_object_is_told(value: Any) -> None:
    fault = _fault(_properties(a={"type": "object", "properties": {"b": {"type": "string"}}}), {"a": value})
    assert fault.message.startswith("a: expected an object, got ")


def test_a_very_deep_schema_stops_no_call() -> None:
    schema: Schema = {"type": "string"}
    value: Any = 1
    for _ in range(400):
        schema, value = _properties(x=schema), {"x": value}
    check_arguments(schema, value)


def test_schemas_that_are_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arguments, "_MAX_KEPT", 3)
    for number in range(10):
        check_arguments(_properties(**{f"a{number}": {"type": "string"}}), {})
        assert len(_arguments._compiled) <= 3


def test_a_list_that_python_calls_a_tuple_is_a_list() -> None:
    check_arguments(_properties(a={"type": "array", "items": {"type": "integer"}}), {"a": (1, 2)})
    assert _fault(_properties(a={"type": "array", "items": {"type": "integer"}}), {"a": (1, "x")}).path == "a.1"


def test_an_older_draft_is_read_as_it_says() -> None:
    part = {"type": "integer", "minimum": 3, "exclusiveMinimum": True}
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", **_properties(a=part)}
    assert _fault(draft_4, {"a": 3}).path == "a"
    check_arguments(_properties(a=part), {"a": 3})


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", ".*.*.*.*.*x", "(a?){30}a{30}", "a{1,99}a{1,99}a{1,99}b"])
def test_a_hostile_pattern_is_not_run(pattern: str) -> None:
    schema = {
        **_properties(a={"type": "string", "pattern": pattern}),
        "patternProperties": {pattern: {}},
        "additionalProperties": False,
        "unevaluatedProperties": False,
    }
    started = time.perf_counter()
    check_arguments(schema, {"a": "a" * 500 + "!", "a" * 500 + "!": 1})
    assert time.perf_counter() - started < 1


def test_references_that_multiply_are_not_followed_for_ever() -> None:
    levels = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 8} for n in range(12)}
    schema = {**_properties(a={"$ref": "#/$defs/L0"}), "$defs": {**levels, "L12": {"type": "string"}}}
    started = time.perf_counter()
    check_arguments(schema, {"a": "x"})
    assert time.perf_counter() - started < 5


parts = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "integer", "minimum": 1},
            {"type": "number", "maximum": 2},
            {"type": "string", "enum": ["x", "y"]},
            {"type": "null"},
            {"type": "boolean", "description": "d"},
            {"type": "array"},
            {"type": "object"},
            {"enum": [1, "x", None]},
            {},
        ]
    ),
    lambda inner: st.one_of(
        inner.map(lambda item: {"type": "array", "items": item}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.dictionaries(st.sampled_from("abc"), inner).map(
            lambda properties: {"type": "object", "properties": properties, "additionalProperties": False}
        ),
        st.dictionaries(st.sampled_from("abc"), inner).map(
            lambda properties: {"type": "object", "properties": properties, "required": ["a"]}
        ),
    ),
    max_leaves=6,
)
values = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, 3, 1.0, 2.5, "", "x", "z"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("abc"), parts), st.dictionaries(st.sampled_from("abc"), values))
@settings(max_examples=300, deadline=None)
def test_the_quick_judgement_is_the_validators(properties: Schema, arguments: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": properties, "required": ["b"], "additionalProperties": False}
    valid = Draft202012Validator(schema).is_valid(arguments)
    try:
        check_arguments(schema, arguments)
    except InvalidArguments:
        assert not valid
    else:
        assert valid
