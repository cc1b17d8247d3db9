"""From arguments to an exit code: parsing, running the command, and telling what went wrong without a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path

from .. import paths
from ..errors import ConfigError, OpenProgramMCPError
from ._output import Output
from ._parser import Options, build_parser
from ._parser_manage import split_words
from ._signals import Interrupted

__all__ = ["run"]

_DEBUG = "OPENPROGRAM_MCP_DEBUG"

_COMMANDS = {
    "worker": "_worker",
    "list": "_servers",
    "show": "_servers",
    "add": "_add",
    "edit": "_edit",
    "rm": "_change",
    "enable": "_change",
    "disable": "_change",
    "connect": "_change",
    "disconnect": "_change",
    "restart": "_change",
    "logs": "_watch",
    "events": "_watch",
    "completion": "_completion",
    "tools": "_tools",
    "call": "_tools",
    "test": "_test",
    "auth": "_auth",
    "config-path": "_doctor",
    "doctor": "_doctor",
}
"""The module of each command; its function is called ``run_`` and the command's name."""

_USAGE_CODES = frozenset({"usage", "invalid_arguments"})


def run(argv: Sequence[str], early_signals: Sequence[int]) -> int:
    """Run one command.

    Args:
        argv: The arguments, without the program's name.
        early_signals: The list in which signals were noted since the process began; it may still grow.

    Returns:
        The exit code.
    """
    # Behind a -- it is an argument of somebody else's.
    output = Output(json="--json" in split_words(argv)[0])
    try:
        options = build_parser().parse_options(argv, early_signals)
        with _state_dir(options):
            _check_state_dir()
            module = import_module(f".{_COMMANDS[options.command]}", __package__)
            code: int = getattr(module, f"run_{options.command.replace('-', '_')}")(options, output)
            output.flush()
            return code
    except OpenProgramMCPError as error:
        problem = error.to_problem()
        _tell(output, problem)
        return 2 if problem.get("code") in _USAGE_CODES else 1
    except Interrupted as interrupted:
        return interrupted.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is still buffered must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - nobody should have to read a traceback of ours
        _tell(output, _internal(error))
        return 1


def _state_dir(options: Options) -> AbstractContextManager[object]:
    if options.state_dir is None:
        return nullcontext()
    return paths.use_state_dir(Path(options.state_dir).expanduser().absolute())


def _check_state_dir() -> None:
    try:
        paths.get_state_dir()
    except (ValueError, RuntimeError) as error:
        # A profile that is no name, or a user without a home.
        raise ConfigError(str(error), remedy=f"Correct the variable, or set {paths.STATE_DIR_VARIABLE}") from error


def _tell(output: Output, problem: dict[str, object]) -> None:
    try:
        output.problem(problem)
        output.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal(error: Exception) -> dict[str, object]:
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)
    # The place, and not the message: it could hold what must not be shown.
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    problem = OpenProgramMCPError(
        f"A fault of this program's own: {type(error).__name__}{where}",
        remedy=f"Run it again with {_DEBUG}=1 and report what it prints",
    )
    return problem.to_problem()
