"""``completion``: a script for the shell, made of the parser. Only this command imports what makes it."""

from __future__ import annotations

import argparse
import re
from typing import Any

from ..errors import UsageError
from ._output import Output
from ._parser import Options, build_parser

__all__ = ["run_completion"]

_SERVERS = {
    "bash": "_openprogram_mcp_servers",
    "zsh": "_openprogram_mcp_servers",
    "fish": "(__openprogram_mcp_servers)",
}

_PREAMBLE = {
    "bash": """\
_openprogram_mcp_servers() {
  compgen -W "$("${COMP_WORDS[0]}" completion --servers 2>/dev/null)" -- "$1"
}
""",
    "zsh": """\
_openprogram_mcp_servers() {
  local -a servers
  servers=("${(@f)$(openprogram-mcp completion --servers 2>/dev/null)}")
  compadd -a servers
}
""",
    "fish": """\
function __openprogram_mcp_servers
  openprogram-mcp completion --servers 2>/dev/null
end
""",
}


def run_completion(options: Options, output: Output) -> int:
    """Print the script for a shell, or the names that it asks for."""
    if options.servers:
        _print_servers(output)
        return 0
    if options.shell is None:
        raise UsageError("Which shell?", remedy="See openprogram-mcp completion --help")
    import shtab

    parser = build_parser()
    for action in _names_of_servers(parser):
        action.complete = _SERVERS
    output.text(shtab.complete(parser, options.shell, preamble=_PREAMBLE[options.shell]))
    return 0


def _print_servers(output: Output) -> None:
    """The names in the file, which is read without starting anything; those alone that a shell need not quote."""
    from ..config import load_document

    document = load_document()
    names = [*document.servers, *document.broken]
    if output.json:
        output.value(names)
        return
    for name in names:
        if re.fullmatch(r"[\w@%+=:,./-]+", name):
            output.text(name)


def _names_of_servers(parser: argparse.ArgumentParser) -> list[Any]:
    """The arguments that are the name of a server which is there."""
    commands: dict[str, argparse.ArgumentParser] = next(
        action.choices for action in parser._actions if isinstance(action.choices, dict)
    )
    return [
        action
        for command, of_command in commands.items()
        for action in of_command._actions
        if command != "add" and (action.dest == "name" or action.option_strings == ["--server"])
    ]
