"""Servers in containers: the command that runs one is only its client, and ending that does not end the container.

So a container is given a name of ours when its command gives it none, and is ended by exactly that name when the server
is stopped. A container that the configuration names itself is ended only where we had to end its client: under that
name somebody else's may run by then. Nothing here ever ends containers by image, label or list.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Final

import trio
from attrs import frozen

from ..status import ExitWay

__all__ = ["Container", "end_container", "with_own_container"]

logger = logging.getLogger(__name__)

_END_SECONDS: Final = 5.0
_PROGRAMS: Final = frozenset({"docker", "podman", "nerdctl"})
# Options that take no value. All others take one: in the next argument, where it is not joined by "=".
_FLAGS: Final = frozenset(
    {
        # before the word "run"
        "debug", "debug-full", "experimental", "insecure-registry", "kube-hide-dupe", "noout", "remote", "syslog",
        "tls", "tlsverify", "transient-store",
        # behind it
        "detach", "disable-content-trust", "env-host", "help", "http-proxy", "init", "interactive", "no-healthcheck",
        "no-hostname", "no-hosts", "oom-kill-disable", "passwd", "privileged", "publish-all", "quiet", "read-only",
        "read-only-tmpfs", "replace", "rm", "rmi", "rootfs", "sig-proxy", "tls-verify", "tty", "unsetenv-all",
        "use-api-socket",
    }
)  # fmt: skip
_SHORT_FLAGS_BEFORE: Final = "Dr"
_SHORT_FLAGS_BEHIND: Final = "ditPq"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@frozen
class Container:
    """The container that a command runs.

    Args:
        program: The program with the options that stand before its command: what reaches the same daemon.
        name: Its name.
        id_file: The file that its id is written to, where it has no name.
        ours: The name is ours, so that nobody else's container can have it.
    """

    program: tuple[str, ...]
    name: str | None = None
    id_file: str | None = None
    ours: bool = False


def with_own_container(argv: Sequence[str]) -> tuple[tuple[str, ...], Container | None]:
    """The command with a name for its container, and the container; what runs none comes back as it is."""
    command = tuple(argv)
    if PurePath(command[0].replace("\\", "/")).name.lower().removesuffix(".exe") not in _PROGRAMS:
        return command, None
    run = _skip_options(command, 1, _SHORT_FLAGS_BEFORE)
    program = command[:run]
    if command[run : run + 1] == ("container",):
        run += 1
    if command[run : run + 1] != ("run",):
        return command, None
    image = _skip_options(command, run + 1, _SHORT_FLAGS_BEHIND)
    options = command[run + 1 : image]
    if (name := _value(options, "--name")) is not None:
        return command, Container(program, name)
    if (id_file := _value(options, "--cidfile")) is not None:
        return command, Container(program, id_file=id_file)
    name = f"openprogram-mcp-{secrets.token_hex(8)}"
    return (*command[: run + 1], "--name", name, *command[run + 1 :]), Container(program, name, ours=True)


def _skip_options(command: Sequence[str], start: int, short_flags: str) -> int:
    """Where the first argument stands that is no option, and no option's value."""
    place = start
    while place < len(command) and command[place].startswith("-") and command[place] != "-":
        option = command[place]
        if option == "--":
            return place + 1
        place += 2 if _takes_the_next(option, short_flags) else 1
    return min(place, len(command))


def _takes_the_next(option: str, short_flags: str) -> bool:
    if option.startswith("--"):
        return "=" not in option and option[2:] not in _FLAGS
    # Several letters in one: the first that takes a value has the rest of them as its value, if there is a rest.
    letters = option[1:].lstrip(short_flags)
    return len(letters) == 1


def _value(options: Sequence[str], wanted: str) -> str | None:
    for place, option in enumerate(options):
        if option == wanted and place + 1 < len(options):
            return options[place + 1]
        if option.startswith(f"{wanted}="):
            return option.partition("=")[2]
    return None


async def end_container(container: Container, env: Mapping[str, str], cwd: str | None, way: ExitWay) -> None:
    """End the container of a server whose client has ended.

    Bounded, and never fails: mostly the container has ended with its client, and there is nothing to end.

    Args:
        container: Which.
        env: The environment of its client: which daemon it is may stand there.
        cwd: The folder of its client.
        way: How its client ended.
    """
    if not container.ours and way not in ("term", "kill"):
        return
    name = container.name or await trio.to_thread.run_sync(_read_id, container, cwd)
    if not name or not _ID.fullmatch(name):
        return
    with trio.move_on_after(_END_SECONDS) as limit:
        try:
            await trio.run_process(
                [*container.program, "kill", name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                env=dict(env),
                cwd=cwd,
                start_new_session=sys.platform != "win32",
                deliver_cancel=_kill,
            )
        except OSError as error:
            logger.warning("the container %s could not be ended: %s", name, error.strerror)
    if limit.cancelled_caught:
        logger.warning("the container %s could not be ended within %g s", name, _END_SECONDS)


def _read_id(container: Container, cwd: str | None) -> str | None:
    try:
        with Path(cwd or "", container.id_file or "").open("rb") as file:
            return file.read(200).decode("ascii", "replace").strip()
    except OSError:
        return None


async def _kill(process: trio.Process) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended in the same moment
        return
