"""Tools as servers list them, and the copy of their schemas that model APIs accept."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from openprogram_mcp.adapter import (
    AgentTool,
    AgentToolResult,
    InvalidSchema,
    anthropic_tool,
    model_view,
    normalize_input_schema,
    openai_tool,
    parse_tools,
)
from openprogram_mcp.adapter._refs import children

Schema = dict[str, Any]

A: Schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
B: Schema = {"type": "object", "properties": {"b": {"type": "integer"}, "c": {}}, "required": ["b"]}


async def _never(arguments: dict[str, Any], call_id: str | None, on_update: Any) -> AgentToolResult:
    raise AssertionError("nothing is called here")


def _tool(schema: Any, description: str = "What it does.") -> AgentTool:
    return AgentTool(name="s__t", description=description, parameters=schema, invoke=_never)


def _accepted(schema: Any) -> Schema:
    """The schema as both APIs get it, checked by the rules that their refusals have shown."""
    openai = openai_tool(_tool(schema))["function"]
    assert len(openai["description"]) <= 1024
    for part in (openai["parameters"], anthropic_tool(_tool(schema))["input_schema"]):
        assert part["type"] == "object"
        assert isinstance(part["properties"], dict)
        assert not part.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "if", "$schema"}
        Draft202012Validator.check_schema(part)
        _walk(part, part)
        json.dumps(part, ensure_ascii=False).encode()
    for name in anthropic_tool(_tool(schema))["input_schema"]["properties"]:
        assert re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name)
    parameters: Schema = openai["parameters"]
    return parameters


def _walk(root: Schema, schema: Schema) -> None:
    kind = schema.get("type")
    if kind == "array" or (isinstance(kind, list) and "array" in kind):
        assert "items" in schema
    ref = schema.get("$ref")
    if ref is not None:
        assert ref == "#" or ref.removeprefix("#/$defs/") in root["$defs"]
    for child in children(schema):
        _walk(root, child)


def _rules(schema: Any) -> str:
    description: str = anthropic_tool(_tool(schema))["description"]
    return description


# --- What is an input schema -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, True, {}, {"properties": None}, {"properties": []}, {"type": "object"}])
def test_a_missing_schema_or_missing_properties_become_an_empty_object_schema(schema: Any) -> None:
    assert normalize_input_schema(schema) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("schema", [[], "x", 42, False, {"type": "string"}, {"type": ["string", "null"]}, {"type": 7}])
def test_what_is_not_an_object_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema, match="its input schema"):
        normalize_input_schema(schema)


def test_every_keyword_is_kept() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"X": {"type": "string"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "anyOf": [{"required": ["x"]}],
        "dependentRequired": {"x": ["y"]},
        "x-mcp-header": "Region",
        "additionalProperties": False,
    }
    normal = normalize_input_schema(schema)
    assert normal == schema
    assert normal is not schema


# --- SCHEMA-02: choices at the root ----------------------------------------------------------------------------------


def test_schema_02_a_choice_at_the_root_becomes_an_object_with_the_rule_in_words() -> None:
    schema = normalize_input_schema({"anyOf": [A, B]})
    copy = _accepted(schema)
    assert copy["properties"] == {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {}}
    assert "required" not in copy
    assert "at least one of these sets of arguments: (1) a; (2) b and optionally c" in _rules(schema)
    assert schema["anyOf"] == [A, B], "the server's rule is unchanged"


def test_schema_02_what_every_branch_requires_is_required() -> None:
    one = {**A, "required": ["a", "z"]}
    other = {**B, "required": ["z", "b"]}
    copy = _accepted({"type": "object", "properties": {"z": {"type": "boolean"}}, "oneOf": [one, other]})
    assert copy["required"] == ["z"]
    assert "exactly one" in _rules({"oneOf": [one, other]})


def test_schema_02_all_of_with_references_is_merged() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}}
    copy = _accepted(schema)
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
    copy = _accepted({"allOf": [{"properties": {"a": first}}, {"properties": {"a": second}}]})
    assert copy["properties"] == {"a": merged}


def test_schema_02_a_choice_refines_an_argument_only_where_every_branch_does() -> None:
    own = {"kind": {"type": "string"}, "size": {"type": "integer"}}
    branches = [
        {"properties": {"kind": {"const": "a"}, "size": {"minimum": 1}}},
        {"properties": {"kind": {"const": "b"}}},
    ]
    copy = _accepted({"type": "object", "properties": own, "anyOf": branches})
    assert copy["properties"]["kind"] == {"type": "string", "anyOf": [{"const": "a"}, {"const": "b"}]}
    assert copy["properties"]["size"] == {"type": "integer"}


def test_schema_02_a_choice_of_closed_branches_is_closed() -> None:
    closed = [{**A, "additionalProperties": False}, {**B, "additionalProperties": False}]
    assert _accepted({"anyOf": closed})["additionalProperties"] is False
    assert "additionalProperties" not in _accepted({"anyOf": [closed[0], B]})


def test_schema_02_a_choice_of_very_many_stays_readable() -> None:
    branches = [{"properties": {f"argument_{number}": {}}, "required": [f"argument_{number}"]} for number in range(200)]
    copy = _accepted({"anyOf": branches})
    assert len(copy["properties"]) == 200
    assert "(24) argument_23; and 176 more." in _rules({"anyOf": branches})
    assert len(_rules({"allOf": [{"not": {"required": [f"a{number}"]}} for number in range(200)]})) < 1000


def test_schema_02_branches_within_branches_within_branches_end() -> None:
    schema: Schema = A
    for _ in range(400):
        schema = {"allOf": [schema]}
    _accepted(schema)


def test_schema_02_a_reference_at_the_root_is_followed() -> None:
    copy = _accepted({"$ref": "#/$defs/A", "$defs": {"A": {**A, "description": "of A"}}})
    assert copy["properties"] == A["properties"]
    assert copy["description"] == "of A"


def test_schema_02_a_negation_at_the_root_is_told() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}
    _accepted(schema)
    assert "Do not give a and b together." in _rules(schema)
    schema["not"] = {"properties": {"a": {"const": 1}}}
    _accepted(schema)
    assert '{"properties":{"a":{"const":1}}}' in _rules(schema)


def test_schema_02_a_condition_at_the_root_is_told() -> None:
    schema = {
        "type": "object",
        "if": {"properties": {"kind": {"const": "x"}}},
        "then": {"properties": {"a": {"type": "string"}}, "required": ["a"]},
        "else": {"required": ["b"]},
    }
    copy = _accepted(schema)
    assert copy["properties"] == {"a": {"type": "string"}, "b": {}, "kind": {}}
    assert "required" not in copy
    assert "If the arguments fit" in _rules(schema)
    assert "otherwise" in _rules(schema)


def test_schema_02_a_choice_by_a_fixed_value_says_the_value() -> None:
    one = {"properties": {"kind": {"const": "file"}, "path": {"type": "string"}}, "required": ["kind", "path"]}
    other = {"properties": {"kind": {"const": "text"}, "text": {"type": "string"}}, "required": ["kind", "text"]}
    copy = _accepted({"type": "object", "oneOf": [one, other]})
    assert copy["properties"]["kind"] == {"anyOf": [{"const": "file"}, {"const": "text"}]}
    assert '(1) kind = "file", path; (2) kind = "text", text' in _rules({"oneOf": [one, other]})


def test_schema_02_branches_that_are_no_objects_are_no_choice() -> None:
    copy = _accepted({"anyOf": [{"type": "null"}, A]})
    assert copy["required"] == ["a"]
    assert "sets of arguments" not in _rules({"anyOf": [{"type": "null"}, A]})


@pytest.mark.parametrize("schema", [True, False, None, [], {"enum": [{}]}, {"const": {"a": 1}}, {"$ref": "#"}])
def test_schema_02_whatever_stands_there_is_accepted(schema: Any) -> None:
    _accepted(schema)


def test_schema_02_a_fixed_object_at_the_root_is_told() -> None:
    _accepted({"type": "object", "enum": [{"a": 1}, {"a": 2}]})
    assert 'must be one of these JSON values: [{"a":1},{"a":2}].' in _rules({"enum": [{"a": 1}, {"a": 2}]})
    assert 'must be this JSON value: {"a":1}.' in _rules({"const": {"a": 1}})


def test_schema_02_branches_that_are_true_or_false_are_taken_as_such() -> None:
    assert _accepted({"anyOf": [True, A]})["properties"] == A["properties"]
    assert "(1) any others; (2) a" in _rules({"anyOf": [True, A]})
    assert "(1) the first; (2) a" in _rules({"anyOf": [{"title": "the first"}, A]})
    assert _accepted({"anyOf": [False, A]})["required"] == ["a"]
    assert _accepted({"anyOf": [False], **A}) == A
    assert _accepted({"allOf": [True, False], **A}) == A


def test_schema_02_one_bad_tool_among_good_ones_costs_no_request_and_is_flagged() -> None:
    plain = [{"name": f"good{number}", "inputSchema": A} for number in range(26)]
    tools, warnings = parse_tools([*plain, {"name": "odd", "inputSchema": {"anyOf": [A, B]}}])
    assert len(tools) == 27
    for tool in tools:
        _accepted(tool.input_schema)
    assert warnings == ['tool "odd": schema simplified for models: its root has anyOf']


def test_schema_02_a_schema_that_refers_to_itself_stays_finite() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    assert _accepted(tree)["properties"]["kids"]["items"] == {"$ref": "#"}
    rooted = {"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"next": {"$ref": "#/$defs/N"}, "up": {"$ref": "#"}}}}}
    assert set(_accepted(rooted)["properties"]) == {"next", "up"}
    circle = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}}}
    _accepted(circle)


# --- SCHEMA-03: references -------------------------------------------------------------------------------------------


def test_schema_03_local_references_are_kept_with_what_they_lead_to() -> None:
    copy = _accepted(
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
    copy = _accepted({"type": "object", **schema})
    validator = Draft202012Validator(copy)
    assert validator.is_valid({"w": 1})
    assert not validator.is_valid({"w": "x"})
    assert model_view(schema).warnings == ()


def test_schema_03_words_beside_a_reference_are_kept() -> None:
    copy = _accepted(
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
    assert _accepted(schema)["properties"]["t"] == {"title": "T"}
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
    assert _accepted(schema)["properties"]["t"] == {}
    assert "in a circle" in model_view(schema).warnings[0]


def test_two_definitions_of_one_name_stay_two() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/X"}, "b": {"$ref": "#/definitions/X"}},
        "$defs": {"X": {"type": "string"}},
        "definitions": {"X": {"type": "integer"}},
    }
    assert _accepted(schema)["$defs"] == {"X": {"type": "string"}, "X_2": {"type": "integer"}}


# --- SCHEMA-05: tools one by one -------------------------------------------------------------------------------------


def test_schema_05_bad_tools_are_dropped_or_repaired_one_by_one() -> None:
    good = [{"name": f"good{number}", "inputSchema": A} for number in range(9)]
    bad = [
        {"name": "output", "inputSchema": A, "outputSchema": {"description": "x"}},
        {"name": "true", "inputSchema": True},
        {"name": "list", "inputSchema": []},
        {"inputSchema": A},
        {"name": 42, "inputSchema": A},
        {"name": "", "inputSchema": A},
        {"name": "null", "inputSchema": A, "description": None},
        {"name": "annotations", "inputSchema": A, "annotations": "x", "description": 5, "outputSchema": "x"},
        {"name": "unknown", "inputSchema": A, "icons": 7, "whatever": {}},
        {"name": "good0", "inputSchema": B},
        "no object",
        None,
    ]
    tools, warnings = parse_tools([*good, *bad])
    names = [tool.name for tool in tools]
    assert names == [*(f"good{number}" for number in range(9)), "output", "true", "null", "annotations", "unknown"]
    assert warnings == [
        'tool "list" was dropped: its input schema is a list, not an object',
        "tool 13 of the list was dropped: it has no name",
        "tool 14 of the list was dropped: it has no name",
        "tool 15 of the list was dropped: it has no name",
        'tool "annotations": its description was not a text, and is left out',
        'tool "annotations": its annotations were not an object, and are left out',
        'tool "annotations": its output schema was not a schema, and is left out',
        'tool "good0" was dropped: another of this server has the same name',
        "tool 20 of the list was dropped: it has no name",
        "tool 21 of the list was dropped: it has no name",
    ]
    by_name = {tool.name: tool for tool in tools}
    assert by_name["good0"].input_schema == A, "the first one stays"
    assert by_name["output"].output_schema == {"description": "x"}
    assert by_name["null"].description == ""


@pytest.mark.parametrize("raw", [None, {}, "x", 7])
def test_a_list_of_tools_that_is_none_gives_no_tool_and_a_warning(raw: Any) -> None:
    assert parse_tools(raw) == ([], ["the list of tools is not a list"])


def test_hints_are_believed_only_when_they_are_true_or_false() -> None:
    def hinted(**annotations: Any) -> Any:
        return parse_tools([{"name": "x", "annotations": annotations}])[0][0]

    assert hinted(readOnlyHint=True).read_only
    assert not hinted(readOnlyHint="yes").read_only
    assert hinted().destructive, "so long as it does not say otherwise"
    assert not hinted(destructiveHint=False).destructive
    assert not hinted(readOnlyHint=True, destructiveHint=True).destructive
    assert hinted(idempotentHint=True).repeatable
    assert hinted(readOnlyHint=True).repeatable
    assert not hinted(idempotentHint=1).repeatable


def test_a_title_comes_from_the_tool_or_from_its_annotations() -> None:
    raw = [{"name": "a", "title": "A"}, {"name": "b", "annotations": {"title": "B"}}, {"name": "c", "title": 3}]
    assert [tool.title for tool in parse_tools(raw)[0]] == ["A", "B", None]


def test_lone_surrogates_in_a_tool_do_not_reach_a_request() -> None:
    raw = [{"name": "a\ud800", "description": "\udc00!", "inputSchema": {"properties": {"x": {"enum": ["\ud800"]}}}}]
    tools, _ = parse_tools(raw)
    json.dumps([tools[0].description, tools[0].input_schema], ensure_ascii=False).encode()
    _accepted(tools[0].input_schema)


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
    copy = _accepted(schema)
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
        assert _accepted({"properties": {"a": {word: value}}})["properties"]["a"] == {}
    for value in good:
        assert _accepted({"properties": {"a": {word: value}}})["properties"]["a"] == {word: value}


def test_an_enumeration_says_each_value_once() -> None:
    copy = _accepted({"properties": {"a": {"enum": [1, "x", True, 1, "x", 1.0]}}})
    assert copy["properties"]["a"]["enum"] == [1, "x", True, 1.0]


def test_a_property_may_be_called_like_a_keyword() -> None:
    names = ["$ref", "type", "properties", "required", "pattern", "$id", "anyOf"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": ["$ref"]}
    assert _accepted(schema)["properties"] == schema["properties"]


def test_an_argument_whose_name_anthropic_refuses_is_told_in_words() -> None:
    schema = {
        "type": "object",
        "properties": {"$filter": {"type": "string"}, "top": {"type": "integer"}},
        "required": ["$filter", "top"],
        "additionalProperties": False,
    }
    entry = anthropic_tool(_tool(schema))
    assert entry["input_schema"] == {"type": "object", "properties": {"top": {"type": "integer"}}, "required": ["top"]}
    assert 'An argument "$filter" must be given too: {"type":"string"}' in entry["description"]
    assert openai_tool(_tool(schema))["function"]["parameters"] == schema


def test_a_description_too_long_for_openai_is_cut_and_stands_in_full_in_the_schema() -> None:
    tool = _tool({"anyOf": [A, B]}, "word " * 500)
    function = openai_tool(tool)["function"]
    assert len(function["description"]) == 1024
    assert function["description"].endswith("(2) b and optionally c."), "a rule is not what is cut"
    assert function["parameters"]["description"].startswith("word " * 500)
    assert anthropic_tool(tool)["description"].startswith("word " * 500)


def test_rules_too_long_for_openai_leave_room_for_the_description() -> None:
    branches = [{"required": [f"a_long_name_of_an_argument_{number}"]} for number in range(40)]
    tool = _tool({"anyOf": branches}, "word " * 500)
    description = openai_tool(tool)["function"]["description"]
    assert len(description) == 1024
    assert description.startswith("word " * 100)
    assert "(1) a_long_name_of_an_argument_0" in description


def test_a_description_that_would_fill_the_context_is_cut() -> None:
    tool = _tool({"type": "object", "properties": {}}, "x" * 1_000_000)
    assert anthropic_tool(tool)["description"] == "x" * 20_000 + "…"


def test_a_description_is_never_empty_where_there_is_a_label() -> None:
    tool = AgentTool(name="n", description="", parameters={"type": "object"}, label="Label", invoke=_never)
    assert openai_tool(tool)["function"]["description"] == "Label"


# --- Hostile and arbitrary schemas -----------------------------------------------------------------------------------


def _nested(levels: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def test_a_schema_nested_very_deep_is_accepted() -> None:
    _accepted(_nested(400))
    tools, _ = parse_tools([{"name": "x", "inputSchema": _nested(400)}])
    assert len(tools) == 1


def test_references_that_multiply_cost_little_time() -> None:
    levels = {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}, {"$ref": f"#/$defs/L{n + 1}"}] * 5} for n in range(14)}
    schema = {"$ref": "#/$defs/L0", "$defs": {**levels, "L14": A}}
    started = time.perf_counter()
    _accepted(schema)
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
    _accepted(schema)


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
    copy = _accepted(schema)
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
    copy = _accepted(schema)
    try:
        if Draft202012Validator(schema).is_valid(value):
            assert Draft202012Validator(copy).is_valid(value)
    except RecursionError:
        return
