"""The dispatcher when it matters: progress, limits, peers that do not read or say too much, and cancelling anywhere."""

from __future__ import annotations

import contextvars
import json
import logging
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.testing
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from openprogram_mcp.transports._link import PipeLink
from openprogram_mcp.transports._outbox import Frame, Outbox
from openprogram_mcp.transports.stdio import (
    ConnectionClosed,
    Fate,
)
from tests._by_hand import Connected, Kind, connected
from tests._strike import Strike, strike_every_step


@pytest.fixture(params=["memory", "pipes"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


# Progress: in the caller's task, in order, never after its return.


async def test_progress_is_told_in_order_in_the_callers_own_task_and_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")
    heard: list[tuple[float, str, bool]] = []
    caller: list[trio.lowlevel.Task] = []

    async def on_progress(progress: float, _total: Any, _message: Any) -> None:
        for _ in range(int(progress) % 3):
            await trio.lowlevel.checkpoint()
        heard.append((progress, variable.get(), trio.lowlevel.current_task() is caller[0]))

    async with connected() as it:

        async def call() -> None:
            variable.set("the caller's")
            caller.append(trio.lowlevel.current_task())
            await it.call(on_progress=on_progress)
            heard.append((-1, "returned", True))

        it.nursery.start_soon(call)
        request = await it.hand.message()
        await it.hand.send(
            *(
                {"method": "notifications/progress", "params": {"progressToken": request["id"], "progress": number}}
                for number in range(100)
            ),
            {"id": request["id"], "result": {}},
            {"method": "notifications/progress", "params": {"progressToken": request["id"], "progress": 100}},
        )
        await trio.testing.wait_all_tasks_blocked()
        assert heard == [*((float(number), "the caller's", True) for number in range(100)), (-1, "returned", True)]


async def test_a_cancellation_reaches_into_a_progress_callback() -> None:
    async def on_progress(*_args: Any) -> None:
        await trio.sleep_forever()

    async with connected() as it:
        pending = it.start_call(on_progress=on_progress)
        request = await it.hand.message()
        params = {"progressToken": request["id"], "progress": 1}
        await it.hand.send({"method": "notifications/progress", "params": params})
        await trio.testing.wait_all_tasks_blocked()
        pending.scope.cancel()
        await pending.done.wait()
        assert (await it.hand.message())["params"] == {"requestId": request["id"]}


@pytest.mark.parametrize("answered", [False, True])
async def test_a_progress_callback_that_never_returns_does_not_outlast_the_limit(
    answered: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async def on_progress(*_args: Any) -> None:
        await trio.sleep_forever()

    async with connected() as it:
        pending = it.start_call(on_progress=on_progress, timeout=10.0)
        request = await it.hand.message()
        params = {"progressToken": request["id"], "progress": 1}
        await it.hand.send({"method": "notifications/progress", "params": params})
        if answered:
            await it.hand.answer(request, {"n": 1})
            assert await pending.result() == {"n": 1}
        else:
            with pytest.raises(MCPError, match="timed out"):
                await pending.result()
        assert trio.current_time() == pytest.approx(10.0, abs=0.1)


async def test_a_progress_callback_that_never_returns_ends_with_the_connection() -> None:
    async def on_progress(*_args: Any) -> None:
        await trio.sleep_forever()

    async with connected() as it:
        pending = it.start_call(on_progress=on_progress)
        request = await it.hand.message()
        params = {"progressToken": request["id"], "progress": 1}
        await it.hand.send({"method": "notifications/progress", "params": params})
        await trio.testing.wait_all_tasks_blocked()
        await it.hand.close()
        with pytest.raises(ConnectionClosed):
            await pending.result()


# Limits.


async def test_time_05_progress_moves_the_idle_limit_and_never_the_hard_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[float] = []

    async def on_progress(progress: float, _total: Any, _message: Any) -> None:
        heard.append(progress)

    async with connected() as it:
        fate = Fate()
        pending = it.start_call(on_progress=on_progress, timeout=1.0, hard_timeout=30.0, fate=fate)
        request = await it.hand.message()
        token, number = request["id"], 0
        while not pending.done.is_set():
            number += 1
            await it.hand.send(
                *(
                    {"method": "notifications/progress", "params": params}
                    for params in (
                        {"progressToken": token, "progress": number / 2, "total": 0},
                        {"progressToken": token, "progress": -1},
                        {"progressToken": 9999, "progress": number},
                        {"progressToken": "nope", "progress": number},
                    )
                )
            )
            await trio.sleep(0.9)
        with pytest.raises(MCPError, match="timed out"):
            await pending.result()
        assert fate.expired == "hard"
        assert 30.0 <= trio.current_time() < 31.0
        assert heard == sorted(heard)
        assert -1 not in heard
        assert (await it.hand.message())["method"] == "notifications/cancelled"
        again = it.start_call()
        request = await it.hand.message()
        # After the final word, and after the end of the call.
        await it.hand.send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 999}})
        await it.hand.answer(request, {})
        assert await again.result() == {}


async def test_time_05_progress_that_goes_backwards_does_not_keep_a_call_alive(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as it:
        fate = Fate()
        pending = it.start_call(timeout=5.0, fate=fate, wants_progress=True)
        token = (await it.hand.message())["id"]
        for number in range(10, 0, -1):
            params = {"progressToken": token, "progress": number}
            await it.hand.send({"method": "notifications/progress", "params": params})
            await trio.sleep(0.9)
        assert pending.done.is_set()
        assert fate.expired == "idle"


@pytest.mark.parametrize("order", [(1.0, 3.0, 7.0), (7.0, 3.0, 1.0), (3.0, 7.0, 1.0, 5.0)])
async def test_each_request_has_its_own_limit_whatever_the_order(
    order: tuple[float, ...], autojump_clock: trio.testing.MockClock
) -> None:
    ended: dict[float, float] = {}

    async with connected() as it:

        async def call(seconds: float) -> None:
            with pytest.raises(MCPError, match="timed out"):
                await it.call(timeout=seconds)
            ended[seconds] = trio.current_time()

        async with trio.open_nursery() as nursery:
            for seconds in order:
                nursery.start_soon(call, seconds)
                await it.hand.message()
        assert ended == {seconds: pytest.approx(seconds, abs=0.01) for seconds in order}


async def test_a_callback_that_does_not_let_go_at_the_limit_does_not_keep_the_timer_busy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def on_progress(*_args: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    async with connected() as it:
        strike = Strike(1000, it.nursery.cancel_scope.cancel)
        trio.lowlevel.add_instrument(strike)
        strike.arm()
        pending = it.start_call(on_progress=on_progress, timeout=1.0)
        request = await it.hand.message()
        params = {"progressToken": request["id"], "progress": 1}
        await it.hand.send({"method": "notifications/progress", "params": params})
        await pending.done.wait()
        trio.lowlevel.remove_instrument(strike)
    assert not strike.fired
    assert trio.current_time() == pytest.approx(100, abs=0.1)


async def test_a_hard_limit_alone_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as it:
        fate = Fate()
        with pytest.raises(MCPError, match="timed out"):
            await it.call(hard_timeout=3.0, fate=fate)
        assert trio.current_time() == pytest.approx(3.0)
        assert fate.expired == "hard"


async def test_no_limit_is_no_limit(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as it:
        pending = it.start_call()
        request = await it.hand.message()
        await trio.sleep(80_000)
        await it.hand.answer(request, {})
        assert await pending.result() == {}


# A peer that does not read, and one that says too much.


async def test_stdio_08_a_server_that_does_not_read_blocks_neither_itself_nor_others_and_gets_whole_frames(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected("pipes") as deaf, connected("pipes") as other:
        big = [deaf.start_call("big", {"n": number, "data": "x" * 2**20}) for number in range(4)]
        await trio.testing.wait_all_tasks_blocked()
        # It talks all the while, and is heard.
        for _ in range(100):
            await deaf.hand.send({"method": "notifications/message", "params": {"data": "y" * 10_000}})
        with pytest.raises(MCPError, match="timed out"):
            await deaf.call("limited", timeout=1.0)
        with trio.move_on_after(1.0) as scope:
            await deaf.call("cancelled", {"data": "x" * 2**20})
        assert scope.cancelled_caught
        pending = other.start_call()
        await other.hand.answer(await other.hand.message(), {})
        assert await pending.result() == {}
        # And when it reads at last, it finds each frame whole and none that was withdrawn.
        for _ in big:
            request = await deaf.hand.message()
            assert (request["method"], len(request["params"]["data"])) == ("big", 2**20)
            await deaf.hand.answer(request, {"n": request["params"]["n"]})
        assert [(await call.result())["n"] for call in big] == [0, 1, 2, 3]
        await deaf.hand.silence()


async def test_a_frame_is_never_torn_by_another_though_there_is_room_for_it() -> None:
    async with connected("pipes") as it:
        it.start_call("big", {"data": "x" * 300_000})
        await trio.testing.wait_all_tasks_blocked()
        # There is room now, and whoever waits for it does not know yet.
        await it.hand.read_some()
        await it.dispatcher.notify("small", None)
        assert [message["method"] for message in await it.hand.messages(2)] == ["big", "small"]


async def test_requests_wait_for_room_rather_than_in_memory() -> None:
    async with connected("pipes") as it:
        fates = [Fate() for _ in range(50)]
        calls = [it.start_call("big", {"data": "x" * 2**18}, fate=fate) for fate in fates]
        await trio.testing.wait_all_tasks_blocked()
        outbox = it.dispatcher._outbox
        assert outbox._bytes < 2 * 2**20
        requests = await it.hand.messages(50)
        assert outbox._bytes == 0
        for request in requests:
            await it.hand.answer(request, {})
        for call in calls:
            assert await call.result() == {}


async def test_a_request_that_waits_for_room_goes_on_when_those_before_it_are_withdrawn() -> None:
    async with connected("pipes") as it:
        first = it.start_call("first", {"data": "x" * 100_000})
        await trio.testing.wait_all_tasks_blocked()
        full = [it.start_call("full", {"data": "x" * 2**20}), it.start_call("after")]
        await trio.testing.wait_all_tasks_blocked()
        full[0].scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert {(await it.hand.message())["method"], (await it.hand.message())["method"]} == {"first", "after"}
        assert not first.done.is_set()


async def test_requests_that_wait_for_room_are_woken_at_the_end() -> None:
    async with connected("pipes") as it:
        calls = [it.start_call("big", {"data": "x" * 2**20}) for _ in range(4)]
        await trio.testing.wait_all_tasks_blocked()
        await it.hand.close()
        for call in calls:
            with pytest.raises(ConnectionClosed):
                await call.result()


async def test_a_peer_that_asks_without_end_and_reads_nothing_takes_bounded_memory() -> None:
    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        return {"answer": "x" * 1000}

    async with connected("pipes", on_request=on_request) as it:
        for number in range(200):
            await it.hand.send(*({"id": 100 * number + item, "method": "ping"} for item in range(50)))
            await trio.testing.wait_all_tasks_blocked()
        assert it.dispatcher._outbox._bytes < 5 * 2**20
        assert it.dispatcher.dropped > 1000


@pytest.mark.parametrize("same_id", [False, True])
async def test_a_flood_of_requests_is_served_within_bounds_and_the_rest_refused(same_id: bool) -> None:
    at_once = most = 0
    go = trio.Event()

    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await go.wait()
        at_once -= 1
        return {}

    async with connected(on_request=on_request) as it:
        await it.hand.send(*({"id": 1 if same_id else number, "method": "m"} for number in range(1000)))
        refused = await it.hand.messages(936)
        assert {message["error"]["code"] for message in refused} == {INTERNAL_ERROR}
        assert most == 64
        go.set()
        assert all("result" in message for message in await it.hand.messages(64))
        await it.hand.send({"id": 1, "method": "m"})
        assert (await it.hand.message())["result"] == {}


async def test_a_flood_of_notifications_does_not_hold_up_answers_and_what_matters_stays() -> None:
    told: list[str] = []
    go = trio.Event()

    async def on_notify(_context: Any, method: str, _params: Any) -> None:
        await go.wait()
        told.append(method)

    async with connected("pipes", on_notify=on_notify) as it:
        pending = it.start_call()
        request = await it.hand.message()
        line = json.dumps({"method": "notifications/message", "params": {"data": "x"}}).encode() + b"\n"
        await it.hand.send({"method": "first"}, {"method": "notifications/tools/list_changed"})
        await it.hand.write(line * 10_000)
        await it.hand.send({"method": "notifications/resources/list_changed"})
        await it.hand.answer(request, {})
        assert await pending.result() == {}
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(told) < 5000
        assert told[:2] == ["first", "notifications/tools/list_changed"]
        assert told[-1] == "notifications/resources/list_changed"
        assert it.dispatcher.dropped + len(told) == 10_003


async def test_large_notifications_that_wait_are_bounded_in_bytes() -> None:
    async def on_notify(_context: Any, _method: str, _params: Any) -> None:
        await trio.sleep_forever()

    async with connected("pipes", on_notify=on_notify) as it:
        for _ in range(40):
            await it.hand.send({"method": "notifications/whatever", "params": {"data": "x" * 2**20}})
        await trio.testing.wait_all_tasks_blocked()
        assert 7 <= it.dispatcher.dropped <= 10


async def test_large_notifications_reach_a_listener_that_keeps_up_however_many_there_are() -> None:
    told = 0
    go = trio.Event()

    async def on_notify(_context: Any, method: str, _params: Any) -> None:
        nonlocal told
        told += 1
        if method == "wait":
            await go.wait()

    async with connected("pipes", on_notify=on_notify) as it:
        for _ in range(40):
            await it.hand.send({"method": "notifications/message", "params": {"data": "x" * 2**20}})
            await trio.testing.wait_all_tasks_blocked()
        # What was delivered does not count any more.
        await it.hand.send({"method": "wait"}, *({"method": "notifications/message"} for _ in range(5)))
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (told, it.dispatcher.dropped) == (46, 0)


async def test_a_burst_of_notifications_reaches_a_listener_that_keeps_up_whole() -> None:
    told: list[int] = []

    async def on_notify(_context: Any, _method: str, params: Any) -> None:
        await trio.lowlevel.checkpoint()
        told.append(params["n"])

    async with connected("pipes", on_notify=on_notify) as it:
        count = 20_000
        lines = (json.dumps({"method": "notifications/message", "params": {"n": n}}) + "\n" for n in range(count))
        await it.hand.write("".join(lines).encode())
        await trio.testing.wait_all_tasks_blocked()
        assert told == list(range(count))


def test_a_stream_without_a_pause_lets_others_run() -> None:
    async def taken(link: PipeLink) -> int:
        count = 0
        with trio.CancelScope() as scope:
            scope.cancel()
            for _ in range(100):
                count += len(await link.receive())
        assert scope.cancelled_caught
        return count

    with Path("/dev/zero").open("rb") as endless, Path("/dev/null").open("wb") as nowhere:
        assert trio.run(taken, PipeLink(endless.fileno(), nowhere.fileno())) <= 512 * 1024


def test_a_large_frame_is_not_copied_to_be_joined_with_small_ones() -> None:
    class Narrow:
        """A link that takes little at a time."""

        direct = True
        offered: ClassVar[list[int]] = []

        async def receive(self) -> bytes:
            return b""

        def try_send(self, data: bytes | memoryview) -> int:
            self.offered.append(len(data))
            return min(len(data), 10)

        async def wait_sendable(self) -> None:
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        link = Narrow()
        outbox = Outbox(link)
        for size in (30, 30, 300_000, 30, 30):
            outbox.post(Frame(memoryview(b"x" * size)), alone=False)
        with trio.move_on_after(1):
            await outbox.run()
        # The small ones before it together, then the large one by itself.
        assert link.offered[:7] == [60, 50, 40, 30, 20, 10, 300_000]
        assert max(link.offered) == 300_000
        assert outbox._bytes == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# Whoever is cancelled, and whenever.


async def _play(it: Connected, served: list[Any]) -> None:
    """A server that answers each request after some progress, and notes what it hears."""
    while True:
        message = await it.hand.message()
        served.append(message)
        if "id" in message and "method" in message:
            token = message["params"]["_meta"]["progressToken"]
            for number in range(2):
                params = {"progressToken": token, "progress": number}
                await it.hand.send({"method": "notifications/progress", "params": params})
            await it.hand.answer(message, {"n": message["params"]["n"]})


@pytest.mark.parametrize("kind", ["memory", "pipes"])
def test_a_caller_may_be_cancelled_at_any_step(kind: Kind) -> None:
    async def on_progress(*_args: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def scenario(step: int) -> bool:
        served: list[Any] = []
        async with connected(kind) as it:
            it.nursery.start_soon(_play, it, served)
            calls = [it.start_call("m", {"n": number}, on_progress=on_progress, timeout=60.0) for number in range(2)]
            instrument = Strike(step, calls[0].scope.cancel)
            trio.lowlevel.add_instrument(instrument)
            instrument.arm()
            for call in calls:
                await call.done.wait()
            trio.lowlevel.remove_instrument(instrument)
            assert await calls[1].result() == {"n": 1}
            assert it.dispatcher.in_flight == 0
            assert (await it.call("m", {"n": 2}, on_progress=on_progress)) == {"n": 2}
            requests = [message["id"] for message in served if message.get("params", {}).get("n") == 0]
            cancels = [
                message["params"]["requestId"] for message in served if message["method"] == "notifications/cancelled"
            ]
            if calls[0].value is None:
                assert len(requests) <= 1
                assert cancels in ([], requests)
            else:
                assert cancels == []
        return instrument.fired

    def run(at: int) -> bool:
        return trio.run(scenario, at, clock=trio.testing.MockClock(autojump_threshold=0))

    strike_every_step(run, at_least=10)


@pytest.mark.parametrize("kind", ["memory", "pipes"])
def test_a_connection_may_be_cancelled_at_any_step_and_nobody_is_left_waiting(kind: Kind) -> None:
    async def on_request(context: Any, _method: str, _params: Any) -> dict[str, Any]:
        return await context.send_raw_request("m", {"n": 9, "_meta": {"progressToken": 0}})  # type: ignore[no-any-return]

    async def scenario(step: int) -> bool:
        served: list[Any] = []
        async with connected(kind, on_request=on_request) as it:
            it.nursery.start_soon(_play, it, served)
            await it.hand.send({"id": 1, "method": "ask back"})
            calls = [it.start_call("m", {"n": number}, wants_progress=True, timeout=60.0) for number in range(2)]
            instrument = Strike(step, it.running.cancel)
            trio.lowlevel.add_instrument(instrument)
            instrument.arm()
            with trio.fail_after(1):
                for call in calls:
                    await call.done.wait()
            trio.lowlevel.remove_instrument(instrument)
            for call in calls:
                assert call.value is not None or isinstance(call.error, ConnectionClosed)
            it.running.cancel()
            await it.ended.wait()
            assert it.dispatcher.in_flight == 0
        return instrument.fired

    def run(at: int) -> bool:
        return trio.run(scenario, at, clock=trio.testing.MockClock(autojump_threshold=0))

    strike_every_step(run, at_least=10)


async def test_ctrl_c_does_not_fall_into_the_dispatcher_but_may_fall_into_what_is_called_back() -> None:
    guarded: dict[str, bool] = {}

    def note(name: str) -> None:
        guarded[name] = trio.lowlevel.currently_ki_protected()

    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        note("request")
        return {}

    async def on_notify(_context: Any, _method: str, _params: Any) -> None:
        note("notification")

    async def on_progress(*_args: Any) -> None:
        note("progress")

    def intercept(_method: str, _params: Any) -> bool:
        note("reader")
        return False

    async with connected(on_request=on_request, on_notify=on_notify, intercept=intercept) as it:
        pending = it.start_call(on_progress=on_progress)
        request = await it.hand.message()
        params = {"progressToken": request["id"], "progress": 1}
        await it.hand.send({"method": "notifications/progress", "params": params}, {"id": 1, "method": "m"})
        await it.hand.message()
        await it.hand.answer(request, {})
        await pending.result()
    assert guarded == {"reader": True, "request": False, "notification": False, "progress": False}


async def test_nothing_is_logged_where_nothing_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with connected() as it:
        pending = it.start_call()
        await it.hand.send({"method": "n"})
        await it.hand.answer(await it.hand.message(), {})
        await pending.result()
        await it.hand.close()
        await it.ended.wait()
    assert caplog.records == []
