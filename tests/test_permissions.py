"""What the rules say about a tool, and that no call goes around them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openprogram_mcp import AgentTool, MCPManager, ToolRegistry
from openprogram_mcp.errors import Denied, InvalidArguments, UnknownTool
from openprogram_mcp.events import ToolCallStarted, ToolsChanged
from openprogram_mcp.permissions import Action, Permissions, decide
from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.web import views
from tests._living import events_of, managed

TOOL, SERVER = "github__delete_repo", "github"


def rule(action: str, tool: str | None = None, server: str | None = None) -> dict[str, Any]:
    named = {"tool": tool, "server": server}
    return {**{key: value for key, value in named.items() if value is not None}, "action": action}


# What the rules say.


@pytest.mark.parametrize("default", ["allow", "ask", "deny"])
def test_without_a_rule_that_matches_the_default_holds(default: Action) -> None:
    assert decide([], default, tool=TOOL, server=SERVER) == default
    others = [rule("allow", "other__*"), rule("deny", server="other"), rule("ask", TOOL, "other")]
    assert decide(others, default, tool=TOOL, server=SERVER) == default


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule("deny")], "deny"),
        ([rule("deny", "github__*")], "deny"),
        ([rule("deny", server="git*")], "deny"),
        ([rule("deny", "github__*"), rule("allow", "github__delete_*")], "allow"),
        ([rule("allow", "github__*"), rule("deny", "*_repo")], "allow"),
        ([rule("allow", server="github"), rule("deny", "github__delete_*")], "deny"),
        ([rule("deny", "github__*"), rule("allow", "github__*", "*")], "allow"),
        ([rule("allow", "github__delete_*", "github"), rule("deny", TOOL)], "deny"),
        ([rule("deny", "github__delete_*", "github"), rule("allow", TOOL)], "allow"),
        ([rule("allow", TOOL), rule("deny", TOOL, "github")], "deny"),
        ([rule("allow", TOOL), rule("ask", TOOL)], "ask"),
        ([rule("ask", TOOL), rule("deny", TOOL)], "deny"),
        ([rule("allow", "*"), rule("deny", "??????__*")], "deny"),
        ([rule("allow", "github__*"), rule("deny", "git[gh]ub__*")], "allow"),
        ([rule("deny", "GITHUB__*")], "allow"),
        ([{"tool": None, "server": None, "action": "deny"}], "deny"),
    ],
)
def test_the_most_specific_rule_counts_and_the_stricter_one_between_equals(
    rules: list[dict[str, Any]], expected: str
) -> None:
    for order in itertools.permutations(rules):
        assert decide(order, "allow", tool=TOOL, server=SERVER) == expected


@pytest.mark.parametrize("server", ["a[b]c", "a*", "?", "[", "x[!y]"])
def test_a_server_whose_name_looks_like_a_pattern_is_matched_by_its_name(server: str) -> None:
    assert decide([rule("deny", server=server)], "allow", tool="t", server=server) == "deny"


@pytest.mark.parametrize(
    "broken",
    [
        {"tools": "github__*", "action": "deny"},
        {"tool": "github__*", "action": "Deny"},
        {"tool": "github__*", "action": "deny", "when": "night"},
        {"tool": ["github__*"], "action": "deny"},
        {"server": 7, "action": "allow"},
        {"tool": "x", "action": ["deny"]},
        {"tool": "x"},
        {},
        "deny",
        None,
    ],
)
def test_a_rule_that_cannot_be_understood_lets_nothing_be_more_than_asked_for(broken: Any) -> None:
    assert decide([broken], "allow", tool=TOOL, server=SERVER) == "ask"
    assert decide([broken, rule("allow", TOOL, SERVER)], "allow", tool=TOOL, server=SERVER) == "ask"
    assert decide([broken, rule("deny", TOOL)], "allow", tool=TOOL, server=SERVER) == "deny"
    assert decide([broken], "deny", tool=TOOL, server=SERVER) == "deny"


_NAMES = st.sampled_from(["a__read", "a__write", "b__read", "b__write"])
_GLOBS = st.one_of(_NAMES, st.sampled_from(["*", "a__*", "*__write", "?__*", "[ab]__read", "a__w*", "c__*", ""]))
_SERVERS = st.sampled_from(["a", "b", "*", "?", "c", ""])
_ACTIONS = st.sampled_from(["allow", "ask", "deny"])
_RULES = st.fixed_dictionaries({"action": _ACTIONS}, optional={"tool": _GLOBS, "server": _SERVERS})
_ANY_RULE = st.one_of(_RULES, _RULES, _RULES, st.sampled_from([{"action": "no"}, {"tools": "a", "action": "allow"}]))


@given(st.lists(_ANY_RULE, max_size=6), _ACTIONS, _NAMES, st.randoms())
def test_the_order_of_rules_does_not_matter(rules: list[Any], default: Any, tool: str, random: Any) -> None:
    shuffled = random.sample(rules, len(rules))
    assert decide(rules, default, tool=tool, server=tool[0]) == decide(shuffled, default, tool=tool, server=tool[0])


@given(st.lists(_ANY_RULE, max_size=6), _ACTIONS, _NAMES)
def test_a_rule_that_denies_exactly_this_tool_of_this_server_always_holds(
    rules: list[Any], default: Any, tool: str
) -> None:
    rules = [*rules, rule("deny", tool, tool[0])]
    assert decide(rules, default, tool=tool, server=tool[0]) == "deny"


@given(st.lists(_RULES, max_size=6), _ACTIONS, _NAMES, _ACTIONS)
def test_a_stricter_default_never_allows_more(rules: list[Any], default: Any, tool: str, other: Any) -> None:
    strictness = ["allow", "ask", "deny"].index
    lax, strict = sorted([default, other], key=strictness)
    assert strictness(decide(rules, lax, tool=tool, server="a")) <= strictness(
        decide(rules, strict, tool=tool, server="a")
    )


@given(st.lists(_ANY_RULE, max_size=4), _ACTIONS, st.lists(_NAMES, max_size=6))
def test_what_was_decided_once_is_decided_so_again(rules: list[Any], default: Any, tools: list[str]) -> None:
    permissions = Permissions(tuple(rules), default)
    for tool, server in itertools.product(tools, ("a", "b", "")):
        assert permissions.action(tool, server) == decide(rules, default, tool=tool, server=server)


# That every call obeys them.


def _servers() -> dict[str, FakeServer]:
    return {name: FakeServer(name=name).tool("read", read_only=True).tool("write") for name in ("a", "b")}


async def _ready(manager: MCPManager) -> dict[str, AgentTool]:
    with trio.fail_after(20):
        await manager.started.wait()
    return {tool.name: tool for tool in manager.tools()}


def _obey(manager: MCPManager, rules: list[Any], default: Any) -> None:
    """Let other rules hold, as they do when the file is read anew."""
    manager._edits.follow(evolve(manager.document, permissions=tuple(rules), permission_default=default))


async def _runs(manager: MCPManager, held: AgentTool) -> dict[str, bool]:
    """Whether a tool can be called, by each way that there is."""

    async def by_manager() -> bool:
        try:
            result = await manager.call_tool(held.name, {"by": "manager"})
        except Denied:
            return False
        return not result.is_error

    async def by_object(tool: AgentTool | None) -> bool:
        if tool is None:
            return False
        result = await tool.execute({"by": "object"})
        assert result.is_error == (result.details.get("code") == "denied")
        return not result.is_error

    return {
        "the manager": await by_manager(),
        "an object that was held": await by_object(held),
        "an object of the registry": await by_object(manager.registry.get(held.name)),
    }


@given(st.lists(st.tuples(st.lists(_ANY_RULE, max_size=4), _ACTIONS), min_size=15, max_size=15))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
async def test_no_set_of_rules_lets_a_tool_run_that_it_does_not_allow_by_any_way(sets: list[Any]) -> None:
    fakes = _servers()
    async with managed({name: fake.config() for name, fake in fakes.items()}) as manager:
        held = await _ready(manager)
        assert len(held) == 4
        for rules, default in sets:
            _obey(manager, rules, default)
            for tool in held.values():
                action = decide(rules, default, tool=tool.name, server=tool.server or "")
                assert manager.action(tool.name) == action
                before = sum(len(fake.calls()) for fake in fakes.values())
                ways = await _runs(manager, tool)
                sent = sum(len(fake.calls()) for fake in fakes.values()) - before
                assert sent == sum(ways.values())
                if action == "allow":
                    assert all(ways.values())
                else:
                    assert not any(ways.values())
                assert (tool.name in manager.registry) == (action != "deny")


@pytest.mark.parametrize(
    ("action", "said"), [("deny", "is denied by the permissions"), ("ask", "there is nobody who could be asked")]
)
async def test_a_call_that_is_not_allowed_says_so_and_what_to_do(action: str, said: str) -> None:
    fakes = _servers()
    async with managed({"a": fakes["a"].config()}) as manager:
        held = await _ready(manager)
        _obey(manager, [rule(action, "a__write")], "allow")
        with pytest.raises(Denied, match=said) as denied:
            await manager.call_tool("a__write", {"x": 1})
        assert (denied.value.server, denied.value.status) == ("a", 403)
        assert "'permissions'" in (denied.value.remedy or "")
        result = await held["a__write"].execute({})
        assert (result.is_error, result.details["code"]) == (True, "denied")
        assert said in result.text
        assert events_of(manager.events, ToolCallStarted) == []
        assert manager.server("a").last_call is None
        assert not (await manager.call_tool("a__read")).is_error


async def test_whether_a_call_is_allowed_comes_before_whether_its_arguments_fit() -> None:
    strict = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with managed({"a": FakeServer().tool("t", input_schema=strict).config()}) as manager:
        await _ready(manager)
        with pytest.raises(InvalidArguments):
            await manager.call_tool("a__t")
        _obey(manager, [rule("deny")], "allow")
        with pytest.raises(Denied):
            await manager.call_tool("a__t")


async def test_a_denied_tool_is_hidden_from_models_but_no_unknown_one() -> None:
    fakes = _servers()
    async with managed({name: fake.config() for name, fake in fakes.items()}) as manager:
        await _ready(manager)
        version = manager.registry.version
        _obey(manager, [rule("deny", "*__write")], "allow")
        assert manager.registry.names() == ["a__read", "b__read"]
        assert [tool["function"]["name"] for tool in manager.registry.openai()] == ["a__read", "b__read"]
        assert manager.server("a").tools == ("a__read",)
        assert [tool.name for tool, _ in manager.tool_records("a")] == ["a__read", "a__write"]
        assert [manager.action(name) for name in ("a__read", "a__write")] == ["allow", "deny"]
        told = events_of(manager.events, ToolsChanged)[-2:]
        assert [(event.server, event.removed) for event in told] == [("a", ("a__write",)), ("b", ("b__write",))]
        assert {event.version for event in told} == {version + 1}
        with pytest.raises(Denied):
            await manager.call_tool("a__write")
        with pytest.raises(UnknownTool):
            await manager.call_tool("a__wrote")
        _obey(manager, [], "allow")
        assert manager.registry.names() == ["a__read", "a__write", "b__read", "b__write"]


async def test_what_is_shown_of_a_tool_says_whether_it_may_be_called() -> None:
    async with managed({"a": _servers()["a"].config()}) as manager:
        await _ready(manager)
        _obey(manager, [rule("ask", "a__read"), rule("deny", "a__write")], "allow")
        assert [(tool["name"], tool["action"]) for tool in views.tool_list(manager)["tools"]] == [("a__read", "ask")]
        shown = (await views.server_detail(manager, "a"))["tool_schemas"]
        assert [(tool["name"], tool["action"]) for tool in shown] == [("a__read", "ask"), ("a__write", "deny")]


async def test_a_tool_that_needs_permission_is_offered_though_nobody_can_be_asked_yet() -> None:
    async with managed({"a": _servers()["a"].config()}) as manager:
        await _ready(manager)
        _obey(manager, [], "ask")
        assert manager.registry.names() == ["a__read", "a__write"]


def _write(state_dir: Path, servers: Mapping[str, FakeServer], permissions: Any) -> None:
    state_dir.mkdir(mode=0o700, exist_ok=True)
    entries = {name: fake.config() for name, fake in servers.items()}
    (state_dir / "mcp_servers.json").write_text(json.dumps({"servers": entries, "permissions": permissions}))


async def test_the_rules_of_the_file_hold_from_the_start_and_when_it_is_read_anew(state_dir: Path) -> None:
    fakes = _servers()
    _write(state_dir, fakes, [rule("deny", server="b")])
    async with managed() as manager:
        held = await _ready(manager)
        assert list(held) == ["a__read", "a__write"]
        with pytest.raises(Denied):
            await manager.call_tool("b__read")
        _write(state_dir, fakes, [rule("deny", "a__write")])
        await manager.restart("b")
        assert manager.registry.names() == ["a__read", "b__read", "b__write"]
        assert (await held["a__write"].execute({})).details["code"] == "denied"
    assert [len(fake.calls()) for fake in fakes.values()] == [0, 0]


async def test_rules_that_got_lost_in_the_file_allow_nothing_by_themselves(state_dir: Path) -> None:
    for permissions in ({"a__*": "deny"}, [{"tools": "a__*", "action": "deny"}]):
        _write(state_dir, _servers(), permissions)
        async with managed() as manager:
            await _ready(manager)
            with pytest.raises(Denied):
                await manager.call_tool("a__read")


async def test_a_call_that_was_denied_while_it_waited_is_not_sent() -> None:
    fake = FakeServer().tool("slow", do.wait("SIGUSR1"), do.reply("done")).tool("write").on_signal("SIGUSR1")
    async with managed({"a": fake.config()}) as manager:
        await _ready(manager)

        async def denied() -> None:
            with pytest.raises(Denied):
                await manager.call_tool("a__write")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.call_tool, "a__slow")
            await fake.wait_for("begin", method="tools/call")
            nursery.start_soon(denied)
            await trio.testing.wait_all_tasks_blocked()
            assert manager.server("a").queued == 1
            _obey(manager, [rule("deny", "a__write")], "allow")
            fake.send_signal("SIGUSR1")
        assert [call.tool for call in fake.calls()] == ["slow"]
        assert (manager.server("a").in_flight, manager.server("a").queued) == (0, 0)


async def test_the_hosts_own_functions_obey_the_rules_when_they_are_called_through_the_manager() -> None:
    registry = ToolRegistry()
    ran: list[str] = []

    @registry.function
    async def local(text: str) -> str:
        ran.append(text)
        return text

    async with managed([], registry=registry) as manager:
        assert (await manager.call_tool("local", {"text": "a"})).text == "a"
        _obey(manager, [rule("deny", "local")], "allow")
        with pytest.raises(Denied):
            await manager.call_tool("local", {"text": "b"})
        assert ran == ["a"]
