"""What each step of a script does.

A step is a JSON object whose ``do`` names the method below that plays it. Methods that wait are generators: what they
yield is what they wait for.
"""

from __future__ import annotations

from .answers import SUBSCRIPTION_ID, Refused
from .values import dumps, fill, fill_bytes

TYPE_CHECKING = False  # importing typing would cost a fifth of the start
if TYPE_CHECKING:
    from typing import Any

    from .player import Player, Running, Task

_LISTENED = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}


class Gone(Exception):
    """The server ends itself: with an exit code, or by a signal."""

    def __init__(self, code: int = 0, signal: str | None = None) -> None:
        super().__init__(signal or code)
        self.code = code
        self.signal = signal


class Over(Exception):
    """The task ends here, whatever stands behind."""


class Steps:
    """The steps of one player."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._writing = False
        self._turns: dict[int, tuple[dict[str, Any], int]] = {}  # with the step, so that no other gets its number

    def play(self, steps: list[dict[str, Any]], task: Task) -> Running:
        """Play the steps of a task. A retry that brings the client's input goes on behind the step that asked."""
        params = task.names.get("params")
        first = 0
        if isinstance(params, dict) and ("inputResponses" in params or "requestState" in params):
            for index, step in enumerate(steps):
                if step["do"] in ("input_required", "ask") and _state(step, index) == params.get("requestState"):
                    first = index + 1
                    inputs = params.get("inputResponses")
                    task.names["inputs"] = inputs
                    if isinstance(inputs, dict) and inputs:
                        task.names["answer"] = next(iter(inputs.values()))
        return self._play(steps[first:], task, first)

    def _play(self, steps: list[dict[str, Any]], task: Task, first: int = 0) -> Running:
        for index, step in enumerate(steps, first):
            task.names["step"] = index
            running = getattr(self, "do_" + step["do"])(step, task)
            if running is not None:
                yield from running

    def standard(
        self, task: Task, changes: dict[str, Any] | None = None, drop: list[str] | tuple[str, ...] = ()
    ) -> Running:
        """What a well-behaved server does with the message."""
        message = task.message
        if message is None:
            return
        method = message["method"]
        params = task.names["params"]
        if "id" not in message:
            if method == "notifications/cancelled":
                self._player.cancel(params.get("requestId"), params.get("reason"), task.origin)
            return
        try:
            task.check()
            if method == "tools/call":
                tool = self._player.offer.tool(params.get("name"))
                yield from self.play(tool["steps"] or [{"do": "echo"}], task)
                return
            if method == "subscriptions/listen" and task.modern:
                yield from self._listen(task)
                return
            result = self._player.offer.answer(method, params, task.modern)
        except Refused as refused:
            yield from self._answer(task, error=refused.error)
            return
        if changes or drop:
            result = {key: value for key, value in {**result, **(changes or {})}.items() if key not in drop}
        yield from self._answer(task, result=result)

    # Writing.

    def _write(self, task: Task, pieces: list[bytes], pause: float = 0.0) -> Running:  # noqa: ARG002 - over HTTP it matters
        player = self._player
        while self._writing:  # frames of others never get into the middle of one that is written slowly
            yield None, ("written", None)
        self._writing = True
        try:
            for index, piece in enumerate(pieces):
                if index and pause:
                    yield player.world.now() + pause, None
                player.world.write(piece)
        finally:
            self._writing = False
            player.wake(("written", None))

    def _send(self, task: Task, message: dict[str, Any], end: str = "\n") -> Running:
        return self._write(task, [(dumps(message) + end).encode("utf-8", "surrogatepass")])

    def _send_apart(self, task: Task, message: dict[str, Any]) -> Running:
        """Send what belongs to no request."""
        return self._send(task, message)

    def _answer(self, task: Task, **body: Any) -> Running:
        return self._send(task, {"jsonrpc": "2.0", "id": task.names.get("id"), **body})

    def _result(self, task: Task, result: dict[str, Any]) -> Running:
        return self._answer(task, result=self._player.offer.complete(result) if task.modern else result)

    def do_standard(self, step: dict[str, Any], task: Task) -> Running:
        return self.standard(task, fill(step["changes"], task.names), step["drop"])

    def do_echo(self, _step: dict[str, Any], task: Task) -> Running:
        return self._result(task, {"content": [{"type": "text", "text": dumps(task.names.get("args"))}]})

    def do_reply(self, step: dict[str, Any], task: Task) -> Running:
        content = [
            {"type": "text", "text": item if isinstance(item, str) else dumps(item)}
            if not isinstance(item, dict) or "type" not in item
            else item
            for item in fill(step["content"], task.names)
        ]
        return self._result(task, {"content": content, **fill(step["more"], task.names)})

    def do_bulk(self, step: dict[str, Any], task: Task) -> Running:
        size = int(fill(step["size"], task.names))
        unit: str = step["text"]
        text = (unit * (size // len(unit) + 1))[:size]
        return self._result(task, {"content": [{"type": "text", "text": text}]})

    def do_result(self, step: dict[str, Any], task: Task) -> Running:
        return self._answer(task, result=fill(step["value"], task.names))

    def do_fail(self, step: dict[str, Any], task: Task) -> Running:
        return self._answer(task, error=fill(step["error"], task.names))

    def do_send(self, step: dict[str, Any], task: Task) -> Running:
        return self._send(task, fill(step["message"], task.names), step["end"])

    def do_write(self, step: dict[str, Any], task: Task) -> Running:
        data = fill_bytes(step["data"].encode("latin-1"), task.names)
        chunk: int | None = step["chunk"]
        pieces = [data] if not chunk else [data[at : at + chunk] for at in range(0, len(data), chunk)]
        return self._write(task, pieces, step["pause"])

    def do_progress(self, step: dict[str, Any], task: Task) -> Running:
        params = fill(step["params"], task.names)
        params.setdefault("progressToken", task.names.get("token"))
        if params["progressToken"] is None:
            return
        yield from self._send(task, {"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def do_changed(self, step: dict[str, Any], task: Task) -> Running:
        what = step["what"]
        uri = step["uri"]
        method = "notifications/resources/updated" if uri else f"notifications/{what}/list_changed"
        params: dict[str, Any] = {"uri": uri} if uri else {}
        if not self._player.modern_peer:
            message = {"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})}
            yield from self._send_apart(task, message)
            return
        for listener, wanted in list(self._player.listeners.values()):
            if uri in (wanted.get("resourceSubscriptions") or ()) if uri else wanted.get(_LISTENED[what]):
                stamped = {**params, "_meta": {SUBSCRIPTION_ID: listener.names["id"]}}
                yield from self._send(listener, {"jsonrpc": "2.0", "method": method, "params": stamped})

    def _listen(self, task: Task) -> Running:
        request_id = task.names["id"]
        asked = task.names["params"].get("notifications")
        wanted = {key: value for key, value in asked.items() if value} if isinstance(asked, dict) else {}
        acknowledged = {"notifications": wanted, "_meta": {SUBSCRIPTION_ID: request_id}}
        yield from self._send(
            task, {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": acknowledged}
        )
        self._player.listeners[task.key] = (task, wanted)
        yield None, ("flag", "listening ended")
        yield from self._result(task, {"_meta": {SUBSCRIPTION_ID: request_id}})

    def do_end_listening(self, _step: dict[str, Any], _task: Task) -> None:
        self._player.wake(("flag", "listening ended"))

    # Asking the client.

    def do_request(self, step: dict[str, Any], task: Task) -> Running:
        player = self._player
        request_id = fill(step["id"], task.names)
        if request_id is None:
            player.minted += 1
            request_id = f"fake-{player.minted}"
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": step["method"]}
        if step["params"] is not None:
            message["params"] = fill(step["params"], task.names)
        yield from self._send(task, message)
        if step["wait"]:
            answer = yield from player.await_answer(request_id)
            task.names["answer"] = answer.get("result", answer.get("error"))

    def do_ask(self, step: dict[str, Any], task: Task) -> Running:
        if not task.modern:
            return self.do_request({**step, "id": None, "wait": True}, task)
        request = {"method": step["method"], "params": step["params"] or {}}
        state = _state(step, task.names["step"])
        return self.do_input_required({"requests": {"ask": request}, "state": state}, task)

    def do_input_required(self, step: dict[str, Any], task: Task) -> Running:
        result: dict[str, Any] = {"resultType": "input_required"}
        if step["requests"] is not None:
            result["inputRequests"] = fill(step["requests"], task.names)
        if step["state"] is not None:
            result["requestState"] = step["state"]
        yield from self._result(task, result)
        raise Over

    # Time.

    def do_sleep(self, step: dict[str, Any], task: Task) -> Running:
        yield self._player.world.now() + float(fill(step["seconds"], task.names)), None

    def do_wait(self, step: dict[str, Any], task: Task) -> Running:
        name: str | None = step["name"]
        timeout: float | None = step["timeout"]
        deadline = None if timeout is None else self._player.world.now() + timeout
        if name is None:
            yield deadline, None
        elif name == "cancelled":
            if not task.cancelled:
                yield deadline, ("cancelled", task.key)
        elif name not in self._player.flags:
            yield deadline, ("flag", name)

    def do_wake(self, step: dict[str, Any], _task: Task) -> None:
        self._player.wake_flag(step["name"])

    def do_stall(self, step: dict[str, Any], _task: Task) -> Running:
        seconds = step["seconds"]
        until = float("inf") if seconds is None else self._player.world.now() + seconds
        self._player.stalled_until = until
        yield (None if seconds is None else until), None

    def do_ignore_cancel(self, _step: dict[str, Any], task: Task) -> None:
        task.ignores_cancel = True

    # The process.

    def do_stderr(self, step: dict[str, Any], task: Task) -> None:
        self._player.world.complain(fill_bytes(step["data"].encode("latin-1"), task.names) * step["times"])

    def do_exit(self, step: dict[str, Any], _task: Task) -> None:
        raise Gone(code=step["code"])

    def do_die(self, step: dict[str, Any], _task: Task) -> None:
        raise Gone(signal=step["signal"])

    def do_close(self, step: dict[str, Any], _task: Task) -> None:
        self._player.note("close", stream=step["stream"])
        self._player.world.close(step["stream"])

    def do_spawn(self, step: dict[str, Any], _task: Task) -> None:
        self._player.note("spawn", spawned=self._player.world.spawn(step["options"]))

    def do_note(self, step: dict[str, Any], task: Task) -> None:
        self._player.note("note", value=fill(step["value"], task.names))

    # Flow.

    def do_repeat(self, step: dict[str, Any], task: Task) -> Running:
        times: int | None = step["times"]
        count = 0
        while times is None or count < times:
            task.names["count"] = count
            count += 1
            yield from self._play(step["steps"], task)
            yield self._player.world.now(), None  # let others have their turn, also where nothing in it waits

    def do_turns(self, step: dict[str, Any], task: Task) -> Running:
        turns: list[list[dict[str, Any]]] = step["turns"]
        if step["file"] is not None:
            count = self._player.world.count(step["file"])
        else:
            _, count = self._turns.get(id(step), (step, 0))
            self._turns[id(step)] = (step, count + 1)
        return self._play(turns[count % len(turns) if step["cycle"] else min(count, len(turns) - 1)], task)

    def do_choose(self, step: dict[str, Any], task: Task) -> Running:
        value = fill(step["value"], task.names)
        key = value if isinstance(value, str) else dumps(value)
        return self._play(step["cases"].get(key, step["otherwise"]), task)

    def do_beside(self, step: dict[str, Any], task: Task) -> None:
        self._player.launch(step["steps"], dict(task.names), origin=task.origin)

    # What is offered.

    def do_show(self, step: dict[str, Any], _task: Task) -> None:
        self._player.offer.hidden.difference_update(step["names"])

    def do_hide(self, step: dict[str, Any], _task: Task) -> None:
        self._player.offer.hidden.update(step["names"])


def _state(step: dict[str, Any], index: int) -> Any:
    """The request state that a step of asking hands out."""
    return step["state"] if step["do"] == "input_required" else f"ask-{index}"
