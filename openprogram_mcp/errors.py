"""Every error of this package, as one tree.

An error says what happened (``message``), what to do about it (``remedy``) and, where there is one, which server and
which place in the configuration it is about. Its ``code`` is what programs decide by; ``status`` is the HTTP status the
management API answers with. No error holds a secret, and none is classified by its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "AlreadyRunning",
    "AuthRequired",
    "CannotListen",
    "ConfigError",
    "Denied",
    "Forbidden",
    "InvalidArguments",
    "NotConnected",
    "OpenProgramMCPError",
    "ReadOnly",
    "RevisionConflict",
    "ServerExists",
    "ServerFailed",
    "ServerGone",
    "StorageError",
    "TimedOut",
    "TooSlow",
    "Unauthorized",
    "UnknownServer",
    "UnknownTool",
    "UsageError",
    "WorkerUnreachable",
]


class OpenProgramMCPError(Exception):
    """The root of the tree.

    Args:
        message: One sentence, safe to show to anyone: no secret, no traceback.
        remedy: One sentence that says what to do, or ``None``.
        server: The name of the server concerned, or ``None``.
        path: The place in the configuration or in the arguments, dotted (``servers.time.env.TZ``), or ``None``.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        server: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.server = server
        self.path = path

    def __str__(self) -> str:
        return self.message

    def extra(self) -> Mapping[str, Any]:
        """Keys that only this kind of error has, as they stand in a problem document."""
        return {}

    def to_problem(self) -> dict[str, Any]:
        """The error as an RFC 9457 problem document, the same in the API and in ``--json`` output."""
        return {
            "type": f"urn:openprogram-mcp:error:{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "detail": self.message,
            "code": self.code,
            "remedy": self.remedy,
            "path": self.path,
            "server": self.server,
            **self.extra(),
        }


class ConfigError(OpenProgramMCPError):
    """The configuration, or one entry of it, is not valid. ``path`` names the place."""

    code = "invalid_config"
    status = 422


class StorageError(OpenProgramMCPError):
    """A file of the state directory could not be read or written; nothing was changed."""

    code = "storage"
    status = 500


class RevisionConflict(OpenProgramMCPError):
    """The file was changed by somebody else since it was read; nothing was written."""

    code = "revision_conflict"
    status = 409


class AlreadyRunning(OpenProgramMCPError):
    """Another worker holds this state directory."""

    code = "already_running"
    status = 409


class CannotListen(OpenProgramMCPError):
    """The management API could not be served at the address asked for."""

    code = "cannot_listen"
    status = 500


class WorkerUnreachable(OpenProgramMCPError):
    """A worker is running, but it did not answer, or answered with something that is not ours."""

    code = "worker_unreachable"
    status = 502


class UsageError(OpenProgramMCPError):
    """The command line, or a request's own form, is not right; nothing was done."""

    code = "usage"
    status = 400


class ServerExists(OpenProgramMCPError):
    """A server of this name is configured already."""

    code = "server_exists"
    status = 409


class UnknownServer(OpenProgramMCPError):
    """No server of this name is configured."""

    code = "unknown_server"
    status = 404


class UnknownTool(OpenProgramMCPError):
    """No tool of this name is offered."""

    code = "unknown_tool"
    status = 404


class InvalidArguments(OpenProgramMCPError):
    """The arguments do not fit the tool's input schema; nothing was sent. ``path`` names the argument."""

    code = "invalid_arguments"
    status = 422


class Denied(OpenProgramMCPError):
    """A permission rule, or a human, refused the call; nothing was sent."""

    code = "denied"
    status = 403


class ReadOnly(OpenProgramMCPError):
    """The worker was started with ``--read-only``."""

    code = "read_only"
    status = 403


class Unauthorized(OpenProgramMCPError):
    """The request carries no valid owner token."""

    code = "unauthorized"
    status = 401


class Forbidden(OpenProgramMCPError):
    """The request comes from a foreign host name or origin."""

    code = "forbidden"
    status = 403


class TooSlow(OpenProgramMCPError):
    """The body of a request did not arrive in time; nothing was done."""

    code = "too_slow"
    status = 408


class ServerFailed(OpenProgramMCPError):
    """A server did not come up, or its answer could not be understood.

    Args:
        phase: Where it failed: one of the phases of a server's status.
        exit_code: The exit code of its process, where it has exited; negative for a signal.
        transient: Time may mend it (a timeout, an exit), so that trying again makes sense.
        retry_after: For how many seconds it wants to be left alone, where it has said so.
        stderr: The last lines of its standard error, secrets masked.
    """

    code = "server_failed"
    status = 422

    def __init__(
        self,
        message: str,
        *,
        phase: str,
        exit_code: int | None = None,
        transient: bool = False,
        retry_after: float | None = None,
        stderr: tuple[str, ...] = (),
        remedy: str | None = None,
        server: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, server=server, path=path)
        self.phase = phase
        self.exit_code = exit_code
        self.transient = transient
        self.retry_after = retry_after
        self.stderr = stderr

    def extra(self) -> Mapping[str, Any]:
        """The phase, the exit code and the last lines of standard error."""
        return {"phase": self.phase, "exit_code": self.exit_code, "stderr": list(self.stderr)}


class AuthRequired(ServerFailed):
    """A remote server does not let us in: it wants a sign-in, or rejects the credentials that it was given.

    Args:
        challenges: Its ``WWW-Authenticate`` headers.
        rejected: It was given the configured credentials.
        registration: Nobody can sign in before a client id is given.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: str,
        challenges: tuple[str, ...] = (),
        rejected: bool = False,
        registration: bool = False,
        remedy: str | None = None,
        server: str | None = None,
    ) -> None:
        super().__init__(message, phase=phase, remedy=remedy, server=server)
        self.challenges = challenges
        self.rejected = rejected
        self.registration = registration


class TimedOut(OpenProgramMCPError):
    """A budget ran out.

    Args:
        budget: Which one: ``queue``, ``connect``, ``call``, ``max_call`` or ``sign_in``.
        seconds: How long it was.
    """

    code = "timeout"
    status = 504

    def __init__(
        self, message: str, *, budget: str, seconds: float, remedy: str | None = None, server: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy, server=server)
        self.budget = budget
        self.seconds = seconds

    def extra(self) -> Mapping[str, Any]:
        """The budget that ran out and its length in seconds."""
        return {"budget": self.budget, "seconds": self.seconds}


class ServerGone(OpenProgramMCPError):
    """The connection was lost before the answer came.

    Args:
        may_have_run: Whether the request had left us, so that the tool may have had its effect.
    """

    code = "server_gone"
    status = 502

    def __init__(
        self, message: str, *, may_have_run: bool, remedy: str | None = None, server: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy, server=server)
        self.may_have_run = may_have_run

    def extra(self) -> Mapping[str, Any]:
        """Whether the tool may have run."""
        return {"may_have_run": self.may_have_run}


class NotConnected(OpenProgramMCPError):
    """The server is not connected, and nothing is under way that will connect it."""

    code = "not_connected"
    status = 503
