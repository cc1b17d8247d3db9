"""The one table of tools: its order, its version, its snapshots, and the host's own functions in it."""

from __future__ import annotations

import json
import random
import threading
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio
from attrs import frozen

from openprogram_mcp.adapter import AgentTool, AgentToolResult, RemoteTool, error_result, mount_tool
from openprogram_mcp.errors import UnknownTool
from openprogram_mcp.registry import ToolRegistry


async def _invoke(arguments: dict[str, Any], call_id: str | None, on_update: Any) -> AgentToolResult:
    return error_result("not called here")


def _remote(server: str, name: str, description: str = "") -> AgentTool:
    return mount_tool(server, RemoteTool(name=name, description=description), _invoke, name=f"{server}__{name}")


def _local(name: str) -> AgentTool:
    return AgentTool(name=name, description="", parameters={"type": "object", "properties": {}}, invoke=_invoke)


# --- The table -------------------------------------------------------------------------------------------------------


def test_who_looks_at_the_tools_to_use_them_is_noticed_and_who_watches_is_not() -> None:
    registry, used = ToolRegistry(), list[int]()
    registry.when_used(lambda: used.append(registry.version))
    registry.snapshot()
    registry.openai()
    registry.anthropic()
    assert len(used) == 3
    assert registry.current is registry.snapshot()
    used.clear()
    assert (registry.names(), registry.get("x"), "x" in registry, len(registry), registry.version) == (
        [],
        None,
        False,
        0,
        0,
    )
    assert registry.current.tools == {}
    assert used == []


def test_a_tool_is_found_by_exactly_its_name() -> None:
    registry = ToolRegistry()
    tool = registry.register(_local("add"))
    assert registry.get("add") is tool
    assert registry["add"] is tool
    assert "add" in registry
    assert len(registry) == 1
    assert registry.get("ad") is None


def test_name_05_an_unknown_name_is_an_error_and_never_a_guess() -> None:
    registry = ToolRegistry()
    registry.replace_remote([_remote("a", "b__c")])
    for name in ("a", "a__b", "b__c", "A__B__C", "a__b__c "):
        assert registry.get(name) is None
        with pytest.raises(UnknownTool, match="there is no tool"):
            _ = registry[name]


def test_a_name_that_is_taken_is_refused() -> None:
    registry = ToolRegistry()
    registry.register(_local("add"))
    with pytest.raises(ValueError, match='"add" is registered already'):
        registry.register(_local("add"))
    assert registry.version == 1


def test_a_tool_can_be_taken_out() -> None:
    registry = ToolRegistry()
    registry.register(_local("add"))
    registry.replace_remote([_remote("s", "t")])
    registry.unregister("add")
    registry.unregister("s__t")
    assert registry.names() == []
    with pytest.raises(UnknownTool):
        registry.unregister("add")


def test_a_remote_tool_can_be_registered_alone() -> None:
    registry = ToolRegistry()
    tool = registry.register_remote_tool("s", RemoteTool(name="t"), _invoke, name="s__t", toolsets=("x",))
    assert registry.get("s__t") is tool
    assert (tool.server, tool.wire_name, tool.toolsets) == ("s", "t", ("x",))


# --- SPEC-09: order --------------------------------------------------------------------------------------------------


def test_spec_09_the_list_is_local_functions_then_servers_as_given_then_names() -> None:
    registry = ToolRegistry()
    registry.register(_local("zeta"))
    registry.replace_remote([_remote("z", "b"), _remote("z", "a"), _remote("a", "x")])
    registry.register(_local("alpha"))
    assert registry.names() == ["zeta", "alpha", "z__a", "z__b", "a__x"]
    assert [entry["function"]["name"] for entry in registry.openai()] == registry.names()
    assert [entry["name"] for entry in registry.anthropic()] == registry.names()


def test_spec_09_a_list_in_another_order_is_no_change_and_the_same_bytes() -> None:
    tools = [_remote("s", f"t{number:02}") for number in range(30)]
    registry = ToolRegistry()
    registry.replace_remote(tools)
    shown, version = json.dumps([registry.openai(), registry.anthropic()]), registry.version
    for seed in range(20):
        random.Random(seed).shuffle(tools)  # noqa: S311 - an order, not a secret
        assert registry.replace_remote(tools) == ([], [], [])
        assert json.dumps([registry.openai(), registry.anthropic()]) == shown
        assert registry.version == version


# --- Replacing -------------------------------------------------------------------------------------------------------


def test_replacing_says_what_was_added_removed_and_changed_and_counts_once() -> None:
    registry = ToolRegistry()
    registry.register(_local("own"))
    assert registry.replace_remote([_remote("s", "a"), _remote("s", "b")]) == (["s__a", "s__b"], [], [])
    version = registry.version
    changes = registry.replace_remote([_remote("s", "b", "new words"), _remote("s", "c")])
    assert changes == (["s__c"], ["s__a"], ["s__b"])
    assert registry.version == version + 1
    assert registry.names() == ["own", "s__b", "s__c"]


def test_replacing_with_the_same_is_no_change_but_the_new_way_to_call_counts() -> None:
    async def other(arguments: dict[str, Any], call_id: str | None, on_update: Any) -> AgentToolResult:
        return error_result("other")

    registry = ToolRegistry()
    registry.replace_remote([_remote("s", "a")])
    version = registry.version
    again = mount_tool("s", RemoteTool(name="a"), other, name="s__a")
    assert registry.replace_remote([again]) == ([], [], [])
    assert registry.version == version
    assert registry["s__a"].invoke is other


def test_servers_in_another_order_are_a_new_version_without_a_changed_tool() -> None:
    registry = ToolRegistry()
    registry.replace_remote([_remote("a", "x"), _remote("b", "x")])
    version = registry.version
    assert registry.replace_remote([_remote("b", "x"), _remote("a", "x")]) == ([], [], [])
    assert registry.names() == ["b__x", "a__x"]
    assert registry.version == version + 1


def test_two_tools_of_one_name_are_refused_and_nothing_changes() -> None:
    registry = ToolRegistry()
    registry.replace_remote([_remote("s", "a")])
    before = registry.snapshot()
    with pytest.raises(ValueError, match="two tools have the name"):
        registry.replace_remote([_remote("s", "b"), _remote("s", "b")])
    assert registry.snapshot() is before
    assert registry.replace_remote([_remote("s", "a")]) == ([], [], [])


def test_a_local_function_comes_before_a_servers_tool_of_its_name_and_it_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = ToolRegistry()
    own = registry.register(_local("s__a"))
    for _ in range(3):
        assert registry.replace_remote([_remote("s", "a")]) == ([], [], [])
    assert registry["s__a"] is own
    assert [record.getMessage() for record in caplog.records] == [
        's__a of server "s" is left out: a local function has its name'
    ]
    registry.unregister("s__a")
    assert registry.replace_remote([_remote("s", "a")]) == (["s__a"], [], [])


def test_a_snapshot_stays_what_it_was() -> None:
    registry = ToolRegistry()
    registry.replace_remote([_remote("s", "a")])
    snapshot = registry.snapshot()
    registry.replace_remote([])
    assert list(snapshot.tools) == ["s__a"]
    assert [entry["name"] for entry in snapshot.anthropic()] == ["s__a"]
    assert registry.snapshot().version > snapshot.version
    with pytest.raises(TypeError):
        snapshot.tools["x"] = _local("x")  # type: ignore[index]  # that it cannot be done is what is tested


# --- Local functions -------------------------------------------------------------------------------------------------


async def test_a_function_joins_with_a_schema_from_its_hints() -> None:
    registry = ToolRegistry()

    @registry.function
    async def add(a: int, b: Annotated[int, msgspec.Meta(description="What is added")] = 1) -> int:
        """Add two numbers."""
        await trio.lowlevel.checkpoint()
        return a + b

    tool = registry["add"]
    assert tool.description == "Add two numbers."
    assert tool.server is None
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer", "description": "What is added", "default": 1},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    result = await tool.execute({"a": 2})
    assert (result.text, result.details["structured"], result.is_error) == ("3", 3, False)
    assert (await tool.execute('{"a": 2, "b": 5}')).text == "7"
    assert await add(1) == 2, "the function itself stays as it was"


async def test_arguments_that_do_not_fit_are_an_error_result() -> None:
    registry = ToolRegistry()

    @registry.function
    async def add(a: int) -> int:
        raise AssertionError("not reached")

    for arguments in ({"a": "x"}, {}, {"a": 1, "c": 2}):
        result = await registry["add"].execute(arguments)
        assert result.is_error
        assert result.text.startswith("The arguments do not fit: ")


async def test_a_plain_function_runs_beside_the_event_loop() -> None:
    registry = ToolRegistry()
    ran_in: list[int] = []

    @registry.function(name="where", description="Where it runs.", toolsets=("own",))
    def somewhere() -> str:
        ran_in.append(threading.get_ident())
        return "here"

    tool = registry["where"]
    assert (tool.description, tool.toolsets) == ("Where it runs.", ("own",))
    assert (await tool.execute(None)).text == "here"
    assert ran_in != [threading.get_ident()]
    assert callable(somewhere)


async def test_what_a_function_raises_is_for_the_model_to_read() -> None:
    registry = ToolRegistry()

    @registry.function
    async def fail() -> None:
        raise FileNotFoundError("no such file: a.txt")

    result = await registry["fail"].execute(None)
    assert result.is_error
    assert result.text == "FileNotFoundError: no such file: a.txt"


async def test_cancelling_the_caller_cancels_the_function() -> None:
    registry = ToolRegistry()

    @registry.function
    async def wait() -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        scope.cancel()
        await registry["wait"].execute(None)
        raise AssertionError("it went on")
    assert scope.cancelled_caught


@frozen
class Point:
    """A value of the host's own."""

    x: int
    y: int = 0


async def test_a_function_may_take_and_give_values_of_the_hosts_own() -> None:
    registry = ToolRegistry()

    @registry.function
    async def move(point: Point, by: Literal["x", "y"], tags: list[str] | None = None) -> dict[str, Any]:
        return {"point": Point(point.x + (by == "x"), point.y + (by == "y")), "tags": tags}

    schema = registry["move"].parameters
    assert schema["required"] == ["point", "by"]
    assert schema["properties"]["by"] == {"enum": ["x", "y"]}
    assert schema["properties"]["point"] == {"$ref": "#/$defs/Point"}
    result = await registry["move"].execute({"point": {"x": 1}, "by": "y"})
    assert result.details["structured"] == {"point": {"x": 1, "y": 1}, "tags": None}
    assert registry.openai()[0]["function"]["parameters"]["$defs"]["Point"]["required"] == ["x"]


async def test_nothing_a_result_and_a_text_are_given_as_they_are() -> None:
    registry = ToolRegistry()

    @registry.function
    async def nothing() -> None: ...

    @registry.function
    async def own() -> AgentToolResult:
        return error_result("mine")

    @registry.function
    async def words() -> str:
        return '{"not": "structured"}'

    assert (await registry["nothing"].execute(None)).content == ()
    assert (await registry["own"].execute(None)).text == "mine"
    assert (await registry["words"].execute(None)).details["structured"] is None


def test_a_parameter_that_cannot_be_given_by_name_is_refused() -> None:
    registry = ToolRegistry()

    def several(*values: int) -> None: ...

    with pytest.raises(TypeError, match="parameter values cannot be given by name"):
        registry.function(several)
    assert registry.names() == []


@pytest.mark.parametrize("name", ["my tool", "a.b", "x" * 65, "é"])
def test_a_name_that_model_apis_refuse_is_refused(name: str) -> None:
    registry = ToolRegistry()
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        registry.function(name=name)(lambda: None)
    with pytest.raises(ValueError, match="<lambda>"):
        registry.function(lambda: None)
    assert registry.version == 0


async def test_a_default_is_shown_and_is_the_functions_to_fill_in() -> None:
    registry = ToolRegistry()

    @registry.function
    async def give(items: list[int] = [1, 2], more: Any = None) -> Any:  # noqa: B006 - that it is not shared is tested
        items.append(3)
        return items

    assert registry["give"].parameters["properties"]["items"]["type"] == "array"
    assert (await registry["give"].execute({"items": [7]})).text == "[7,3]"


def test_a_type_without_a_json_form_is_refused() -> None:
    registry = ToolRegistry()

    def odd(value: threading.Thread) -> None: ...

    with pytest.raises(TypeError):
        registry.function(odd)


async def test_a_result_without_a_json_form_is_an_error_result() -> None:
    registry = ToolRegistry()

    @registry.function
    async def odd() -> Any:
        return threading.Lock()

    result = await registry["odd"].execute(None)
    assert result.is_error
    assert "lock" in result.text
