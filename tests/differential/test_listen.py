"""Listening for changes through the SDK's session, over the SDK's dispatcher and over ours: the same is heard.

A listener hangs on the order of the wire more than anything else does: what comes before its acknowledgement is not for
it, what comes before the end of its stream is, and the acknowledgement itself is nobody else's.

MCP specification: subscriptions/listen (2026-07-28).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import mcp_types as types
import pytest
import trio
import trio.testing
from attrs import define, field, frozen
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from ._sides import SIDES, Side, SideName
from ._stage import run_seeded, shown
from .steps import IdOf, PeerCloses, PeerSays, cancelled, line, says

SEEDS: Final = range(4)


@frozen
class Listen:
    """A listener begins, ``first`` or ``second``, for these kinds of changes."""

    name: str
    kinds: tuple[str, ...] = ("tools_list_changed", "resources_list_changed")


@frozen
class StopListening:
    """A listener goes."""

    name: str


Step: TypeAlias = Listen | StopListening | PeerSays | PeerCloses


def _stamped(name: str, method: str, **params: Any) -> dict[str, Any]:
    """A notification of the stream of a listener."""
    return {"method": f"notifications/{method}", "params": {**params, "_meta": {SUBSCRIPTION_ID_META_KEY: IdOf(name)}}}


def _acknowledged(name: str, *kinds: str) -> dict[str, Any]:
    return _stamped(name, "subscriptions/acknowledged", notifications=dict.fromkeys(kinds, True))


_ACK: Final = _acknowledged("first", "toolsListChanged", "resourcesListChanged")
_TOOLS: Final = _stamped("first", "tools/list_changed")
_RESOURCES: Final = _stamped("first", "resources/list_changed")
_PROMPTS: Final = _stamped("first", "prompts/list_changed")
_END: Final = {"id": IdOf("first"), "result": {"resultType": "complete"}}
_REFUSAL: Final = {"id": IdOf("first"), "error": {"code": -32601, "message": "no"}}

LISTENING: Final[Mapping[str, tuple[Step, ...]]] = {
    "changes behind the acknowledgement": (says(_ACK), says(_TOOLS), says(_RESOURCES)),
    "changes before the acknowledgement": (says(_TOOLS), says(_ACK), says(_RESOURCES)),
    "a change and the acknowledgement in one breath": (says(_TOOLS, _ACK),),
    "the acknowledgement and a change in one breath": (says(_ACK, _TOOLS),),
    "changes around the acknowledgement in one breath": (says(_RESOURCES, _ACK, _TOOLS),),
    "the end behind changes in one breath": (says(_ACK, _TOOLS, _RESOURCES, _END),),
    "a change behind the end in one breath": (says(_ACK, _TOOLS, _END, _RESOURCES),),
    "a change that was not agreed to": (says(_acknowledged("first", "toolsListChanged")), says(_RESOURCES, _TOOLS)),
    "a change that was not asked for": (says(_ACK, _PROMPTS, _TOOLS),),
    "two acknowledgements": (says(_acknowledged("first", "toolsListChanged"), _ACK), says(_RESOURCES, _TOOLS)),
    "an acknowledgement that cannot be read": (
        says(_stamped("first", "subscriptions/acknowledged")),
        says(_stamped("first", "subscriptions/acknowledged", notifications=7)),
        says(_ACK, _TOOLS),
    ),
    "acknowledgements and changes of nobody's": (
        *(
            says({"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}, "_meta": meta}})
            for meta in ({}, {SUBSCRIPTION_ID_META_KEY: "listen-none"}, {SUBSCRIPTION_ID_META_KEY: [1]}, None)
        ),
        says({"method": "notifications/tools/list_changed"}),
        says(_ACK, {"method": "notifications/tools/list_changed"}),
        says(_TOOLS),
    ),
    "the end before any acknowledgement": (says(_END),),
    "a refusal": (says(_REFUSAL),),
    "a refusal behind the acknowledgement": (says(_ACK, _TOOLS, _REFUSAL),),
    "the server cancels before the acknowledgement": (says(cancelled(IdOf("first"))),),
    "the server cancels": (says(_ACK, _TOOLS), says(cancelled(IdOf("first"))), says(_RESOURCES)),
    "the server cancels something else": (says(_ACK), says(cancelled(99)), says(_TOOLS)),
    "the connection ends before the acknowledgement": (PeerCloses(),),
    "the connection ends": (says(_ACK, _TOOLS), PeerCloses()),
    "the connection ends in the same breath": (says(_ACK, _TOOLS, _RESOURCES), PeerCloses()),
    "the listener goes before the acknowledgement": (StopListening("first"), says(_ACK, _TOOLS)),
    "the listener goes": (says(_ACK), StopListening("first"), says(_TOOLS, _END)),
    "two listeners": (
        Listen("second", ("tools_list_changed",)),
        says(_acknowledged("second", "toolsListChanged"), _stamped("second", "tools/list_changed")),
        says(_TOOLS, _ACK, _stamped("second", "tools/list_changed")),
        StopListening("second"),
        says(_TOOLS, _stamped("second", "tools/list_changed")),
    ),
}


@define(eq=False)
class _Play:
    """One story on one side."""

    side: Side
    nursery: trio.Nursery
    session: ClientSession
    seen: list[str]
    ids: dict[str, Any] = field(factory=dict)
    asked: list[str] = field(factory=list)
    scopes: dict[str, trio.CancelScope] = field(factory=dict)
    number: int = 0
    over: bool = False

    def see(self, channel: str, text: str) -> None:
        if not self.over:
            # The ids of listeners are counted through the whole program.
            self.seen.append(f"{self.number} {channel}: " + re.sub(r"listen-\d+", self._name, text))

    def _name(self, found: re.Match[str]) -> str:
        return next((f"<{name}>" for name, known in self.ids.items() if known == found.group()), found.group())

    def hear(self, message: Mapping[str, Any]) -> None:
        if message.get("method") == "subscriptions/listen":
            self.ids[self.asked.pop(0)] = message["id"]
        params = {key: value for key, value in (message.get("params") or {}).items() if key != "reason"}
        self.see("wire", shown({**message, "params": params}))

    async def on_message(self, message: IncomingMessage) -> None:
        self.see("message", type(message).__name__)

    async def perform(self, step: Step) -> None:
        match step:
            case Listen():
                self.asked.append(step.name)
                self.nursery.start_soon(self._listen, step)
            case StopListening():
                self.scopes[step.name].cancel()
            case PeerSays():
                await self.side.feed(b"".join(line(message, self.ids) for message in step.messages))
            case PeerCloses():
                self.side.close()

    async def _listen(self, step: Listen) -> None:
        scope = self.scopes[step.name] = trio.CancelScope()
        try:
            with scope:
                async with listen(self.session, **dict.fromkeys(step.kinds, True)) as events:  # type: ignore[arg-type]  # names of kinds
                    honored = events.honored.model_dump(by_alias=True, exclude_none=True)
                    self.see(step.name, f"agreed {shown(honored)}")
                    async for event in events:
                        self.see(step.name, type(event).__name__)
                self.see(step.name, "ended")
        except MCPError as error:
            self.see(step.name, f"error {error.code}")
        except SubscriptionLost as lost:
            cause = lost.__cause__
            self.see(step.name, f"lost, error {cause.code}" if isinstance(cause, MCPError) else "lost")
        if scope.cancelled_caught:
            self.see(step.name, "gone")


async def _told(side_name: SideName, steps: tuple[Step, ...], clock: trio.testing.MockClock) -> list[str]:
    del clock
    seen: list[str] = []
    async with trio.open_nursery() as nursery:
        play: _Play

        async def on_message(message: IncomingMessage) -> None:
            await play.on_message(message)

        side = SIDES[side_name](nursery, lambda message: play.hear(message), lambda: None)
        async with ClientSession(dispatcher=side.dispatcher, message_handler=on_message) as session:
            session.adopt(
                types.DiscoverResult(
                    supported_versions=[LATEST_MODERN_VERSION], capabilities=types.ServerCapabilities()
                )
            )
            play = _Play(side, nursery, session, seen)
            for number, step in enumerate((Listen("first"), *steps)):
                play.number = number
                await play.perform(step)
                await trio.testing.wait_all_tasks_blocked()
            play.over = True
            side.hang_up()
            nursery.cancel_scope.cancel()
    return seen


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", ["ours", "ours over streams"])
@pytest.mark.parametrize("story", LISTENING)
def test_8_what_a_listener_hears_is_the_same_over_both(story: str, side: SideName, seed: int) -> None:
    def told(side: SideName) -> dict[str, list[str]]:
        lines: list[str] = run_seeded(_told, side, LISTENING[story], seed=seed)
        by_channel: dict[str, list[str]] = {}
        for text in lines:
            by_channel.setdefault(text.split()[1], []).append(text)
        # The SDK's dispatcher hands notifications of one breath over in any order.
        by_channel.get("message:", []).sort()
        return by_channel

    theirs, ours = told("sdk"), told(side)
    assert "first:" in theirs
    assert ours == theirs


def test_8_a_listener_misses_nothing_of_what_it_agreed_to_hear() -> None:
    heard: list[str] = run_seeded(_told, "ours", LISTENING["changes around the acknowledgement in one breath"], seed=0)
    assert [text for text in heard if "first:" in text] == [
        '1 first: agreed {"resourcesListChanged":true,"toolsListChanged":true}',
        "1 first: ToolsListChanged",
    ]
    # Whoever does not listen is told of both, and nobody but the listener of the acknowledgement.
    assert [text for text in heard if "message:" in text] == [
        "1 message: ResourceListChangedNotification",
        "1 message: ToolListChangedNotification",
    ]


def test_8_a_change_that_is_told_twice_in_one_breath_is_heard_once() -> None:
    # What waits for the listener is held once. We read a breath whole before anybody hears of it, so that the tools are
    # read again once; with the SDK's dispatcher that hangs on the order in which tasks run.
    def times(side: SideName) -> set[int]:
        steps = (says(_ACK, _TOOLS, _TOOLS),)
        return {run_seeded(_told, side, steps, seed=seed).count("1 first: ToolsListChanged") for seed in range(12)}

    assert times("ours") == {1}
    assert times("sdk") == {1, 2}
