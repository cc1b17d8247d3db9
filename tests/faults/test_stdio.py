"""Bytes on standard output and standard error that have broken clients, through the whole of ours."""

from __future__ import annotations

import json

import pytest
import trio

from openprogram_mcp.events import ServerLog
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do

from ._host import hosting, well_behaved


def _text(text: str) -> bytes:
    """A result as it stands on the wire, its text not escaped."""
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    line = {"jsonrpc": "2.0", "id": "$id", "result": result}
    return json.dumps(line, ensure_ascii=False).encode().replace(b'"$id"', b"$id") + b"\n"


async def test_stdio_02_a_frame_in_many_pieces_and_frames_in_one_piece_are_all_seen_in_order() -> None:
    fake = FakeServer(era="legacy")
    for number in range(400):
        fake.tool(f"tool_{number:03}", description="x" * 400)
    fake.tool(
        "noisy",
        do.write(
            b"".join(
                b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%d"}}\n' % n
                for n in range(3)
            )
        ),
        do.write(_text("y" * 200_000)[:1000], chunk=1),
        do.write(_text("y" * 200_000)[1000:], chunk=30_000, pause=0.001),
    )
    async with hosting({"f": fake.config(max_result_chars=1_000_000)}) as manager:
        assert manager.server("f").tool_count == 401
        with manager.events.subscribe() as events:
            result = await manager.call_tool("f__noisy")
            said = []
            async for record in events:
                if isinstance(record.event, ServerLog):
                    said.append(record.event.text)
                    if len(said) == 3:
                        break
    assert said == ["0", "1", "2"]
    assert result.text == "y" * 200_000


@pytest.mark.parametrize("text", ["a — dash", "日本語", "😀 emoji"])
async def test_stdio_03_a_character_that_is_split_between_reads_arrives_whole(text: str) -> None:
    fake = FakeServer(era="legacy").tool("say", do.write(_text(text), chunk=1))
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__say")).text == text


async def test_stdio_05_only_a_line_feed_ends_a_line() -> None:
    text = "before\u2028middle\u2029after\u0085end"
    fake = FakeServer(era="legacy").tool("say", do.write(_text(text)))
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__say")).text == text


async def test_invalid_utf_8_costs_characters_and_not_the_call() -> None:
    fake = FakeServer(era="legacy").tool("say", do.write(_text("a?b").replace(b"?", b"\xff")))
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__say")).text == "a\ufffdb"


@pytest.mark.parametrize(
    "noise",
    [
        b"x" * 262_144 + b"\n",
        b"y" * 1_048_576,
        b"\rdone 10%" * 100_000,
        b"\xff" * 1000 + b"\n",
    ],
    ids=["lines", "no line end", "progress bar", "invalid utf-8"],
)
async def test_stdio_07_standard_error_is_drained_whatever_it_holds(noise: bytes) -> None:
    fake = FakeServer(era="legacy").tool("say", do.stderr(noise), do.reply("said"))
    async with hosting({"f": fake}) as manager:
        for _ in range(3):
            assert (await manager.call_tool("f__say")).text == "said"
        kept = manager.server("f").stderr
    assert len(kept) <= 20
    assert sum(len(line) for line in kept) <= 100_000


async def test_stdio_08_a_server_that_does_not_read_blocks_nobody_else_and_gets_the_whole_request_later() -> None:
    deaf = FakeServer(era="legacy")
    deaf.tool("listen", do.echo(), read_only=True)
    flood = do.repeat(do.log("z" * 1000), times=1000)
    deaf.tool("flood", do.note("flooding"), flood, do.stall(0.3), do.reply("flooded"), read_only=True)
    async with hosting({"deaf": deaf, "good": well_behaved()}) as manager:
        results: dict[str, str] = {}

        async def call(tool: str, **arguments: object) -> None:
            results[tool] = (await manager.call_tool(tool, arguments)).text

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "deaf__flood")
            await deaf.wait_for("note")
            nursery.start_soon(lambda: call("deaf__listen", text="a" * 1_048_576))
            for _ in range(20):
                assert (await manager.call_tool("good__echo", {"n": 1})).text == '{"n":1}'
        assert results["deaf__flood"] == "flooded"
        assert len(results["deaf__listen"]) > 50_000
        assert manager.server("deaf").status is ServerState.CONNECTED


async def test_noise_on_standard_output_is_skipped_and_told() -> None:
    fake = FakeServer(era="legacy").on_start(do.write(b"Server listening on stdio\n\n\r\n{not json\n[1,2]\n"))
    fake.tool("say", do.write(b"debug print\n"), do.reply("said"))
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__say")).text == "said"
        told = [record.to_dict()["text"] for record in manager.events.logs(server="f")]
    assert any("Server listening" in text for text in told)
    assert any("debug print" in text for text in told)


async def test_a_message_over_the_limit_fails_alone() -> None:
    fake = FakeServer(era="legacy").tool("big", do.bulk(300_000)).tool("small", do.reply("ok"))
    async with hosting({"f": fake.config(max_frame_bytes=100_000)}) as manager:
        result = await manager.call_tool("f__big")
        assert result.is_error
        assert "size limit" in result.text
        assert (await manager.call_tool("f__small")).text == "ok"


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\r\n", b"  "], ids=["BOM", "blank line", "blanks"])
async def test_what_stands_before_a_message_does_not_hide_it(start: bytes) -> None:
    fake = FakeServer(era="legacy").tool("say", do.write(start + _text("said")))
    async with hosting({"f": fake}) as manager:
        assert (await manager.call_tool("f__say")).text == "said"
