"""The SDK's dispatcher and ours, given the same exchanges: the same comes of them, but for what is declared here.

Each exchange is in ``exchanges.py``; what is seen of it, and how it is played, in ``_stage.py``. Every difference
stands in ``DIFFERENCES`` with the reason why ours is better, and there must be these and no others. What hangs on the
order in which Trio runs tasks is compared in ``test_order.py``, over many orders.

What the table does not hold, since nothing of it is seen: the SDK's ``cancelled`` notifications carry a reason for
people to read ("caller cancelled"), ours carry none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from attrs import field, frozen

from ._comparison import Contrast, contrast
from ._sides import SideName
from ._stage import Seen, play
from .exchanges import EXCHANGES, Exchange

SEEDS: Final = range(3)
OURS: Final[tuple[SideName, ...]] = ("ours", "ours over streams")


@frozen
class Difference:
    """A difference that is meant.

    Args:
        why: Why ours is better, or why it does not matter.
        sdk: What only the SDK's shows: the step, the channel, and what is seen there.
        ours: What only ours shows.
        streams: The same over streams, where that differs.
    """

    why: str
    sdk: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    streams: Contrast | None = None

    def on(self, side: SideName) -> Contrast:
        """What differs on this side."""
        if side == "ours over streams" and self.streams is not None:
            return self.streams
        return Contrast(self.sdk, self.ours)


def _noise(*steps: int) -> tuple[str, ...]:
    return tuple(f"{step} noise: a line that is no message" for step in steps)


def _neither(step: int, method: str) -> str:
    return f'{step} call: {method}: error -32603 "the server\'s answer is neither a result nor an error"'


def _timed_out(step: int, method: str = "a") -> str:
    return f"{step} call: {method}: error -32001 \"Request '{method}' timed out\""


def _cancelled(step: int) -> str:
    return f'{step} wire: {{"method":"notifications/cancelled","params":{{"requestId":1}}}}'


_TOLD_SO: Final = '{"error":{"code":-32000,"message":"Connection closed"},"id":1}'
_CLOSED: Final = "error -32000 'Connection closed'"

DIFFERENCES: Final[Mapping[str, Difference]] = {
    # How it lives.
    "a notification before run is sent when it runs": Difference(
        "A stream cannot be written to without waiting, so what is told before there is a task for it waits for run. "
        "Over pipes it goes at once.",
        streams=Contrast(
            sdk=('1 wire: {"method":"t","params":{"n":1}}',), ours=('2 wire: {"method":"t","params":{"n":1}}',)
        ),
    ),
    "a second run": Difference(
        "Two readers of one stream would share its messages out between them; the program is told of its mistake.",
        sdk=("2 run: started",),
        ours=("2 run: raised RuntimeError",),
    ),
    "a second run after the end": Difference(
        "The connection cannot come back; that it seems to would hide the program's mistake.",
        sdk=("3 run: started", "3 run: ended"),
        ours=("3 run: raised RuntimeError",),
    ),
    # What goes out.
    "an empty _meta": Difference(
        "What the caller gives goes out as it is, without a look at it for every call; nothing of ours gives an empty "
        "one.",
        sdk=('2 wire: {"id":1,"method":"a"}', '3 wire: {"id":2,"method":"b","params":{"n":1}}'),
        ours=(
            '2 wire: {"id":1,"method":"a","params":{"_meta":{}}}',
            '3 wire: {"id":2,"method":"b","params":{"_meta":{},"n":1}}',
        ),
    ),
    "a _meta of null": Difference(
        "The same: what the caller gives goes out as it is. Nothing of ours gives null.",
        sdk=('2 wire: {"id":1,"method":"a","params":{"n":1}}',),
        ours=('2 wire: {"id":1,"method":"a","params":{"_meta":null,"n":1}}',),
    ),
    "params that are no JSON": Difference(
        "They fail their own request, before anything is sent. The SDK's fail in the transport, and take every "
        "request on the connection with them.",
        sdk=(f"2 call: a: {_CLOSED}", f"3 call: b: {_CLOSED}", "2 run: ended"),
        ours=(
            *("2 call: a: raised TypeError", '4 call: b: result {"of":"b"}'),
            *("5 intercept: still there null", "5 notify: still there null"),
            '3 wire: {"id":2,"method":"b"}',
        ),
    ),
    "half a character goes out": Difference(
        "Models write such texts. JSON has an escape for it; with the SDK it ends the connection.",
        sdk=(f"2 call: a: {_CLOSED}", f"3 call: b: {_CLOSED}", "2 run: ended"),
        ours=(
            *('4 call: b: result {"of":"b"}', "5 call: a: waits"),
            *("5 intercept: still there null", "5 notify: still there null"),
            *('2 wire: {"id":1,"method":"a","params":{"x":"\\ud83d"}}', '3 wire: {"id":2,"method":"b"}'),
        ),
    ),
    "asked for after the end, in a cancelled scope": Difference(
        "Whoever is cancelled is told so first. It lets others run, too, so that one who asks again at once does not "
        "keep them from learning of the end.",
        sdk=(f"3 call: a: {_CLOSED}",),
        ours=("3 call: a: cancelled",),
    ),
    # Giving up.
    "hints to resume by": Difference(
        "stdio cannot resume a request, so a server is told that nobody waits for it.",
        ours=(_cancelled(3),),
    ),
    "progress while a limit runs": Difference(
        "A limit is for a server that has gone silent. What must end whatever is heard has hard_timeout, which is the "
        "SDK's timeout.",
        sdk=(_timed_out(5), _cancelled(5)),
        ours=(_timed_out(6), _cancelled(6)),
    ),
    "a peer that does not read: a limit runs out": Difference(
        "A caller waits no longer than its limit for a peer that does not read, and what has not begun to leave is "
        "taken back: the peer never sees it. With the SDK it waits for ever.",
        sdk=(_timed_out(7), '5 wire: {"id":1,"method":"a"}', _cancelled(7)),
        ours=(_timed_out(4),),
    ),
    "a peer that does not read: the caller is cancelled": Difference(
        "It returns at once, since what has not begun to leave can be taken back; with the SDK it waits for 5 s, to "
        "write a cancellation of what was never sent.",
        sdk=("5 call: a: cancelled",),
        ours=("4 call: a: cancelled",),
    ),
    "a peer that has stopped reading since: the limit runs out all the same": Difference(
        "The caller returns when its limit runs out, and the peer is told once it reads again. With the SDK it waits "
        "5 s longer, and then the peer is not told.",
        sdk=(_timed_out(5),),
        ours=(_timed_out(4), _cancelled(6)),
    ),
    "a peer that has stopped reading since: the caller goes": Difference(
        "The same for a caller that is cancelled.",
        sdk=("5 call: a: cancelled",),
        ours=("4 call: a: cancelled", _cancelled(6)),
    ),
    # What an answer may be.
    "answers under ids that are unknown, mistyped or none": Difference(
        "Whatever is JSON and answers nothing is counted as dropped; it is not told as noise, which is for what a "
        "person should see.",
        sdk=_noise(5, 6, 7, 8, 9, 10),
    ),
    "results that are no objects": Difference(
        "An answer that is no object fails its own call; with the SDK the call waits for ever.",
        sdk=(*(f"12 call: {method}: waits" for method in ("list", "null", "number", "text")), *_noise(7, 8, 9, 10)),
        ours=(_neither(7, "list"), _neither(8, "text"), _neither(9, "null"), _neither(10, "number")),
    ),
    "answers of neither kind": Difference(
        "The same. One that is both says nothing that can be relied on.",
        sdk=("7 call: both: error 1 'm'", "10 call: neither: waits", *_noise(6)),
        ours=(_neither(6, "neither"), _neither(7, "both")),
    ),
    "errors that are none by the rules": Difference(
        "An error is an error however it is written: its call fails, with what can be read of it. With the SDK it "
        "waits for ever. A code that is a text is none of the codes that anything is decided by.",
        sdk=(
            "10 call: code: error -5 'no'",
            *(f"14 call: {method}: waits" for method in ("empty", "message", "no code", "no message", "text")),
            *_noise(8, 9, 11, 12, 13),
        ),
        ours=(
            _neither(8, "text"),
            "9 call: no code: error -32603 'no'",
            "10 call: code: error -32603 'no'",
            "11 call: no message: error -5 ''",
            "12 call: message: error -5 ''",
            "13 call: empty: error -32603 ''",
        ),
    ),
    "an error without an id, with one request on its way": Difference(
        "A server that could not read a request says so without its id. With one on its way, it can be no other.",
        sdk=("4 call: a: waits",),
        ours=("3 call: a: error -32700 'what?'",),
    ),
    "answers without the version of JSON-RPC, or with another one": Difference(
        "There are servers that leave it out, and nothing hangs on it.",
        sdk=("6 call: a: waits", "6 call: b: waits", *_noise(3, 5)),
        ours=('3 call: a: result {"n":1}', '5 call: b: result {"of":"b"}'),
    ),
    "half a character comes in": Difference(
        "The answer is read, with what it holds.",
        sdk=("4 call: a: waits", *_noise(3)),
        ours=('3 call: a: result {"x":"\\ud83d"}',),
    ),
    "an answer that is no JSON": Difference(
        "The id can be read where the answer cannot: its call fails rather than wait for ever. Both tell it as noise.",
        sdk=("5 call: a: waits",),
        ours=('4 call: a: error -32603 "the server\'s answer was not JSON"',),
    ),
    "a batch": Difference(
        "Revision 2025-03-26 has batches.",
        sdk=("6 call: a: waits", "6 call: b: waits", *_noise(4)),
        ours=("4 call: a: result {}", "4 call: b: result {}"),
    ),
    "lines that are no messages": Difference(
        "A JSON object that is no message is counted as dropped, as a late answer is. What is no JSON object is told "
        "as noise: mostly it is what a server meant for people.",
        sdk=_noise(8, 9, 10),
    ),
    # Progress.
    "progress that goes backwards": Difference(
        "By the specification it must increase; a server that repeats itself for ever must not keep a call alive.",
        sdk=("4 progress: a [1.0,null,null]",),
    ),
    "progress with a total of true": Difference(
        "A boolean is no number, as the progress itself.",
        sdk=("3 progress: a [1.0,1.0,null]",),
        ours=("3 progress: a [1.0,null,null]",),
    ),
    "progress as large as it can be written": Difference(
        "A number that is too large costs itself. With the SDK it ends the connection with an OverflowError.",
        sdk=(f"3 call: a: {_CLOSED}", "3 run: raised OverflowError"),
        ours=(
            "6 call: a: waits",
            '3 intercept: notifications/progress {"progress":10...,"progressToken":1}',
            '4 intercept: notifications/progress {"progress":1,"progressToken":1,"total":10...}',
            '5 intercept: notifications/progress {"progress":2,"progressToken":1}',
            "6 intercept: still there null",
            '3 notify: notifications/progress {"progress":10...,"progressToken":1}',
            '4 notify: notifications/progress {"progress":1,"progressToken":1,"total":10...}',
            '5 notify: notifications/progress {"progress":2,"progressToken":1}',
            "6 notify: still there null",
            "4 progress: a [1.0,null,null]",
            "5 progress: a [2.0,null,null]",
        ),
    ),
    # What the peer asks and tells.
    "notifications with params that are no object": Difference(
        "What a server tells is heard, without the parameters that cannot be used.",
        sdk=_noise(2, 4),
        ours=("2 intercept: list null", "4 intercept: text null", "2 notify: list null", "4 notify: text null"),
    ),
    "requests with params that are no object": Difference(
        "A request is answered, be it with a refusal for want of parameters. With the SDK the server waits for ever.",
        sdk=_noise(2, 4),
        ours=(
            *("2 serve: 1 echo null", "2 serve: 1 echo returned", "4 serve: 3 echo null", "4 serve: 3 echo returned"),
            *('2 wire: {"id":1,"result":{"echo":null}}', '4 wire: {"id":3,"result":{"echo":null}}'),
        ),
    ),
    "a handler is given what does not validate": Difference(
        "An empty text as data says nothing.",
        sdk=('2 wire: {"error":{"code":-32602,"data":"","message":"Invalid request parameters"},"id":1}',),
        ours=('2 wire: {"error":{"code":-32602,"message":"Invalid request parameters"},"id":1}',),
    ),
    "a handler crashes": Difference(
        "No text of an exception of ours goes out, for it may hold anything; and 0 is no code of JSON-RPC.",
        sdk=('2 wire: {"error":{"code":0,"message":"secret"},"id":1}',),
        ours=('2 wire: {"error":{"code":-32603,"message":"Internal error"},"id":1}',),
    ),
    "a handler answers with what is no JSON": Difference(
        "It costs its own request. The SDK's fails in the transport and ends the connection.",
        sdk=("2 run: ended",),
        ours=(
            *("4 intercept: still there null", "4 notify: still there null"),
            *("3 serve: 2 echo null", "3 serve: 2 echo returned"),
            '2 wire: {"error":{"code":-32603,"message":"Internal error"},"id":1}',
            '3 wire: {"id":2,"result":{"echo":null}}',
        ),
    ),
    # The end.
    "the peer closes while it is served": Difference(
        "What could not be cancelled came to its end, and the peer may still read: it gets the answer. Over streams, "
        "nothing is written once the connection has ended, for that could wait for ever.",
        ours=('5 wire: {"id":"s","result":{"echo":null}}',),
        streams=Contrast(sdk=(f"4 wire: {_TOLD_SO}",)),
    ),
    "the peer closes while a handler waits for it": Difference(
        "The handler passed on that the connection is closed, and the peer, which may still read, is told so.",
        ours=(f"3 wire: {_TOLD_SO}",),
        streams=Contrast(),
    ),
    "we leave while a handler waits for the peer": Difference(
        "Over streams, nothing is written once the connection has ended; the peer sees that its input ends.",
        streams=Contrast(sdk=(_cancelled(3), f"3 wire: {_TOLD_SO}")),
    ),
    "we leave while the peer is served": Difference(
        "Over streams, nothing is written once the connection has ended; the peer sees that its input ends.",
        streams=Contrast(sdk=(f"3 wire: {_TOLD_SO}",)),
    ),
    "we leave while a handler waits for the peer and cannot be cancelled": Difference(
        "The callers are woken before the handlers are waited for. With the SDK, leaving waits for a handler that "
        "waits for an answer that nobody gives any more: for ever.",
        ours=("3 run: cancelled", "3 serve: 1 ask back stubbornly raised", f"3 wire: {_TOLD_SO}"),
        streams=Contrast(ours=("3 run: cancelled", "3 serve: 1 ask back stubbornly raised")),
    ),
    "the peer closes while a handler waits for it and cannot be cancelled": Difference(
        "The handler passed on that the connection is closed, and the peer, which may still read, is told so.",
        ours=(f"3 wire: {_TOLD_SO}",),
        streams=Contrast(),
    ),
    "the peer hangs up while requests wait": Difference(
        "A peer that reads no more ends the connection, once it has answered what it had read. Until then a new "
        "request waits: whoever repeats what was never sent would not stop.",
        sdk=(f"4 call: b: {_CLOSED}", "7 run: ended"),
        ours=(f"6 call: b: {_CLOSED}", "6 run: ended"),
        streams=Contrast(sdk=(f"4 call: b: {_CLOSED}",), ours=(f"7 call: b: {_CLOSED}",)),
    ),
    "the peer hangs up while it is served": Difference(
        "The same: with nothing left to be answered, the connection has ended.",
        sdk=("5 run: ended",),
        ours=("4 run: ended",),
    ),
    "the peer closes and does not read": Difference(
        "What cannot be written is not waited for; the SDK waits for a second.",
        sdk=("6 run: ended",),
        ours=("5 run: ended",),
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", OURS)
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_the_same_comes_of_every_exchange_but_for_what_is_declared(
    exchange: Exchange, side: SideName, seed: int
) -> None:
    if side == "ours over streams" and exchange.needs_a_full_pipe:
        return  # a stream in memory takes whatever is written to it
    declared = DIFFERENCES.get(exchange.name)
    found = contrast(play("sdk", exchange.steps, seed=seed), play(side, exchange.steps, seed=seed))
    assert found == (Contrast() if declared is None else declared.on(side))


def test_no_difference_is_declared_that_belongs_to_no_exchange_or_has_no_reason() -> None:
    names = [exchange.name for exchange in EXCHANGES]
    assert len(names) == len(set(names))
    assert DIFFERENCES.keys() <= set(names)
    assert all(len(difference.why) > 20 for difference in DIFFERENCES.values())


def test_with_a_hard_limit_it_is_the_sdks_own() -> None:
    # Not declared as a difference: what progress does not move is there, under a name of its own.
    (steps,) = (exchange.steps for exchange in EXCHANGES if exchange.name == "progress while a limit runs")
    assert contrast(play("sdk", steps), play("ours", steps, hard_limits=True)) == Contrast()


# The list that any dispatcher has to keep, and where each of its points is held.

_STDIO: Final = Path(__file__).parent.parent


@frozen
class Point:
    """A point of the list.

    Args:
        what: What it asks for.
        also: Tests that hold what two dispatchers cannot be compared in, in the files beside this folder.
    """

    what: str
    also: Mapping[str, tuple[str, ...]] = field(factory=dict)


POINTS: Final[Mapping[int, Point]] = {
    1: Point(
        "Error before run, CONNECTION_CLOSED after; single use; started() when usable.",
        {"test_stdio_dispatcher.py": ("test_it_runs_once",)},
    ),
    2: Point("Supplied ids verbatim on the wire, coerced as keys; collisions; minting skips; a bool is no id."),
    3: Point(
        "Params copied; the token is the id; trace context; empty params left out.",
        {"test_stdio_dispatcher.py": ("test_3_params_are_copied_and_the_progress_token_is_the_id",)},
    ),
    4: Point(
        "A cancelled caller sends nothing; from the write on it counts as issued; the clock starts then.",
        {
            "test_stdio_dispatcher.py": (
                "test_4_the_clock_of_a_limit_starts_when_the_peer_has_the_request",
                "test_a_request_of_which_something_has_left_is_written_whole_and_then_cancelled",
            )
        },
    ),
    5: Point("Abandoning: cancelled, bounded; none where forbidden, none when never written."),
    6: Point(
        "The first outcome wins; late answers are dropped; cancel and answer in one step wake once.",
        {
            "test_stdio_dispatcher.py": (
                "test_6_an_answer_and_a_cancellation_in_one_step_wake_the_caller_once",
                "test_6_a_limit_and_an_answer_in_one_step_give_one_outcome",
            ),
            "test_stdio_pressure.py": ("test_a_caller_may_be_cancelled_at_any_step",),
        },
    ),
    7: Point(
        "Own close known by identity; at EOF waiters are woken before handlers are cancelled; notify never raises.",
        {
            "test_stdio_dispatcher.py": (
                "test_7_a_peer_that_sends_our_code_for_a_closed_connection_has_not_closed_it",
                "test_7_callers_are_woken_before_the_handlers_are_waited_for",
            )
        },
    ),
    8: Point(
        "Every notification meets the interceptor synchronously in wire order; so does listen.",
        {"differential/test_listen.py": ("test_8_what_a_listener_hears_is_the_same_over_both",)},
    ),
    9: Point("A task and scope for each inbound request; duplicates; cancelled ones unanswered; errors shaped."),
    10: Point("Callbacks contained; types of progress checked; a result that is no object fails that call alone."),
    11: Point(
        "A hook of our own for what is no message.",
        {
            "test_stdio_inbound.py": (
                "test_11_lines_that_are_no_messages_are_told_and_an_answer_among_them_fails_its_request_alone",
            )
        },
    ),
}


@pytest.mark.parametrize("number", POINTS)
def test_each_point_of_the_list_has_exchanges_and_the_tests_that_it_names(number: int) -> None:
    assert [exchange.name for exchange in EXCHANGES if number in exchange.points]
    for file, names in POINTS[number].also.items():
        text = (_STDIO / file).read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"def {name}\(", text), f"{file} has no {name}"


def test_what_is_compared_is_not_nothing() -> None:
    seen: list[Seen] = [item for exchange in EXCHANGES for item in play("ours", exchange.steps)]
    channels = {item.channel for item in seen}
    assert channels == {"call", "wire", "intercept", "notify", "progress", "serve", "noise", "run"}
    assert len(EXCHANGES) > 100
