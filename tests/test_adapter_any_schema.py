"""Hostile and arbitrary schemas: the copy for models is accepted, and says what the schema says."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from openprogram_mcp.adapter import (
    parse_tools,
)
from tests.adapter_schemas import A, Schema, accepted


def _nested(levels: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def test_a_schema_nested_very_deep_is_accepted() -> None:
    accepted(_nested(400))
    tools, _ = parse_tools([{"name": "x", "inputSchema": _nested(400)}])
    assert len(tools) == 1


def test_references_that_multiply_cost_little_time() -> None:
    levels = {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}, {"$ref": f"#/$defs/L{n + 1}"}] * 5} for n in range(14)}
    schema = {"$ref": "#/$defs/L0", "$defs": {**levels, "L14": A}}
    started = time.perf_counter()
    accepted(schema)
    assert time.perf_counter() - started < 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = [
    *(
        "type",
        "properties",
        "required",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "$ref",
        "$defs",
        "items",
    ),
    *(
        "enum",
        "const",
        "additionalProperties",
        "minimum",
        "exclusiveMinimum",
        "$id",
        "$anchor",
        "definitions",
        "pattern",
    ),
    *("prefixItems", "dependencies", "patternProperties", "uniqueItems", "maxItems", "title", "x-odd", "examples"),
    *("dependentRequired", "contains", "$dynamicRef", "additionalItems", "$schema", "propertyNames", "format"),
]
refs = st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#a", "x", "http://e/x", "#/$defs/b/anyOf/0", "#/%zz"])
types = st.sampled_from(["object", "string", "integer", "array", "null", "number", "boolean", "file"])
names = st.sampled_from(["a", "b", "$ref", "odd name"])
almost_schemas = st.recursive(
    json_values | types.map(lambda kind: {"type": kind}) | refs.map(lambda ref: {"$ref": ref}),
    lambda inner: st.dictionaries(
        st.sampled_from(WORDS),
        inner | st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3) | refs | types | json_values,
        max_size=5,
    ),
    max_leaves=20,
)


@given(almost_schemas)
@settings(max_examples=300, deadline=None)
def test_whatever_a_server_sends_the_copy_is_accepted(schema: Any) -> None:
    accepted(schema)


@given(st.lists(st.dictionaries(st.sampled_from(["name", "inputSchema", "annotations", "title", "x"]), almost_schemas)))
@settings(max_examples=60, deadline=None)
def test_whatever_a_server_lists_is_read(raw: Any) -> None:
    tools, warnings = parse_tools(raw)
    assert len({tool.name for tool in tools}) == len(tools)
    assert len(tools) + sum("was dropped" in warning for warning in warnings) == len(raw)


sound_leaves = st.sampled_from(
    [
        {},
        {"type": "string"},
        {"type": "integer", "minimum": 2},
        {"type": "array"},
        {"enum": ["x", 1, True]},
        {"const": 0},
        {"$ref": "#/$defs/one"},
        {"$ref": "#/$defs/two~1b", "minLength": 1},
        {"$ref": "#"},
        {"type": ["string", "null"]},
        True,
    ]
)
sound_schemas = st.recursive(
    sound_leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("ab"), inner).map(lambda p: {"type": "object", "properties": p}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"oneOf": branches}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"allOf": branches}),
        inner.map(lambda item: {"type": "array", "items": item}),
        inner.map(lambda item: {"not": item}),
        inner.map(lambda item: {"type": "object", "additionalProperties": item, "required": ["a"]}),
    ),
    max_leaves=8,
)
small_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 3, "", "x", "y", 1.0]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
sound_roots = st.tuples(st.dictionaries(st.sampled_from("abc"), sound_schemas), sound_schemas, sound_schemas).map(
    lambda parts: {
        "type": "object",
        "properties": parts[0],
        # Each under an array, so that references cannot lead round in a circle without taking something off the value.
        "$defs": {"one": {"type": "array", "items": parts[1]}, "two/b": {"type": "array", "items": parts[2]}},
    }
)


@given(sound_roots, st.dictionaries(st.sampled_from("abc"), small_values))
@settings(max_examples=150, deadline=None)
def test_a_copy_without_choice_at_its_root_says_what_the_schema_says(schema: Schema, value: Any) -> None:
    copy = accepted(schema)
    try:
        expected = Draft202012Validator(schema).is_valid(value)
    except RecursionError:
        return  # {"not": {"$ref": "#"}} and its like have no meaning
    assert Draft202012Validator(copy).is_valid(value) is expected


@given(
    sound_roots, st.lists(sound_roots, min_size=1, max_size=3), st.dictionaries(st.sampled_from("abc"), small_values)
)
@settings(max_examples=60, deadline=None)
def test_a_merged_copy_takes_all_that_the_schema_takes(schema: Schema, more: list[Schema], value: Any) -> None:
    schema = {**schema, "allOf": [{"properties": part["properties"]} for part in more]}
    copy = accepted(schema)
    try:
        if Draft202012Validator(schema).is_valid(value):
            assert Draft202012Validator(copy).is_valid(value)
    except RecursionError:
        return
