"""The fake server without I/O: bytes and signals go in, bytes and notes come out through a :class:`World`.

It owns which script runs when. Each request has a task of its own, a generator that is resumed when what it waits for
has come: a time, an answer, a cancellation, a flag. It does not own reading, writing, clocks or processes: it is given
those of a real process, or of Trio in memory, so that the two cannot behave differently.
"""

from __future__ import annotations

import heapq
import json
from collections import deque

from .answers import Offer, Refused
from .steps import Over, Steps
from .values import fill

TYPE_CHECKING = False  # importing typing would cost a fifth of the start
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Protocol, TypeAlias

    Wait: TypeAlias = "tuple[float | None, tuple[str, Any] | None]"
    """What a task waits for: a time of the world's clock, a key that is woken, or whichever comes first."""

    Running: TypeAlias = "Generator[Wait, Any, None]"

    class World(Protocol):
        """Where a server runs."""

        @property
        def recording(self) -> bool:
            """Whether notes are wanted."""
            ...

        def now(self) -> float:
            """Seconds of a monotonic clock."""
            ...

        def facts(self) -> dict[str, Any]:
            """``pid``, ``argv``, ``cwd`` and ``env``."""
            ...

        def write(self, data: bytes) -> None:
            """Write to stdout."""
            ...

        def complain(self, data: bytes) -> None:
            """Write to stderr."""
            ...

        def note(self, event: str, facts: dict[str, Any]) -> None:
            """Add to the record."""
            ...

        def close(self, stream: str) -> None:
            """Close ``stdin``, ``stdout`` or ``stderr``."""
            ...

        def spawn(self, options: dict[str, Any]) -> int:
            """Start a process of its own; its pid."""
            ...

        def count(self, path: str) -> int:
            """How often this was asked before, over all processes that share the file."""
            ...


class Task:
    """One run of a script: for a request, a notification, a stage of the process's life, or beside another."""

    __slots__ = (
        "aside",
        "cancelled",
        "ignores_cancel",
        "key",
        "message",
        "modern",
        "names",
        "origin",
        "refusal",
        "running",
        "turn",
        "urgent",
    )

    def __init__(self, names: dict[str, Any], message: dict[str, Any] | None = None, origin: Any = None) -> None:
        self.names = names
        self.message = message
        self.origin = origin  # over HTTP the exchange that it serves; stdio has one channel for all
        self.aside = False  # over HTTP: what it sends goes elsewhere than on that exchange
        self.key: Any = None
        self.modern = False
        self.refusal: Refused | None = None
        self.running: Running | None = None
        self.turn = 0  # rises with every resumption, so that an older wait cannot wake it
        self.cancelled = False
        self.ignores_cancel = False
        self.urgent = False

    def check(self) -> None:
        """Raise what the request is refused for, if it is."""
        if self.refusal is not None:
            raise self.refusal


class Player:
    """One running fake server.

    Args:
        script: What :class:`~openprogram_mcp.testing.FakeServer` makes of itself.
        world: Where it runs.
    """

    steps_class = Steps

    def __init__(self, script: dict[str, Any], world: World) -> None:
        self.world = world
        self.offer = Offer(script)
        self.hooks: dict[str, list[dict[str, Any]]] = script.get("on", {})
        self._single: bool = script.get("single_threaded", False)
        self._steps = self.steps_class(self)
        self._buffer: list[bytes] = []
        self._backlog: deque[tuple[dict[str, Any], Any]] = deque()
        self._ready: deque[tuple[Task, int, Any]] = deque()
        self._timers: list[tuple[float, int, Task, int]] = []
        self._sequence = 0
        self._waiting: dict[tuple[str, Any], list[tuple[Task, int]]] = {}
        self._turning = False
        self._starting: Task | None = None
        self._busy: Task | None = None
        self._asking = 0
        self.active: dict[Any, Task] = {}
        self.flags: set[str] = set()
        self.stalled_until: float | None = None
        self.listeners: dict[Any, tuple[Task, dict[str, Any]]] = {}
        self.modern_peer = False
        self.minted = 0
        self.facts = world.facts()
        self.offer.info = fill(self.offer.info, self.facts)

    # What the world calls.

    def start(self) -> None:
        """Play what comes before the first byte is read."""
        self._starting = self.launch(self.hooks.get("start", []))
        self._turn()

    @property
    def wants_input(self) -> bool:
        """Whether the server would read now."""
        if self._starting is not None or self.stalled_until is not None:
            return False
        return self._busy is None or self._asking > 0

    def receive(self, data: bytes) -> None:
        """Bytes came in. They are taken even where ``wants_input`` is false, and then wait."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._buffer.append(line)
            whole = b"".join(self._buffer)
            self._buffer.clear()
            if whole.strip():
                self._read(whole)
        if rest:
            self._buffer.append(rest)
        self._turn()

    def take(self, message: dict[str, Any], origin: Any) -> None:
        """A message came in by another way than a line of stdin."""
        self._backlog.append((message, origin))
        self._turn()

    def eof(self) -> None:
        """No more bytes will come in."""
        torn = b"".join(self._buffer)
        if torn:
            self.note("torn", text=torn.decode("utf-8", "backslashreplace"))
        self.note("eof")
        self.wake_flag("eof")
        self.launch(self.hooks.get("eof", [{"do": "exit", "code": 0}]))
        self._turn()

    def signal(self, name: str, *, at_once: bool = False) -> None:
        """A signal arrived that the script has something to say about. Even a server that stands still serves it.

        With ``at_once`` its first steps are played inside the call: for a signal that comes in the middle of a write.
        """
        self.note("signal", signal=name)
        self.wake_flag(name)
        task = self.launch(self.hooks.get(name, []), urgent=True)
        if task is not None and at_once:
            self._resume(task, None)
        self._turn()

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, on the world's clock."""
        while self._timers and self._timers[0][3] != self._timers[0][2].turn:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def tick(self) -> None:
        """Resume whatever has waited long enough."""
        now = self.world.now()
        due = []
        while self._timers and self._timers[0][0] <= now:
            _, _, task, turn = heapq.heappop(self._timers)
            due.append((task, turn, None))
        self._ready.extend(due)
        self._turn()

    # What the steps call.

    def note(self, event: str, **facts: Any) -> None:
        """Add to the record."""
        if self.world.recording:
            self.world.note(event, facts)

    def launch(
        self,
        steps: list[dict[str, Any]],
        names: dict[str, Any] | None = None,
        *,
        urgent: bool = False,
        origin: Any = None,
    ) -> Task | None:
        """Start a task that answers no request; ``None`` where there is nothing to play."""
        if not steps:
            return None
        task = Task(self.facts if names is None else names, origin=origin)
        task.key = self.key(task.names.get("id"), origin)
        task.urgent = urgent
        self.task_begins(task)
        task.running = self._steps.play(steps, task)
        self._ready.append((task, task.turn, None))
        return task

    def wake(self, key: tuple[str, Any], value: Any = None) -> None:
        """Resume every task that waits for the key."""
        for task, turn in self._waiting.pop(key, ()):
            self._ready.append((task, turn, value))

    def wake_flag(self, name: str) -> None:
        """Raise a flag; who waits for it now or later goes on."""
        self.flags.add(name)
        self.wake(("flag", name))

    def await_answer(self, request_id: Any) -> Generator[Wait, Any, dict[str, Any]]:
        """Wait for the client's answer to a request of ours."""
        self._asking += 1
        try:
            answer: dict[str, Any] = yield None, ("answer", request_id)
        finally:
            self._asking -= 1
        return answer

    # Reading.

    def _read(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace")
        try:
            message = json.loads(line)
        except ValueError:
            self.note("garbled", text=text)
            self.world.write(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n')
            return
        self.note("received", text=text)
        if isinstance(message, dict):
            self._backlog.append((message, None))

    def _admit(self) -> None:
        """Take messages up: all that may be begun now, in order; answers always."""
        held: list[tuple[dict[str, Any], Any]] = []
        while self._backlog and self._starting is None and self.stalled_until is None:
            message, origin = self._backlog.popleft()
            if "method" not in message:
                self.wake(("answer", message.get("id")), message)
            elif self._busy is not None:
                held.append((message, origin))
            else:
                self._begin(message, origin)
        self._backlog.extendleft(reversed(held))

    def _begin(self, message: dict[str, Any], origin: Any) -> None:
        method = message["method"]
        params = message.get("params")
        if not isinstance(params, dict):
            params = {}
        meta = params.get("_meta")
        names = {
            **self.facts,
            **self.facts_of(origin),
            "id": message.get("id"),
            "method": method,
            "params": params,
            "args": params.get("arguments") or {},
            "token": meta.get("progressToken") if isinstance(meta, dict) else None,
        }
        task = Task(names, message, origin)
        task.key = self.key(names["id"], origin)
        self.task_begins(task)
        if "id" in message:
            try:
                task.modern = self.modern_peer = self.offer.is_modern(method, params)
            except Refused as refusal:
                task.refusal = refusal
            self.active[task.key] = task
            self._note_of(task, "begin", tool=params.get("name"), arguments=names["args"])
            if self._single:
                self._busy = task
        steps = self.hooks.get(method)
        if steps is not None:
            task.running = self._steps.play(steps, task)
        else:
            task.running = self._steps.standard(task)
        self._ready.append((task, task.turn, None))

    # Running.

    def _turn(self) -> None:
        """Run whatever can run."""
        if self._turning:
            return
        self._turning = True
        try:
            while True:
                if self.stalled_until is not None and self.stalled_until <= self.world.now():
                    self.stalled_until = None
                self._admit()
                if not self._ready:
                    break
                batch = list(self._ready)
                self._ready.clear()
                asleep = []
                for task, turn, value in batch:
                    if self.stalled_until is not None and not task.urgent:
                        asleep.append((task, turn, value))
                    elif task.turn == turn and task.running is not None:
                        self._resume(task, value)
                if asleep:
                    self._ready.extendleft(reversed(asleep))
                    if len(self._ready) == len(asleep):
                        break
        finally:
            self._turning = False

    def _resume(self, task: Task, value: Any) -> None:
        running = task.running
        if running is None:
            return
        task.turn += 1
        try:
            deadline, key = running.send(value)
        except (StopIteration, Over):
            self.finish(task, "done")
            return
        if deadline is not None:
            self._sequence += 1
            heapq.heappush(self._timers, (deadline, self._sequence, task, task.turn))
        if key is not None:
            self._waiting.setdefault(key, []).append((task, task.turn))

    def finish(self, task: Task, outcome: str) -> None:
        """A task has ended, or is ended here."""
        if task.running is None:
            return
        running, task.running = task.running, None
        task.turn += 1
        running.close()
        if task is self._starting:
            self._starting = None
        if task is self._busy:
            self._busy = None
        if task.message is not None and "id" in task.message:
            if self.active.get(task.key) is task:
                del self.active[task.key]
            self.listeners.pop(task.key, None)
            self._note_of(task, "end", outcome=outcome)
        self.task_ends(task, outcome)

    def cancel(self, request_id: Any, reason: Any, origin: Any = None) -> None:
        """The client withdrew a request."""
        task = self.active.get(self.key(request_id, origin))
        self.note("cancelled", id=request_id, reason=reason, known=task is not None)
        if task is not None:
            self.withdraw(task)

    def withdraw(self, task: Task) -> None:
        """Nobody waits for a task any more: it is woken if it waits for that, else ended unless it ignores it."""
        task.cancelled = True
        if ("cancelled", task.key) in self._waiting:
            self.wake(("cancelled", task.key))
        elif not task.ignores_cancel:
            self.finish(task, "cancelled")

    def _note_of(self, task: Task, event: str, **facts: Any) -> None:
        message = task.message or {}
        where = self.whereabouts(task.origin)
        self.note(event, id=message["id"], method=message["method"], **where, **facts)

    # What is different where there are many channels: over HTTP.

    def key(self, request_id: Any, origin: Any) -> Any:  # noqa: ARG002 - for those who have more than one channel
        """What a running request is known by."""
        return request_id

    def facts_of(self, origin: Any) -> dict[str, Any]:  # noqa: ARG002 - see above
        """More placeholders for a script that serves what came from there."""
        return {}

    def whereabouts(self, origin: Any) -> dict[str, Any]:  # noqa: ARG002 - see above
        """What a note about a request says of where it came from."""
        return {}

    def task_begins(self, task: Task) -> None:
        """A task was made."""

    def task_ends(self, task: Task, outcome: str) -> None:
        """A task has ended."""
