"""How a server's failures, and faults of ours, are said to the operator."""

from __future__ import annotations

import logging

from ..errors import AuthRequired, NotConnected, ServerFailed
from ..status import ServerState, ServerStatus
from ._connection import Ending

__all__ = ["fault_of_ours", "first_of", "loss_of", "not_connected", "state_after"]

logger = logging.getLogger(__name__)


def loss_of(server: str, ending: Ending) -> ServerFailed:
    """That a connection was lost, by how it ended."""
    if isinstance(ending.failure, AuthRequired):
        return ending.failure
    message = f"the connection was lost: {ending.error}"
    failure = ending.failure
    if failure is not None:
        return ServerFailed(
            message,
            phase=failure.phase,
            transient=failure.transient,
            retry_after=failure.retry_after,
            remedy=failure.remedy,
            server=server,
        )
    return ServerFailed(
        message,
        phase="running",
        exit_code=ending.exit_code,
        transient=True,
        remedy="Read its standard error; restart it when the reason is gone.",
        server=server,
    )


def fault_of_ours(server: str) -> ServerFailed:
    """That we have failed, while we served a server. Logs the traceback of the exception that is being handled."""
    logger.exception("a fault of openprogram_mcp's own, while it served %r", server)
    return ServerFailed(
        "a fault of openprogram_mcp's own; the log has the traceback",
        phase="internal",
        remedy="Please report it, with the traceback from the log.",
        server=server,
    )


def state_after(failure: ServerFailed) -> ServerState:
    """The state of a server that is down for this, and does not come back by itself."""
    if not isinstance(failure, AuthRequired) or failure.rejected:
        return ServerState.FAILED
    return ServerState.NEEDS_CLIENT_REGISTRATION if failure.registration else ServerState.NEEDS_AUTH


def not_connected(row: ServerStatus, going: ServerState, *, leaving: bool) -> NotConnected:
    """Why no call can be made, as the error for one caller.

    Args:
        row: What is true of the server.
        going: What it does, or is about to do.
        leaving: Whether it is on its way out.
    """
    if leaving:
        return NotConnected(f"server {row.name!r} was stopped", server=row.name)
    why = str(going) if row.error is None else f"{going}: {row.error}"
    remedy = {
        ServerState.DISABLED: "Enable it first.",
        ServerState.DISCONNECTED: "Connect it first.",
        ServerState.FAILED: row.remedy,
        ServerState.NEEDS_AUTH: row.remedy,
        ServerState.NEEDS_CLIENT_REGISTRATION: row.remedy,
    }.get(going)
    return NotConnected(f"server {row.name!r} is {why}", remedy=remedy, server=row.name)


def would_wait_for_itself(server: str, what: str) -> NotConnected:
    """Why something cannot wait for its turn: the turn it waits for would be given back after it alone.

    Args:
        server: The server's name.
        what: What was begun, as the beginning of a sentence.
    """
    return NotConnected(
        f"{what} while a request of its own server is served, and would wait for itself",
        remedy="Answer the server's request first, or allow more with 'serialize' and 'max_concurrency'.",
        server=server,
    )


def first_of(failures: BaseExceptionGroup[ServerFailed]) -> ServerFailed:
    """The first failure in a group of them."""
    for failure in failures.exceptions:
        return first_of(failure) if isinstance(failure, BaseExceptionGroup) else failure
    raise AssertionError("a group without exceptions")
