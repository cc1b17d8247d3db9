"""The fake server: what its script can say and ask, as a process and in memory."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from openprogram_mcp.testing import FakeServer, do
from tests._peer import MODERN_META, Start, as_process, in_memory


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
