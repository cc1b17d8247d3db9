"""Tools as servers list them: read one by one, repaired or dropped, and what is an input schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openprogram_mcp.adapter import (
    InvalidSchema,
    normalize_input_schema,
    parse_tools,
)
from tests.adapter_schemas import A, B, accepted

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
    accepted(tools[0].input_schema)
