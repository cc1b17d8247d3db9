"""Tool calls by our session and by the SDK's own client: the same frames go out, and the same comes of the answers.

Our session sends ``tools/call`` past the SDK's typed layer, so that all that this layer does for a call is compared
here, in both eras: the stamps of an era, input rounds, an outdated schema, output schemas, tracing, limits. Each frame
is compared whole, and with its time. Differences are declared, with their reasons, as for dispatchers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
import pytest
from attrs import field, frozen

from ._comparison import Contrast
from ._conversation import NO_TOOLS, THIS, UNUSABLE, Call, Conversation, Era, Held, hold

ERAS: Final[tuple[Era, ...]] = ("legacy", "2026-07-28")


# What a server says.

_TEXT: Final = {"type": "text", "text": "hi"}
_DONE: Final = 'result {"content":[{"text":"hi","type":"text"}],"isError":false,"resultType":"complete"}'


def _result(**more: Any) -> Mapping[str, Any]:
    return {"id": THIS, "result": {"resultType": "complete", "content": [_TEXT], **more}}


def _raw(**result: Any) -> Mapping[str, Any]:
    return {"id": THIS, "result": result}


def _refusal(code: int, message: str = "no", **more: Any) -> Mapping[str, Any]:
    return {"id": THIS, "error": {"code": code, "message": message, **more}}


def _asks(state: str | None = None, **requests: Any) -> Mapping[str, Any]:
    return _raw(
        resultType="input_required",
        **({"inputRequests": requests} if requests else {}),
        **({} if state is None else {"requestState": state}),
    )


def _replies(*replies: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], ...]:
    return tuple((reply,) for reply in replies)


_SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "string"}}}
_FORM: Final = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "who?", "requestedSchema": _SCHEMA},
}
_SAMPLE: Final = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}}
_LISTED: Final = _raw(
    resultType="complete", ttlMs=0, cacheScope="private", tools=[{"name": "tool", "inputSchema": {"type": "object"}}]
)
_MISMATCH: Final = _refusal(types.HEADER_MISMATCH, "outdated")


async def _accepts(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"n": "me"})


async def _declines(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


async def _fails(context: Any, params: Any) -> types.ErrorData:
    return types.ErrorData(code=-7, message="never")


def _with_output(schema: Any) -> Conversation:
    """Every kind of structured content, for a tool of this output schema. Only objects have any before 2026-07-28."""
    values: tuple[Any, ...] = ({"n": 1}, {"n": "x"}, {}, [1], ["x"], None, 5)
    replies = (*(_result(structuredContent=value) for value in values), _result(), _result(isError=True))
    tool = {"name": "tool", "inputSchema": {"type": "object"}, "outputSchema": schema}
    eras = ERAS if schema.get("type") == "object" else ERAS[1:]
    return Conversation(_replies(*replies), (Call(),) * len(replies), (tool,), eras=eras)


CONVERSATIONS: Final[Mapping[str, Conversation]] = {
    "calls": Conversation(
        _replies(_result(), _result(), _result()),
        (
            Call(arguments={"a": None, "b": {"c": None, "d": [None, 1.5, "\u2028"]}}),
            Call(hears_progress=True, traced=True),
            Call(traced=True, arguments={"_meta": {"not": "ours"}}),
        ),
    ),
    "limits and cancellations": Conversation(
        ((), (), (_result(),)), (Call(timeout=2.0), Call(cancelled_after=1.0), Call(timeout=5.0))
    ),
    "a tool that fails": Conversation(_replies(_result(isError=True))),
    "refusals": Conversation(_replies(_refusal(-32602), _refusal(-32601, data={"a": 1})), (Call(), Call())),
    "a tool that was not listed": Conversation(_replies(_result(), _LISTED), (Call("other"),)),
    "what the server asks meanwhile": Conversation(
        (
            (
                {"id": 1, "method": "ping"},
                {"id": 2, **_SAMPLE},
                {"id": 3, "method": "roots/list"},
                {"id": 4, **_FORM},
                {"id": 5, "method": "foo"},
                {"method": "notifications/message", "params": {"level": "info", "data": "x"}},
                _result(),
            ),
        )
    ),
    # Results.
    "structured content without a schema": Conversation(
        _replies(_result(structuredContent={"n": 1}), _result(structuredContent=[1])), (Call(), Call())
    ),
    "members beside the content": Conversation(_replies(_result(_meta={"a": 1}, ttlMs=-5, more=1))),
    "a result of an unknown kind": Conversation(_replies(_raw(resultType="odd", content=[_TEXT]))),
    "a result of no kind": Conversation(_replies(_raw(content=[_TEXT]))),
    "a result without content": Conversation(_replies(_raw(resultType="complete"))),
    "content that is no list": Conversation(_replies(_result(content=5))),
    "a block of an unknown kind": Conversation(_replies(_result(content=[_TEXT, {"type": "odd"}]))),
    # Output schemas.
    "an output schema": _with_output({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    "an output schema for lists": _with_output({"type": "array", "items": {"type": "integer"}}),
    "an output schema for objects or null": _with_output({"type": ["object", "null"], "required": ["n"]}),
    "an output schema for everything": _with_output({}),
    "an output schema for numbers": _with_output({"type": "integer", "minimum": 5}),
    "an output schema that refers into itself": _with_output(
        {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    ),
    "an output schema that refers to nothing": _with_output({"type": "object", "properties": {"n": {"$ref": "#/no"}}}),
    "an output schema that is none": _with_output({"type": "object", "properties": {"n": {"type": "nonsense"}}}),
    "one tool with an output schema that is against its era": Conversation(
        _replies(_result()),
        tools=(
            {"name": "tool", "inputSchema": {"type": "object"}},
            {"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}},
        ),
        eras=ERAS[:1],
    ),
    # Input rounds.
    "rounds of a state alone": Conversation(_replies(*(_asks(f"s{number}") for number in range(6)), _result())),
    "a round that asks for nothing": Conversation(_replies(_asks(), _result())),
    "a state that is not repeated": Conversation(
        _replies(_asks("s", a=_FORM), _asks(None, b=_FORM), _result()), answers_input=_accepts
    ),
    "rounds that ask, and rounds of a state alone": Conversation(
        _replies(
            *(_asks("s", a=_FORM, b=_FORM), _asks("t"), _asks("u"), _asks("v", d=_FORM), _asks("w"), _asks("x")),
            _result(),
        ),
        (Call(arguments={"x": 1}, hears_progress=True, traced=True),),
        answers_input=_accepts,
    ),
    "a person declines": Conversation(_replies(_asks("s", a=_FORM), _result()), answers_input=_declines),
    "nobody can be asked": Conversation(_replies(_asks("s", a=_FORM), _result()), answers_input=_fails),
    "a form that was not offered": Conversation(_replies(_asks("s", a=_FORM), _result())),
    "a completion that was not offered": Conversation(_replies(_asks("s", a=_SAMPLE), _result())),
    "a round that asks for what there is not": Conversation(_replies(_asks("s", a={"method": "foo"}), _result())),
    "rounds without end": Conversation(_replies(*(_asks("s"),) * 20)),
    "a refusal in a round": Conversation(_replies(_asks("s"), _refusal(-5))),
    "a limit in a round": Conversation(((_asks("s"),), ()), (Call(timeout=3.0),)),
    # An outdated schema.
    "an outdated schema": Conversation(_replies(_MISMATCH, _LISTED, _result())),
    "a schema that stays outdated": Conversation(
        _replies(_MISMATCH, _LISTED, _refusal(types.HEADER_MISMATCH, "still"))
    ),
    "an outdated schema in a round": Conversation(_replies(_asks("s"), _MISMATCH, _LISTED, _result())),
    "an outdated schema before a round": Conversation(_replies(_MISMATCH, _LISTED, _asks("s"), _result())),
    "an outdated schema, and a list that is refused": Conversation(_replies(_MISMATCH, _refusal(-5, "list"))),
    "an outdated schema, and a list that is none": Conversation(_replies(_MISMATCH, _raw(tools=7))),
}


@frozen
class Difference:
    """A difference that is meant, in these eras.

    Args:
        why: Why ours is better, or why it does not matter.
        eras: What only the SDK's side shows, and what only ours does, by era; outcomes with the number of their call.
    """

    why: str
    eras: Mapping[str, Contrast] = field(factory=dict)


def _in_both(sdk: tuple[str, ...] = (), ours: tuple[str, ...] = ()) -> Mapping[str, Contrast]:
    return dict.fromkeys(ERAS, Contrast(sdk, ours))


def _refused_input(message: str) -> Difference:
    return Difference(
        "It is the server that has asked for what it was not offered, so its answer is of no use; the SDK raises an "
        "error as if the server had refused the call.",
        {"2026-07-28": Contrast((f"1 error -32600 {message} not supported",), (f"1 {UNUSABLE}",))},
    )


def _not_offered(number: int, method: str, message: str) -> Contrast:
    return Contrast(
        (f'0.00 {{"error":{{"code":-32600,"message":"{message} not supported"}},"id":{number}}}',),
        (f'0.00 {{"error":{{"code":-32601,"data":"{method}","message":"Method not found"}},"id":{number}}}',),
    )


_NOT_OFFERED: Final = (
    _not_offered(4, "elicitation/create", "Elicitation"),
    _not_offered(3, "roots/list", "List roots"),
    _not_offered(2, "sampling/createMessage", "Sampling"),
)

_REFERS_NOWHERE: Final = (
    'result {"content":[{"text":"hi","type":"text"}],"isError":false,"resultType":"complete","structuredContent":'
)

DIFFERENCES: Final[Mapping[str, Difference]] = {
    "a tool that was not listed": Difference(
        "All tools are read before any is called, and a call never waits for a list: 64 first calls made the SDK's "
        "client read a list of 1,000 tools 64 times.",
        {
            "legacy": Contrast(('0.00 {"id":4,"method":"tools/list"}',)),
            "2026-07-28": Contrast(('0.00 {"id":4,"method":"tools/list","params":{}}',)),
        },
    ),
    "what the server asks meanwhile": Difference(
        "A client that does not offer a method does not have it.",
        {
            "legacy": Contrast(
                tuple(line for each in _NOT_OFFERED for line in each.sdk),
                tuple(line for each in _NOT_OFFERED for line in each.ours),
            )
        },
    ),
    "structured content without a schema": Difference(
        "What a server sends beside the rules of its era costs nothing, as long as it can be read.",
        {"legacy": Contrast((f"2 {UNUSABLE}",), (f"2 {_REFERS_NOWHERE}[1]}}",))},
    ),
    "a result of an unknown kind": Difference(
        "By the specification a result of an unknown kind is invalid.",
        {
            "legacy": Contrast((f"1 {_DONE}",), (f"1 {UNUSABLE}",)),
            "2026-07-28": Contrast((f"1 {_DONE.replace('complete', 'odd')}",), (f"1 {UNUSABLE}",)),
        },
    ),
    "a result of no kind": Difference(
        "By the specification no kind is the same as complete.",
        {"2026-07-28": Contrast((f"1 {UNUSABLE}",), (f"1 {_DONE}",))},
    ),
    "a result without content": Difference(
        "An agent reads what there is, be it nothing.", _in_both((f"1 {UNUSABLE}",), ('1 result {"read":""}',))
    ),
    "content that is no list": Difference(
        "An agent reads what there is.", _in_both((f"1 {UNUSABLE}",), ('1 result {"read":"5"}',))
    ),
    "a block of an unknown kind": Difference(
        "One odd block costs only itself.",
        _in_both((f"1 {UNUSABLE}",), ('1 result {"read":"hi\\n{\\"type\\":\\"odd\\"}"}',)),
    ),
    "an output schema that refers to nothing": Difference(
        "What cannot be judged is not held against a result: the tool stays usable.",
        _in_both(
            (f"1 {UNUSABLE}", f"2 {UNUSABLE}"),
            (f'1 {_REFERS_NOWHERE}{{"n":1}}}}', f'2 {_REFERS_NOWHERE}{{"n":"x"}}}}'),
        ),
    ),
    "an output schema that is none": Difference(
        "The same: the tool stays usable.",
        _in_both(
            tuple(f"{number} {UNUSABLE}" for number in (1, 2, 3)),
            tuple(
                f"{number} {_REFERS_NOWHERE}{value}}}" for number, value in enumerate(('{"n":1}', '{"n":"x"}', "{}"), 1)
            ),
        ),
    ),
    "one tool with an output schema that is against its era": Difference(
        "One odd tool costs only itself; with the SDK it costs the whole list.",
        {
            "legacy": Contrast(
                (f"1 {NO_TOOLS}",),
                ('0.00 {"id":3,"method":"tools/call","params":{"arguments":{},"name":"tool"}}', f"1 {_DONE}"),
            )
        },
    ),
    "nobody can be asked": Difference(
        "What our own side could not do is no error of the server's.",
        {"2026-07-28": Contrast(("1 error -7 never",), (f"1 {UNUSABLE}",))},
    ),
    "a form that was not offered": _refused_input("Elicitation"),
    "a completion that was not offered": _refused_input("Sampling"),
}


def _contrast(sdk: Held, ours: Held) -> Contrast:
    theirs, mine = _lines(sdk), _lines(ours)
    more, less = Counter(theirs) - Counter(mine), Counter(mine) - Counter(theirs)
    if theirs != mine and not more and not less:
        return Contrast(("in another order",), ("in another order",))
    return Contrast(tuple(map(_short, more)), tuple(map(_short, less)))


def _lines(held: Held) -> list[str]:
    return [*held.asked, *held.answered, *(f"{number} {text}" for number, text in enumerate(held.outcomes, 1))]


def _short(text: str) -> str:
    """A line for the table, without the stamps of its era, which were compared."""
    return re.sub(r'"_meta":\{.*?"protocolVersion":"[^"]*"\},?', "", text.replace("io.modelcontextprotocol/", ""))


@pytest.mark.parametrize(
    ("name", "era"), [(name, era) for name, conversation in CONVERSATIONS.items() for era in conversation.eras]
)
def test_the_same_frames_go_out_and_the_same_comes_of_the_answers(name: str, era: Era) -> None:
    conversation = CONVERSATIONS[name]
    declared = DIFFERENCES.get(name)
    found = _contrast(hold("sdk", conversation, era), hold("ours", conversation, era))
    assert found == (Contrast() if declared is None else declared.eras.get(era, Contrast()))


def test_no_difference_is_declared_that_belongs_to_no_conversation_or_has_no_reason() -> None:
    assert DIFFERENCES.keys() <= CONVERSATIONS.keys()
    for name, difference in DIFFERENCES.items():
        assert len(difference.why) > 20
        assert set(difference.eras) <= set(CONVERSATIONS[name].eras)


@pytest.mark.parametrize("era", ERAS)
def test_each_call_carries_the_stamps_of_its_era_and_the_span_of_its_caller(era: Era) -> None:
    held = hold("ours", CONVERSATIONS["calls"], era)
    calls = [json.loads(frame.partition(" ")[2]) for frame in held.asked if '"tools/call"' in frame]
    metas = [call["params"].get("_meta", {}) for call in calls]
    for meta in metas:
        assert meta.get(types.PROTOCOL_VERSION_META_KEY) == (None if era == "legacy" else era)
        assert (types.CLIENT_INFO_META_KEY in meta) == (era != "legacy")
    assert ["traceparent" in meta for meta in metas] == [False, True, True]
    assert ["progressToken" in meta for meta in metas] == [False, True, False]
