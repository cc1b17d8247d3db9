"""A remote server behind a network that cuts, delays, truncates, doubles and re-orders: one true outcome per call."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from attrs import define, field

from openprogram_mcp import ServerState
from openprogram_mcp.errors import NotConnected, OpenProgramMCPError, ServerGone
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.testing import FakeHttpServer, do
from tests._living import until
from tests._middleman import Fault, Middleman, Plan
from tests.faults._host import hosting
from tests.faults._remote import AT_ONCE, MANNERS, fake_of

_UP: dict[Fault, float] = {"delay": 0.05, "split": 0.05, "truncate": 0.02, "cut": 0.03, "reset": 0.02, "swallow": 0.01}
_DOWN: dict[Fault, float] = {**_UP, "double": 0.03, "swap": 0.03}

CALLS = {"legacy": 90, "modern": 90, "sse": 36}  # one fault of the one stream of the older transport meets all calls
CALLERS = 6
TOOLS = ("write", "read", "slow", "streamed")


def busy(manner: str) -> FakeHttpServer:
    """A server whose tools answer with their number, each in its own way."""
    fake = fake_of(manner, resumable=manner == "legacy", retry=20 if manner == "legacy" else None)
    fake.tool("write").tool("read", read_only=True)
    fake.tool("slow", do.sleep(0.02), do.echo())
    return fake.tool("streamed", do.progress(1), do.sleep(0.01), do.progress(2), do.echo())


@define
class Outcomes:
    """What became of each call, by its number."""

    texts: dict[int, str] = field(factory=dict)
    errors: dict[int, Exception] = field(factory=dict)

    async def call(self, manager: MCPManager, number: int) -> None:
        """Make one call, and keep the one outcome that it has."""
        try:
            result = await manager.call_tool(f"f__{TOOLS[number % len(TOOLS)]}", {"n": number})
        except OpenProgramMCPError as error:
            assert number not in self.errors
            self.errors[number] = error
        else:
            assert number not in self.texts
            self.texts[number] = f"error: {result.text}" if result.is_error else result.text

    def said_not_run(self, number: int) -> bool:
        """Whether a caller was told that its call did not run."""
        error = self.errors.get(number)
        return isinstance(error, NotConnected) or (isinstance(error, ServerGone) and not error.may_have_run)


async def trouble(fake: FakeHttpServer, middleman: Middleman, dice: random.Random, nursery: trio.Nursery) -> None:
    """The server has bad days, too."""
    while True:
        await trio.sleep(dice.uniform(0.1, 0.4))
        match dice.randrange(4):
            case 0:
                fake.forget_sessions()
            case 1:
                middleman.cut(reset=dice.random() < 0.5)
            case 2:
                # As one step, so that it is up whenever this ends.
                with trio.CancelScope(shield=True):
                    await fake.stop(reset=dice.random() < 0.5)
                    await trio.sleep(dice.uniform(0, 0.1))
                    await fake.start(nursery)
            case _:
                fake.on("POST", do.respond(dice.choice([429, 502, 503])))
                await trio.sleep(0.05)
                fake.off("POST")


async def chaos(manner: str, seed: int) -> tuple[FakeHttpServer, Outcomes, Middleman]:
    """Call a server through a man in the middle; at last see that all is well once he does nothing any more."""
    dice = random.Random(seed)  # noqa: S311 - a plan, not a secret
    fake, outcomes, calls = busy(manner), Outcomes(), CALLS[manner]
    async with trio.open_nursery() as outer:
        await fake.start(outer)
        middleman = Middleman(fake.port)
        async with middleman.standing():
            limits = {"call_timeout_seconds": 1 if manner == "sse" else 2, "startup_timeout_seconds": 5}
            entry = {"url": f"http://127.0.0.1:{middleman.port}{fake.path}", "reconnect": AT_ONCE, **limits}
            async with hosting({"f": {**entry, "serialize": "none"}}, seconds=90) as manager:
                await until(manager, "f", ServerState.CONNECTED)
                middleman.plan = Plan(seed, _UP, _DOWN)
                numbers = iter(range(calls))

                async def caller() -> None:
                    for number in numbers:
                        await outcomes.call(manager, number)

                async with trio.open_nursery() as troubled:
                    troubled.start_soon(trouble, fake, middleman, dice, outer)
                    async with trio.open_nursery() as callers:
                        for _ in range(CALLERS):
                            callers.start_soon(caller)
                    troubled.cancel_scope.cancel()
                fake.off("POST")
                middleman.plan = Plan()
                middleman.cut()
                with trio.fail_after(30):
                    # A server that has fallen over again and again is given up until somebody asks for it.
                    await manager.connect("f")
                # Until the loss has been noticed, a call may still fail truthfully.
                for number in range(calls, calls + 8):
                    await outcomes.call(manager, number)
                await until(manager, "f", ServerState.CONNECTED)
                assert outcomes.texts[calls + 7] == f'{{"n":{calls + 7}}}'
                assert manager.server("f").in_flight == manager.server("f").queued == 0
        outer.cancel_scope.cancel()
    return fake, outcomes, middleman


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 20))])
async def test_every_call_has_one_outcome_and_it_is_true(manner: str, seed: int) -> None:
    fake, outcomes, middleman = await chaos(manner, seed)
    calls = CALLS[manner]
    ran = Counter(call.arguments["n"] for call in fake.calls())
    assert outcomes.texts.keys() | outcomes.errors.keys() == set(range(calls + 8))
    assert outcomes.texts.keys().isdisjoint(outcomes.errors)
    for number, text in outcomes.texts.items():
        if not text.startswith("error: "):
            assert text == f'{{"n":{number}}}', "nobody gets the answer of another"
            assert ran[number] >= 1
    for number in range(calls + 8):
        repeatable = TOOLS[number % len(TOOLS)] == "read"
        assert ran[number] <= (2 if repeatable else 1), f"call {number}: {outcomes.errors.get(number)!r}"
        if outcomes.said_not_run(number):
            assert ran[number] == 0, repr(outcomes.errors[number])
    faults = middleman.counts()
    assert sum(faults.values()) - faults["pass"] > 5, "he did something"
    # A stream that is swallowed while its connection stays is the end of all calls over the older transport.
    assert len(outcomes.texts) > (0 if manner == "sse" else 8 + calls / 4), "and not everything failed"
