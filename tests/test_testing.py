"""The fake server: what a test can make it do, as a process and in memory."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from openprogram_mcp.testing import FakeServer, do
from openprogram_mcp.testing._records import is_alive

MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@define
class Peer:
    """The client's end: writes lines, reads lines, knows when the server has ended."""

    server: Any
    buffer: bytearray = field(factory=bytearray)
    ids: int = 0

    async def write(self, data: bytes) -> None:
        await self.server.stdin.send_all(data)

    async def send(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, **more}
        if params is not None:
            message["params"] = params
        await self.write(json.dumps(message).encode() + b"\n")

    async def ask(self, method: str, params: dict[str, Any] | None = None, *, modern: bool = False) -> int:
        self.ids += 1
        if modern:
            params = {**(params or {}), "_meta": MODERN_META}
        await self.send(method, params, id=self.ids)
        return self.ids

    async def call(self, tool: str, *, modern: bool = False, token: Any = None, **arguments: Any) -> int:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return await self.ask("tools/call", params, modern=modern)

    async def line(self) -> bytes:
        """The next line without its end, or what there is at EOF."""
        while b"\n" not in self.buffer:
            data = await self.server.stdout.receive_some()
            if not data:
                rest, self.buffer = bytes(self.buffer), bytearray()
                return rest
            self.buffer += data
        at = self.buffer.index(b"\n")
        line = bytes(self.buffer[:at])
        del self.buffer[: at + 1]
        return line

    async def message(self) -> Any:
        return json.loads(await self.line())

    async def messages(self, count: int) -> list[Any]:
        return [await self.message() for _ in range(count)]

    async def result(self) -> Any:
        return (await self.message())["result"]

    async def text(self) -> str:
        text: str = (await self.result())["content"][0]["text"]
        return text

    async def complaints(self) -> bytes:
        """All of stderr."""
        found = bytearray()
        async for data in self.server.stderr:
            found += data
        return bytes(found)

    async def send_signal(self, name: str) -> None:
        if isinstance(self.server, trio.Process):
            import signal

            self.server.send_signal(getattr(signal, name))
        else:
            self.server.send_signal(name)

    async def ended(self) -> int:
        with trio.fail_after(10):
            code: int = await self.server.wait()
            return code


Start = Callable[[FakeServer], Any]


@asynccontextmanager
async def as_process(fake: FakeServer) -> AsyncIterator[Peer]:
    pipe = subprocess.PIPE
    process = await trio.lowlevel.open_process(fake.command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        with trio.fail_after(20):
            yield Peer(process)
    finally:
        fake.kill_all()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await stream.aclose()


@asynccontextmanager
async def in_memory(fake: FakeServer) -> AsyncIterator[Peer]:
    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            yield Peer(fake.start_memory(nursery))
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[as_process, in_memory], ids=["process", "memory"])
def start(request: pytest.FixtureRequest) -> Start:
    found: Start = request.param
    return found


# A well-behaved server.


async def test_a_legacy_client_is_initialised_and_lists_and_calls(start: Start) -> None:
    fake = FakeServer(name="mine", version="3").tool("echo", description="says it again")
    async with start(fake) as peer:
        await peer.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}})
        result = await peer.result()
        assert result["protocolVersion"] == "2025-06-18"
        assert result["serverInfo"] == {"name": "mine", "version": "3"}
        assert "tools" in result["capabilities"]
        await peer.ask("tools/list")
        assert await peer.result() == {
            "tools": [{"name": "echo", "description": "says it again", "inputSchema": {"type": "object"}}]
        }
        await peer.call("echo", a=[1, "ü"])
        assert await peer.text() == '{"a":[1,"ü"]}'


async def test_a_modern_client_discovers_and_each_result_is_complete(start: Start) -> None:
    async with start(FakeServer(era="modern").tool("echo")) as peer:
        await peer.ask("server/discover", {}, modern=True)
        result = await peer.result()
        assert result["supportedVersions"] == ["2026-07-28"]
        assert result["resultType"] == "complete"
        assert result["ttlMs"] == 0
        await peer.call("echo", modern=True, a=1)
        assert (await peer.result())["resultType"] == "complete"


@pytest.mark.parametrize(
    ("era", "method", "params", "code"),
    [
        ("legacy", "server/discover", {"_meta": MODERN_META}, -32601),
        ("modern", "initialize", {"protocolVersion": "2025-11-25"}, -32022),
        ("modern", "tools/list", {}, -32602),
        ("both", "tools/nonsense", {}, -32601),
        ("both", "tools/call", {"name": "nobody"}, -32602),
        ("both", "resources/list", {}, -32601),
    ],
)
async def test_what_it_does_not_serve_it_refuses_with_the_right_code(
    start: Start, era: Any, method: str, params: dict[str, Any], code: int
) -> None:
    async with start(FakeServer(era=era)) as peer:
        await peer.ask(method, params)
        assert (await peer.message())["error"]["code"] == code


async def test_tools_are_listed_in_pages_that_end(start: Start) -> None:
    fake = FakeServer(page_size=2)
    for name in "abcde":
        fake.tool(name)
    async with start(fake) as peer:
        names, cursor = [], None
        while True:
            await peer.ask("tools/list", {"cursor": cursor} if cursor else {})
            page = await peer.result()
            names.append([tool["name"] for tool in page["tools"]])
            cursor = page.get("nextCursor")
            if cursor is None:
                break
    assert names == [["a", "b"], ["c", "d"], ["e"]]


async def test_resources_and_prompts_are_served_once_there_are_any(start: Start) -> None:
    async with start(FakeServer().resource("note://a", "hello").prompt("greet", "say hi")) as peer:
        await peer.ask("resources/read", {"uri": "note://a"})
        assert (await peer.result())["contents"][0]["text"] == "hello"
        await peer.ask("prompts/get", {"name": "greet"})
        assert (await peer.result())["messages"][0]["content"]["text"] == "say hi"


async def test_a_slow_call_does_not_hold_up_another(start: Start) -> None:
    fake = FakeServer().tool("slow", do.wait("fast is done"), do.reply("slow"))
    fake.tool("fast", do.reply("fast"), do.wake("fast is done"))
    async with start(fake) as peer:
        await peer.call("slow")
        await peer.call("fast")
        assert [await peer.text(), await peer.text()] == ["fast", "slow"]
    assert fake.most_at_once() == 2


async def test_a_single_threaded_server_reads_nothing_while_it_works(start: Start) -> None:
    fake = FakeServer(single_threaded=True).tool("slow", do.sleep(0.02), do.reply("slow"))
    async with start(fake) as peer:
        first, second = await peer.call("slow"), await peer.call("slow")
        assert [message["id"] for message in await peer.messages(2)] == [first, second]
        await fake.wait_for("end", count=2)
    assert fake.most_at_once() == 1


async def test_a_single_threaded_server_still_reads_the_answer_it_waits_for(start: Start) -> None:
    fake = FakeServer(single_threaded=True).tool("ask", do.request("roots/list"), do.reply("$answer"))
    async with start(fake) as peer:
        await peer.call("ask")
        question = await peer.message()
        await peer.call("ask")  # held back until the first has ended
        await peer.write(b'{"jsonrpc":"2.0","id":"%s","result":{"roots":[]}}\n' % question["id"].encode())
        assert await peer.text() == '{"roots":[]}'
        assert (await peer.message())["method"] == "roots/list"


# Bytes.


async def test_bytes_are_written_exactly_as_scripted(start: Start) -> None:
    noise = bytes(range(256))
    async with start(FakeServer().on("ping", do.write(noise), do.close("stdout"))) as peer:
        await peer.ask("ping")
        assert await peer.line() == noise[:10]
        assert await peer.line() == noise[11:]


async def test_a_frame_written_byte_by_byte_is_not_torn_by_another(start: Start) -> None:
    frame = '{"jsonrpc":"2.0","id":$id,"result":{"text":"日本🎉"}}\n'
    fake = FakeServer().on("first", do.write(frame, chunk=1, pause=0.001)).on("second", do.result({}))
    async with start(fake) as peer:
        await peer.send("first", id="x")
        await peer.send("second", id=2)
        assert await peer.messages(2) == [
            {"jsonrpc": "2.0", "id": "x", "result": {"text": "日本🎉"}},
            {"jsonrpc": "2.0", "id": 2, "result": {}},
        ]


async def test_pieces_of_a_frame_arrive_one_after_the_other() -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)

    async def main() -> list[tuple[float, bytes]]:
        fake = FakeServer().on("ping", do.write(b"abc\n", chunk=2, pause=5))
        async with trio.open_nursery() as nursery:
            stdin, stdout = fake.open_memory(nursery)
            await stdin.send_all(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            found = [(trio.current_time(), bytes(await stdout.receive_some())) for _ in range(2)]
            nursery.cancel_scope.cancel()
        return found

    begun = await trio.to_thread.run_sync(partial(trio.run, main, clock=clock))
    assert [data for _, data in begun] == [b"ab", b"c\n"]


async def test_ids_keep_their_type_or_become_text(start: Start) -> None:
    fake = FakeServer()
    fake.on("same", do.send({"jsonrpc": "2.0", "id": "$id", "result": {}}))
    fake.on("text", do.send({"jsonrpc": "2.0", "id": "${id}", "result": {}}))
    async with start(fake) as peer:
        await peer.send("same", id=7)
        await peer.send("text", id=7)
        await peer.send("same", id="x")
        assert [message["id"] for message in await peer.messages(3)] == [7, "7", "x"]


async def test_a_reply_takes_the_arguments_apart(start: Start) -> None:
    fake = FakeServer().tool(
        "t", do.reply("in ${args.city}, not $args.city", "$args.list.1", structured="$args", is_error=True)
    )
    async with start(fake) as peer:
        await peer.call("t", city="Ulm", list=[1, {"a": 2}])
        assert await peer.result() == {
            "content": [
                {"type": "text", "text": "in Ulm, not $args.city"},
                {"type": "text", "text": '{"a":2}'},
            ],
            "structuredContent": {"city": "Ulm", "list": [1, {"a": 2}]},
            "isError": True,
        }


async def test_a_result_can_be_as_large_as_it_is_asked_for(start: Start) -> None:
    async with start(FakeServer().tool("big", do.bulk("$args.size", "abc"))) as peer:
        await peer.call("big", size=300_001)
        text = await peer.text()
    assert (len(text), text[:4], text[-1]) == (300_001, "abca", "a")


async def test_a_standard_answer_is_changed_in_place(start: Start) -> None:
    fake = FakeServer().on("initialize", do.standard({"protocolVersion": "2099-01-01"}, drop=["capabilities"]))
    async with start(fake) as peer:
        await peer.ask("initialize", {"protocolVersion": "2025-11-25"})
        assert await peer.result() == {
            "protocolVersion": "2099-01-01",
            "serverInfo": {"name": "fake", "version": "1.0.0"},
        }


async def test_errors_are_as_scripted_also_without_a_message(start: Start) -> None:
    fake = FakeServer().tool("a", do.fail(-32000, None)).tool("b", do.fail(-32603, "", {"x": 1}))
    async with start(fake) as peer:
        await peer.call("a")
        await peer.call("b")
        errors = [message["error"] for message in await peer.messages(2)]
    assert errors == [{"code": -32000}, {"code": -32603, "message": "", "data": {"x": 1}}]


async def test_a_line_that_is_no_json_is_noted_and_refused(start: Start) -> None:
    fake = FakeServer()
    async with start(fake) as peer:
        await peer.write(b'{"half\n')
        assert (await peer.message())["error"]["code"] == -32700
        await peer.write(b'{"torn')
        await peer.server.stdin.aclose()
        assert await peer.ended() == 0
    assert [record.facts["text"] for record in fake.records("garbled")] == ['{"half']
    assert [record.facts["text"] for record in fake.records("torn")] == ['{"torn']


# Progress, cancellation, questions.


async def test_progress_goes_to_the_token_that_was_given(start: Start) -> None:
    fake = FakeServer().tool("t", do.progress(0.5, total=1, message="half"), do.progress(2, token="nope"), do.reply())
    async with start(fake) as peer:
        await peer.call("t", token="tok")
        first, second, _ = await peer.messages(3)
        assert first["params"] == {"progress": 0.5, "total": 1, "message": "half", "progressToken": "tok"}
        assert second["params"]["progressToken"] == "nope"
        await peer.call("t")
        assert (await peer.message())["params"]["progressToken"] == "nope"


async def test_a_cancelled_call_ends_without_an_answer(start: Start) -> None:
    fake = FakeServer().tool("t", do.hang())
    async with start(fake) as peer:
        call = await peer.call("t")
        await peer.send("notifications/cancelled", {"requestId": call, "reason": "enough"})
        await peer.ask("ping")
        assert (await peer.message())["id"] == 2
    assert fake.calls()[0].outcome == "cancelled"
    assert fake.records("cancelled")[0].facts["reason"] == "enough"


@pytest.mark.parametrize("careless", [do.ignore_cancel(), do.note("before")], ids=["ignores it", "waits for it"])
async def test_a_script_may_see_the_cancellation_and_answer_all_the_same(start: Start, careless: do.Step) -> None:
    fake = FakeServer().tool("t", careless, do.wait("cancelled", timeout=10), do.reply("late"))
    async with start(fake) as peer:
        call = await peer.call("t")
        await peer.send("notifications/cancelled", {"requestId": call})
        assert await peer.text() == "late"


async def test_a_call_that_ignores_its_cancellation_goes_on(start: Start) -> None:
    fake = FakeServer().tool("t", do.ignore_cancel(), do.wait("go"), do.reply("late")).on("go", do.wake("go"))
    async with start(fake) as peer:
        call = await peer.call("t")
        await peer.send("notifications/cancelled", {"requestId": call})
        await peer.send("go")
        assert await peer.text() == "late"


async def test_a_cancellation_that_came_before_is_not_waited_for_again(start: Start) -> None:
    fake = FakeServer().tool("t", do.ignore_cancel(), do.wait("go"), do.wait("cancelled"), do.reply("late"))
    async with start(fake.on("go", do.wake("go"))) as peer:
        call = await peer.call("t")
        await peer.send("notifications/cancelled", {"requestId": call})
        await peer.send("go")
        assert await peer.text() == "late"


async def test_the_client_is_asked_by_a_request_in_the_legacy_era(start: Start) -> None:
    fake = FakeServer().tool("t", do.ask("sampling/createMessage", {"maxTokens": 5}), do.reply("$answer"))
    async with start(fake) as peer:
        await peer.call("t")
        question = await peer.message()
        assert (question["method"], question["params"]) == ("sampling/createMessage", {"maxTokens": 5})
        answer = {"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "no"}}
        await peer.write(json.dumps(answer).encode() + b"\n")
        assert await peer.text() == '{"code":-1,"message":"no"}'


async def test_the_client_is_asked_by_a_round_in_the_modern_era(start: Start) -> None:
    fake = FakeServer().tool("t", do.note("once"), do.ask("roots/list"), do.reply("$answer"))
    async with start(fake) as peer:
        await peer.call("t", modern=True)
        result = await peer.result()
        assert result["resultType"] == "input_required"
        assert result["inputRequests"] == {"ask": {"method": "roots/list", "params": {}}}
        params = {
            "name": "t",
            "requestState": result["requestState"],
            "inputResponses": {"ask": {"roots": []}},
        }
        await peer.ask("tools/call", params, modern=True)
        assert await peer.text() == '{"roots":[]}'
    assert len(fake.records("note")) == 1


async def test_a_request_to_the_client_may_carry_any_id_and_is_not_waited_for(start: Start) -> None:
    fake = FakeServer().on("initialize", do.standard(), do.request("roots/list", id=0, wait=False), do.log("hello"))
    async with start(fake) as peer:
        await peer.ask("initialize", {"protocolVersion": "2025-11-25"})
        _, request, log = await peer.messages(3)
    assert request == {"jsonrpc": "2.0", "id": 0, "method": "roots/list"}
    assert log["params"] == {"level": "info", "data": "hello"}


async def test_a_changed_list_is_told_plainly_in_the_legacy_era(start: Start) -> None:
    fake = FakeServer().tool("a").tool("b", hidden=True)
    fake.tool("swap", do.show("b"), do.hide("a"), do.changed(), do.reply("ok"))
    async with start(fake) as peer:
        await peer.call("b")
        assert "error" in await peer.message()
        await peer.call("swap")
        assert (await peer.message())["method"] == "notifications/tools/list_changed"
        await peer.message()
        await peer.ask("tools/list")
        assert [tool["name"] for tool in (await peer.result())["tools"]] == ["b", "swap"]


async def test_a_changed_list_is_told_to_who_listens_in_the_modern_era(start: Start) -> None:
    fake = FakeServer().tool("t", do.changed(), do.changed("prompts"), do.changed(uri="x://1"), do.end_listening())
    async with start(fake) as peer:
        wanted = {"toolsListChanged": True, "promptsListChanged": False, "resourceSubscriptions": ["x://1"]}
        listen = await peer.ask("subscriptions/listen", {"notifications": wanted}, modern=True)
        acknowledged = await peer.message()
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        stamp = {"io.modelcontextprotocol/subscriptionId": listen}
        assert acknowledged["params"]["_meta"] == stamp
        await peer.call("t", modern=True)
        tools, resource, end = await peer.messages(3)
        assert tools == {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {"_meta": stamp},
        }
        assert resource["params"] == {"uri": "x://1", "_meta": stamp}
        assert end["id"] == listen


async def test_a_tool_may_ask_twice_and_goes_on_behind_the_question_that_was_answered(start: Start) -> None:
    fake = FakeServer().tool("t", do.ask("roots/list"), do.ask("roots/list"), do.reply("$answer"))
    async with start(fake) as peer:
        await peer.call("t", modern=True)
        first = await peer.result()
        params = {"name": "t", "requestState": first["requestState"], "inputResponses": {"ask": 1}}
        await peer.ask("tools/call", params, modern=True)
        second = await peer.result()
        assert second["requestState"] != first["requestState"]
        params = {"name": "t", "requestState": second["requestState"], "inputResponses": {"ask": 2}}
        await peer.ask("tools/call", params, modern=True)
        assert await peer.text() == "2"


async def test_spec_04_an_input_required_result_may_lack_what_it_should_have(start: Start) -> None:
    fake = FakeServer().tool("t", do.input_required(None))
    async with start(fake) as peer:
        await peer.call("t", modern=True)
        result = await peer.result()
        assert result["resultType"] == "input_required"
        assert result.keys().isdisjoint({"inputRequests", "requestState"})


# Time, and the process.


async def test_a_server_that_stands_still_answers_nothing_until_it_moves_again(start: Start) -> None:
    fake = FakeServer().on("rest", do.stall(0.05)).tool("t", do.sleep(0.01), do.reply("t"))
    async with start(fake) as peer:
        await peer.call("t")
        begun = time.monotonic()
        await peer.send("rest")
        await peer.ask("ping")
        await peer.messages(2)
        assert time.monotonic() - begun > 0.04


async def test_a_server_that_stands_still_for_ever_is_still_killed_by_a_signal(start: Start) -> None:
    fake = FakeServer().on("rest", do.stall()).on_signal("SIGTERM", do.sleep(0.01), do.exit(3))
    async with start(fake) as peer:
        await peer.send("rest")
        await fake.wait_for("received")
        await peer.send_signal("SIGTERM")
        assert await peer.ended() == 3


async def test_nothing_is_read_before_what_is_played_at_the_start_has_ended(start: Start) -> None:
    fake = FakeServer().on_start(do.stderr("loading\n", times=2), do.sleep(0.01), do.stderr("ready\n"))
    async with start(fake) as peer:
        await peer.ask("ping")
        await peer.message()
        await peer.server.stdin.aclose()
        assert await peer.complaints() == b"loading\nloading\nready\n"


async def test_what_comes_in_meanwhile_is_received_afterwards(start: Start) -> None:
    fake = FakeServer().on_start(do.sleep(0.01), do.note("ready"))
    async with start(fake) as peer:
        await peer.ask("ping")
        await peer.message()
    assert [record.event for record in fake.records()][:3] == ["start", "note", "received"]


async def test_a_wait_that_is_over_wakes_nothing_later(start: Start) -> None:
    fake = FakeServer().tool("t", do.wait("go", timeout=0.01), do.hang(), do.reply("wrong"))
    fake.on("go", do.wake("go")).on("later", do.sleep(0.03), do.result("right"))
    async with start(fake) as peer:
        await peer.call("t")
        await peer.send("go")
        await peer.ask("later")
        assert await peer.result() == "right"


async def test_eof_ends_it_with_0(start: Start) -> None:
    async with start(FakeServer()) as peer:
        await peer.server.stdin.aclose()
        assert await peer.ended() == 0


async def test_life_09_a_call_is_answered_after_eof(start: Start) -> None:
    fake = FakeServer().tool("t", do.wait("eof"), do.sleep(0.01), do.reply("late"), do.exit(0)).on_eof()
    async with start(fake) as peer:
        await peer.call("t")
        await peer.server.stdin.aclose()
        assert await peer.text() == "late"
        assert await peer.ended() == 0


async def test_life_02_eof_and_sigterm_can_be_ignored_but_not_sigkill(start: Start) -> None:
    fake = FakeServer().on_eof().on_signal("SIGTERM")
    async with start(fake) as peer:
        await peer.server.stdin.aclose()
        await fake.wait_for("eof")
        await peer.send_signal("SIGTERM")
        await fake.wait_for("signal")
        await peer.send_signal("SIGKILL")
        assert await peer.ended() == -9


async def test_sigterm_ends_what_does_not_mind(start: Start) -> None:
    fake = FakeServer()
    async with start(fake) as peer:
        await fake.wait_for("start")
        await peer.send_signal("SIGTERM")
        assert await peer.ended() == -15


@pytest.mark.parametrize(("step", "code"), [(do.die(), -9), (do.die("SIGSEGV"), -11), (do.exit(42), 42)])
async def test_time_01_a_call_can_kill_its_server(start: Start, step: do.Step, code: int) -> None:
    async with start(FakeServer().tool("t", do.write(b"half a fr"), step)) as peer:
        await peer.call("t")
        assert await peer.line() == b"half a fr"
        assert await peer.ended() == code


async def test_what_is_spawned_holds_stdout_open_after_the_server_has_gone(start: Start) -> None:
    fake = FakeServer().tool("t", do.spawn(), do.exit(0))
    async with start(fake) as peer:
        await peer.call("t")
        assert await peer.ended() == 0
        with trio.move_on_after(0.05) as scope:
            await peer.line()
        assert scope.cancelled_caught


async def test_something_else_happens_each_time(start: Start, tmp_path: Path) -> None:
    fake = FakeServer()
    fake.tool("stays", do.turns([do.reply("1")], [do.reply("2")]))
    fake.tool("cycles", do.turns([do.reply("a")], [do.reply("b")], cycle=True))
    async with start(fake) as peer:
        for tool in ["stays"] * 3 + ["cycles"] * 3:
            await peer.call(tool)
        assert [await peer.text() for _ in range(6)] == ["1", "2", "2", "a", "b", "a"]


async def test_start_02_the_count_goes_on_from_one_process_to_the_next(start: Start, tmp_path: Path) -> None:
    first = [do.stderr("downloading\n"), do.exit(1)]
    fake = FakeServer().on_start(do.turns(first, [], file=str(tmp_path / "count")))
    async with start(fake) as peer:
        assert await peer.ended() == 1
    async with start(fake) as peer:
        await peer.ask("ping")
        assert await peer.result() == {}
    assert fake.starts == 2


async def test_a_script_branches_on_an_argument_and_repeats(start: Start) -> None:
    fake = FakeServer().tool(
        "t",
        do.repeat(do.log("$count"), times=2),
        do.choose("$args.mode", {"loud": [do.reply("LOUD")], "3": [do.reply("three")]}, [do.reply("other")]),
    )
    async with start(fake) as peer:
        for mode in ("loud", 3, "none"):
            await peer.call("t", mode=mode)
            logs = await peer.messages(2)
            assert [log["params"]["data"] for log in logs] == [0, 1]
            assert await peer.text() == {"loud": "LOUD", 3: "three", "none": "other"}[mode]


async def test_steps_run_beside_others_for_ever(start: Start) -> None:
    fake = FakeServer().on_start(do.beside(do.repeat(do.log("tick"), do.sleep(0.001))))
    async with start(fake) as peer:
        await peer.messages(3)
        call = await peer.ask("ping")
        while (await peer.message()).get("id") != call:
            pass


async def test_an_endless_flood_leaves_others_their_turn(start: Start) -> None:
    async with start(FakeServer().on_start(do.beside(do.repeat(do.log("flood"))))) as peer:
        call = await peer.ask("ping")
        while (await peer.message()).get("id") != call:
            pass


async def test_spec_09_the_order_of_tools_differs_each_time(start: Start) -> None:
    async with start(FakeServer(shuffled=True).tool("a").tool("b").tool("c")) as peer:
        orders = []
        for _ in range(3):
            await peer.ask("tools/list")
            orders.append("".join(tool["name"] for tool in (await peer.result())["tools"]))
    assert orders == ["abc", "bca", "cab"]


# What only a process can do.


async def test_the_facts_of_the_process_stand_in_its_record_and_can_be_told(tmp_path: Path) -> None:
    fake = FakeServer(info={"title": "$cwd"}).tool("env", do.reply("${env.MARK} ${argv} ${pid}"))
    environ = {**os.environ, "MARK": "here"}
    process = await trio.lowlevel.open_process(
        [*fake.command, "one", "two"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=environ,
    )
    peer = Peer(process)
    await peer.ask("initialize", {})
    assert (await peer.result())["serverInfo"]["title"] == str(tmp_path)
    await peer.call("env")
    assert await peer.text() == f'here ["one","two"] {process.pid}'
    assert process.stdin is not None
    await process.stdin.aclose()
    await process.wait()
    facts = fake.records("start")[0].facts
    assert (facts["argv"], facts["env"]["MARK"]) == (["one", "two"], "here")
    assert (fake.pid, fake.starts, fake.alive()) == (process.pid, 1, [])


async def test_life_01_a_wrapper_leaves_the_server_behind() -> None:
    fake = FakeServer().tool("echo").on_eof().on_signal("SIGTERM", do.turns([], [do.exit(0)])).wrapped()
    async with as_process(fake) as peer:
        await peer.call("echo")
        await peer.message()
        assert fake.pid != peer.server.pid
        assert set(fake.alive()) == {fake.pid, peer.server.pid}
        peer.server.terminate()
        assert await peer.ended() == 0
        assert fake.alive() == [fake.pid]
        assert fake.kill_all() == [fake.pid]


async def test_a_wrapper_passes_the_exit_code_on() -> None:
    async with as_process(FakeServer().on("go", do.exit(5)).wrapped()) as peer:
        await peer.send("go")
        assert await peer.ended() == 5


async def test_a_spawned_process_can_leave_the_group_and_ignore_signals() -> None:
    fake = FakeServer().on("go", do.spawn(new_session=True, ignore=["SIGTERM"]), do.spawn())
    async with as_process(fake) as peer:
        await peer.send("go")
        spawned = [record.facts["spawned"] for record in await fake.wait_for("spawn", count=2)]
        await fake.wait_for("start", count=3)
        groups = [os.getpgid(pid) for pid in spawned]
        assert groups == [spawned[0], os.getpgid(fake.pid)]
        os.kill(spawned[0], 15)
        await fake.wait_for("signal")
        assert set(fake.alive()) == {fake.pid, *spawned}


async def test_life_04_a_server_that_ignores_broken_pipes_lives_on() -> None:
    fake = FakeServer(ignore_broken_pipe=True).on_eof().on("go", do.log("x"), do.log("y"), do.note("alive"))
    async with as_process(fake) as peer:
        await peer.server.stdout.aclose()
        await peer.send("go")
        await fake.wait_for("note")


async def test_a_server_whose_stdout_nobody_reads_ends() -> None:
    fake = FakeServer()
    async with as_process(fake) as peer:
        await peer.server.stdout.aclose()
        await peer.ask("ping")
        assert await peer.ended() == 1
    assert fake.records("broken pipe")


async def test_stdio_08_a_server_blocked_in_a_write_reads_nothing() -> None:
    fake = FakeServer().on("flood", do.note("flooding"), do.write(b"x" * 999_999 + b"\n"))
    async with as_process(fake) as peer:
        await peer.send("flood")
        await fake.wait_for("note")
        await peer.ask("ping")
        begun = time.monotonic()
        await peer.line()
        await peer.message()
    assert fake.records("received", method="ping")[0].time > begun


async def test_a_server_blocked_in_a_write_still_hears_a_signal() -> None:
    fake = FakeServer().on("flood", do.note("flooding"), do.write(b"x" * 1_000_000))
    fake.on_signal("SIGTERM", do.turns([], [do.exit(4)]))
    async with as_process(fake) as peer:
        await peer.send("flood")
        await fake.wait_for("note")
        peer.server.terminate()
        await fake.wait_for("signal")
        peer.server.terminate()
        assert await peer.ended() == 4


async def test_a_server_changed_while_it_runs_is_another_at_its_next_start() -> None:
    fake = FakeServer().tool("t", do.reply("old"))
    command = fake.command
    fake.tool("t", do.reply("new"))
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        peer = Peer(process)
        await peer.call("t")
        assert await peer.text() == "new"


def test_only_a_process_of_ours_counts_as_alive() -> None:
    # A pid may have become somebody else's: he must not be killed at the end of a test.
    assert not is_alive(os.getpid(), "no such script")


async def test_an_installed_program_is_found_by_its_name(tmp_path: Path) -> None:
    fake = FakeServer().tool("t", do.reply("$argv"))
    fake.install(tmp_path, "docker")
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    async with AsyncExitStack() as stack:
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", "exec docker run img"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
        )
        stack.push_async_callback(process.wait)
        stack.callback(process.kill)
        peer = Peer(process)
        await peer.call("t")
        assert await peer.text() == '["run","img"]'


async def test_nothing_is_noted_where_nobody_wants_to_know(start: Start) -> None:
    fake = FakeServer(recording=False)
    async with start(fake) as peer:
        await peer.ask("ping")
        await peer.message()
        peer.server.kill()
        await peer.ended()
    assert fake.records() == []


def test_its_program_imports_nothing_but_the_standard_library_and_not_much_of_it() -> None:
    fake = FakeServer().on("ping", do.exit(0))
    command = fake.command
    listing = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]],
        input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        capture_output=True,
        check=True,
        timeout=20,
    ).stderr.decode()
    imported = {line.rpartition("|")[2].strip() for line in listing.splitlines() if line.startswith("import time:")}
    assert "_play.player" in imported
    assert imported.isdisjoint({"typing", "pathlib", "subprocess", "threading", "trio", "attr", "openprogram_mcp"})


# What only memory can do.


def test_time_is_the_mock_clocks_in_memory() -> None:
    fake = FakeServer().tool("t", do.sleep(3600), do.reply("an hour later"))

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            peer = Peer(fake.start_memory(nursery))
            await peer.call("t")
            assert await peer.text() == "an hour later"
            nursery.cancel_scope.cancel()
        return trio.current_time()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 3600
    (call,) = fake.calls()
    assert (call.began, call.ended) == (0, 3600)


async def test_a_server_in_memory_ends_with_its_nursery() -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(FakeServer().start_memory(nursery))
        await peer.ask("ping")
        await peer.message()
        nursery.cancel_scope.cancel()
    assert await peer.ended() == -9
    assert await peer.line() == b""
    with pytest.raises(trio.BrokenResourceError):
        await peer.write(b"\n")


async def test_a_wait_that_is_over_is_not_woken_by_another_that_ends_now(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fake = FakeServer().on("tick", do.sleep(1), do.result("tick")).on("later", do.sleep(2), do.result("right"))
    fake.tool("t", do.wait("go", timeout=1), do.hang(), do.reply("wrong")).on("go", do.wake("go"))
    async with trio.open_nursery() as nursery:
        peer = Peer(fake.start_memory(nursery))
        for method in ("tick", "later"):
            await peer.ask(method)
        await peer.call("t")
        await peer.send("go")
        assert [await peer.result(), await peer.result()] == ["tick", "right"]
        nursery.cancel_scope.cancel()


async def test_waiting_for_what_never_happens_ends_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        fake = FakeServer()
        fake.start_memory(nursery)
        with pytest.raises(trio.TooSlowError):
            await fake.wait_for("eof", within=3)
        nursery.cancel_scope.cancel()


def test_turns_need_an_alternative() -> None:
    with pytest.raises(ValueError, match="at least one"):
        do.turns()


def test_a_signal_that_does_not_exist_is_refused_where_it_is_named() -> None:
    with pytest.raises(AttributeError, match="SIGNOPE"):
        FakeServer().on_signal("SIGNOPE")
