"""The man in the middle does what its plan says: else a test that passes behind it says nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests._middleman import Fault, Middleman, Plan


@asynccontextmanager
async def repeated(middleman_plan: Plan) -> AsyncIterator[tuple[Middleman, trio.SocketStream]]:
    """A connection through a man in the middle to a server that says again what it hears."""

    async def echo(stream: trio.SocketStream) -> None:
        try:
            while data := await stream.receive_some():
                await stream.send_all(data)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, echo, listeners)
        middleman = Middleman(listeners[0].socket.getsockname()[1], plan=middleman_plan)
        with trio.fail_after(10):
            async with middleman.standing(), await trio.open_tcp_stream("127.0.0.1", middleman.port) as stream:
                yield middleman, stream
        nursery.cancel_scope.cancel()


async def _read(stream: trio.SocketStream, count: int) -> bytes:
    found = b""
    while len(found) < count and (data := await stream.receive_some()):
        found += bytes(data)
    return found


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("pass", b"abcd"),
        ("delay", b"abcd"),
        ("split", b"abcd"),
        ("truncate", b"ab"),
        ("cut", b""),
        ("double", b"abcdabcd"),
    ],
)
async def test_a_piece_meets_the_fault_of_the_plan(fault: Fault, expected: bytes) -> None:
    async with repeated(Plan(down={fault: 1})) as (middleman, stream):
        await stream.send_all(b"abcd")
        assert await _read(stream, len(expected) or 1) == expected
        if fault in ("truncate", "cut"):
            assert await stream.receive_some() == b""
    assert middleman.counts() == {"pass": 1, fault: 1} if fault != "pass" else {"pass": 2}


async def test_a_connection_is_reset() -> None:
    async with repeated(Plan(up={"reset": 1})) as (_, stream):
        await stream.send_all(b"abcd")
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()


async def test_a_piece_goes_behind_the_next_one() -> None:
    swaps = Plan(up={"swap": 0.5})
    seed = next(
        n for n in range(100) if [Plan(n, up={"swap": 0.5}).choose(1, "up", i)[0] for i in (1, 2)] == ["swap", "pass"]
    )
    async with repeated(Plan(seed, up=swaps.up)) as (middleman, stream):
        await stream.send_all(b"ab")
        while not middleman.done:
            await trio.lowlevel.checkpoint()
        await stream.send_all(b"cd")
        assert await _read(stream, 4) == b"cdab"


async def test_what_is_swallowed_never_comes_while_the_connection_stays() -> None:
    async with repeated(Plan(down={"swallow": 1})) as (middleman, stream):
        await stream.send_all(b"abcd")
        with trio.move_on_after(0.05) as scope:
            await stream.receive_some()
        assert scope.cancelled_caught
        middleman.cut()
        assert await stream.receive_some() == b""


def test_a_plan_says_the_same_each_time_and_as_often_as_it_is_told_to() -> None:
    plan = Plan(7, down={"cut": 0.25, "delay": 0.5})
    chosen = [plan.choose(1, "down", piece)[0] for piece in range(1000)]
    assert chosen == [plan.choose(1, "down", piece)[0] for piece in range(1000)]
    assert 200 < chosen.count("cut") < 300
    assert 450 < chosen.count("delay") < 550
    assert {plan.choose(1, "up", piece)[0] for piece in range(100)} == {"pass"}


async def test_one_who_is_shut_refuses_new_connections_until_he_is_open_again_at_the_same_port() -> None:
    async with repeated(Plan()) as (middleman, stream):
        middleman.shut()
        middleman.shut()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match=r"[Aa]ll attempts to connect|refused"):
            await trio.open_tcp_stream("127.0.0.1", middleman.port)
        await stream.send_all(b"abcd")
        assert await _read(stream, 4) == b"abcd"
        assert middleman.open == 1
        middleman.reopen()
        await trio.testing.wait_all_tasks_blocked()
        async with await trio.open_tcp_stream("127.0.0.1", middleman.port) as other:
            await other.send_all(b"efgh")
            assert await _read(other, 4) == b"efgh"
            assert middleman.open == 2
