"""The dispatcher of a stdio connection: what it owes its callers, whatever the peer does and whoever is cancelled.

The numbers are those of the list that any dispatcher has to keep; 8 to 11 are in test_stdio_inbound.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT

from openprogram_mcp.transports.stdio import (
    ConnectionClosed,
    Fate,
    FateState,
    StdioDispatcher,
)
from tests._by_hand import Connected, Kind, connected, ignore, linked, refuse


@pytest.fixture(params=["memory", "pipes"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


# 1. Error before run, ConnectionClosed after; single use; started() when usable.


async def test_a_request_before_run_is_an_error_of_the_program() -> None:
    async with linked() as (link, _):
        with pytest.raises(RuntimeError, match="before run"):
            await StdioDispatcher(link).send_raw_request("m", None)


async def test_a_request_after_the_end_is_told_that_the_connection_is_closed(kind: Kind) -> None:
    async with connected(kind) as it:
        await it.hand.close()
        await it.ended.wait()
        assert it.dispatcher.closed
        with pytest.raises(ConnectionClosed):
            await it.call()
        await it.dispatcher.notify("m", None)


async def test_whoever_asks_again_at_once_after_the_end_lets_others_run() -> None:
    async with connected() as it:
        await it.hand.close()
        await it.ended.wait()
        with trio.testing.assert_checkpoints(), pytest.raises(ConnectionClosed):
            await it.call()


async def test_it_runs_once() -> None:
    async with connected() as it:
        with pytest.raises(RuntimeError, match="runs once"):
            await it.dispatcher.run(refuse, ignore)
        await it.hand.close()
        await it.ended.wait()
        with pytest.raises(RuntimeError, match="runs once"):
            await it.dispatcher.run(refuse, ignore)


async def test_requests_can_be_sent_as_soon_as_it_says_that_it_has_started(kind: Kind) -> None:
    async with connected(kind) as it:
        pending = it.start_call("ping")
        await it.hand.answer(await it.hand.message(), {"ok": True})
        assert await pending.result() == {"ok": True}


# 2. Ids.


async def test_a_given_id_goes_out_as_it_is_and_either_form_of_it_answers(kind: Kind) -> None:
    async with connected(kind) as it:
        for given, echoed in [("7", "7"), ("7", 7), (8, "8"), (8, 8), ("listen-1", "listen-1"), (0, 0), (-3, "-3")]:
            pending = it.start_call(request_id=given)
            assert (await it.hand.message())["id"] == given
            await it.hand.send({"id": echoed, "result": {"n": 1}})
            assert await pending.result() == {"n": 1}


async def test_an_id_in_use_is_refused_before_anything_is_sent_and_the_first_lives() -> None:
    async with connected() as it:
        first = it.start_call(request_id="7")
        request = await it.hand.message()
        with pytest.raises(ValueError, match="in flight"):
            await it.call(request_id=7)
        await it.hand.silence()
        await it.hand.answer(request, {})
        assert await first.result() == {}


async def test_ids_of_ours_are_minted_past_those_that_were_given() -> None:
    async with connected() as it:
        for given in ("1", 2):
            it.start_call(request_id=given)
            await it.hand.message()
        it.start_call()
        assert (await it.hand.message())["id"] == 3


@pytest.mark.parametrize("given", [True, 1.5])
async def test_a_boolean_is_no_id(given: Any) -> None:
    async with connected() as it:
        with pytest.raises(ValueError, match="no request id"):
            await it.call(request_id=given)
        await it.hand.silence()


async def test_proto_06_whatever_ids_answers_have_each_request_gets_its_own_and_the_reader_lives(kind: Kind) -> None:
    async with connected(kind) as it:
        calls = [it.start_call("m", {"n": number}) for number in range(3)]
        requests = sorted(await it.hand.messages(3), key=lambda request: request["params"]["n"])
        ids = [request["id"] for request in requests]
        await it.hand.send(
            {"id": True, "result": {"wrong": "a boolean"}},
            {"id": 999, "result": {"wrong": "unknown"}},
            {"id": 0, "result": {"wrong": "unknown"}},
            {"id": None, "result": {"wrong": "null"}},
            {"id": None, "error": {"code": 1, "message": "which of three?"}},
            {"result": {"wrong": "none"}},
            {"id": [1], "result": {"wrong": "a list"}},
            {"id": str(ids[0]), "result": {"n": 0}},
            {"id": ids[0], "result": {"wrong": "double"}},
            {"id": ids[1]},
        )
        assert await calls[0].result() == {"n": 0}
        with pytest.raises(MCPError, match="neither a result nor an error"):
            await calls[1].result()
        # One waits, so an error that cannot say what it is about can only be about that one.
        await it.hand.send({"id": None, "error": {"code": -32700, "message": "Parse error"}})
        with pytest.raises(MCPError, match="Parse error"):
            await calls[2].result()
        assert it.dispatcher.dropped == 8
        # Neither version nor order of keys matters.
        last = it.start_call()
        request = await it.hand.message()
        await it.hand.write(b'{"result":{},"id":%d,"jsonrpc":"1.0"}\n' % request["id"])
        assert await last.result() == {}


@pytest.mark.parametrize(
    "outcome",
    [
        {},
        {"result": None},
        {"result": []},
        {"result": "text"},
        {"result": {}, "error": {"code": 1, "message": "both"}},
        {"error": None},
        {"error": "text"},
    ],
)
async def test_10_an_outcome_that_is_none_fails_its_request_alone(outcome: dict[str, Any]) -> None:
    async with connected() as it:
        bad, good = it.start_call("bad"), it.start_call("good")
        requests = {request["method"]: request for request in await it.hand.messages(2)}
        await it.hand.send({"id": requests["bad"]["id"], **outcome}, {"id": requests["good"]["id"], "result": {}})
        with pytest.raises(MCPError) as caught:
            await bad.result()
        assert caught.value.code == INTERNAL_ERROR
        assert await good.result() == {}


async def test_an_error_of_the_peer_arrives_as_it_was_sent() -> None:
    async with connected() as it:
        pending = it.start_call()
        request = await it.hand.message()
        await it.hand.send({"id": request["id"], "error": {"code": -7, "message": "no", "data": {"why": [1]}}})
        with pytest.raises(MCPError) as caught:
            await pending.result()
        assert (caught.value.code, caught.value.message, caught.value.error.data) == (-7, "no", {"why": [1]})


async def test_conc_02_answers_in_any_order_among_requests_of_the_same_ids_reach_their_callers(kind: Kind) -> None:
    served: list[str] = []

    async def on_request(_context: Any, method: str, _params: Any) -> dict[str, Any]:
        served.append(method)
        return {"served": method}

    async with connected(kind, on_request=on_request) as it:
        calls = [it.start_call("echo", {"n": number}) for number in range(200)]
        requests = await it.hand.messages(200)
        for request in reversed(requests):
            await it.hand.send(
                {"id": request["id"], "method": "ping"}, {"id": request["id"], "result": request["params"]}
            )
            assert await it.hand.message() == {"jsonrpc": "2.0", "id": request["id"], "result": {"served": "ping"}}
        assert [(await call.result())["n"] for call in calls] == list(range(200))
        assert served == ["ping"] * 200


# 3. What goes out.


async def test_3_params_are_copied_and_the_progress_token_is_the_id() -> None:
    async def on_progress(*_args: Any) -> None: ...

    params = {"name": "tool", "_meta": {"mine": 1}}
    async with connected() as it:
        it.start_call("tools/call", params, on_progress=on_progress, request_id="a")
        request = await it.hand.message()
        assert request["params"] == {"name": "tool", "_meta": {"mine": 1, "progressToken": "a"}}
        assert params == {"name": "tool", "_meta": {"mine": 1}}
        it.start_call("tools/call", params, wants_progress=True, request_id="b")
        assert (await it.hand.message())["params"]["_meta"]["progressToken"] == "b"
        it.start_call("tools/call", params)
        assert (await it.hand.message())["params"] == params


async def test_3_empty_params_are_left_out() -> None:
    async with connected() as it:
        it.start_call("ping", {})
        assert "params" not in await it.hand.message()
        await it.dispatcher.notify("notifications/initialized", None)
        assert await it.hand.message() == {"jsonrpc": "2.0", "method": "notifications/initialized"}


async def test_3_the_callers_span_goes_with_the_request() -> None:
    from opentelemetry import trace

    parent = trace.NonRecordingSpan(
        trace.SpanContext(0x1234567890ABCDEF1234567890ABCDEF, 0x1234567890ABCDEF, False, trace.TraceFlags(1))
    )
    async with connected() as it:
        with trace.use_span(parent):
            it.start_call("tools/call", {"name": "t"})
        request = await it.hand.message()
        assert request["params"]["_meta"]["traceparent"] == "00-1234567890abcdef1234567890abcdef-1234567890abcdef-01"
        it.start_call("ping")
        assert "params" not in await it.hand.message()


async def test_params_that_are_no_json_fail_their_request_before_anything_is_sent() -> None:
    async with connected() as it:
        with pytest.raises(TypeError):
            await it.call("m", {"value": object()})
        assert it.dispatcher.in_flight == 0
        await it.hand.silence()


# 4. and 5. What counts as issued, and abandoning it.


async def test_4_a_caller_that_is_cancelled_already_sends_nothing(kind: Kind) -> None:
    async with connected(kind) as it:
        fate = Fate()
        with trio.CancelScope() as scope:
            scope.cancel()
            await it.call(fate=fate)
        assert scope.cancelled_caught
        assert (fate.state, it.dispatcher.in_flight) == (FateState.QUEUED, 0)
        await it.hand.silence()


async def test_time_06_an_abandoned_request_is_cancelled_at_the_peer_exactly_once(
    kind: Kind, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(kind) as it:
        timed_out, cancelled = it.start_call("a", timeout=1.0), it.start_call("b", request_id="mine")
        ids = {request["method"]: request["id"] for request in await it.hand.messages(2)}
        cancelled.scope.cancel()
        assert await it.hand.message() == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": "mine"},
        }
        notice = await it.hand.message()
        assert (notice["method"], notice["params"]["requestId"]) == ("notifications/cancelled", ids["a"])
        with pytest.raises(MCPError) as caught:
            await timed_out.result()
        assert caught.value.code == REQUEST_TIMEOUT
        await it.hand.silence()
        assert it.dispatcher.in_flight == 0


@pytest.mark.parametrize("by", ["limit", "caller"])
async def test_time_06_initialize_is_never_cancelled_at_the_peer(
    by: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected() as it:
        pending = it.start_call("initialize", cancel_on_abandon=False, timeout=5.0)
        await it.hand.message()
        if by == "caller":
            pending.scope.cancel()
        await pending.done.wait()
        await it.hand.silence()


async def test_5_an_answered_request_is_not_cancelled_at_the_peer() -> None:
    async with connected() as it:
        pending = it.start_call()
        await it.hand.answer(await it.hand.message(), {})
        await pending.result()
        pending.scope.cancel()
        await it.hand.silence()


async def test_time_06_a_request_that_stands_in_the_queue_is_withdrawn_and_nothing_is_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected("pipes") as it:
        blocking = it.start_call("big", {"data": "x" * 300_000})
        await trio.testing.wait_all_tasks_blocked()
        fates = [Fate(), Fate()]
        cancelled = it.start_call("cancelled", fate=fates[0])
        limited = it.start_call("limited", fate=fates[1], timeout=1.0)
        kept = it.start_call("kept")
        await trio.testing.wait_all_tasks_blocked()
        cancelled.scope.cancel()
        await limited.done.wait()
        assert [fate.state for fate in fates] == [FateState.QUEUED] * 2
        assert fates[1].expired == "idle"
        assert [(await it.hand.message())["method"] for _ in range(2)] == ["big", "kept"]
        await it.hand.silence()
        assert not blocking.done.is_set()
        assert not kept.done.is_set()


async def test_a_request_of_which_something_has_left_is_written_whole_and_then_cancelled() -> None:
    async with connected("pipes") as it:
        fate = Fate()
        big = it.start_call("big", {"data": "x" * 300_000}, fate=fate)
        await trio.testing.wait_all_tasks_blocked()
        assert fate.state is FateState.WRITTEN
        big.scope.cancel()
        await big.done.wait()
        request, notice = await it.hand.messages(2)
        assert len(request["params"]["data"]) == 300_000
        assert notice["params"]["requestId"] == request["id"]
        await it.hand.silence()


async def test_a_fate_that_has_seen_an_answer_does_not_keep_a_later_request_in_the_queue() -> None:
    async with connected("pipes") as it:
        fate = Fate()
        first = it.start_call("first", fate=fate)
        await it.hand.answer(await it.hand.message(), {})
        await first.result()
        assert fate.state is FateState.ANSWERED
        it.start_call("big", {"data": "x" * 300_000})
        await trio.testing.wait_all_tasks_blocked()
        second = it.start_call("second", fate=fate)
        await trio.testing.wait_all_tasks_blocked()
        second.scope.cancel()
        await second.done.wait()
        assert (await it.hand.message())["method"] == "big"
        await it.hand.silence()


async def test_4_the_clock_of_a_limit_starts_when_the_peer_has_the_request(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with connected("pipes") as it:
        it.start_call("big", {"data": "x" * 300_000})
        await trio.testing.wait_all_tasks_blocked()
        waiting = it.start_call("waiting", timeout=10.0)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(9)
        await it.hand.messages(2)
        mock_clock.jump(9)
        await trio.testing.wait_all_tasks_blocked()
        assert not waiting.done.is_set()
        mock_clock.jump(2)
        with pytest.raises(MCPError, match="timed out"):
            await waiting.result()


# 6. The first outcome wins.


async def test_6_a_late_answer_is_dropped_and_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as it:
        pending = it.start_call(timeout=1.0)
        request = await it.hand.message()
        await pending.done.wait()
        await it.hand.answer(request, {})
        await it.hand.message()
        await trio.testing.wait_all_tasks_blocked()
        assert it.dispatcher.dropped == 1
        again = it.start_call()
        await it.hand.answer(await it.hand.message(), {"n": 2})
        assert await again.result() == {"n": 2}


@pytest.mark.parametrize("order", ["cancel first", "answer first"])
async def test_6_an_answer_and_a_cancellation_in_one_step_wake_the_caller_once(order: str, kind: Kind) -> None:
    def cancel(_method: str, _params: Any) -> bool:
        pending.scope.cancel()
        return True

    async with connected(kind, intercept=cancel) as it:
        for _ in range(20):
            pending = it.start_call()
            request = await it.hand.message()
            messages: list[dict[str, Any]] = [{"method": "now"}, {"id": request["id"], "result": {"n": 1}}]
            await it.hand.send(*(messages if order == "cancel first" else messages[::-1]))
            await pending.done.wait()
            assert pending.error is None
            assert pending.value == (None if order == "cancel first" else {"n": 1})
            # It was answered, so there is nothing to cancel.
            await it.hand.silence()
        assert not it.ended.is_set()
        assert it.dispatcher.in_flight == 0


async def test_6_a_limit_and_an_answer_in_one_step_give_one_outcome(mock_clock: trio.testing.MockClock) -> None:
    def strike(_method: str, _params: Any) -> bool:
        mock_clock.jump(10)
        return True

    async with connected("pipes", intercept=strike) as it:
        pending = it.start_call(timeout=5.0)
        request = await it.hand.message()
        await it.hand.send({"method": "now"}, {"id": request["id"], "result": {}})
        assert await pending.result() == {}
        await it.hand.silence()


# 7. The end of the connection.


async def test_7_a_peer_that_sends_our_code_for_a_closed_connection_has_not_closed_it() -> None:
    async with connected() as it:
        pending = it.start_call()
        request = await it.hand.message()
        await it.hand.send({"id": request["id"], "error": {"code": CONNECTION_CLOSED, "message": "Connection closed"}})
        with pytest.raises(MCPError) as caught:
            await pending.result()
        assert not isinstance(caught.value, ConnectionClosed)
        assert not it.dispatcher.closed


async def test_7_eof_wakes_every_caller(kind: Kind) -> None:
    async with connected(kind) as it:
        calls = [it.start_call(timeout=1000.0) for _ in range(50)]
        await it.hand.messages(50)
        await it.hand.close()
        for call in calls:
            with pytest.raises(ConnectionClosed):
                await call.result()
        assert it.dispatcher.in_flight == 0


async def test_a_request_that_was_told_never_to_have_left_is_not_written_after_that() -> None:
    told: list[FateState] = []
    # Trio runs a batch of tasks in any order, so that the end is seen before, with, or after the request.
    for _ in range(40):
        async with connected("pipes") as it:
            first = it.start_call()
            await it.hand.message()

            async def call(it: Connected = it) -> None:
                fate = Fate()
                with pytest.raises(ConnectionClosed):
                    await it.call(fate=fate)
                told.append(fate.state)

            async with trio.open_nursery() as nursery:
                # Beside another one it is not written at once, but by the task that joins what comes in one moment.
                nursery.start_soon(call)
                await it.hand.close()
            with pytest.raises(ConnectionClosed):
                await first.result()
            if told[-1] is FateState.QUEUED:
                await it.hand.silence()
    assert FateState.QUEUED in told


@pytest.mark.parametrize("way", ["eof", "cancelled"])
async def test_7_callers_are_woken_before_the_handlers_are_waited_for(way: str) -> None:
    ended: list[str] = []

    async def on_request(context: Any, _method: str, _params: Any) -> dict[str, Any]:
        # It cannot be cancelled while it waits, so only waking it ends this.
        with trio.CancelScope(shield=True):
            try:
                await context.send_raw_request("back", None)
            except MCPError as error:
                ended.append(type(error).__name__)
        return {}

    async with connected(on_request=on_request) as it:
        await it.hand.send({"id": 1, "method": "there"})
        assert (await it.hand.message())["method"] == "back"
        if way == "eof":
            await it.hand.close()
        else:
            it.running.cancel()
        with trio.fail_after(5):
            await it.ended.wait()
        assert ended == ["ConnectionClosed"]


async def test_7_a_last_message_without_a_line_end_is_heard() -> None:
    async with connected() as it:
        pending = it.start_call()
        request = await it.hand.message()
        await it.hand.write(json.dumps({"id": request["id"], "result": {"last": True}}).encode())
        await it.hand.close()
        assert await pending.result() == {"last": True}


async def test_7_a_last_message_that_is_cut_off_is_no_answer_but_the_loss_of_one(kind: Kind) -> None:
    async with connected(kind) as it:
        pending = it.start_call()
        request = await it.hand.message()
        await it.hand.write(json.dumps({"id": request["id"], "result": {"last": True}}).encode()[:-3])
        await it.hand.close()
        with pytest.raises(ConnectionClosed):
            await pending.result()


async def test_a_peer_that_has_closed_its_input_still_answers_what_it_was_asked(
    kind: Kind, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected(kind) as it:
        asked = it.start_call("asked")
        request = await it.hand.message()
        await it.hand.stdin.aclose()
        fate = Fate()
        late = it.start_call("late", fate=fate)
        await trio.testing.wait_all_tasks_blocked()
        # It is not failed while the connection stands: whoever repeats what was never sent would not stop.
        assert not late.done.is_set()
        assert not it.ended.is_set()
        await it.hand.answer(request, {"n": 1})
        assert await asked.result() == {"n": 1}
        with pytest.raises(ConnectionClosed):
            await late.result()
        # A stream takes what is to be sent before it knows; a pipe says at once that nobody reads.
        assert fate.state is (FateState.QUEUED if kind == "pipes" else FateState.WRITTEN)
        await it.ended.wait()
        if kind == "pipes":
            assert trio.current_time() == 0


async def test_a_peer_that_has_closed_its_input_and_says_no_more_is_left_soon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected("pipes") as it:
        asked = it.start_call("asked")
        await it.hand.message()
        await it.hand.stdin.aclose()
        started = trio.current_time()
        await it.dispatcher.notify("notifications/cancelled", {"requestId": 99})
        with pytest.raises(ConnectionClosed):
            await asked.result()
        assert trio.current_time() - started == pytest.approx(5.0)
        await it.ended.wait()
