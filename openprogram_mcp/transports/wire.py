"""JSON-RPC over lines, without any I/O: framing, decoding, encoding, and which answer belongs to which request.

Owns no stream, no task and no clock. Bytes go in and messages come out; whatever a peer sends, nothing raises: what is
no message is :class:`Noise`, with the id of the request it was meant to answer where that can still be read.

MCP specification: basic/transports/stdio, and JSON-RPC 2.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from attrs import define

__all__ = [
    "Envelope",
    "LineBuffer",
    "Noise",
    "Outstanding",
    "RequestId",
    "Slot",
    "as_request_id",
    "correlation_key",
    "decode",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_result",
    "oversized",
]

RequestId: TypeAlias = int | str

_BOM: Final = b"\xef\xbb\xbf"
_HINT_BYTES: Final = 1024
# The id of an answer, and of nothing else: beside it stands "result" or "error", never "method".
_VERSION: Final = rb'"jsonrpc"\s*:\s*"[^"]{0,8}"\s*'
_ID: Final = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,128}")\s*'
_OUTCOME: Final = rb'"(?:result|error)"\s*:'
_ID_AT_START = re.compile(
    rb"^\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb",\s*(?:" + _VERSION + rb",\s*)?" + _OUTCOME
)
_OUTCOME_AT_START = re.compile(rb"^\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _OUTCOME)
_ID_AT_END = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*$")
_PROGRESS_HELD: Final = 1024

UNSET = msgspec.UNSET


class Envelope(msgspec.Struct):
    """One JSON-RPC message as it came; which kind it is, is told by the fields that are set."""

    jsonrpc: Any = UNSET
    id: Any = UNSET
    method: Any = UNSET
    params: Any = UNSET
    result: Any = UNSET
    error: Any = UNSET


@define
class Noise:
    """A line that is no message.

    Args:
        reason: What is wrong with it, in a few words.
        size: Its length in bytes.
        id: The id of the request it was meant to answer, where that can be read.
        sample: Its first bytes.
    """

    reason: str
    size: int
    id: RequestId | None = None
    sample: bytes = b""


def as_request_id(value: object) -> RequestId | None:
    """A value from the wire as an id, or ``None``. A boolean is none, though Python calls it an integer."""
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return value
    return None


def correlation_key(request_id: RequestId) -> RequestId:
    """The key under which an id is looked up: some peers answer request 7 as ``"7"``."""
    if isinstance(request_id, str):
        try:
            return int(request_id)
        except ValueError:
            return request_id
    return request_id


class LineBuffer:
    """Cuts a stream of bytes into lines at LF, and nowhere else.

    Linear in the number of bytes, however they are split. A line over the limit is not kept: its bytes are dropped as
    they come, and when it ends it is told as :class:`Noise`.

    Args:
        limit: The longest line that is accepted, in bytes.
    """

    __slots__ = ("_head", "_limit", "_overflow", "_partial", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._overflow = 0
        self._head = b""
        self._tail = b""

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished line are held."""
        return len(self._partial)

    def feed(self, chunk: bytes) -> list[bytes | bytearray | Noise]:
        """Take bytes and give the lines that they complete, without their ends."""
        pieces = chunk.split(b"\n")
        rest = pieces.pop()
        lines: list[bytes | bytearray | Noise] = []
        for piece in pieces:
            if self._overflow:
                lines.append(self._end_of_overflow(piece))
            elif self._partial:
                self._partial += piece
                lines.append(self._checked(self._partial))
                self._partial = bytearray()
            elif piece:
                lines.append(self._checked(piece))
        if rest:
            self._hold(rest)
        return lines

    def finish(self) -> list[bytes | bytearray | Noise]:
        """The end of the stream: give what has no LF after it, for a peer may have forgotten the last one."""
        if self._overflow:
            return [self._end_of_overflow(b"")]
        if not self._partial:
            return []
        line, self._partial = self._partial, bytearray()
        return [line]

    def _checked(self, line: bytes | bytearray) -> bytes | bytearray | Noise:
        if len(line) <= self._limit:
            return line
        return oversized(len(line), bytes(line[:_HINT_BYTES]), bytes(line[-_HINT_BYTES:]))

    def _hold(self, piece: bytes) -> None:
        if self._overflow:
            self._drop(piece)
            return
        self._partial += piece
        if len(self._partial) > self._limit:
            self._overflow = len(self._partial)
            self._head = bytes(self._partial[:_HINT_BYTES])
            self._tail = bytes(self._partial[-_HINT_BYTES:])
            self._partial = bytearray()

    def _drop(self, piece: bytes) -> None:
        self._overflow += len(piece)
        if len(self._head) < _HINT_BYTES:  # the limit is that small
            self._head += piece[: _HINT_BYTES - len(self._head)]
        self._tail = (self._tail + piece[-_HINT_BYTES:])[-_HINT_BYTES:]

    def _end_of_overflow(self, piece: bytes) -> Noise:
        self._drop(piece)
        noise = oversized(self._overflow, self._head, self._tail)
        self._overflow, self._head, self._tail = 0, b"", b""
        return noise


def oversized(size: int, head: bytes, tail: bytes = b"") -> Noise:
    """What is told of a message that is over the limit.

    Args:
        size: Its length in bytes.
        head: Its first bytes.
        tail: Its last bytes, as far as they are known.
    """
    return Noise("a message over the size limit", size, _id_hint(head, tail), head[:80])


def _id_hint(head: bytes, tail: bytes) -> RequestId | None:
    """The id in the first or last bytes of an answer that could not be read whole."""
    found = _ID_AT_START.search(head)
    if found is None and _OUTCOME_AT_START.search(head):
        found = _ID_AT_END.search(tail)
    if found is None:
        return None
    text = found.group(1)
    return text[1:-1].decode("utf-8", "replace") if text.startswith(b'"') else int(text)


_decoder = msgspec.json.Decoder(Envelope)


def decode(line: bytes | bytearray) -> Envelope | list[Envelope] | Noise | None:
    """One line as a message, as several (a batch, as revision 2025-03-26 had), as noise, or as nothing (a blank one).

    Invalid UTF-8 costs the characters it stands for, not the message; what only Python's JSON reads (``NaN``, numbers
    out of range, unpaired surrogates, bare control characters in a text) is read.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(line)


def _decode_slowly(line: bytes | bytearray) -> Envelope | list[Envelope] | Noise | None:
    data = bytes(line).removeprefix(_BOM).strip()
    if not data:
        return None
    if data[:1] not in b"{[":
        return Noise("not JSON", len(line), None, data[:80])
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return Noise("not JSON", len(line), _id_hint(data[:_HINT_BYTES], data[-_HINT_BYTES:]), data[:80])
    if isinstance(value, dict):
        return _envelope(value)
    batch = [_envelope(item) for item in value if isinstance(item, dict)]
    return batch or Noise("JSON, but not a message", len(line), None, data[:80])


def _envelope(value: Mapping[str, Any]) -> Envelope:
    return Envelope(**{name: value[name] for name in Envelope.__struct_fields__ if name in value})


_encoder = msgspec.json.Encoder()


def _line(message: dict[str, Any]) -> bytes:
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:
        # An unpaired surrogate, as a model may write it: JSON has an escape for it, UTF-8 has not.
        return json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def encode_request(request_id: RequestId, method: str, params: Mapping[str, Any] | None) -> bytes:
    """A request as one line. Empty ``params`` are left out."""
    if params:
        return _line({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
    return _line({"jsonrpc": "2.0", "id": request_id, "method": method})


def encode_notification(method: str, params: Mapping[str, Any] | None) -> bytes:
    """A notification as one line."""
    if params is None:
        return _line({"jsonrpc": "2.0", "method": method})
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def encode_result(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    """The answer to a request as one line."""
    return _line({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: RequestId, code: int, message: str, data: Any = None) -> bytes:
    """The refusal of a request as one line."""
    error = {"code": code, "message": message} if data is None else {"code": code, "message": message, "data": data}
    return _line({"jsonrpc": "2.0", "id": request_id, "error": error})


@define(eq=False)
class Slot:
    """A request that waits for its one outcome.

    Args:
        key: The key of its id.
        wake: Called, synchronously, whenever something has come for it.
        deadline: When it is given up unless something is heard, on the owner's clock.
        hard_deadline: When it is given up whatever is heard.
        idle: By how much something heard moves ``deadline``, in seconds.
        issued: Some of it has left us.
        interrupt: Called when it is given up while somebody is being told its progress.
        expired: Which limit ran out, ``idle`` or ``hard``, once one has.
        last_heard: The last progress: when, how far, of how much, and a word about it.
    """

    key: RequestId
    wake: Callable[[], None]
    deadline: float = float("inf")
    hard_deadline: float = float("inf")
    idle: float | None = None
    issued: bool = False
    interrupt: Callable[[], None] | None = None
    expired: str | None = None
    outcome: Any = None
    settled: bool = False
    progress: list[tuple[float, float | None, str | None]] | None = None
    last_heard: tuple[float, float, float | None, str | None] | None = None

    def settle(self, outcome: Any) -> bool:
        """Give it its outcome. Only the first one counts."""
        if self.settled:
            return False
        self.settled = True
        self.outcome = outcome
        self.wake()
        return True

    def give_up(self, outcome: Any) -> bool:
        """Give it an outcome of our own, if it has none yet, and let nobody listen to its progress any more."""
        settled = self.settle(outcome)
        if self.interrupt is not None:
            self.interrupt()
        return settled

    def arm(self, now: float, timeout: float | None, hard_timeout: float | None) -> None:
        """Set its limits, in seconds from now."""
        self.idle = timeout
        if hard_timeout is not None:
            self.hard_deadline = now + hard_timeout
        self.deadline = self.hard_deadline if timeout is None else min(self.hard_deadline, now + timeout)

    def restart(self, now: float) -> None:
        """Something has moved: the limit that moves with it begins again."""
        if self.idle is not None:
            self.deadline = min(now + self.idle, self.hard_deadline)

    def heard(self, progress: float, total: float | None, message: str | None, now: float) -> bool:
        """Take a progress notification; one that goes backwards is refused.

        Of more than somebody slow can listen to, the oldest are forgotten.
        """
        if self.settled or (self.last_heard is not None and progress < self.last_heard[1]):
            return False
        self.last_heard = (now, progress, total, message)
        self.restart(now)
        if self.progress is not None:
            if len(self.progress) >= _PROGRESS_HELD:
                del self.progress[: _PROGRESS_HELD // 2]
            self.progress.append((progress, total, message))
            self.wake()
        return True


class Outstanding:
    """The requests that wait for an answer, by id."""

    __slots__ = ("_next", "_slots")

    def __init__(self) -> None:
        self._slots: dict[RequestId, Slot] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    def mint(self) -> int:
        """A new id, past those in use."""
        self._next += 1
        while self._next in self._slots:
            self._next += 1
        return self._next

    def id_for(self, given: RequestId | None) -> RequestId:
        """The id of a new request: the one that its sender wants, or a new one.

        Raises:
            ValueError: What is wanted is no id.
        """
        if given is None:
            return self.mint()
        if as_request_id(given) is None:
            raise ValueError(f"{given!r} is no request id")
        return given

    def add(self, slot: Slot) -> None:
        """Enter a request.

        Raises:
            ValueError: Its id is in use.
        """
        if slot.key in self._slots:
            raise ValueError(f"request id {slot.key!r} is already in flight")
        self._slots[slot.key] = slot

    def remove(self, slot: Slot) -> None:
        """Forget a request; whatever comes for it from now on is late. Removing twice is harmless."""
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]

    def find(self, request_id: object) -> Slot | None:
        """The request that an id from the wire means, or ``None`` where it is unknown, late or no id at all."""
        wire_id = as_request_id(request_id)
        return None if wire_id is None else self._slots.get(correlation_key(wire_id))

    def only(self) -> Slot | None:
        """The one request that waits, where there is exactly one: an answer without an id can only be for it."""
        waiting = [slot for slot in self._slots.values() if slot.issued and not slot.settled]
        return waiting[0] if len(waiting) == 1 else None

    def settle_all(self, outcome: Any) -> None:
        """Give the same outcome to all, at once and without waiting; for the end of a connection."""
        for slot in self:
            slot.give_up(outcome)
