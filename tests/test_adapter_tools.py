"""Tools as an agent calls them, and in the shapes that model APIs take."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from openprogram_mcp.adapter import (
    AgentTool,
    AgentToolResult,
    RemoteTool,
    anthropic_tool,
    convert_call_result,
    mount_tool,
    openai_tool,
)

SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "default": None}}, "additionalProperties": False}


class Recorder:
    """Stands for the way to a server: keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], str | None, Any]] = []

    async def __call__(self, arguments: dict[str, Any], call_id: str | None, on_update: Any) -> AgentToolResult:
        await trio.lowlevel.checkpoint()
        self.calls.append((arguments, call_id, on_update))
        return convert_call_result({"content": [{"type": "text", "text": "done"}]})


def _mounted(invoke: Any = None, **more: Any) -> AgentTool:
    tool = RemoteTool(name="wire.name", description="Does it.", title="Title", input_schema=SCHEMA)
    return mount_tool("srv", tool, invoke or Recorder(), name="srv__wire_name", **more)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, {}),
        ("", {}),
        ("  \n", {}),
        ("null", {}),
        ("{}", {}),
        ({}, {}),
        ('{"x": null}', {"x": None}),
        ({"x": "[1,2]"}, {"x": "[1,2]"}),
        ({"x": ""}, {"x": ""}),
        ('{"undeclared": [1, {"a": null}]}', {"undeclared": [1, {"a": None}]}),
    ],
)
async def test_schema_07_arguments_go_out_as_the_model_gave_them(given: Any, sent: dict[str, Any]) -> None:
    invoke = Recorder()
    result = await _mounted(invoke).execute(given, call_id="c1", on_update=None)
    assert result.text == "done"
    assert invoke.calls == [(sent, "c1", None)]


@pytest.mark.parametrize("given", ['{"x": ', "[1]", '"text"', "7", "{'x': 1}", "[" * 100_000])
async def test_schema_07_arguments_that_are_no_json_object_are_an_error_result_and_not_sent(given: str) -> None:
    invoke = Recorder()
    result = await _mounted(invoke).execute(given)
    assert result.is_error
    assert "Nothing was called" in result.text
    assert result.details["mcp_server"] == "srv"
    assert result.details["mcp_tool"] == "wire.name"
    assert invoke.calls == []


async def test_a_local_functions_error_is_told_under_its_own_name() -> None:
    tool = AgentTool(name="add", description="", parameters=SCHEMA, invoke=Recorder())
    result = await tool.execute("[")
    assert (result.details["mcp_server"], result.details["mcp_tool"]) == ("", "add")


async def test_what_the_caller_holds_is_not_what_is_sent() -> None:
    invoke = Recorder()
    arguments = {"x": "1"}
    await _mounted(invoke).execute(arguments)
    arguments["x"] = "2"
    assert invoke.calls[0][0] == {"x": "1"}


def test_a_servers_tool_is_mounted_with_all_that_it_says() -> None:
    tool = _mounted()
    assert (tool.name, tool.wire_name, tool.server) == ("srv__wire_name", "wire.name", "srv")
    assert (tool.label, tool.description, tool.parameters) == ("Title", "Does it.", SCHEMA)
    assert tool.toolsets == ("mcp", "mcp:srv")
    assert not tool.defer
    assert _mounted(toolsets=("own",), defer=True).toolsets == ("own",)


def test_with_names_of_style_mcp_the_description_begins_with_the_server() -> None:
    assert _mounted(style="mcp").description == "[srv] Does it."
    silent = mount_tool("srv", RemoteTool(name="t"), Recorder(), name="n", style="mcp")
    assert silent.description == "[srv]"


def test_tools_that_differ_only_in_how_they_are_called_are_equal() -> None:
    assert _mounted() == _mounted()
    assert _mounted() != _mounted(defer=True)
    assert "Recorder" not in repr(_mounted())


def test_the_shapes_of_the_apis() -> None:
    tool = _mounted()
    parameters = {"type": "object", "properties": SCHEMA["properties"], "additionalProperties": False}
    assert openai_tool(tool) == {
        "type": "function",
        "function": {"name": "srv__wire_name", "description": "Does it.", "parameters": parameters},
    }
    assert anthropic_tool(tool) == {
        "name": "srv__wire_name",
        "description": "Does it.",
        "input_schema": parameters,
    }


def test_the_copy_for_models_is_made_once() -> None:
    tool = _mounted()
    assert openai_tool(tool)["function"]["parameters"] is anthropic_tool(tool)["input_schema"]
