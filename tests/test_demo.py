"""The demonstration server, seen by the SDK's own client in both eras, and by bytes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
import trio
from attrs import define, field
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import (
    ElicitRequestParams,
    ElicitResult,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from openprogram_mcp.demo._tools import Toolbox, ToolFailed, paint

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "openprogram_mcp.demo"]


@pytest.fixture(params=["legacy", "auto", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@asynccontextmanager
async def connected(mode: str, **more: Any) -> AsyncIterator[mcp.Client]:
    parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], cwd=ROOT)
    with trio.fail_after(30):
        async with mcp.Client(stdio_client(parameters), mode=mode, **more) as client:
            yield client


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_the_sdks_client_connects_in_each_mode(mode: str) -> None:
    async with connected(mode) as client:
        assert client.protocol_version == ("2025-11-25" if mode == "legacy" else "2026-07-28")
        if mode != "2026-07-28":  # pinned, the SDK's client asks nobody what is offered
            assert client.server_capabilities.tools is not None
            assert client.instructions is not None


async def test_every_tool_says_what_it_may_do(mode: str) -> None:
    async with connected(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = {}
    for name, tool in tools.items():
        assert tool.description
        assert tool.title
        assert tool.annotations is not None
        found = tool.annotations
        hints[name] = (found.read_only_hint, found.destructive_hint, found.idempotent_hint)
    reads = (True, False, True)
    assert hints == {
        "echo": reads,
        "add": reads,
        "sleep": reads,
        "now": reads,
        "read_note": reads,
        "write_note": (False, True, True),
        "picture": reads,
        "measure": reads,
        "fail": reads,
        "ask_name": reads,
        "grow": (False, False, False),
        "shrink": (False, True, False),
    }


async def test_echo_and_add_answer_and_ignore_what_they_do_not_know(mode: str) -> None:
    async with connected(mode) as client:
        assert text_of(await client.call_tool("echo", {"text": "grüß\u2028 🎉", "more": 1})) == "grüß\u2028 🎉"
        assert text_of(await client.call_tool("add", {"a": 2, "b": 3, "c": 4})) == "5"
        assert text_of(await client.call_tool("add", {"a": 0.5, "b": 1})) == "1.5"


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("echo", {}, "text: is missing"),
        ("echo", {"text": 1}, "text: expected a string"),
        ("add", {"a": "x", "b": 1}, "a: expected a number"),
        ("add", {"a": True, "b": 1}, "a: expected a number"),
        ("add", {"a": 10**400, "b": 0.5}, "these numbers are too large to add"),
        ("sleep", {"ms": 1.5}, "ms: expected an integer"),
        ("sleep", {"ms": -1}, "ms: expected 0 to 3600000"),
        ("fail", {"message": "on purpose"}, "on purpose"),
        ("fail", {}, "This tool always fails."),
        ("shrink", {}, "there is no tool to take away"),
    ],
)
async def test_what_a_tool_cannot_do_is_an_error_result_with_a_reason(
    tool: str, arguments: dict[str, Any], message: str
) -> None:
    async with connected("auto") as client:
        result = await client.call_tool(tool, arguments)
    assert (result.is_error, text_of(result)) == (True, message)


async def test_sleep_reports_progress_up_to_its_end(mode: str) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with connected(mode) as client:
        result = await client.call_tool("sleep", {"ms": 120}, progress_callback=on_progress)
    assert text_of(result) == "slept 120 ms"
    assert seen == [(50, 120, "50 of 120 ms"), (100, 120, "100 of 120 ms"), (120, 120, "120 of 120 ms")]


async def test_calls_that_wait_do_not_hold_up_others(mode: str) -> None:
    async with connected(mode) as client:
        with trio.move_on_after(20) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "sleep", {"ms": 3_600_000})
                assert text_of(await client.call_tool("sleep", {"ms": 1})) == "slept 1 ms"
                assert text_of(await client.call_tool("echo", {"text": "x"})) == "x"
                scope.cancel()


async def test_now_is_the_time_in_utc() -> None:
    async with connected("auto") as client:
        now = text_of(await client.call_tool("now", {}))
    assert now.startswith("20")
    assert now.endswith("Z")


async def test_the_note_is_kept_as_text_and_as_a_resource(mode: str) -> None:
    async with connected(mode) as client:
        before = text_of(await client.call_tool("read_note", {}))
        assert before
        assert text_of(await client.call_tool("write_note", {"text": "new"})) == "wrote 3 characters"
        assert text_of(await client.call_tool("read_note", {})) == "new"
        (resource,) = (await client.list_resources()).resources
        (contents,) = (await client.read_resource(str(resource.uri))).contents
        assert isinstance(contents, TextResourceContents)
        assert contents.text == "new"
        assert (await client.list_resource_templates()).resource_templates == []
        with pytest.raises(mcp.MCPError) as caught:
            await client.read_resource("demo://nowhere")
        assert caught.value.error.code == -32602


async def test_the_picture_is_a_png_that_decodes(mode: str) -> None:
    async with connected(mode) as client:
        (image,) = (await client.call_tool("picture", {})).content
    assert isinstance(image, ImageContent)
    data = base64.b64decode(image.data, validate=True)
    assert image.mime_type == "image/png"
    assert data == paint(64)
    assert data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x40\0\0\0\x40\x08\x02")
    assert data.endswith(b"\0\0\0\0IEND\xae\x42\x60\x82")


async def test_a_measurement_fits_its_schema_and_its_text(mode: str) -> None:
    async with connected(mode) as client:
        await client.list_tools()  # so that the SDK checks the result against the schema
        result = await client.call_tool("measure", {"place": "Ulm"})
        again = await client.call_tool("measure", {"place": "Ulm"})
    assert result.structured_content is not None
    assert set(result.structured_content) == {"place", "temperature_celsius", "humidity_percent"}
    assert result.structured_content == again.structured_content == json.loads(text_of(result))


async def test_the_prompt_names_who_is_greeted(mode: str) -> None:
    async with connected(mode) as client:
        (prompt,) = (await client.list_prompts()).prompts
        (message,) = (await client.get_prompt(prompt.name, {"name": "Ada"})).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == "Write a short and friendly greeting for Ada."
        with pytest.raises(mcp.MCPError):
            await client.get_prompt(prompt.name, {})


@pytest.mark.parametrize(
    ("answer", "greeting"),
    [
        (ElicitResult(action="accept", content={"name": "Ada"}), "Nice to meet you, Ada."),
        (ElicitResult(action="decline"), "Nice to meet you, whoever you are."),
    ],
)
async def test_the_user_is_asked_by_elicitation(mode: str, answer: ElicitResult, greeting: str) -> None:
    asked: list[ElicitRequestParams] = []

    async def on_elicitation(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params)
        return answer

    async with connected(mode, elicitation_callback=on_elicitation) as client:
        assert text_of(await client.call_tool("ask_name", {})) == greeting
    assert [params.message for params in asked] == ["What is your name?"]


async def test_a_client_that_asks_nobody_is_told_so(mode: str) -> None:
    async with connected(mode) as client:
        result = await client.call_tool("ask_name", {})
    assert result.is_error
    assert "elicitation" in text_of(result)


async def test_a_growing_list_is_announced_in_the_legacy_era() -> None:
    told = trio.Event()

    async def on_message(message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            told.set()

    async with connected("legacy", message_handler=on_message) as client:
        await client.call_tool("grow", {})
        await told.wait()
        assert text_of(await client.call_tool("extra_1", {})) == "This is extra_1."
        assert (await client.list_tools()).tools[-1].name == "extra_1"
        assert text_of(await client.call_tool("shrink", {})) == "removed extra_1"
        with pytest.raises(mcp.MCPError):
            await client.call_tool("extra_1", {})


async def test_changes_are_told_to_who_listens_in_the_modern_era() -> None:
    async with (
        connected("2026-07-28") as client,
        client.listen(tools_list_changed=True, resource_subscriptions=["demo://note"]) as subscription,
    ):
        await client.call_tool("grow", {})
        assert type(await anext(subscription)).__name__ == "ToolsListChanged"
        await client.call_tool("write_note", {"text": "x"})
        event = await anext(subscription)
        assert getattr(event, "uri", None) == "demo://note"
        await client.call_tool("shrink", {})
        assert type(await anext(subscription)).__name__ == "ToolsListChanged"


def test_who_listens_is_told_only_what_he_wants_to_know(wire: Wire) -> None:
    wire.send(
        id="l",
        method="subscriptions/listen",
        params={"notifications": {"resourceSubscriptions": ["demo://note"]}, "_meta": ENVELOPE},
    )
    assert wire.read()["method"] == "notifications/subscriptions/acknowledged"
    assert "result" in wire.ask("tools/call", name="grow", _meta=ENVELOPE)
    written = {"name": "write_note", "arguments": {"text": "x"}, "_meta": ENVELOPE}
    assert wire.ask("tools/call", **written)["method"] == "notifications/resources/updated"
    wire.read()
    wire.send(method="notifications/cancelled", params={"requestId": "l"})
    assert "result" in wire.ask("tools/call", **written)


# By itself.


@define
class Quiet:
    """A call that takes no time."""

    slept: list[float] = field(factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def progress(self, done: float, total: float, message: str) -> None:
        pass

    def ask(self, message: str, schema: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def changed_tools(self) -> None:
        pass

    def changed_resource(self, uri: str) -> None:
        pass


@pytest.mark.parametrize(("ms", "reports"), [(0, 0), (1000, 10), (60_000, 60)])
def test_a_long_sleep_reports_each_second_and_a_short_one_ten_times(ms: int, reports: int) -> None:
    call = Quiet()
    Toolbox().sleep(call, ms)
    assert len(call.slept) == reports
    assert sum(call.slept) == pytest.approx(ms / 1000)


def test_the_list_does_not_grow_for_ever() -> None:
    toolbox = Toolbox()
    for _ in range(20):
        toolbox.grow(Quiet())
    with pytest.raises(ToolFailed, match="20 more tools"):
        toolbox.grow(Quiet())


# By bytes.


@define
class Wire:
    """The server's process, line by line."""

    process: subprocess.Popen[bytes]

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        self.send(id=1, method=method, params=params)
        return self.read()

    def error(self, method: str, **params: Any) -> int:
        code: int = self.ask(method, **params)["error"]["code"]
        return code

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)


@pytest.fixture
def wire() -> Iterator[Wire]:
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield Wire(process)
        process.kill()


ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_the_first_request_decides_the_era_for_good(wire: Wire) -> None:
    assert wire.ask("initialize", protocolVersion="2025-06-18")["result"]["protocolVersion"] == "2025-06-18"
    assert wire.error("tools/list", _meta=ENVELOPE) == -32600
    assert wire.error("server/discover") == -32601
    assert wire.ask("ping")["result"] == {}


def test_a_modern_connection_refuses_the_handshake_and_half_an_envelope(wire: Wire) -> None:
    result = wire.ask("server/discover", _meta=ENVELOPE)["result"]
    assert (result["supportedVersions"], result["resultType"], result["ttlMs"]) == (["2026-07-28"], "complete", 0)
    refused = wire.ask("initialize", protocolVersion="2025-11-25")["error"]
    assert refused["code"] == -32022
    assert refused["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    assert wire.error("initialize", protocolVersion="2026-07-28") == -32022
    assert wire.error("tools/list") == -32602
    assert wire.error("tools/list", _meta={"io.modelcontextprotocol/protocolVersion": "2026-07-28"}) == -32602
    assert wire.error("tools/list", _meta={**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "2099"}) == -32022
    assert wire.error("ping", _meta=ENVELOPE) == -32601


def test_a_version_that_it_does_not_know_is_answered_with_the_newest_that_it_does(wire: Wire) -> None:
    assert wire.ask("initialize", protocolVersion="2099-01-01")["result"]["protocolVersion"] == "2025-11-25"


def test_garbage_is_refused_and_the_connection_lives(wire: Wire) -> None:
    for line, code in ((b"{", -32700), (b"\xff\xfe", -32700), (b"[]", -32600), (b'{"id":[1],"method":"ping"}', -32600)):
        wire.write(line + b"\r\n\n")
        answer = wire.read()
        assert (answer["id"], answer["error"]["code"]) == (None, code)
    wire.send(id=[2], result={})
    wire.send(method="notifications/cancelled", params={"requestId": {}})
    wire.send(id="x", method="tools/call", params={"name": "echo", "arguments": {"text": "\ud83d"}})
    assert wire.read()["result"]["content"][0]["text"] == "\ud83d"
    assert wire.error("tools/call", name="nobody") == -32602


def test_a_cancelled_call_is_never_answered(wire: Wire) -> None:
    params = {"name": "sleep", "arguments": {"ms": 100}, "_meta": {"progressToken": "tok"}}
    wire.send(id=7, method="tools/call", params=params)
    wire.send(method="notifications/cancelled", params={"requestId": 7})
    assert wire.ask("ping") == {"jsonrpc": "2.0", "id": 1, "result": {}}
    # Nobody asked for the progress of this one, so that its answer is the next that comes.
    answer = wire.ask("tools/call", name="sleep", arguments={"ms": 150.0})
    assert answer["result"]["content"][0]["text"] == "slept 150 ms"
    assert wire.close() == 0


def test_a_refused_question_fails_the_call(wire: Wire) -> None:
    wire.ask("initialize", capabilities={"elicitation": {}})
    question = wire.ask("tools/call", name="ask_name")
    assert question["method"] == "elicitation/create"
    wire.send(id=question["id"], error={"code": -1, "message": "not now"})
    result = wire.read()["result"]
    assert result["isError"]
    assert "not now" in result["content"][0]["text"]


def test_a_subscribed_resource_is_announced_in_the_legacy_era(wire: Wire) -> None:
    wire.ask("initialize")
    assert "result" in wire.ask("tools/call", name="write_note", arguments={"text": "a"})
    assert wire.ask("resources/subscribe", uri="demo://note")["result"] == {}
    updated = wire.ask("tools/call", name="write_note", arguments={"text": "b"})
    assert (updated["method"], updated["params"]) == ("notifications/resources/updated", {"uri": "demo://note"})
    wire.read()
    wire.ask("resources/unsubscribe", uri="demo://note")
    assert "result" in wire.ask("tools/call", name="write_note", arguments={"text": "c"})


@pytest.mark.parametrize("tool", ["sleep", "ask_name"])
def test_eof_ends_it_with_0_and_quietly_also_while_calls_run(wire: Wire, tool: str) -> None:
    wire.ask("initialize", capabilities={"elicitation": {}})
    wire.send(id=2, method="tools/call", params={"name": tool, "arguments": {"ms": 3_600_000}})
    wire.ask("ping")
    assert wire.close() == 0
    assert wire.process.stderr is not None
    assert wire.process.stderr.read() == b""


def test_a_client_that_reads_no_more_ends_it_quietly(wire: Wire) -> None:
    assert wire.process.stdout is not None
    wire.process.stdout.close()
    wire.send(id=1, method="ping")
    assert wire.process.wait(10) == 0
    assert wire.process.stderr is not None
    assert wire.process.stderr.read() == b""


def test_it_imports_little() -> None:
    listing = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:]],
        input=b"",
        capture_output=True,
        cwd=ROOT,
        check=True,
        timeout=20,
    ).stderr.decode()
    imported = {line.rpartition("|")[2].strip() for line in listing.splitlines()}
    assert "openprogram_mcp.demo._server" in imported
    assert imported.isdisjoint({"mcp", "trio", "attr", "anyio", "asyncio", "pydantic", "datetime", "dataclasses"})
    ours = {name for name in imported if name.startswith("openprogram_mcp.")}
    assert ours == {"openprogram_mcp.demo", "openprogram_mcp.demo._server", "openprogram_mcp.demo._tools"}
