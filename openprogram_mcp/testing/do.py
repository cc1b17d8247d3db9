"""The steps of a fake server's script.

Each function makes one :class:`Step`; a script is a sequence of them. Imported as a whole, they read as sentences::

    from openprogram_mcp.testing import FakeServer, do

    FakeServer().tool("slow", do.progress(1, total=2), do.sleep(0.5), do.reply("done"))

Texts and JSON values may hold placeholders. One that is exactly ``"$name"`` becomes the value itself, ``"${name}"``
inside a text becomes its text, and a path goes into a value (``"$args.city"``):

======================= ================================================================================================
``id``                  the request's id (in ``write`` also, as JSON, without braces)
``method``, ``params``  of the message that is answered
``args``                the arguments of the tool call
``token``               the progress token the client gave, ``null`` where it gave none (in ``write`` also)
``answer``              the last answer of the client to ``ask`` or ``request``: its result, or its error
``inputs``              all answers that a retry brought to ``input_required``
``count``               how often ``repeat`` went round before
``pid``, ``argv``       of the server's process; also ``cwd`` and ``env``
``headers``, ``path``   over HTTP: of the request, header names in small letters; also ``query`` and ``session``
======================= ================================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ._do_http import cut, event, forget, head, on_get, respond, stream, tcp
from ._step import Step, raw, steps_of

__all__ = [
    "Step",
    "ask",
    "beside",
    "bulk",
    "changed",
    "choose",
    "close",
    "cut",
    "die",
    "echo",
    "end_listening",
    "event",
    "exit",
    "fail",
    "forget",
    "hang",
    "head",
    "hide",
    "ignore_cancel",
    "input_required",
    "log",
    "note",
    "notify",
    "on_get",
    "progress",
    "repeat",
    "reply",
    "request",
    "respond",
    "result",
    "send",
    "show",
    "sleep",
    "spawn",
    "stall",
    "standard",
    "stderr",
    "stream",
    "tcp",
    "turns",
    "wait",
    "wake",
    "write",
]


# Answering.


def reply(
    *content: str | dict[str, Any] | Any,
    structured: Any = None,
    is_error: bool | None = None,
    **more: Any,
) -> Step:
    """Answer a tool call with a result.

    Args:
        content: Its content: texts, content blocks (an object with a ``type``), or any other JSON value, which is given
            as its JSON text.
        structured: Its ``structuredContent``; for a ``null`` there, give ``structuredContent=None``.
        is_error: Its ``isError``; left out where it is ``None``.
        more: Further keys of the result.

    In the 2026-07-28 era ``resultType`` and the server's name are added; use :func:`result` to have nothing added.
    """
    fields: dict[str, Any] = dict(more)
    if structured is not None:
        fields["structuredContent"] = structured
    if is_error is not None:
        fields["isError"] = is_error
    return Step("reply", {"content": list(content), "more": fields})


def echo() -> Step:
    """Answer a tool call with its arguments, as JSON text. What a tool without steps does."""
    return Step("echo")


def bulk(size: int | str, text: str = "x") -> Step:
    """Answer a tool call with one text of ``size`` characters, made of ``text`` over and over.

    ``size`` may be a placeholder: ``do.bulk("$args.size")``.
    """
    return Step("bulk", {"size": size, "text": text})


def result(value: Any) -> Step:
    """Answer any request with exactly this ``result``."""
    return Step("result", {"value": value})


def fail(code: int = -32603, message: str | None = "Internal error", data: Any = None) -> Step:
    """Answer any request with a JSON-RPC error; without ``message`` where that is ``None``."""
    error: dict[str, Any] = {"code": code}
    if message is not None:
        error["message"] = message
    if data is not None:
        error["data"] = data
    return Step("fail", {"error": error})


def standard(changes: Mapping[str, Any] | None = None, *, drop: Sequence[str] = ()) -> Step:
    """Do what the server would do without a script.

    For scripts that only add to it, before or after, or that change its result.

    Args:
        changes: Keys of the result that have another value: ``do.standard({"protocolVersion": "2099-01-01"})``.
        drop: Keys of the result that are missing.
    """
    return Step("standard", {"changes": dict(changes or {}), "drop": list(drop)})


# Bytes and messages.


def write(data: bytes | str, *, chunk: int | None = None, pause: float = 0.0) -> Step:
    """Write bytes to stdout, exactly these: no line end is added. Over HTTP, to the body of the response.

    Args:
        data: The bytes; a text is encoded as UTF-8. ``$id`` and ``$token`` in it become the JSON of the request's id
            and progress token.
        chunk: Write so many bytes at a time; ``1`` is byte by byte.
        pause: Seconds between two chunks. What other handlers have to write waits meanwhile.
    """
    return Step("write", {"data": raw(data), "chunk": chunk, "pause": pause})


def send(message: Mapping[str, Any], *, end: str = "\n") -> Step:
    """Write a JSON message and a line end."""
    return Step("send", {"message": dict(message), "end": end})


def notify(method: str, params: Mapping[str, Any] | None = None) -> Step:
    """Send a notification, just as it is given."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = dict(params)
    return send(message)


def log(data: Any, *, level: str = "info", logger: str | None = None) -> Step:
    """Send a log message to the client (``notifications/message``)."""
    params: dict[str, Any] = {"level": level, "data": data}
    if logger is not None:
        params["logger"] = logger
    return notify("notifications/message", params)


def progress(
    progress: float | str, *, total: float | None = None, message: str | None = None, token: str | int | None = None
) -> Step:
    """Report progress of the request that is being answered.

    Nothing is sent where the client gave no progress token, unless ``token`` gives one: a false one, say.
    """
    params: dict[str, Any] = {"progress": progress}
    if total is not None:
        params["total"] = total
    if message is not None:
        params["message"] = message
    if token is not None:
        params["progressToken"] = token
    return Step("progress", {"params": params})


def changed(what: Literal["tools", "prompts", "resources"] = "tools", *, uri: str | None = None) -> Step:
    """Tell the client that a list has changed, or the resource at ``uri``.

    A plain notification in the legacy era; in that of 2026-07-28 one to each subscription that asked for it.
    """
    return Step("changed", {"what": what, "uri": uri})


def end_listening() -> Step:
    """End every subscription of 2026-07-28 as a server does that is shutting down: with a result."""
    return Step("end_listening")


# Asking the client.


def ask(method: str, params: Mapping[str, Any] | None = None) -> Step:
    """Ask the client for something and wait for it: ``$answer`` holds its result afterwards.

    In the legacy era this is a request to the client, in that of 2026-07-28 an ``input_required`` round; the steps
    behind it run when the answer has come. There it may stand at a script's top level only, for it is behind the step
    that the retry goes on.
    """
    return Step("ask", {"method": method, "params": None if params is None else dict(params)})


def request(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    id: int | str | None = None,  # noqa: A002 - named as in the message
    wait: bool = True,
) -> Step:
    """Send a request to the client, whatever the era.

    Args:
        method: Its method; it need not exist.
        params: Its parameters.
        id: Its id; one of our own where there is none.
        wait: Wait for the answer and keep its result, or its error, as ``$answer``.
    """
    params = None if params is None else dict(params)
    return Step("request", {"method": method, "params": params, "id": id, "wait": wait})


def input_required(requests: Mapping[str, Any] | None, *, state: str | None = None) -> Step:
    """End this round with ``resultType: input_required``; the steps behind it are played when the client tries again.

    Args:
        requests: The ``inputRequests``: a name for each, and its ``method`` and ``params``. Left out where ``None``.
        state: The ``requestState``, by which the retry is known; left out where ``None``.
    """
    return Step("input_required", {"requests": None if requests is None else dict(requests), "state": state})


# Time.


def sleep(seconds: float | str) -> Step:
    """Let seconds pass; other handlers go on meanwhile. A placeholder may stand here: ``do.sleep("$args.seconds")``."""
    return Step("sleep", {"seconds": seconds})


def hang() -> Step:
    """Wait for ever. A cancelled request ends here, without an answer."""
    return Step("wait", {"name": None, "timeout": None})


def wait(name: str, *, timeout: float | None = None) -> Step:
    """Wait until something has happened.

    Args:
        name: ``cancelled`` (this request was), ``eof``, a signal that is scripted (``SIGTERM``), or a name that
            :func:`wake` gives.
        timeout: Go on after so many seconds in any case.
    """
    return Step("wait", {"name": name, "timeout": timeout})


def wake(name: str) -> Step:
    """Let go on whoever waits for this name, now or later."""
    return Step("wake", {"name": name})


def stall(seconds: float | None = None) -> Step:
    """Stand still as a whole, for ever where there are no seconds: nothing is read, no other handler goes on."""
    return Step("stall", {"seconds": seconds})


def ignore_cancel() -> Step:
    """Go on when the client cancels this request, and answer it though nobody waits any more."""
    return Step("ignore_cancel")


# The process.


def stderr(data: bytes | str, *, times: int = 1) -> Step:
    """Write bytes to stderr, so many times over."""
    return Step("stderr", {"data": raw(data), "times": times})


def exit(code: int = 0) -> Step:  # noqa: A001 - do.exit() reads as what it does
    """End the process at once."""
    return Step("exit", {"code": code})


def die(signal: str = "SIGKILL") -> Step:
    """End the process by a signal."""
    return Step("die", {"signal": signal})


def close(stream: Literal["stdin", "stdout", "stderr"]) -> Step:
    """Close a stream and live on."""
    return Step("close", {"stream": stream})


def spawn(
    *steps: Step,
    inherit: Sequence[Literal["stdin", "stdout", "stderr"]] = ("stdout", "stderr"),
    new_session: bool = False,
    ignore: Sequence[str] = (),
) -> Step:
    """Start another process beside the server.

    Args:
        steps: What it does; without steps it does nothing for ever. It ends only by ``exit``, ``die`` or a signal.
        inherit: The server's streams that it holds open; the others are the null device.
        new_session: Whether it leaves the server's process group.
        ignore: Signals that it ignores, such as ``SIGTERM``.
    """
    options = {
        "steps": steps_of(steps),
        "inherit": list(inherit),
        "new_session": new_session,
        "ignore": list(ignore),
    }
    return Step("spawn", {"options": options})


def note(value: Any) -> Step:
    """Write a value to the record, as an event ``note``."""
    return Step("note", {"value": value})


# Flow.


def repeat(*steps: Step, times: int | None = None) -> Step:
    """Play steps over and over; for ever where ``times`` is ``None``."""
    return Step("repeat", {"steps": steps_of(steps), "times": times})


def turns(*alternatives: Sequence[Step], cycle: bool = False, file: str | None = None) -> Step:
    """Something else each time.

    Args:
        alternatives: The steps of the first time, of the second, and so on. The last stays, or with ``cycle`` the first
            follows it.
        cycle: Begin again after the last.
        file: Count in this file, so that the count goes on from one process to the next: for a server whose first start
            is slow, or that comes up at the third try only.
    """
    if not alternatives:
        raise ValueError("turns() needs at least one alternative")
    return Step("turns", {"turns": [steps_of(steps) for steps in alternatives], "cycle": cycle, "file": file})


def choose(value: str, cases: Mapping[str, Sequence[Step]], otherwise: Sequence[Step] = ()) -> Step:
    """Play the steps of the case that a placeholder's value names: ``do.choose("$args.mode", {"slow": [...]})``."""
    return Step(
        "choose",
        {
            "value": value,
            "cases": {name: steps_of(steps) for name, steps in cases.items()},
            "otherwise": steps_of(otherwise),
        },
    )


def beside(*steps: Step) -> Step:
    """Play steps side by side with those that follow."""
    return Step("beside", {"steps": steps_of(steps)})


# What is offered.


def show(*names: str) -> Step:
    """Offer tools that were hidden. The client is told by :func:`changed`, or not at all."""
    return Step("show", {"names": list(names)})


def hide(*names: str) -> Step:
    """Offer these tools no longer."""
    return Step("hide", {"names": list(names)})
