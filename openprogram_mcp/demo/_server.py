"""MCP over stdin and stdout, in both eras, for the demonstration server.

The client's first request decides the era, as it does with the SDK's server: one with the envelope of 2026-07-28 in its
``_meta`` opens a modern connection, anything else a legacy one. One thread reads; a call that waits has a thread of its
own; whole lines are written under a lock.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from ._tools import NOTE_URI, Tool, Toolbox, ToolFailed

INFO = {"name": "openprogram-demo", "title": "Demonstration server", "version": "1.0.0"}
INSTRUCTIONS = (
    "A demonstration: every tool shows one thing that an MCP server can do. Nothing it does leaves the process."
)
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = ("2026-07-28",)

_META = "io.modelcontextprotocol/"
_SUBSCRIPTION_ID = _META + "subscriptionId"
_CACHED = {"server/discover", "tools/list", "resources/list", "resources/templates/list", "resources/read"}
_CACHED |= {"prompts/list"}
_ASKED = "name"


class _Refused(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


class _Cancelled(Exception):
    """The client withdrew the request, or has gone: nobody waits for the answer."""


class _InputRequired(Exception):
    """The question goes to the client as the result of this round (2026-07-28)."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__()
        self.request = request


class _Call:
    """One call of a tool: what a tool may do besides computing. See :class:`._tools.Call`."""

    def __init__(self, server: Server, request_id: Any, params: dict[str, Any], *, modern: bool) -> None:
        self._server = server
        self._params = params
        self._meta: dict[str, Any] = _object(params.get("_meta"))
        self._modern = modern
        self.id = request_id
        self.woken = threading.Event()
        self.cancelled = False
        self.answer: dict[str, Any] | None = None

    def sleep(self, seconds: float) -> None:
        self.woken.wait(seconds)
        if self.cancelled:
            raise _Cancelled

    def progress(self, done: float, total: float, message: str) -> None:
        token = self._meta.get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": done, "total": total, "message": message}
            self._server.notify("notifications/progress", params)

    def ask(self, message: str, schema: dict[str, Any]) -> dict[str, Any] | None:
        capabilities = self._meta.get(_META + "clientCapabilities") if self._modern else self._server.capabilities
        if "elicitation" not in _object(capabilities):
            raise ToolFailed("this client asks nobody: it does not offer elicitation")
        params = {"mode": "form", "message": message, "requestedSchema": schema}
        request = {"method": "elicitation/create", "params": params}
        if self._modern:
            answer = _object(self._params.get("inputResponses")).get(_ASKED)
            if not isinstance(answer, dict):
                raise _InputRequired(request)
        else:
            answer = self._server.ask(self, request)
        return _object(answer.get("content")) if answer.get("action") == "accept" else None

    def changed_tools(self) -> None:
        self._server.changed("notifications/tools/list_changed", "toolsListChanged")

    def changed_resource(self, uri: str) -> None:
        self._server.changed("notifications/resources/updated", "resourceSubscriptions", uri)


class Server:
    """One connection: the process lives as long as it does."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._writing = threading.Lock()
        self._toolbox = Toolbox()
        self._modern: bool | None = None
        self.capabilities: dict[str, Any] = {}
        self._calls: dict[Any, _Call] = {}
        self._questions: dict[str, _Call] = {}
        self._asked = 0
        self._listeners: dict[Any, dict[str, Any]] = {}
        self._subscribed: set[str] = set()

    def serve(self) -> None:
        """Read until the client closes stdin; then end what still runs."""
        rest = bytearray()
        try:
            while data := os.read(self._source, 65536):
                rest += data
                *lines, tail = rest.split(b"\n")
                rest = bytearray(tail)
                for line in lines:
                    if line.strip():
                        self._read(bytes(line))
        finally:
            for call in list(self._calls.values()):
                self._cancel(call)  # its thread ends, and the process waits for it

    # Writing.

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        self._send({"method": method, **({} if params is None else {"params": params})})

    def changed(self, method: str, kind: str, uri: str | None = None) -> None:
        """Tell the client what changed: plainly in the legacy era, to each subscription that wants it in the other."""
        params: dict[str, Any] = {} if uri is None else {"uri": uri}
        if not self._modern:
            if uri is None or uri in self._subscribed:
                self.notify(method, params or None)
            return
        for listener, wanted in list(self._listeners.items()):
            asked = wanted.get(kind)
            if asked is True or (isinstance(asked, list) and uri in asked):
                self.notify(method, {**params, "_meta": {_SUBSCRIPTION_ID: listener}})

    def ask(self, call: _Call, request: dict[str, Any]) -> dict[str, Any]:
        """Send the client a request and wait for its answer (legacy era)."""
        self._asked += 1
        question = f"demo-{self._asked}"
        self._questions[question] = call
        try:
            self._send({"id": question, **request})
            call.woken.wait()
        finally:
            del self._questions[question]
        if call.cancelled or call.answer is None:
            raise _Cancelled
        if "error" in call.answer:
            raise ToolFailed(f"asking failed: {_object(call.answer['error']).get('message')}")
        return _object(call.answer.get("result"))

    def _send(self, message: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", **message}
        try:
            data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can say and UTF-8 cannot
            data = json.dumps(message).encode()
        view = memoryview(data + b"\n")
        with self._writing:
            while view:
                view = view[os.write(self._sink, view) :]

    def _answer(self, request_id: Any, method: str, result: dict[str, Any], *, modern: bool) -> None:
        if modern:
            result = {
                "resultType": "complete",
                **result,
                "_meta": {_META + "serverInfo": INFO, **result.get("_meta", {})},
            }
            if method in _CACHED:
                result |= {"ttlMs": 0, "cacheScope": "private"}
        self._send({"id": request_id, "result": result})

    # Reading.

    def _read(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self._send({"id": None, "error": {"code": -32700, "message": "Parse error"}})
            return
        if not isinstance(message, dict):
            self._send({"id": None, "error": {"code": -32600, "message": "Invalid request"}})
            return
        method = message.get("method")
        params = _object(message.get("params"))
        if not isinstance(method, str):
            self._take_answer(message)
        elif "id" not in message:
            if method == "notifications/cancelled":
                self._withdraw(params.get("requestId"))
        else:
            self._take_request(message["id"], method, params)

    def _take_request(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        if not isinstance(request_id, int | str):
            self._send({"id": None, "error": {"code": -32600, "message": "Invalid request"}})
            return
        try:
            self._handle(request_id, method, params)
        except _Refused as refused:
            self._send({"id": request_id, "error": refused.error})

    def _take_answer(self, message: dict[str, Any]) -> None:
        question = message.get("id")
        call = self._questions.get(question) if isinstance(question, str) else None
        if call is not None:
            call.answer = message
            call.woken.set()

    def _withdraw(self, request_id: Any) -> None:
        if not isinstance(request_id, int | str):
            return
        self._listeners.pop(request_id, None)
        if request_id in self._calls:
            self._cancel(self._calls[request_id])

    @staticmethod
    def _cancel(call: _Call) -> None:
        call.cancelled = True
        call.woken.set()

    def _handle(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        modern = self._decide_era(method, params)
        if method == "tools/call":
            self._call(request_id, params, modern=modern)
        elif method == "subscriptions/listen" and modern:
            wanted = {key: value for key, value in _object(params.get("notifications")).items() if value}
            acknowledged = {"notifications": wanted, "_meta": {_SUBSCRIPTION_ID: request_id}}
            self.notify("notifications/subscriptions/acknowledged", acknowledged)
            self._listeners[request_id] = wanted
        else:
            self._answer(request_id, method, self._result(method, params, modern=modern), modern=modern)

    def _decide_era(self, method: str, params: dict[str, Any]) -> bool:
        """Whether a request is one of 2026-07-28 (basic/index, per-request protocol fields)."""
        meta = _object(params.get("_meta"))
        enveloped = _META + "protocolVersion" in meta and method != "initialize"
        if self._modern is None:
            self._modern = enveloped
        if not self._modern:
            if enveloped:
                raise _Refused(-32600, "This connection was opened with initialize")
            return False
        requested = params.get("protocolVersion") if method == "initialize" else meta.get(_META + "protocolVersion")
        if method != "initialize" and (not enveloped or _META + "clientCapabilities" not in meta):
            raise _Refused(-32602, "params._meta lacks protocolVersion or clientCapabilities")
        if method == "initialize" or requested not in MODERN:
            data = {"supported": list(MODERN), "requested": str(requested)}
            raise _Refused(-32022, "Unsupported protocol version", data)
        return True

    def _result(self, method: str, params: dict[str, Any], *, modern: bool) -> dict[str, Any]:
        offered = {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}}
        introduction = {"capabilities": offered, "instructions": INSTRUCTIONS}
        match method:
            case "server/discover" if modern:
                return {"supportedVersions": list(MODERN), **introduction}
            case "initialize" if not modern:
                self.capabilities = _object(params.get("capabilities"))
                asked = params.get("protocolVersion")
                version = asked if asked in LEGACY else LEGACY[-1]
                return {"protocolVersion": version, "serverInfo": INFO, **introduction}
            case "ping" if not modern:
                return {}
            case "tools/list":
                return {"tools": [tool.listed for tool in self._toolbox.tools()]}
            case "resources/list":
                note = {"name": "note", "title": "The scratch note", "mimeType": "text/plain"}
                return {"resources": [{"uri": NOTE_URI, **note}]}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "resources/read":
                _check_uri(params)
                contents = {"uri": NOTE_URI, "mimeType": "text/plain", "text": self._toolbox.note}
                return {"contents": [contents]}
            case "resources/subscribe" | "resources/unsubscribe" if not modern:
                _check_uri(params)
                (self._subscribed.add if method == "resources/subscribe" else self._subscribed.discard)(NOTE_URI)
                return {}
            case "prompts/list":
                argument = {"name": "name", "description": "Who is greeted", "required": True}
                prompt = {"name": "greet", "title": "Greet", "description": "Asks for a greeting."}
                return {"prompts": [{**prompt, "arguments": [argument]}]}
            case "prompts/get":
                return _greet(params)
        raise _Refused(-32601, "Method not found", method)

    # Calling.

    def _call(self, request_id: Any, params: dict[str, Any], *, modern: bool) -> None:
        tool = self._toolbox.tool(params.get("name"))
        if tool is None:
            raise _Refused(-32602, f"Unknown tool: {params.get('name')}")
        call = _Call(self, request_id, params, modern=modern)
        arguments = _object(params.get("arguments"))
        if not tool.waits:
            self._run(tool, call, arguments, modern=modern)
            return
        self._calls[request_id] = call
        threading.Thread(target=self._run, args=(tool, call, arguments), kwargs={"modern": modern}).start()

    def _run(self, tool: Tool, call: _Call, arguments: dict[str, Any], *, modern: bool) -> None:
        try:
            try:
                done = tool.function(call, **tool.check(arguments))
                result = done if isinstance(done, dict) else {"content": [{"type": "text", "text": done}]}
            except ToolFailed as failed:
                result = {"content": [{"type": "text", "text": str(failed)}], "isError": True}
            except _InputRequired as required:
                result = {"resultType": "input_required", "inputRequests": {_ASKED: required.request}}
            if not call.cancelled:
                self._answer(call.id, "tools/call", result, modern=modern)
        except (_Cancelled, BrokenPipeError):
            return  # nobody waits for it
        finally:
            self._calls.pop(call.id, None)


def _object(value: Any) -> dict[str, Any]:
    """The value where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _check_uri(params: dict[str, Any]) -> None:
    if params.get("uri") != NOTE_URI:
        raise _Refused(-32602, "Resource not found", {"uri": params.get("uri")})


def _greet(params: dict[str, Any]) -> dict[str, Any]:
    if params.get("name") != "greet":
        raise _Refused(-32602, "Unknown prompt")
    name = _object(params.get("arguments")).get("name")
    if not isinstance(name, str):
        raise _Refused(-32602, "The prompt needs a name")
    text = f"Write a short and friendly greeting for {name}."
    return {"description": "A greeting", "messages": [{"role": "user", "content": {"type": "text", "text": text}}]}


def main() -> None:
    """Serve stdin and stdout until stdin ends; then exit with 0."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    try:
        Server(0, 1).serve()
    except BrokenPipeError:
        sys.exit(0)  # the client has gone
