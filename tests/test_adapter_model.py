"""The copy of a tool's schema for models: no API refuses it, and what it cannot hold is told in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from openprogram_mcp.adapter import (
    AgentTool,
    anthropic_tool,
    model_view,
    normalize_input_schema,
    openai_tool,
    parse_tools,
)
from tests.adapter_schemas import A, B, Schema, accepted, exported, never, rules

# --- SCHEMA-02: choices at the root ----------------------------------------------------------------------------------


def test_schema_02_a_choice_at_the_root_becomes_an_object_with_the_rule_in_words() -> None:
    schema = normalize_input_schema({"anyOf": [A, B]})
    copy = accepted(schema)
    assert copy["properties"] == {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {}}
    assert "required" not in copy
    assert "at least one of these sets of arguments: (1) a; (2) b and optionally c" in rules(schema)
    assert schema["anyOf"] == [A, B], "the server's rule is unchanged"


def test_schema_02_what_every_branch_requires_is_required() -> None:
    one = {**A, "required": ["a", "z"]}
    other = {**B, "required": ["z", "b"]}
    copy = accepted({"type": "object", "properties": {"z": {"type": "boolean"}}, "oneOf": [one, other]})
    assert copy["required"] == ["z"]
    assert "exactly one" in rules({"oneOf": [one, other]})


def test_schema_02_all_of_with_references_is_merged() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}}
    copy = accepted(schema)
    assert set(copy["properties"]) == {"a", "b", "c"}
    assert copy["required"] == ["a", "b"]
    assert "$defs" not in copy, "nothing refers to them any more"


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ({"type": "string"}, {"type": "string"}, {"type": "string"}),
        ({"type": "string"}, {}, {"type": "string"}),
        ({}, {"type": "string"}, {"type": "string"}),
        ({"type": "string"}, {"minLength": 2}, {"type": "string", "minLength": 2}),
        ({"minimum": 1}, {"minimum": 2}, {"allOf": [{"minimum": 1}, {"minimum": 2}]}),
    ],
)
def test_schema_02_what_two_branches_say_of_one_argument_is_said_once(
    first: Schema, second: Schema, merged: Schema
) -> None:
    copy = accepted({"allOf": [{"properties": {"a": first}}, {"properties": {"a": second}}]})
    assert copy["properties"] == {"a": merged}


def test_schema_02_a_choice_refines_an_argument_only_where_every_branch_does() -> None:
    own = {"kind": {"type": "string"}, "size": {"type": "integer"}}
    branches = [
        {"properties": {"kind": {"const": "a"}, "size": {"minimum": 1}}},
        {"properties": {"kind": {"const": "b"}}},
    ]
    copy = accepted({"type": "object", "properties": own, "anyOf": branches})
    assert copy["properties"]["kind"] == {"type": "string", "anyOf": [{"const": "a"}, {"const": "b"}]}
    assert copy["properties"]["size"] == {"type": "integer"}


def test_schema_02_a_choice_of_closed_branches_is_closed() -> None:
    closed = [{**A, "additionalProperties": False}, {**B, "additionalProperties": False}]
    assert accepted({"anyOf": closed})["additionalProperties"] is False
    assert "additionalProperties" not in accepted({"anyOf": [closed[0], B]})


def test_schema_02_a_choice_of_very_many_stays_readable() -> None:
    branches = [{"properties": {f"argument_{number}": {}}, "required": [f"argument_{number}"]} for number in range(200)]
    copy = accepted({"anyOf": branches})
    assert len(copy["properties"]) == 200
    assert "(24) argument_23; and 176 more." in rules({"anyOf": branches})
    assert len(rules({"allOf": [{"not": {"required": [f"a{number}"]}} for number in range(200)]})) < 1000


def test_schema_02_branches_within_branches_within_branches_end() -> None:
    schema: Schema = A
    for _ in range(400):
        schema = {"allOf": [schema]}
    accepted(schema)


def test_schema_02_a_reference_at_the_root_is_followed() -> None:
    copy = accepted({"$ref": "#/$defs/A", "$defs": {"A": {**A, "description": "of A"}}})
    assert copy["properties"] == A["properties"]
    assert copy["description"] == "of A"


def test_schema_02_a_negation_at_the_root_is_told() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}
    accepted(schema)
    assert "Do not give a and b together." in rules(schema)
    schema["not"] = {"properties": {"a": {"const": 1}}}
    accepted(schema)
    assert '{"properties":{"a":{"const":1}}}' in rules(schema)


def test_schema_02_a_condition_at_the_root_is_told() -> None:
    schema = {
        "type": "object",
        "if": {"properties": {"kind": {"const": "x"}}},
        "then": {"properties": {"a": {"type": "string"}}, "required": ["a"]},
        "else": {"required": ["b"]},
    }
    copy = accepted(schema)
    assert copy["properties"] == {"a": {"type": "string"}, "b": {}, "kind": {}}
    assert "required" not in copy
    assert "If the arguments fit" in rules(schema)
    assert "otherwise" in rules(schema)


def test_schema_02_a_choice_by_a_fixed_value_says_the_value() -> None:
    one = {"properties": {"kind": {"const": "file"}, "path": {"type": "string"}}, "required": ["kind", "path"]}
    other = {"properties": {"kind": {"const": "text"}, "text": {"type": "string"}}, "required": ["kind", "text"]}
    copy = accepted({"type": "object", "oneOf": [one, other]})
    assert copy["properties"]["kind"] == {"anyOf": [{"const": "file"}, {"const": "text"}]}
    assert '(1) kind = "file", path; (2) kind = "text", text' in rules({"oneOf": [one, other]})


def test_schema_02_branches_that_are_no_objects_are_no_choice() -> None:
    copy = accepted({"anyOf": [{"type": "null"}, A]})
    assert copy["required"] == ["a"]
    assert "sets of arguments" not in rules({"anyOf": [{"type": "null"}, A]})


@pytest.mark.parametrize("schema", [True, False, None, [], {"enum": [{}]}, {"const": {"a": 1}}, {"$ref": "#"}])
def test_schema_02_whatever_stands_there_is_accepted(schema: Any) -> None:
    accepted(schema)


def test_schema_02_a_fixed_object_at_the_root_is_told() -> None:
    accepted({"type": "object", "enum": [{"a": 1}, {"a": 2}]})
    assert 'must be one of these JSON values: [{"a":1},{"a":2}].' in rules({"enum": [{"a": 1}, {"a": 2}]})
    assert 'must be this JSON value: {"a":1}.' in rules({"const": {"a": 1}})


def test_schema_02_branches_that_are_true_or_false_are_taken_as_such() -> None:
    assert accepted({"anyOf": [True, A]})["properties"] == A["properties"]
    assert "(1) any others; (2) a" in rules({"anyOf": [True, A]})
    assert "(1) the first; (2) a" in rules({"anyOf": [{"title": "the first"}, A]})
    assert accepted({"anyOf": [False, A]})["required"] == ["a"]
    assert accepted({"anyOf": [False], **A}) == A
    assert accepted({"allOf": [True, False], **A}) == A


def test_schema_02_one_bad_tool_among_good_ones_costs_no_request_and_is_flagged() -> None:
    plain = [{"name": f"good{number}", "inputSchema": A} for number in range(26)]
    tools, warnings = parse_tools([*plain, {"name": "odd", "inputSchema": {"anyOf": [A, B]}}])
    assert len(tools) == 27
    for tool in tools:
        accepted(tool.input_schema)
    assert warnings == ['tool "odd": schema simplified for models: its root has anyOf']


def test_schema_02_a_schema_that_refers_to_itself_stays_finite() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    assert accepted(tree)["properties"]["kids"]["items"] == {"$ref": "#"}
    rooted = {"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"next": {"$ref": "#/$defs/N"}, "up": {"$ref": "#"}}}}}
    assert set(accepted(rooted)["properties"]) == {"next", "up"}
    circle = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}}}
    accepted(circle)


# --- SCHEMA-03: references -------------------------------------------------------------------------------------------


def test_schema_03_local_references_are_kept_with_what_they_lead_to() -> None:
    copy = accepted(
        {
            "type": "object",
            "properties": {"t": {"anyOf": [{"$ref": "#/$defs/A~1B"}, {"type": "null"}]}},
            "$defs": {
                "A/B": {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}},
                "X": {"type": "string"},
                "Unused": {"type": "number"},
            },
        }
    )
    assert copy["properties"]["t"] == {"anyOf": [{"$ref": "#/$defs/A_B"}, {"type": "null"}]}
    assert copy["$defs"] == {
        "A_B": {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}},
        "X": {"type": "string"},
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"definitions": {"W": {"type": "integer"}}, "properties": {"w": {"$ref": "#/definitions/W"}}},
        {"$defs": {"W": {"$anchor": "w", "type": "integer"}}, "properties": {"w": {"$ref": "#w"}}},
        {"$defs": {"W": {"$dynamicAnchor": "w", "type": "integer"}}, "properties": {"w": {"$dynamicRef": "#w"}}},
        {
            "$id": "https://e.org/r.json",
            "$defs": {"W": {"$id": "w", "type": "integer"}},
            "properties": {"w": {"$ref": "w"}},
        },
        {
            "$id": "dir/r.json",
            "$defs": {"W": {"$id": "sub/w", "$defs": {"V": {"type": "integer"}}, "$ref": "#/$defs/V"}},
            "properties": {"w": {"$ref": "sub/w"}},
        },
        {"properties": {"v": {"type": "integer"}, "w": {"$ref": "#/properties/v"}}},
        {"$defs": {"%": {"type": "integer"}}, "properties": {"w": {"$ref": "#/$defs/%25"}}},
        {"$defs": {"L": {"anyOf": [{"type": "integer"}]}}, "properties": {"w": {"$ref": "#/$defs/L/anyOf/0"}}},
        {"$defs": {"L": {"anyOf": [{"$anchor": "w", "type": "integer"}]}}, "properties": {"w": {"$ref": "#w"}}},
        {"$defs": {"L": {"items": [{"$anchor": "w", "type": "integer"}]}}, "properties": {"w": {"$ref": "#w"}}},
        {"$defs": {"L": {"not": {"$anchor": "w", "type": "integer"}}}, "properties": {"w": {"$ref": "#w"}}},
        {
            "$id": "https://e.org/r.json",
            "$defs": {"M": {"$id": "sub/", "$defs": {"N": {"$ref": "w"}, "W": {"$id": "w", "type": "integer"}}}},
            "properties": {"w": {"$ref": "#/$defs/M/$defs/N"}},
        },
    ],
)
def test_schema_03_every_kind_of_local_reference_is_resolved(schema: Schema) -> None:
    copy = accepted({"type": "object", **schema})
    validator = Draft202012Validator(copy)
    assert validator.is_valid({"w": 1})
    assert not validator.is_valid({"w": "x"})
    assert model_view(schema).warnings == ()


def test_schema_03_words_beside_a_reference_are_kept() -> None:
    copy = accepted(
        {"properties": {"w": {"$ref": "#/$defs/W", "description": "d"}}, "$defs": {"W": {"type": "integer"}}}
    )
    assert copy["properties"]["w"] == {"description": "d", "$ref": "#/$defs/W"}


@pytest.mark.parametrize(
    "ref",
    [
        "#/$defs/Gone",
        "#/examples/1",
        "#/examples/x",
        "#/examples/00000000000",
        "#/examples/0/deep",
        "http://127.0.0.1:9/x.json",
        "other.json#/a",
        "#nowhere",
        "#/required/0",
        "http://[",
        7,
    ],
)
def test_schema_03_a_reference_to_nothing_or_to_elsewhere_allows_anything_and_is_warned_of(ref: Any) -> None:
    schema = {"type": "object", "properties": {"t": {"$ref": ref, "title": "T"}}, "required": ["t"], "examples": ["x"]}
    assert accepted(schema)["properties"]["t"] == {"title": "T"}
    tools, warnings = parse_tools([{"name": "x", "inputSchema": schema}])
    assert tools[0].input_schema["properties"]["t"]["$ref"] == ref, "the registry's own schema keeps it"
    assert warnings == [
        f'tool "x": its schema refers to {json.dumps(ref)}, which is not in it: anything is allowed there'
    ]


def test_schema_03_references_in_a_circle_allow_anything() -> None:
    schema = {
        "properties": {"t": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
    }
    assert accepted(schema)["properties"]["t"] == {}
    assert "in a circle" in model_view(schema).warnings[0]


def test_two_definitions_of_one_name_stay_two() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/X"}, "b": {"$ref": "#/definitions/X"}},
        "$defs": {"X": {"type": "string"}},
        "definitions": {"X": {"type": "integer"}},
    }
    assert accepted(schema)["$defs"] == {"X": {"type": "string"}, "X_2": {"type": "integer"}}


# --- What else the APIs refuse ---------------------------------------------------------------------------------------


def test_malformed_words_and_older_drafts_become_valid_by_the_newest_metaschema() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {
            "low": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "pair": {"type": "array", "items": [{"type": "string"}, {"type": "number"}], "additionalItems": False},
            "needed": {"type": "string", "required": True},
            "odd": {"type": "file", "minLength": "3", "enum": [], "properties": []},
            "any": True,
            "none": False,
            "list": {"type": ["array", "null"]},
            "bad": "string",
        },
        "required": ["low", "low"],
        "dependencies": {"low": ["pair"], "pair": {"required": ["low"]}},
    }
    copy = accepted(schema)
    assert copy["properties"] == {
        "low": {"type": "number", "exclusiveMinimum": 0},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": {"not": {}}},
        "needed": {"type": "string"},
        "odd": {"properties": {}},
        "any": {},
        "none": {"not": {}},
        "list": {"type": ["array", "null"], "items": {}},
        "bad": {},
    }
    assert copy["required"] == ["needed", "low"]
    assert copy["dependentRequired"] == {"low": ["pair"]}
    assert copy["dependentSchemas"] == {"pair": {"required": ["low"]}}
    assert [warning[:33] for warning in model_view(schema).warnings] == [
        "its schema has a malformed type, ",
        "its schema has a malformed minLen",
        "its schema has a malformed proper",
    ]


@pytest.mark.parametrize(
    ("word", "bad", "good"),
    [
        ("multipleOf", [0, -1, "2", True], [2, 0.5]),
        ("minimum", ["1", True, None, float("inf")], [1, -0.5]),
        ("maxItems", [-1, 1.5, "3", False], [0, 3]),
        ("uniqueItems", ["yes", 1], [True, False]),
        ("title", [7, None], ["T"]),
        ("examples", ["x", {}], [["x"], []]),
        ("type", ["file", [], ["string", 7], ["string", "file"], {}, None], ["string", ["string", "null"]]),
        ("enum", [[], "x", None], [["x", 1, True, 1.5]]),
        ("required", ["x", 7, None, {}], [["x"]]),
        ("anyOf", ["x", {}, ["x"]], [[{}]]),
        ("not", ["x", [], None], [{"type": "null"}]),
        ("additionalProperties", ["x", 7], [True, False, {"type": "null"}]),
        ("dependentRequired", ["x", 7], [{"a": ["b"]}]),
        ("x-mcp-header", [], ["Region", {"any": "thing"}]),
    ],
)
def test_a_word_is_kept_when_it_is_sound_and_left_out_when_it_is_not(
    word: str, bad: list[Any], good: list[Any]
) -> None:
    for value in bad:
        assert accepted({"properties": {"a": {word: value}}})["properties"]["a"] == {}
    for value in good:
        assert accepted({"properties": {"a": {word: value}}})["properties"]["a"] == {word: value}


def test_an_enumeration_says_each_value_once() -> None:
    copy = accepted({"properties": {"a": {"enum": [1, "x", True, 1, "x", 1.0]}}})
    assert copy["properties"]["a"]["enum"] == [1, "x", True, 1.0]


def test_a_property_may_be_called_like_a_keyword() -> None:
    names = ["$ref", "type", "properties", "required", "pattern", "$id", "anyOf"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": ["$ref"]}
    assert accepted(schema)["properties"] == schema["properties"]


def test_an_argument_whose_name_anthropic_refuses_is_told_in_words() -> None:
    schema = {
        "type": "object",
        "properties": {"$filter": {"type": "string"}, "top": {"type": "integer"}},
        "required": ["$filter", "top"],
        "additionalProperties": False,
    }
    entry = anthropic_tool(exported(schema))
    assert entry["input_schema"] == {"type": "object", "properties": {"top": {"type": "integer"}}, "required": ["top"]}
    assert 'An argument "$filter" must be given too: {"type":"string"}' in entry["description"]
    assert openai_tool(exported(schema))["function"]["parameters"] == schema


def test_a_description_too_long_for_openai_is_cut_and_stands_in_full_in_the_schema() -> None:
    tool = exported({"anyOf": [A, B]}, "word " * 500)
    function = openai_tool(tool)["function"]
    assert len(function["description"]) == 1024
    assert function["description"].endswith("(2) b and optionally c."), "a rule is not what is cut"
    assert function["parameters"]["description"].startswith("word " * 500)
    assert anthropic_tool(tool)["description"].startswith("word " * 500)


def test_rules_too_long_for_openai_leave_room_for_the_description() -> None:
    branches = [{"required": [f"a_long_name_of_an_argument_{number}"]} for number in range(40)]
    tool = exported({"anyOf": branches}, "word " * 500)
    description = openai_tool(tool)["function"]["description"]
    assert len(description) == 1024
    assert description.startswith("word " * 100)
    assert "(1) a_long_name_of_an_argument_0" in description


def test_a_description_that_would_fill_the_context_is_cut() -> None:
    tool = exported({"type": "object", "properties": {}}, "x" * 1_000_000)
    assert anthropic_tool(tool)["description"] == "x" * 20_000 + "…"


def test_a_description_is_never_empty_where_there_is_a_label() -> None:
    tool = AgentTool(name="n", description="", parameters={"type": "object"}, label="Label", invoke=never)
    assert openai_tool(tool)["function"]["description"] == "Label"
