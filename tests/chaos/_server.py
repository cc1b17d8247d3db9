# Pathlib takes as long to import as all the rest.
# ruff: noqa: PTH104, PTH108, PTH123
"""The server of the chaos run: it works, misbehaves when it is told to, and keeps a record that nobody else keeps.

It is started with ``-S -E -I`` and imports little, since it is started thousands of times. It imports nothing of
ours, so that its record is a witness: one line of JSON an event, in a file that is only ever added to, written before
the effect that it tells of, so that it survives a SIGKILL. A call's ``begin`` is written before anything is done, its
``end`` before the answer.

Orders come over a named pipe beside the record, one word a line; the harness sends them, and the record says when each
was carried out. How to fail at the next start stands in a file that the starting process takes away.

Usage: ``_server.py NAME FOLDER ERA [stubborn]``, with ERA ``legacy`` or ``modern``.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import signal
import sys
import time
from functools import partial

TYPE_CHECKING = False  # what typing calls so, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

INFO = {"name": "chaos", "version": "1.0.0"}
META = "io.modelcontextprotocol/"
TOOLS: dict[str, dict[str, bool]] = {
    "read": {"readOnlyHint": True},
    "write": {},
    "idem": {"idempotentHint": True},
    "extra": {"readOnlyHint": True},
}
LOST_SECONDS = 600
GARBAGE = (
    b"Traceback (most recent call last):\n",
    b"\xff\xfe\x00\x80 no text at all\n",
    b'{"jsonrpc":"2.0"}\n',
    b"[]\n[1,2]\nnull\n42\n",
    b'{"jsonrpc":"2.0","id":987654321,"result":{"content":[{"type":"text","text":"nobody asked"}]}}\n',
    b'{"jsonrpc":"2.0","id":"of another type","result":{}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":987654321,"progress":1}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":987654321}}\n',
    b'{"jsonrpc":"2.0","id":77,"method":"roots/list"}\n',
    b"\n\n\r\n",
)


class Call:
    """One call under way."""

    def __init__(self, name: str, tool: str, arguments: dict[str, Any], token: Any) -> None:
        self.name = name
        self.tool = tool
        self.arguments = arguments
        self.token = token
        self.deaf = False  # to its cancellation


class Server:
    """One process."""

    def __init__(self, name: str, folder: str, era: str, stubborn: bool) -> None:
        self.name = name
        self.modern = era == "modern"
        self.stubborn = stubborn
        self.record_fd = os.open(f"{folder}/{name}.record", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.orders_fd = os.open(f"{folder}/{name}.orders", os.O_RDWR | os.O_NONBLOCK)
        self.tools = ["read", "write", "idem"]
        self.calls: dict[Any, Call] = {}
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0
        self.rest = bytearray()
        self.listeners: list[Any] = []
        self.last_answer = b""
        self.reads_again = 0.0
        self.tiny_until = 0.0
        self.late = 0
        self.next_write: str | None = None
        self.fails_at = self.take_failure(f"{folder}/{name}.start")
        self.reading = True

    def take_failure(self, path: str) -> str:
        mine = f"{path}.{os.getpid()}"
        try:
            os.rename(path, mine)
        except OSError:
            return ""
        with open(mine) as file:
            mode = file.read()
        os.unlink(mine)
        return mode

    def note(self, event: str, **facts: Any) -> None:
        line = json.dumps({"t": time.monotonic(), "pid": os.getpid(), "e": event, **facts}).encode() + b"\n"
        os.write(self.record_fd, line)

    # Its life.

    def serve(self) -> None:
        if self.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.note("start", tools=self.tools)
        if self.fails_at:
            self.note("fault", what=f"start:{self.fails_at}")
        if self.fails_at == "exit":
            os._exit(3)
        if self.fails_at == "stderr":
            os.write(2, b"it cannot start: \xff something is missing\n" * 100)
            os._exit(1)
        if self.fails_at == "garbled":
            os.write(1, b'Welcome to the server!\n{"jsonrpc":"2.0","id"')
            os._exit(0)
        if self.fails_at == "slow":
            time.sleep(0.3)
        while True:
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
            wanted = [self.orders_fd]
            until = self.timers[0][0] if self.timers else now + LOST_SECONDS
            if self.reading:
                if self.reads_again <= now:
                    wanted.append(0)
                else:
                    until = min(until, self.reads_again)
            ready = select.select(wanted, [], [], max(0.0, until - now))[0]
            if self.orders_fd in ready:
                for order in os.read(self.orders_fd, 4096).decode().split():
                    self.obey(order)
            # An order may have closed it.
            if 0 in ready and self.reading and self.reads_again <= now:
                self.read(now)

    def read(self, now: float) -> None:
        data = os.read(0, 3 if now < self.tiny_until else 65536)
        if not data:
            self.reading = False
            if not self.stubborn:
                self.note("exit")
                os._exit(0)
            return
        self.rest += data
        *lines, tail = bytes(self.rest).split(b"\n")
        self.rest = bytearray(tail)
        for line in lines:
            self.take(json.loads(line))

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.number, function))

    # What it is asked.

    def take(self, message: dict[str, Any]) -> None:
        method, params, request = message.get("method"), message.get("params") or {}, message.get("id")
        if method == "notifications/cancelled":
            call = self.calls.get(params.get("requestId"))
            if call is not None and not call.deaf:
                self.note("cancelled", id=call.name)
                del self.calls[params["requestId"]]
        elif request is None or method is None or self.fails_at == "hang":
            return
        elif self.fails_at == "init" or (self.fails_at == "list" and method == "tools/list"):
            os._exit(4)
        elif method == "tools/call":
            self.begin(request, params)
        elif method == "subscriptions/listen":
            wanted = params.get("notifications") or {}
            self.notify(
                "notifications/subscriptions/acknowledged",
                {"notifications": wanted, "_meta": {META + "subscriptionId": request}},
            )
            self.listeners.append(request)
        else:
            self.answer(request, self.result(method, params), method)

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        offered = {"capabilities": {"tools": {"listChanged": True}, "logging": {}}}
        if method == "server/discover" and self.modern:
            return {"supportedVersions": ["2026-07-28"], **offered}
        if method == "initialize" and not self.modern:
            return {"protocolVersion": params.get("protocolVersion"), "serverInfo": INFO, **offered}
        if method == "ping":
            return {}
        if method == "tools/list":
            if self.fails_at == "refuse":
                return None
            return {"tools": [self.listed(tool) for tool in self.tools]}
        return None

    @staticmethod
    def listed(tool: str) -> dict[str, Any]:
        return {"name": tool, "inputSchema": {"type": "object"}, "annotations": TOOLS[tool]}

    def begin(self, request: Any, params: dict[str, Any]) -> None:
        arguments = params.get("arguments") or {}
        token = (params.get("_meta") or {}).get("progressToken")
        call = Call(arguments.get("id", ""), params["name"], arguments, token)
        if call.tool not in self.tools:
            self.answer(request, None, "tools/call")
            return
        self.number += 1
        self.note("begin", id=call.name, tool=call.tool, n=self.number, orphan=self.is_orphan(request))
        self.calls[request] = call
        seconds = arguments.get("ms", 0) / 1000
        if self.late:
            self.late -= 1
            seconds += 1.5
            call.deaf = True
        if arguments.get("progress"):
            self.later(seconds / 2, lambda: self.progress(request))
        number = self.number
        if seconds:
            self.later(seconds, lambda: self.end(request, number))
        else:
            self.end(request, number)

    def is_orphan(self, request: Any) -> bool:
        """Whether a call begins whose caller has hung up."""
        return False

    def progress(self, request: Any) -> None:
        call = self.calls.get(request)
        if call is not None and call.token is not None:
            self.notify("notifications/progress", {"progressToken": call.token, "progress": 1, "message": call.name})

    def end(self, request: Any, number: int) -> None:
        call = self.calls.pop(request, None)
        if call is None:
            return
        self.note("end", id=call.name, n=number)
        text = f"{call.name} {os.getpid()} {number}"
        content = [{"type": "text", "text": text}, {"type": "text", "text": "x" * call.arguments.get("size", 0)}]
        self.answer(request, {"content": content, "isError": bool(call.arguments.get("fail"))}, "tools/call")

    # What it says.

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.write({"jsonrpc": "2.0", "method": method, "params": params})

    def answer(self, request: Any, result: dict[str, Any] | None, method: str) -> None:
        if result is None:
            self.write(self.message(request, result, method))
            return
        data = json.dumps(self.message(request, result, method)).encode() + b"\n"
        how, self.next_write = self.next_write, None
        if how == "torn":
            self.send(data[: len(data) // 2])
            os._exit(5)
        elif how == "split":
            self.send(data[: len(data) // 2])
            time.sleep(0.03)
            self.send(data[len(data) // 2 :])
        else:
            self.send(data if how is None else data + data)
        self.last_answer = data

    def message(self, request: Any, result: dict[str, Any] | None, method: str) -> dict[str, Any]:
        if result is None:
            return {"jsonrpc": "2.0", "id": request, "error": {"code": -32601, "message": "No"}}
        if self.modern:
            result = {"resultType": "complete", **result, "_meta": {META + "serverInfo": INFO}}
            if method != "tools/call":
                result.update({"ttlMs": 0, "cacheScope": "private"})
        return {"jsonrpc": "2.0", "id": request, "result": result}

    def write(self, message: dict[str, Any]) -> None:
        self.send(json.dumps(message).encode() + b"\n")

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(1, view) :]
        except OSError:
            if not self.stubborn:
                os._exit(6)

    # How it misbehaves.

    def obey(self, order: str) -> None:
        what, _, how = order.partition(":")
        self.note("fault", what=what)
        getattr(self, f"do_{what}")(int(how or 0))

    def do_exit(self, how: int) -> None:
        os._exit(how % 3)

    def do_garbage(self, how: int) -> None:
        self.send(GARBAGE[how % len(GARBAGE)])

    def do_stale(self, how: int) -> None:
        self.send(self.last_answer)

    def do_dup(self, how: int) -> None:
        self.next_write = "dup"

    def do_split(self, how: int) -> None:
        self.next_write = "split"

    def do_torn(self, how: int) -> None:
        self.next_write = "torn"

    def do_slow(self, how: int) -> None:
        self.reads_again = time.monotonic() + 0.1 + how % 900 / 1000

    def do_tiny(self, how: int) -> None:
        self.tiny_until = time.monotonic() + 0.5

    def do_late(self, how: int) -> None:
        self.late = 1 + how % 3

    def do_mute(self, how: int) -> None:
        for call in self.calls.values():
            call.deaf = True
        self.calls, lost = {}, self.calls
        for request, call in lost.items():
            # Much later than anybody waits: under the old number, which somebody may be asking with again.
            self.later(2.5, partial(self.answer_late, request, call))

    def answer_late(self, request: Any, call: Call) -> None:
        self.answer(request, {"content": [{"type": "text", "text": f"{call.name} too late"}]}, "tools/call")

    def do_storm(self, how: int) -> None:
        for _ in range(20 + how % 60):
            if "extra" in self.tools:
                self.tools.remove("extra")
            else:
                self.tools.append("extra")
            self.note("tools", tools=self.tools)
            self.tell_change()

    def tell_change(self) -> None:
        if not self.modern:
            self.notify("notifications/tools/list_changed", {})
        for listener in self.listeners:
            self.notify("notifications/tools/list_changed", {"_meta": {META + "subscriptionId": listener}})

    def do_flood(self, how: int) -> None:
        for number in range(50 + how % 200):
            self.notify("notifications/message", {"level": "info", "data": f"line {number} of a flood"})

    def do_stderr(self, how: int) -> None:
        os.write(2, b"\x00\xff half a line, and much of it " * (how % 2000))

    def do_closeout(self, how: int) -> None:
        os.close(1)
        os.open("/dev/null", os.O_WRONLY)  # in its place, so that no other file gets the number

    def do_closein(self, how: int) -> None:
        os.close(0)
        os.open("/dev/null", os.O_RDONLY)
        self.reading = False

    def do_child(self, how: int) -> None:
        if os.fork():
            return
        os.setsid()
        os.close(self.orders_fd)
        # Every other one keeps the pipes open.
        if how % 2:
            os.closerange(0, 3)
        while True:
            time.sleep(LOST_SECONDS)


if __name__ == "__main__":
    Server(sys.argv[1], sys.argv[2], sys.argv[3], "stubborn" in sys.argv[4:]).serve()
