"""What can be typed to manage servers: adding and changing them, starting and stopping them, watching them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["LEVELS", "SHELLS", "add_manage_commands", "add_watch_commands", "split_words"]

SHELLS = ("bash", "zsh", "fish")

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The levels of a server's log, as MCP has them; the gravest is last."""

_ADD_EPILOG = """\
Examples:
  openprogram-mcp add time -- uvx mcp-server-time
  openprogram-mcp add tickets --env 'TICKETS_TOKEN=${TICKETS_TOKEN}' -- tickets-mcp --verbose
  openprogram-mcp add docs https://docs.example.com/mcp --header 'Authorization: Bearer ${DOCS_TOKEN}'

The server is started first. One that does not come up is not saved, unless --force is given. In single quotes,
${NAME} is stored as it stands, and filled in whenever the server starts: so no secret is in the file.
"""

_EDIT_EPILOG = """\
The editor is $VISUAL or else $EDITOR. Secrets are shown as ********: left so, they stay as they are. An edit that does
not come up changes neither the file nor the running server.
"""


class NewCommand(Protocol):
    """Makes the parser of one more command."""

    def __call__(self, name: str, summary: str, *, epilog: str | None = None) -> argparse.ArgumentParser: ...


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The arguments before the first ``--``, and those behind it; ``None`` where there is none."""
    words = list(argv)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def add_manage_commands(new: NewCommand, seconds: Callable[[str], float]) -> None:
    """The commands that change servers.

    Args:
        new: Makes the parser of one more command.
        seconds: Reads a number of seconds.
    """
    add = new("add", "add a server: it is started, and saved once it is up", epilog=_ADD_EPILOG)
    add.usage = (
        "openprogram-mcp add [OPTIONS] NAME -- COMMAND [ARGUMENT ...]\n       openprogram-mcp add [OPTIONS] NAME URL"
    )
    add.add_argument("name", metavar="NAME", help="what to call it")
    add.add_argument("url", metavar="URL", nargs="?", help="where a remote server is; for a program write: -- COMMAND")
    add.add_argument(
        "--env",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_variable,
        help="a variable of its environment; may be repeated",
    )
    add.add_argument(
        "--header",
        metavar="KEY:VALUE",
        action="append",
        default=[],
        type=_header,
        help="a header sent to a remote server; may be repeated",
    )
    add.add_argument("--timeout", metavar="SECONDS", type=seconds, help="its timeout_seconds (default: 30)")
    add.add_argument("--disabled", action="store_true", help="save it without starting it")
    add.add_argument("--force", action="store_true", help="save it though it does not come up")

    edit = new("edit", "change a server's configuration in your editor", epilog=_EDIT_EPILOG)
    edit.add_argument("name", metavar="NAME", help="the server")
    edit.add_argument("--force", action="store_true", help="save it though it does not come up")

    for name, summary in (
        ("rm", "remove a server: from the file, then its process"),
        ("enable", "enable a server, save that, and start it"),
        ("disable", "stop a server, and save that it stays so"),
        ("connect", "start a server of the running worker"),
        ("disconnect", "stop a server of the running worker until it is connected again; not saved"),
        ("restart", "stop a server of the running worker and start it anew"),
    ):
        new(name, summary).add_argument("name", metavar="NAME", help="the server")


def add_watch_commands(new: NewCommand) -> None:
    """The commands that tell what happens, and the one for the shell."""
    logs = new("logs", "what the servers of the running worker have logged, their standard error included")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    logs.add_argument("--server", metavar="NAME", help="of this server alone")
    logs.add_argument("--level", choices=LEVELS, metavar="LEVEL", help=f"of this level or graver: {', '.join(LEVELS)}")

    events = new("events", "what has happened in the running worker")
    events.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    events.add_argument("--since", metavar="ID", type=_number, help="after the event of this number")

    completion = new("completion", "print a script that lets your shell complete what you type")
    completion.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=", ".join(SHELLS))
    completion.add_argument("--servers", action="store_true", help="print the servers' names instead, for that script")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        # What was typed may be a secret whose name was forgotten.
        raise argparse.ArgumentTypeError("expected KEY=VALUE")
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("expected KEY:VALUE")
    return name.strip(), value.strip()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected the number of an event, got {text!r}")
    return int(text)
