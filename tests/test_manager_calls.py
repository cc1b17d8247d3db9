"""Calls through a manager: found by name, waited for, made, and told; and what a model gets to see when they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp import AgentTool, MCPManager, ServerState, ToolRegistry
from openprogram_mcp.adapter import assign_names
from openprogram_mcp.errors import (
    InvalidArguments,
    NotConnected,
    OpenProgramMCPError,
    ServerGone,
    TimedOut,
    UnknownTool,
)
from openprogram_mcp.events import ToolCallEnded, ToolCallProgress, ToolCallStarted
from openprogram_mcp.testing import FakeServer, Step, do
from tests._living import events_of, managed, started, until

_S = ServerState


def slow(**options: Any) -> FakeServer:
    """A server that does not answer ``initialize`` before it gets SIGUSR1."""
    return FakeServer(era="legacy", **options).on_signal("SIGUSR1").on("initialize", do.wait("SIGUSR1"), do.standard())


# A tool by its name.


async def test_a_call_waits_for_a_server_that_could_own_its_tool_and_is_still_starting() -> None:
    fake, other = slow().tool("t"), slow().tool("t")
    async with managed({"a": fake.config(), "b": other.config()}) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(_answers, manager, "a__t", "{}")
        await fake.wait_for("received", method="initialize")
        fake.send_signal("SIGUSR1")
        with trio.fail_after(5):
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked()
        assert manager.server("b").status is _S.STARTING, "it was not waited for"


async def _answers(manager: MCPManager, tool: str, text: str) -> None:
    assert (await manager.call_tool(tool)).text == text


@pytest.mark.parametrize(
    ("server", "tool"),
    [("weather", "t" * 80), ("a server with a very long name " * 3, "t"), ("über", "t")],
)
async def test_a_call_waits_also_where_the_name_was_cut_or_made_fit(server: str, tool: str) -> None:
    fake = slow().tool(tool)
    (name,) = assign_names([(server, tool)]).values()
    async with managed({server: fake.config()}) as manager, trio.open_nursery() as nursery:
        nursery.start_soon(_answers, manager, name, "{}")
        await fake.wait_for("received", method="initialize")
        fake.send_signal("SIGUSR1")


async def test_a_call_waits_for_a_tool_whose_name_has_a_hash_from_a_collision() -> None:
    pairs = [("a", "b__t"), ("a__b", "t")]
    names = assign_names(pairs)
    assert len(set(names.values())) == 2
    fakes = {server: slow(name=server).tool(tool, do.reply(server)) for server, tool in pairs}
    async with (
        managed({server: fake.config() for server, fake in fakes.items()}) as manager,
        trio.open_nursery() as nursery,
    ):
        for pair, name in names.items():
            nursery.start_soon(_answers, manager, name, pair[0])
        for fake in fakes.values():
            await fake.wait_for("received", method="initialize")
            fake.send_signal("SIGUSR1")


async def test_a_call_that_waited_in_vain_says_for_whom_and_how_long() -> None:
    fake = slow().tool("t")
    async with managed({"a": fake.config()}) as manager:
        with pytest.raises(
            TimedOut, match=r"no tool is called 'a__t' yet; waited 0.1 s for what is starting: a"
        ) as late:
            await manager.call_tool("a__t", timeout=0.1)
        assert late.value.budget == "connect"


async def test_a_call_without_a_limit_waits_as_long_as_a_call_to_that_server_may_take() -> None:
    async with managed({"a": slow().config(call_timeout_seconds=0.1)}) as manager:
        with pytest.raises(TimedOut, match=r"waited 0.1 s"):
            await manager.call_tool("a__t")


async def test_a_tool_of_a_server_that_is_down_is_not_called_unknown(state_dir: Path) -> None:
    servers = {
        "dead": FakeServer().on_start(do.stderr("no licence\n"), do.exit(3)).config(reconnect=False),
        "off": FakeServer().config(enabled=False),
        "put off": FakeServer().config(),
    }
    async with managed(servers) as manager:
        await manager.disconnect("put off")
        await started(manager)
        for tool, said in (
            ("dead__t", r"server 'dead' is failed: it exited with code 3"),
            ("off__t", r"server 'off' is disabled"),
            ("put_off__t", r"server 'put off' is disconnected"),
        ):
            with pytest.raises(NotConnected, match=said) as refused:
                await manager.call_tool(tool)
            assert refused.value.remedy


async def test_a_tool_of_an_entry_that_is_wrong_says_what_is_wrong_with_it(state_dir: Path) -> None:
    _write(state_dir, '{"servers": {"wrong": {"command": 7}}}')
    async with managed() as manager:
        with pytest.raises(NotConnected, match=r"servers\.wrong\.command"):
            await manager.call_tool("wrong__t")


def _write(state_dir: Path, text: str) -> None:
    state_dir.mkdir(mode=0o700)
    (state_dir / "mcp_servers.json").write_text(text)


async def test_a_name_that_nobody_has_is_told_with_those_that_were_meant() -> None:
    async with managed({"time": FakeServer().tool("convert_time").tool("x").config()}) as manager:
        await started(manager)
        with pytest.raises(UnknownTool) as unknown:
            await manager.call_tool("time__convert_tim")
        assert unknown.value.remedy == "Did you mean time__convert_time?"
        with pytest.raises(UnknownTool):
            await manager.call_tool("nothing like it")


async def test_a_function_of_the_hosts_own_is_called_like_any_tool_within_the_limit_that_is_given() -> None:
    registry = ToolRegistry()

    @registry.function
    async def wait(seconds: float) -> str:
        await trio.sleep(seconds)
        return "done"

    async with managed([], registry=registry) as manager:
        assert (await manager.call_tool("wait", {"seconds": 0})).text == "done"
        with pytest.raises(TimedOut, match=r"wait did not come to an end within 0.05 s") as late:
            await manager.call_tool("wait", {"seconds": 60}, timeout=0.05)
        assert late.value.budget == "call"
        assert (await manager.call_tool("wait", {"seconds": "x"})).is_error


# What becomes of it.


_OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

ERRORS: dict[str, tuple[list[Step], str]] = {
    "isError": ([do.reply("no such city", is_error=True)], "no such city"),
    "isError without content": ([do.result({"content": [], "isError": True})], "gave no message"),
    "invalid params": ([do.fail(-32602, "city: unknown")], "city: unknown"),
    "internal error with data": ([do.fail(-32603, "", {"x": 1})], '{"x":1}'),
    "an error without a message": ([do.fail(-32000, None)], "error -32000"),
    "resultType that nobody knows": ([do.result({"resultType": "partial", "content": []})], "unknown kind"),
    "neither result nor error": ([do.write('{"jsonrpc":"2.0","id":$id}\n')], "neither a result nor an error"),
    "not JSON": ([do.write('{"jsonrpc":"2.0","id":$id,"result":{"content":[}\n')], "not JSON"),
}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(("steps", "said"), ERRORS.values(), ids=ERRORS)
async def test_result_05_every_error_that_the_server_answers_is_a_result_with_a_text(
    steps: list[Step], said: str, era: Any
) -> None:
    async with managed({"a": FakeServer(era=era).tool("t", *steps).config()}) as manager:
        await started(manager)
        for result in (await manager.call_tool("a__t"), await manager.tools()[0].execute({})):
            assert result.is_error
            assert said in result.text
            assert (result.details["mcp_server"], result.details["mcp_tool"]) == ("a", "t")
        assert manager.server("a").ready


OUTPUTS: dict[str, tuple[dict[str, Any], bool]] = {
    "it fits": ({"content": [], "structuredContent": {"n": 1}}, False),
    "it does not fit": ({"content": [], "structuredContent": {"n": "one"}}, True),
    "a part is missing": ({"content": [], "structuredContent": {}}, True),
    "it is no object": ({"content": [], "structuredContent": [1]}, True),
    "it is missing": ({"content": [{"type": "text", "text": "1"}]}, True),
}


@pytest.mark.parametrize(("answer", "is_error"), OUTPUTS.values(), ids=OUTPUTS)
async def test_a_result_that_does_not_fit_the_tools_output_schema_is_an_error(
    answer: dict[str, Any], is_error: bool
) -> None:
    fake = FakeServer(era="legacy").tool("t", do.result(answer), output_schema=_OUTPUT)
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        result = await manager.call_tool("a__t")
        assert result.is_error is is_error
        assert ("The server's answer cannot be used" in result.text) is is_error


async def test_an_error_of_the_tools_own_need_not_fit_its_output_schema() -> None:
    fake = FakeServer().tool("t", do.reply("no such city", is_error=True), output_schema=_OUTPUT)
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        assert (await manager.call_tool("a__t")).text == "no such city"


_QUESTION = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


async def test_rounds_of_input_that_we_cannot_answer_end_as_a_result_that_says_so() -> None:
    fake = FakeServer(era="modern").tool("t", do.ask("elicitation/create", _QUESTION), do.reply("done"))
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        result = await manager.call_tool("a__t")
        assert result.is_error
        assert "answer cannot be used: it asks for what it was not offered: elicitation/create" in result.text


async def test_a_round_that_only_has_a_state_is_one_call_to_whoever_asked() -> None:
    fake = FakeServer(era="modern").tool("t", do.input_required(None, state="later"), do.reply("done"))
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        assert (await manager.call_tool("a__t")).text == "done"
        assert len(events_of(manager.events, ToolCallStarted)) == 1


async def test_the_hard_limit_is_one_for_all_rounds_of_a_call() -> None:
    fake = FakeServer(era="modern").tool(
        "t", do.sleep(0.3), do.input_required(None, state="s"), do.sleep(0.4), do.reply("done")
    )
    async with managed({"a": fake.config(call_timeout_seconds=0.5, max_call_seconds=0.5)}) as manager:
        await started(manager)
        with pytest.raises(TimedOut, match=r"did not come to an end within 0.5 s") as late:
            await manager.call_tool("a__t")
        assert late.value.budget == "max_call"


async def _failures() -> dict[str, tuple[FakeServer, dict[str, Any], type[OpenProgramMCPError], str]]:
    return {
        "gone": (FakeServer().tool("t", do.die()), {"reconnect": False}, ServerGone, "server_gone"),
        "late": (FakeServer().tool("t", do.hang()), {"call_timeout_seconds": 0.05}, TimedOut, "timeout"),
    }


@pytest.mark.parametrize("way", ["gone", "late"])
async def test_what_raises_for_a_program_is_a_result_for_a_model(way: str) -> None:
    fake, options, kind, code = (await _failures())[way]
    async with managed({"a": fake.config(**options)}) as manager:
        await started(manager)
        (tool,) = manager.tools()
        result = await tool.execute({})
        assert (result.is_error, result.details["code"]) == (True, code)
        assert result.text
        if way == "gone":
            assert result.details["may_have_run"] is True
            await manager.restart("a")
        with pytest.raises(kind):
            await manager.call_tool("a__t")


async def test_arguments_that_do_not_fit_are_never_sent_and_a_model_is_told_which() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    fake = FakeServer().tool("t", input_schema=schema)
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        with pytest.raises(InvalidArguments) as fault:
            await manager.call_tool("a__t", {"n": "one"})
        assert fault.value.path == "n"
        result = await manager.tools()[0].execute('{"n": "one"}')
        assert result.is_error
        assert "The arguments do not fit: n" in result.text
        assert fake.calls() == []
        assert manager.server("a").last_call is None


async def test_a_cancelled_call_is_cancelled_for_a_model_too() -> None:
    fake = FakeServer().tool("t", do.hang())
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        (tool,) = manager.tools()
        calls: list[Callable[[], Awaitable[object]]] = [lambda: tool.execute({}), lambda: manager.call_tool("a__t")]
        for number, call in enumerate(calls, 1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await fake.wait_for("begin", method="tools/call", count=number)
                nursery.cancel_scope.cancel()
        assert [event.outcome for event in events_of(manager.events, ToolCallEnded)] == ["cancelled"] * 2


# In the caller's own task.


_who: ContextVar[str] = ContextVar("who", default="nobody")


async def test_a_call_runs_in_its_callers_task_with_its_context_variables() -> None:
    fake = FakeServer().tool("t", do.progress(1), do.progress(2, message="half"), do.reply("done"))
    heard: list[tuple[str, bool, float, float | None, str | None]] = []

    async def caller(name: str, manager: MCPManager) -> None:
        _who.set(name)
        task = trio.lowlevel.current_task()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append((_who.get(), trio.lowlevel.current_task() is task, progress, total, message))

        await manager.call_tool("a__t", on_progress=on_progress)

    async with managed({"a": fake.config(serialize="none")}) as manager:
        await started(manager)
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(caller, name, manager)
    assert sorted(heard) == [
        (name, True, float(progress), None, message)
        for name in ("one", "two")
        for progress, message in ((1, None), (2, "half"))
    ]


async def test_a_callback_that_raises_costs_nothing_but_itself() -> None:
    fake = FakeServer().tool("t", do.progress(1), do.reply("done"))

    async def broken(*_told: Any) -> None:
        raise ValueError("a fault of the host's")

    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        assert (await manager.call_tool("a__t", on_progress=broken)).text == "done"


# What is told of it.


async def test_a_call_is_told_from_its_beginning_to_its_end_and_shows_no_secret() -> None:
    fake = FakeServer().tool("t", do.progress(1, total=2, message="with sesame-1234"), do.reply("it was sesame-1234"))
    async with managed({"a": fake.config(env={"TOKEN": "sesame-1234"})}) as manager:
        await started(manager)
        result = await manager.call_tool("a__t", {"key": "sesame-1234"}, call_id="mine")
        assert result.text == "it was ********", "a token is kept from models too"
        begun, progress, ended = (
            record.to_dict()
            for record in manager.events.since(0)[0]
            if isinstance(record.event, ToolCallStarted | ToolCallProgress | ToolCallEnded)
        )
        assert (begun["call_id"], begun["tool"], begun["arguments"]) == ("mine", "a__t", {"key": "********"})
        assert (progress["progress"], progress["total"], progress["message"]) == (1, 2, "with ********")
        assert (ended["outcome"], ended["is_error"], ended["result"]) == ("ok", False, "it was ********")
        last = manager.server("a").last_call
        assert last is not None
        assert (last.tool, last.outcome) == ("a__t", "ok")
        assert "sesame" not in repr(manager.events.since(0)[0])


OUTCOMES: dict[str, tuple[list[Step], str]] = {
    "ok": ([do.reply("x")], "ok"),
    "tool_error": ([do.reply("x", is_error=True)], "tool_error"),
    "protocol error": ([do.fail(-32603, "x")], "tool_error"),
    "timed_out": ([do.hang()], "timed_out"),
    "unknown": ([do.die()], "unknown"),
}


@pytest.mark.parametrize(("steps", "outcome"), OUTCOMES.values(), ids=OUTCOMES)
async def test_the_outcome_of_a_call_is_told_in_events_and_in_the_status(steps: list[Step], outcome: str) -> None:
    fake = FakeServer().tool("t", *steps)
    async with managed({"a": fake.config(call_timeout_seconds=0.2, reconnect=False)}) as manager:
        await started(manager)
        try:
            await manager.call_tool("a__t")
        except OpenProgramMCPError:
            assert outcome in ("timed_out", "unknown")
        (ended,) = events_of(manager.events, ToolCallEnded)
        last = manager.server("a").last_call
        assert last is not None
        assert (ended.outcome, last.outcome) == (outcome, outcome)
        assert ended.is_error is (outcome != "ok")


async def test_calls_get_names_that_differ() -> None:
    async with managed({"a": FakeServer().tool("t").config()}) as manager:
        await started(manager)
        for _ in range(3):
            await manager.call_tool("a__t")
            await manager.tools()[0].execute({})
        ids = [event.call_id for event in events_of(manager.events, ToolCallStarted)]
        assert len(ids) == len(set(ids)) == 6


# The objects that a model's loop holds.


async def test_an_object_that_was_held_over_a_restart_calls_the_new_connection() -> None:
    fake = FakeServer().tool("t")
    async with managed({"a": fake.config()}) as manager, trio.open_nursery() as nursery:
        await started(manager)
        (held,) = manager.tools()
        nursery.start_soon(manager.restart, "a")
        await until(manager, "a", _S.STARTING)
        assert (await held.execute({"x": 1})).text == '{"x":1}'
        assert manager.server("a").generation == 2


async def test_an_object_of_a_server_that_is_gone_says_so() -> None:
    fake = FakeServer().tool("t")
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        (held,) = manager.tools()
        await manager.remove("a")
        result = await held.execute({})
        assert (result.is_error, result.details["code"]) == (True, "not_connected")
        assert "'a' was stopped" in result.text


async def test_schema_05_one_wrong_tool_among_ten_costs_itself_alone() -> None:
    fake = FakeServer(era="legacy")
    for number in range(9):
        fake.tool(f"good{number}", icons=number)
    fake.tool("output", output_schema={"description": "x"}).tool("true", input_schema=True)
    fake.tool("list", input_schema=[]).tool("quiet", description=None).tool("odd", annotations=None, title=7)
    nameless = {"inputSchema": {"type": "object"}}
    fake.on("tools/list", do.standard())
    listed = [tool["listed"] for tool in fake.script["tools"]]
    fake.on("tools/list", do.result({"tools": [*listed, nameless, {**nameless, "name": 42}, 7, listed[0]]}))
    async with managed({"a": fake.config()}) as manager:
        await started(manager)
        row = manager.server("a")
        assert row.ready
        assert {f"a__good{number}" for number in range(9)} <= set(row.tools)
        assert "a__list" not in row.tools
        warnings = "\n".join(row.warnings)
        for named in ('"list"', "tool 15", "tool 16", "tool 17", '"good0"'):
            assert named in warnings
        assert (await manager.call_tool("a__good0")).text == "{}"


def _is_sorted(tools: list[AgentTool], servers: list[str]) -> bool:
    keys = [(servers.index(tool.server or ""), tool.name) for tool in tools]
    return keys == sorted(keys)


async def test_spec_09_the_list_a_model_sees_is_the_same_at_every_start_whatever_the_order() -> None:
    fakes = {name: FakeServer(shuffled=True, name=name) for name in ("zeta", "alpha", "mid")}
    for fake in fakes.values():
        for number in range(10):
            fake.tool(f"t{number}")
    seen: set[str] = set()
    for _ in range(5):
        async with managed({name: fake.config() for name, fake in fakes.items()}) as manager:
            await started(manager)
            assert _is_sorted(manager.tools(), list(fakes))
            seen.add(repr(manager.registry.openai()))
    assert len(seen) == 1
