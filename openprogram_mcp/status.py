"""The states of a server, the transitions between them, and a server's status as one row. Pure.

The table below is the truth: the client asks :func:`check_transition` before it moves, and the diagram in the reference
is made from it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal

from attrs import field, frozen

from ._values import quick_frozen

__all__ = [
    "TRANSITIONS",
    "AuthStatus",
    "ErrorKind",
    "ExitWay",
    "LastCall",
    "Phase",
    "ProcessCount",
    "ServerState",
    "ServerStatus",
    "check_transition",
    "rfc3339",
]


def rfc3339(timestamp: float) -> str:
    """A moment, in seconds since the epoch, as RFC 3339 in UTC with milliseconds and ``Z``."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ServerState(StrEnum):
    """What a server is doing, as users see it."""

    DISABLED = "disabled"
    PENDING = "pending"
    STARTING = "starting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    NEEDS_AUTH = "needs_auth"
    NEEDS_CLIENT_REGISTRATION = "needs_client_registration"
    DISCONNECTED = "disconnected"


_S = ServerState

TRANSITIONS: Final[dict[ServerState, frozenset[ServerState]]] = {
    _S.DISABLED: frozenset({_S.PENDING, _S.DISCONNECTED}),
    _S.PENDING: frozenset({_S.STARTING, _S.FAILED, _S.DISABLED, _S.DISCONNECTED}),
    _S.STARTING: frozenset(
        {
            _S.CONNECTED,
            _S.FAILED,
            _S.RECONNECTING,
            _S.NEEDS_AUTH,
            _S.NEEDS_CLIENT_REGISTRATION,
            _S.PENDING,
            _S.DISABLED,
            _S.DISCONNECTED,
        }
    ),
    _S.CONNECTED: frozenset({_S.RECONNECTING, _S.FAILED, _S.NEEDS_AUTH, _S.PENDING, _S.DISABLED, _S.DISCONNECTED}),
    _S.RECONNECTING: frozenset({_S.STARTING, _S.PENDING, _S.FAILED, _S.DISABLED, _S.DISCONNECTED}),
    _S.FAILED: frozenset({_S.PENDING, _S.STARTING, _S.DISABLED, _S.DISCONNECTED}),
    _S.NEEDS_AUTH: frozenset({_S.NEEDS_CLIENT_REGISTRATION, _S.PENDING, _S.STARTING, _S.DISABLED, _S.DISCONNECTED}),
    _S.NEEDS_CLIENT_REGISTRATION: frozenset({_S.PENDING, _S.STARTING, _S.DISABLED, _S.DISCONNECTED}),
    _S.DISCONNECTED: frozenset({_S.PENDING, _S.DISABLED}),
}
"""From each state, the states that may follow it."""


def check_transition(old: ServerState, new: ServerState) -> None:
    """Refuse a move that the table does not have.

    Raises:
        AssertionError: The move is a fault of ours.
    """
    if new is not old and new not in TRANSITIONS[old]:
        raise AssertionError(f"a server cannot go from {old} to {new}")


Phase = Literal["config", "spawn", "connect", "initialize", "list_tools", "running", "internal"]
"""Where a failure happened; ``internal`` is a fault of ours."""

ErrorKind = Literal["transient", "needs_reauth", "fatal"]
"""What kind of failure it is: time may mend it, a sign-in mends it, or somebody must change something."""

ExitWay = Literal["eof", "term", "kill", "own"]
"""How the last process ended: after its stdin was closed, after SIGTERM, after SIGKILL, or by itself."""


@quick_frozen
class LastCall:
    """The last call of a tool that has ended.

    ``at`` is when it ended, in seconds since the epoch, and ``seconds`` how long it took; ``outcome`` is one of the
    outcomes of ``ToolCallEnded``.
    """

    tool: str
    at: float
    outcome: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"tool": self.tool, "at": rfc3339(self.at), "outcome": self.outcome, "seconds": round(self.seconds, 6)}


@frozen
class AuthStatus:
    """How a server is signed in to.

    ``state`` is ``unsupported``, ``not_logged_in``, ``logged_in`` or ``expired``.
    """

    kind: str = "none"
    state: str = "unsupported"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": self.kind, "state": self.state}


@frozen
class ProcessCount:
    """How many processes all servers have together.

    ``owned`` live; ``leaked`` is how many were ever found alive after their server had been stopped: 0, or it is a
    defect.
    """

    owned: int = 0
    leaked: int = 0


@frozen(kw_only=True)
class ServerStatus:
    """One server's status at one moment: the ROW of the command line, the API and the events.

    Times are RFC 3339 in UTC, durations are seconds. ``error`` is one sentence, ``remedy`` one more.
    """

    name: str
    type: str
    enabled: bool = True
    description: str | None = None
    status: ServerState = ServerState.PENDING
    error: str | None = None
    error_kind: ErrorKind | None = None
    phase: Phase | None = None
    exit_code: int | None = None
    exit_way: ExitWay | None = None
    stderr: tuple[str, ...] = ()
    remedy: str | None = None
    attempt: int = 0
    retry_at: str | None = None
    since: str = ""
    generation: int = 0
    tools: tuple[str, ...] = ()
    protocol_version: str | None = None
    server_info: dict[str, Any] | None = None
    pid: int | None = None
    uptime_seconds: float | None = None
    processes: int = 0
    in_flight: int = 0
    queued: int = 0
    last_call: LastCall | None = None
    auth: AuthStatus = field(factory=AuthStatus)
    authorization_url: str | None = None
    config_error: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether its tools can be called now."""
        return self.status is ServerState.CONNECTED

    @property
    def tool_count(self) -> int:
        """How many tools it offers."""
        return len(self.tools)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, keys in the documented order."""
        return {
            "name": self.name,
            "type": self.type,
            "enabled": self.enabled,
            "description": self.description,
            "status": str(self.status),
            "ready": self.ready,
            "error": self.error,
            "error_kind": self.error_kind,
            "phase": self.phase,
            "exit_code": self.exit_code,
            "exit_way": self.exit_way,
            "stderr": list(self.stderr),
            "remedy": self.remedy,
            "attempt": self.attempt,
            "retry_at": self.retry_at,
            "since": self.since,
            "generation": self.generation,
            "tool_count": self.tool_count,
            "tools": list(self.tools),
            "protocol_version": self.protocol_version,
            "server_info": self.server_info,
            "pid": self.pid,
            "uptime_seconds": self.uptime_seconds,
            "processes": self.processes,
            "in_flight": self.in_flight,
            "queued": self.queued,
            "last_call": self.last_call.to_dict() if self.last_call else None,
            "auth": self.auth.to_dict(),
            "authorization_url": self.authorization_url,
            "config_error": self.config_error,
            "warnings": list(self.warnings),
        }
