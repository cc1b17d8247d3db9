"""Exchanges that nobody wrote: made up by Hypothesis, and the same comes of them on both sides.

What is made up leaves out what the two are known to differ in (``DIFFERENCES`` in test_exchanges): messages that break
the rules, progress that goes backwards or comes behind its answer in one breath, peers that do not read. Limits are
those of the SDK, which progress does not move. What happens within one step has no order, for with the SDK's it hangs
on the order of tasks; what the interceptor meets has one all the same, and with ours what is handed over has, too.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from ._comparison import Contrast, contrast
from ._sides import SideName
from ._stage import Seen, play
from .steps import (
    Advance,
    Ask,
    Cancel,
    Finish,
    IdOf,
    Leave,
    PeerCloses,
    PeerLine,
    Run,
    Step,
    Tell,
    answer,
    cancelled,
    progress,
    refusal,
    request,
    says,
)

_REQUESTS = [f"r{number}" for number in range(6)]
_SERVED: list[Any] = [1, 2, "3", "p"]

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, "", "x", "\U0001f600", "\u2028", "a\nb"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "_meta"]), inner, max_size=2)
    ),
    max_leaves=4,
)
_objects = st.dictionaries(st.sampled_from(["a", "name", "n"]), _json, max_size=2)
_own_ids: st.SearchStrategy[Any] = st.sampled_from([1, 2, 3, 0, -1, 10**20, "1", "2", " 3", "x", "", "1.0", "\u0663"])
_limits = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])


@st.composite
def _asks(draw: st.DrawFn) -> Step:
    options: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        options["request_id"] = draw(_own_ids)
    if draw(st.integers(0, 2)) == 0:
        options["timeout"] = draw(_limits)
    if draw(st.integers(0, 4)) == 0:
        options["cancel_on_abandon"] = False
    return Ask(
        draw(st.sampled_from(_REQUESTS)),
        draw(st.none() | _objects),
        options,
        hears_progress=draw(st.booleans()),
        breaks_at_progress=draw(st.integers(0, 9)) == 0,
        cancelled_already=draw(st.integers(0, 9)) == 0,
        traced=draw(st.integers(0, 9)) == 0,
    )


def _answers(method: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """What the peer may say at once about a request of ours; progress rises from one to the next by itself."""
    told = st.lists(st.just({"progress of": method}), max_size=3)
    other_form = st.booleans()
    ends = (
        st.builds(lambda result, other: answer(method, result, other_form=other), _objects, other_form)
        | st.builds(
            lambda code, text: refusal(method, code, text),
            st.sampled_from([-32601, -1, 7]),
            st.sampled_from(["", "no"]),
        )
        | st.builds(lambda data: refusal(method, -9, "no", data=data), _json)
    )
    return st.builds(lambda before, end: [*before, *end], told, st.lists(ends, max_size=2))


def _tells() -> st.SearchStrategy[list[dict[str, Any]]]:
    methods = st.sampled_from(["note", "consumed", "crash", "notifications/message", "notifications/progress"])
    return st.builds(lambda method, params: [{"method": method, "params": params}], methods, _objects)


def _serves(ends: bool) -> st.SearchStrategy[list[dict[str, Any]]]:
    # What these two answer where the connection ends is declared.
    methods = ["echo", "wait", "wait", "refuse", "report", "tell", *([] if ends else ["stubborn", "ask back"])]
    params = _objects | st.builds(
        lambda token: {"_meta": {"progressToken": token}}, st.sampled_from([1, "t", True, []])
    )
    asks = st.builds(
        lambda request_id, method, params: [request(request_id, method, **params)],
        st.sampled_from(_SERVED),
        st.sampled_from(methods),
        params,
    )
    ids: st.SearchStrategy[Any] = st.sampled_from([*_SERVED, "1", 3, 9, True, None, 1.0])
    return asks | st.builds(lambda request_id: [cancelled(request_id)], ids)


_strange: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"id": 99, "result": {}},
        {"id": "none", "result": {}},
        {"id": "none", "error": {"code": 1, "message": "m"}},
        {"id": None, "method": "note"},
        {"id": True, "method": "note"},
        cancelled(IdOf("r0")),
        {"method": "notifications/cancelled"},
        {"method": "notifications/progress", "params": {"progressToken": "none", "progress": 1}},
    ]
)


def _subject(message: dict[str, Any]) -> str:
    """What a message is about: of two about the same thing in one breath, which came first can hang on the tasks."""
    params = message.get("params")
    if message.get("method") == "notifications/cancelled":
        return "served" if params else ""
    return "served" if "method" in message and message.get("id") is not None else ""


@st.composite
def _breaths(draw: st.DrawFn, ends: bool) -> list[dict[str, Any]]:
    kinds: list[st.SearchStrategy[list[dict[str, Any]]]] = [
        st.sampled_from([*_REQUESTS, "back"]).flatmap(_answers),
        _tells(),
        _serves(ends),
        st.builds(lambda message: [message], _strange),
    ]
    breath: list[dict[str, Any]] = []
    for part in draw(st.lists(st.one_of(kinds), min_size=1, max_size=3)):
        answered = {message["id"] for message in breath if isinstance(message.get("id"), IdOf)}
        about = {_subject(message) for message in breath} - {""}
        for message in part:
            if (
                "progress of" in message
                and {
                    IdOf(message["progress of"]),
                    IdOf(message["progress of"], other_form=True),
                }
                & answered
            ):
                continue
            if _subject(message) not in about:
                breath.append(message)
    return breath


@st.composite
def exchanges(draw: st.DrawFn, *, ends: bool) -> list[Step]:
    """The steps of an exchange, of one in which the connection ends or of one in which it does not."""
    breath = _breaths(ends)
    kinds: list[st.SearchStrategy[Any]] = [
        *(_asks(), _asks(), breath, breath, breath),
        st.builds(Cancel, st.sampled_from(_REQUESTS)),
        st.builds(Advance, st.sampled_from([0.25, 0.75, 1.0, 3.0])),
        st.builds(Finish, st.sampled_from(_SERVED)),
        st.builds(Tell, st.just("told"), st.none() | _objects),
        st.builds(PeerLine, st.sampled_from(["not JSON", "null", "5", '"x"', "{"])),
    ]
    steps: list[Any] = draw(st.lists(st.one_of(kinds), min_size=3, max_size=14))
    if ends:
        steps.insert(draw(st.integers(0, len(steps))), draw(st.sampled_from([Leave(), PeerCloses()])))
    done: list[Step] = [Run()]
    asked: set[str] = set()
    told = 0
    ended = False
    for step in steps:
        ended = ended or isinstance(step, Leave | PeerCloses)
        if isinstance(step, list):
            said: list[dict[str, Any]] = []
            for message in step:
                if "progress of" in message:
                    told += 1
                    said.append(progress(message["progress of"], told, total=100, message=f"step {told}"))
                else:
                    said.append(message)
            if said:
                done.append(says(*said))
        elif isinstance(step, Ask):
            # A name is used once; which of two of one name the peer means could not be told.
            if step.method not in asked:
                asked.add(step.method)
                # After the end a caller that is cancelled already is told so by ours, and of the end by the SDK's.
                done.append(evolve(step, cancelled_already=step.cancelled_already and not ended))
        elif not isinstance(step, Cancel) or step.method in asked:
            done.append(step)
    return done


def _in_order(seen: list[Seen]) -> None:
    """Ours hands over every notification that was not consumed, in the order in which the interceptor met it."""
    met = [item.text for item in seen if item.channel == "intercept" and not item.text.startswith("consumed")]
    told = [item.text for item in seen if item.channel == "notify"]
    assert told == met


def _compare(side: SideName, steps: list[Step], seed: int) -> None:
    ours = play(side, steps, seed=seed, hard_limits=True)
    assert contrast(play("sdk", steps, seed=seed), ours, loose=True) == Contrast()
    if not any(isinstance(step, Leave | PeerCloses) for step in steps):
        _in_order(ours)


@settings(max_examples=100, deadline=None)
@given(exchanges(ends=False), st.integers(0, 3))
@pytest.mark.parametrize("side", ["ours", "ours over streams"])
def test_the_same_comes_of_any_exchange(side: SideName, steps: list[Step], seed: int) -> None:
    _compare(side, steps, seed)


@settings(max_examples=100, deadline=None)
@given(exchanges(ends=True), st.integers(0, 3))
def test_the_same_comes_of_any_exchange_in_which_the_connection_ends(steps: list[Step], seed: int) -> None:
    _compare("ours", steps, seed)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(st.booleans().flatmap(lambda ends: exchanges(ends=ends)), st.integers(0, 7))
def test_the_same_comes_of_thousands_of_exchanges(steps: list[Step], seed: int) -> None:
    _compare("ours", steps, seed)
