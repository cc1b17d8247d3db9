"""The other direction of the dispatcher: what the peer asks and tells, and what it says that is no message.

The numbers are those of the list that any dispatcher has to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND
from pydantic import BaseModel

from openprogram_mcp.transports.stdio import (
    StdioDispatcher,
    serving_request,
)
from openprogram_mcp.transports.wire import Noise
from tests._by_hand import Kind, connected, linked, refuse


@pytest.fixture(params=["memory", "pipes"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


# 8. Notifications in the order of the wire.


async def test_8_every_notification_meets_the_interceptor_in_the_order_of_the_wire(kind: Kind) -> None:
    seen: list[str] = []
    told: list[str] = []

    def intercept(method: str, params: Any) -> bool:
        seen.append(f"{method} {it.dispatcher.in_flight} {pending.done.is_set()}")
        return bool((params or {}).get("consumed"))

    async def on_notify(_context: Any, method: str, _params: Any) -> None:
        told.append(method)

    async with connected(kind, on_notify=on_notify, intercept=intercept) as it:
        pending = it.start_call(wants_progress=True)
        request = await it.hand.message()
        progress = {"progressToken": request["id"], "progress": 1}
        await it.hand.send(
            {"method": "notifications/progress", "params": progress},
            {"method": "notifications/progress", "params": {**progress, "progress": 10**400}},
            {"method": "notifications/cancelled", "params": {"requestId": 1}},
            {"method": "a", "params": {"consumed": True}},
            {"method": "b", "params": [1, 2]},
            {"method": "c"},
            {"id": request["id"], "result": {}},
            {"method": "d"},
        )
        await pending.result()
        await trio.testing.wait_all_tasks_blocked()
        methods = ["notifications/progress"] * 2 + ["notifications/cancelled", "a", "b", "c", "d"]
        assert seen == [f"{method} 1 False" for method in methods]
        assert told == [method for method in methods if method != "a"]


async def test_8_an_interceptor_that_raises_costs_nothing() -> None:
    told: list[str] = []

    def intercept(_method: str, _params: Any) -> bool:
        raise ZeroDivisionError

    async def on_notify(_context: Any, method: str, _params: Any) -> None:
        told.append(method)

    async with connected(on_notify=on_notify, intercept=intercept) as it:
        await it.hand.send({"method": "a"}, {"method": "b"})
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["a", "b"]


async def test_notifications_are_handed_over_one_by_one_and_in_order() -> None:
    told: list[int] = []
    at_once = 0

    async def on_notify(_context: Any, _method: str, params: Any) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        for _ in range(params["n"] % 3):
            await trio.lowlevel.checkpoint()
        told.append(params["n"])
        at_once -= 1

    async with connected(on_notify=on_notify) as it:
        await it.hand.send(*({"method": "m", "params": {"n": number}} for number in range(500)))
        await trio.testing.wait_all_tasks_blocked()
        assert told == list(range(500))


# 9. What the peer asks.


async def test_9_each_request_of_the_peer_has_its_own_task_and_the_reader_reads_on(kind: Kind) -> None:
    go = trio.Event()

    async def on_request(_context: Any, method: str, _params: Any) -> dict[str, Any]:
        if method == "slow":
            await go.wait()
        return {"method": method}

    async with connected(kind, on_request=on_request) as it:
        await it.hand.send({"id": 1, "method": "slow"}, {"id": "s", "method": "fast"})
        assert await it.hand.message() == {"jsonrpc": "2.0", "id": "s", "result": {"method": "fast"}}
        go.set()
        assert await it.hand.message() == {"jsonrpc": "2.0", "id": 1, "result": {"method": "slow"}}


async def test_9_a_request_that_the_peer_cancels_ends_and_is_not_answered() -> None:
    ended: list[str] = []

    async def on_request(context: Any, method: str, _params: Any) -> dict[str, Any]:
        try:
            if method == "waits":
                await trio.sleep_forever()
            with trio.CancelScope(shield=True):
                await context.cancel_requested.wait()
            return {}
        finally:
            ended.append(method)

    async with connected(on_request=on_request) as it:
        await it.hand.send({"id": 1, "method": "waits"}, {"id": "2", "method": "finishes all the same"})
        await trio.testing.wait_all_tasks_blocked()
        for request_id in ("1", 2, 99, True, None):
            await it.hand.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
        await it.hand.send({"method": "notifications/cancelled", "params": "what"})
        await it.hand.silence()
        assert sorted(ended) == ["finishes all the same", "waits"]


async def test_9_a_second_request_of_the_same_id_does_not_lose_its_place_when_the_first_ends() -> None:
    gates = [trio.Event(), trio.Event()]
    began = 0

    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        nonlocal began
        mine, began = began, began + 1
        await gates[mine].wait()
        return {"n": mine}

    async with connected(on_request=on_request) as it:
        for _ in range(2):
            await it.hand.send({"id": 1, "method": "m"})
            await trio.testing.wait_all_tasks_blocked()
        gates[0].set()
        assert (await it.hand.message())["result"] == {"n": 0}
        await it.hand.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
        await trio.testing.wait_all_tasks_blocked()
        gates[1].set()
        await it.hand.silence()


@pytest.mark.parametrize("way", ["eof", "cancelled"])
async def test_9_a_request_that_is_being_served_at_the_end_is_told_so(way: str) -> None:
    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    async with connected("pipes", on_request=on_request) as it:
        await it.hand.send({"id": 5, "method": "m"})
        await trio.testing.wait_all_tasks_blocked()
        if way == "eof":
            await it.hand.close()
        else:
            it.running.cancel()
        answer = await it.hand.message()
        assert (answer["id"], answer["error"]["code"]) == (5, CONNECTION_CLOSED)


class _Model(BaseModel):
    n: int


def _raise(error: BaseException) -> dict[str, Any]:
    raise error


@pytest.mark.parametrize(
    ("handle", "code", "message", "data"),
    [
        (lambda: _raise(MCPError(code=-7, message="mine", data={"a": 1})), -7, "mine", {"a": 1}),
        (lambda: _Model(n="secret").model_dump(), INVALID_PARAMS, "Invalid request parameters", None),  # type: ignore[arg-type]
        (lambda: _raise(ValueError("secret")), INTERNAL_ERROR, "Internal error", None),
        (lambda: _raise(ExceptionGroup("secret", [ValueError()])), INTERNAL_ERROR, "Internal error", None),
        (lambda: _raise(MCPError(code=-7, message="mine", data=object())), INTERNAL_ERROR, "Internal error", None),
        (lambda: {"answer": object()}, INTERNAL_ERROR, "Internal error", None),
    ],
    ids=["MCPError", "ValidationError", "any other", "a group", "data that is no JSON", "an answer that is no JSON"],
)
async def test_9_what_a_handler_raises_becomes_an_answer_and_no_text_of_ours_goes_out(
    handle: Callable[[], dict[str, Any]], code: int, message: str, data: Any
) -> None:
    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        return handle()

    async with connected(on_request=on_request) as it:
        await it.hand.send({"id": 1, "method": "m"})
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        assert await it.hand.message() == {"jsonrpc": "2.0", "id": 1, "error": error}
        await it.hand.send({"id": 2, "method": "m"})
        assert (await it.hand.message())["id"] == 2


async def test_9_a_handler_that_fails_while_it_is_cancelled_costs_nothing() -> None:
    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        async def fail() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)
        raise AssertionError

    async with connected(on_request=on_request) as it:
        await it.hand.send({"id": 1, "method": "m"})
        await trio.testing.wait_all_tasks_blocked()
        await it.hand.send({"method": "notifications/cancelled", "params": {"requestId": 1}})
        await it.hand.silence()
        assert not it.ended.is_set()


async def test_9_a_handler_is_told_progress_and_may_ask_back_until_it_has_ended() -> None:
    contexts: list[Any] = []

    async def on_request(context: Any, _method: str, _params: Any) -> dict[str, Any]:
        contexts.append(context)
        await context.progress(1, 2, "half")
        return await context.send_raw_request("back", None)  # type: ignore[no-any-return]

    async with connected(on_request=on_request) as it:
        await it.hand.send({"id": 1, "method": "m", "params": {"_meta": {"progressToken": "t"}}})
        progress = await it.hand.message()
        assert progress["params"] == {"progressToken": "t", "progress": 1, "total": 2, "message": "half"}
        await it.hand.answer(await it.hand.message(), {"n": 1})
        assert (await it.hand.message())["result"] == {"n": 1}
        (context,) = contexts
        assert not context.can_send_request
        with pytest.raises(MCPError):
            await context.send_raw_request("back", None)
        await context.notify("m", None)
        await context.progress(2)
        await it.hand.silence()


async def test_a_handler_knows_over_which_connection_it_was_asked() -> None:
    seen: list[object] = []

    async def on_request(_context: Any, _method: str, _params: Any) -> dict[str, Any]:
        seen.append(serving_request.get())
        return {}

    async def on_notify(_context: Any, _method: str, _params: Any) -> None:
        seen.append(serving_request.get())

    async with connected(on_request=on_request, on_notify=on_notify) as it:
        await it.hand.send({"id": 1, "method": "m"}, {"method": "n"})
        await it.hand.message()
        await trio.testing.wait_all_tasks_blocked()
        assert set(seen) == {it.dispatcher, None}
        assert serving_request.get() is None


# Requests of the server's, answered by the SDK's session.


@pytest.mark.parametrize("before_the_answer", [True, False])
async def test_s2c_03_what_the_server_asks_around_initialize_is_answered(before_the_answer: bool, kind: Kind) -> None:
    async with linked(kind) as (link, hand), trio.open_nursery() as nursery:
        logged: list[Any] = []

        async def on_log(params: Any) -> None:
            logged.append(params.data)

        async def session() -> None:
            client = ClientSession(dispatcher=StdioDispatcher(link), logging_callback=on_log)
            async with client:
                await client.initialize()
                await trio.sleep_forever()

        nursery.start_soon(session)
        initialize = await hand.message()
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "serverInfo": {"name": "fake", "version": "1"},
        }
        log = {"method": "notifications/message", "params": {"level": "info", "data": "hello"}}
        asks: list[dict[str, Any]] = [
            {"id": 0, "method": "roots/list"},
            {"id": "p", "method": "ping"},
            {"id": 2, "method": "foo/bar"},
        ]
        answer = {"id": initialize["id"], "result": result}
        await hand.send(log, *([*asks, answer] if before_the_answer else [answer, *asks]))
        heard = {message.get("id", message.get("method")): message for message in await hand.messages(4)}
        assert heard["p"]["result"] == {}
        assert heard[2]["error"]["code"] == METHOD_NOT_FOUND
        assert "error" in heard[0]  # we have declared no roots
        assert "notifications/initialized" in heard
        assert logged == ["hello"]
        nursery.cancel_scope.cancel()


async def test_s2c_01_what_the_server_asks_during_a_call_is_answered_while_the_call_waits(kind: Kind) -> None:
    async def on_request(_context: Any, method: str, params: Any) -> dict[str, Any]:
        if method == "sampling/createMessage":
            await trio.lowlevel.checkpoint()
            return {"role": "assistant", "content": {"type": "text", "text": params["n"]}, "model": "m"}
        if method == "ping":
            return {}
        return await refuse(None, method, None)

    async with connected(kind, on_request=on_request) as it:
        call = it.start_call("tools/call", {"name": "asks"})
        request = await it.hand.message()
        # Under the very id of the call: the ids of both sides are their own.
        await it.hand.send({"id": request["id"], "method": "sampling/createMessage", "params": {"n": "one"}})
        answer = await it.hand.message()
        assert (answer["id"], answer["result"]["content"]["text"]) == (request["id"], "one")
        await it.hand.send({"id": "s1", "method": "elicitation/create"}, {"id": 2, "method": "ping"})
        assert {message["id"]: message.get("error", {}).get("code") for message in await it.hand.messages(2)} == {
            "s1": METHOD_NOT_FOUND,
            2: None,
        }
        await it.hand.answer(request, {"content": []})
        assert await call.result() == {"content": []}


# 10. and 11. Callbacks, and what is no message.


async def test_10_callbacks_that_raise_cost_nothing_but_themselves(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[float] = []

    async def on_notify(_context: Any, _method: str, _params: Any) -> None:
        raise ZeroDivisionError

    async def on_progress(progress: float, _total: Any, _message: Any) -> None:
        heard.append(progress)
        raise ZeroDivisionError

    def on_noise(_noise: Noise) -> None:
        raise ZeroDivisionError

    async with connected(on_notify=on_notify, on_noise=on_noise) as it:
        pending = it.start_call(on_progress=on_progress)
        request = await it.hand.message()
        for number in range(3):
            params = {"progressToken": request["id"], "progress": number}
            await it.hand.send({"method": "n"}, {"method": "notifications/progress", "params": params})
            await it.hand.write(b"noise\n")
        await it.hand.answer(request, {})
        assert await pending.result() == {}
        assert heard == [0, 1, 2]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "params",
    [
        {"progress": 1},
        {"progressToken": "nope", "progress": 1},
        {"progressToken": True, "progress": 1},
        {"progressToken": "ID", "progress": "1"},
        {"progressToken": "ID", "progress": True},
        {"progressToken": "ID", "progress": None},
        {"progressToken": "ID", "progress": 10**400},
        {"progressToken": ["ID"], "progress": 1},
        ["ID", 1],
        None,
    ],
)
async def test_10_progress_that_is_none_is_dropped(params: Any) -> None:
    heard: list[Any] = []

    async def on_progress(*progress: Any) -> None:
        heard.append(progress)

    async with connected() as it:
        pending = it.start_call(on_progress=on_progress, request_id="ID")
        request = await it.hand.message()
        good = {"progressToken": "ID", "progress": 0.5, "total": "x", "message": 7}
        await it.hand.send(
            {"method": "notifications/progress", "params": params},
            {"method": "notifications/progress", "params": good},
            {"id": request["id"], "result": {}},
        )
        await pending.result()
        assert heard == [(0.5, None, None)]


async def test_11_lines_that_are_no_messages_are_told_and_an_answer_among_them_fails_its_request_alone(
    kind: Kind,
) -> None:
    told: list[Noise] = []
    async with connected(kind, max_frame_bytes=5000, on_noise=told.append) as it:
        calls = {name: it.start_call(name) for name in ("big", "broken", "good")}
        ids = {request["method"]: request["id"] for request in await it.hand.messages(3)}
        await it.hand.write(b"Server running on stdio\n")
        await it.hand.send({"id": ids["big"], "result": {"text": "x" * 9000}})
        await it.hand.write(b'{"jsonrpc":"2.0","id":%d,"result":{oops}}\n' % ids["broken"])
        await it.hand.send({"id": ids["good"], "result": {}})
        assert await calls["good"].result() == {}
        with pytest.raises(MCPError, match="over the size limit"):
            await calls["big"].result()
        with pytest.raises(MCPError, match="not JSON"):
            await calls["broken"].result()
        assert [noise.reason for noise in told] == ["not JSON", "a message over the size limit", "not JSON"]
