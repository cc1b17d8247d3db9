"""Many calls at once, each with its own answer, whatever order the answers come in."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio

from openprogram_mcp.testing import FakeServer, do

from ._host import hosting


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_conc_02_of_a_thousand_calls_in_parallel_none_has_the_answer_of_another(
    era: Literal["legacy", "modern"],
) -> None:
    """The answers come in another order than the requests, among requests of the server that have the same ids."""
    fake = FakeServer(era=era, recording=False).tool(
        "shuffled",
        do.sleep("$args.pause"),
        do.request("ping", id="$id", wait=False),
        do.reply("${args.n}"),
    )
    swapped: list[tuple[int, str]] = []
    order: list[int] = []
    async with hosting({"f": fake.config(serialize="none", max_concurrency=100)}, seconds=60) as manager:

        async def call(number: int) -> None:
            # Neighbours wait differently long, so that the later one is answered first.
            result = await manager.call_tool("f__shuffled", {"n": number, "pause": (number * 7 % 10) / 500})
            if result.text != str(number):
                swapped.append((number, result.text))
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(call, number)
        assert manager.server("f").generation == 1
    assert swapped == []
    assert len(order) == 1000
    assert order != sorted(order)


async def test_proto_06_answers_of_every_wrong_kind_cost_no_call_that_is_answered_rightly() -> None:
    wrong: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 999_999, "result": {}},
        {"jsonrpc": "2.0", "id": "never asked", "error": {"code": 1, "message": "no"}},
        {"jsonrpc": "2.0", "id": True, "result": {}},
        {"jsonrpc": "2.0", "result": {}},
    ]
    fake = (
        FakeServer(era="legacy")
        .tool("wrong", *(do.send(message) for message in wrong), do.reply("right"), do.reply("twice"))
        .tool("text", do.write('{"jsonrpc": "2.0", "id": "$id", "result": {"content": []}}\n'), read_only=True)
        .tool("old", do.write('{"id": $id, "result": {"content": []}}\n'), read_only=True)
        .tool("neither", do.write('{"jsonrpc": "2.0", "id": $id}\n'), read_only=True)
    )
    async with hosting({"f": fake}) as manager:
        for _ in range(3):
            assert (await manager.call_tool("f__wrong", {}, timeout=5)).text == "right"
            assert not (await manager.call_tool("f__text", {}, timeout=5)).is_error
            assert not (await manager.call_tool("f__old", {}, timeout=5)).is_error
            assert (await manager.call_tool("f__neither", {}, timeout=5)).is_error
        assert manager.server("f").generation == 1
