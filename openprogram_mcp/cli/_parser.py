"""What can be typed: the commands, their options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from .. import __version__
from ..errors import UsageError
from ._parser_manage import add_manage_commands, add_watch_commands, split_words

__all__ = ["Options", "Parser", "build_parser", "command_of"]

_PROGRAM = "openprogram-mcp"

_EPILOG = """\
Begin with:
  openprogram-mcp worker --demo-if-empty     a worker, with a demonstration server when nothing is configured
  openprogram-mcp list                       in a second terminal: its servers
  openprogram-mcp call demo__echo text=hello
"""

_CALL_EPILOG = """\
Arguments:
  key=value      text
  key:=json      any JSON: a:=1  flag:=true  list:='[1, 2]'
  --args JSON    all of them as one JSON object; --args - reads it from standard input
"""


class Options(argparse.Namespace):
    """The parsed arguments of one command."""

    command: str
    json: bool
    state_dir: str | None
    early_signals: Sequence[int]

    name: str
    tool: str
    pairs: list[str]
    args: str | None
    timeout: float | None

    paste: bool
    no_browser: bool
    status: bool
    forget: bool
    pending: bool
    cancel: str | None

    url: str | None
    words: list[str] | None = None
    env: list[tuple[str, str]]
    header: list[tuple[str, str]]
    disabled: bool
    force: bool

    follow: bool
    server: str | None
    level: str | None
    since: int | None
    shell: str | None
    servers: bool

    host: str
    port: int
    demo_if_empty: bool
    read_only: bool
    secondary: bool
    log_format: str


class Parser(argparse.ArgumentParser):
    """A parser that raises our own error, so that ``--json`` and the exit code hold for wrong usage too."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message[:1].upper()}{message[1:]}", remedy=f"See {self.prog} --help")

    def parse_options(self, argv: Sequence[str], early_signals: Sequence[int]) -> Options:
        """Parse the arguments of one command.

        Raises:
            UsageError: They are not right.
        """
        before, words = split_words(argv)
        if words is not None and command_of(before) == "add":
            # What is behind the -- is a command line of its own.
            argv = before
        else:
            words = None
        options, rest = self.parse_known_args(list(argv), Options())
        options.words = words
        if options.command == "call":
            # argparse gives a list of arguments what stands before the next option, and no more.
            options.pairs += [word for word in rest if not word.startswith("-")]
            rest = [word for word in rest if word.startswith("-")]
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        options.early_signals = early_signals
        return options


def command_of(argv: Sequence[str]) -> str | None:
    """The command among some arguments, before they are parsed: the first word that is no option, nor of one."""
    words = iter(argv)
    for word in words:
        if word == "--state-dir":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog=_PROGRAM,
        description="Connects to MCP servers and serves their tools.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    _add_common(parser, default=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    worker = _add(commands, "worker", "keep servers connected and serve their tools over HTTP, until stopped")
    worker.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    worker.add_argument("--port", type=_port, default=0, help="port to listen at (default: any that is free)")
    worker.add_argument("--demo-if-empty", action="store_true", help="use the demo server when nothing is configured")
    worker.add_argument("--read-only", action="store_true", help="refuse whatever would change something")
    worker.add_argument("--secondary", action="store_true", help="run beside another worker; commands do not find it")
    worker.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="form of the log (default: %(default)s)"
    )

    new = partial(_add, commands)
    _add(commands, "list", "all servers and their states")
    show = _add(commands, "show", "one server: its state, its configuration and its tools")
    show.add_argument("name", metavar="NAME", help="the server")

    add_manage_commands(new, _seconds)
    _add(commands, "tools", "all tools that can be called")
    call = _add(commands, "call", "call a tool", epilog=_CALL_EPILOG)
    call.add_argument("tool", metavar="TOOL", help="the tool's full name, as `tools` lists it: server__tool")
    call.add_argument("pairs", metavar="ARGUMENT", nargs="*", default=[], help="key=value or key:=json")
    call.add_argument("--args", metavar="JSON", help="all arguments as one JSON object, or - for standard input")
    call.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="limit (default: the server's own)")

    test = _add(commands, "test", "start one server alone, see whether it comes up, and stop it again")
    test.add_argument("name", metavar="NAME", help="the server")

    auth = _add(commands, "auth", "sign in to a server with a browser, or see and forget a sign-in")
    auth.add_argument("name", metavar="NAME", nargs="?", help="the server")
    way = auth.add_mutually_exclusive_group()
    way.add_argument("--paste", action="store_true", help="ask for the code, or the address the browser ends on")
    way.add_argument("--no-browser", action="store_true", help="print the address, open no browser, and wait")
    way.add_argument("--status", action="store_true", help="say whether somebody is signed in")
    way.add_argument("--forget", action="store_true", help="forget the tokens and the registration")
    way.add_argument("--pending", action="store_true", help="the sign-ins that wait for somebody")
    way.add_argument("--cancel", metavar="STATE", help="give a sign-in up")

    add_watch_commands(new)
    _add(commands, "config-path", "where the configuration file is")
    _add(commands, "doctor", "check the configuration, the programs it names and the permissions of files")
    return parser


def _add(commands: Any, name: str, summary: str, *, epilog: str | None = None) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Both before and after the command's name; suppressed here, or it would undo what stood before the name.
    _add_common(command, default=argparse.SUPPRESS)
    return command


def _add_common(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument("--json", action="store_true", default=default, help="print JSON")
    parser.add_argument(
        "--state-dir",
        metavar="PATH",
        default=default or None,
        help="directory of the configuration and the state (default: ~/.openprogram)",
    )


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return number
