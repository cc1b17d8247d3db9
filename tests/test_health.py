"""The probe of a connection that nobody uses: it finds a server that is stuck, and condemns no other."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from openprogram_mcp.errors import TimedOut
from openprogram_mcp.status import ServerState
from openprogram_mcp.testing import FakeServer, do
from tests._living import managed, until

_S = ServerState
_ASKED = {"legacy": "ping", "modern": "server/discover"}


def _config(fake: FakeServer, **more: Any) -> dict[str, Any]:
    return fake.config(
        health={"interval_seconds": 0.1}, stop_timeout_seconds=0.2, reconnect={"initial_seconds": 0.05}, **more
    )


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_is_stuck_is_found_before_anybody_calls_it_and_started_anew(era: Any) -> None:
    fake = FakeServer(era=era).tool("t")
    # The first process answers until it is frozen, and so does the second, which is not.
    async with managed({"f": _config(fake)}) as manager:
        await manager.started.wait()
        await fake.wait_for("received", method=_ASKED[era])
        before = manager.server("f")
        assert before.status is _S.CONNECTED
        fake.send_signal("SIGSTOP")
        lost = await until(manager, "f", _S.RECONNECTING)
        assert lost.error == "the connection was lost: it did not answer a health check within 0.1 s"
        assert (lost.error_kind, lost.phase) == ("transient", "running")
        again = await until(manager, "f", _S.CONNECTED)
        assert again.generation == 2
        assert (await manager.call_tool("f__t")).text == "{}"
    assert fake.alive() == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_refuses_the_question_lives(era: Any) -> None:
    fake = FakeServer(era=era).tool("t")
    asked = do.turns([do.standard()], [do.fail(-32601, "unknown")]) if era == "modern" else do.fail(-32601, "unknown")
    fake.on(_ASKED[era], asked)
    async with managed({"f": _config(fake)}) as manager:
        await manager.started.wait()
        await fake.wait_for("received", method=_ASKED[era], count=4)
        row = manager.server("f")
        assert (row.status, row.generation) == (_S.CONNECTED, 1)


async def test_a_server_that_is_busy_is_not_asked_and_not_condemned() -> None:
    fake = FakeServer(era="legacy", single_threaded=True).tool("slow", do.sleep(1), do.reply("done"))
    async with managed({"f": _config(fake)}) as manager:
        await manager.started.wait()
        assert (await manager.call_tool("f__slow")).text == "done"
        assert manager.server("f").generation == 1
    (began,) = [record.time for record in fake.records("begin", method="tools/call")]
    (ended,) = [record.time for record in fake.records("end", method="tools/call")]
    assert not [ping for ping in fake.records("received", method="ping") if began + 0.15 < ping.time < ended]


async def test_a_server_that_may_still_be_at_a_call_that_was_given_up_is_not_condemned() -> None:
    fake = FakeServer(era="legacy", single_threaded=True).tool("slow", do.sleep(1), do.reply("done")).tool("next")
    async with managed({"f": _config(fake)}) as manager:
        await manager.started.wait()
        with pytest.raises(TimedOut):
            await manager.call_tool("f__slow", timeout=0.1)
        assert (await manager.call_tool("f__next")).text == "{}"
        assert manager.server("f").generation == 1


async def test_nobody_is_asked_where_the_configuration_does_not_say_so() -> None:
    fake = FakeServer(era="legacy").tool("t")
    async with managed({"f": fake.config()}) as manager:
        await manager.started.wait()
        with trio.move_on_after(0.4):
            await fake.wait_for("received", method="ping")
    assert fake.records("received", method="ping") == []
