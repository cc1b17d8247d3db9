"""Every way out of a host, with servers of every manner: no process is left.

Hosts are processes of their own: a script with ``open_manager``, and the worker. Whenever tests are run, each way out
is tried with servers of all kinds in one host; ``long`` tries each pair by itself.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import servers

from ._exits import KINDS, Cell, cell
from ._worker_process import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: /proc shows what is left")

_AT_ONCE = 4


def _kinds() -> tuple[str, ...]:
    """All kinds that this machine can play."""
    try:
        servers.node()
    except servers.ServersUnavailable:
        return tuple(kind for kind in KINDS if kind not in ("npx", "starting"))
    return tuple(kind for kind in KINDS if kind != "starting")


# The ways out. Each ends a running host and says what must be true of its end.


def _returns(cell: Cell) -> None:
    with cell.host("script") as host:
        host.tell("return")
        assert host.end() == 0, host.log


def _raises(cell: Cell) -> None:
    with cell.host("script") as host:
        host.tell("raise")
        assert host.end() == 7, host.log


def _cancelled(cell: Cell) -> None:
    with cell.host("script") as host:
        host.tell("cancel")
        assert host.end() == 0, host.log


def _signalled(kind: str, number: int, code: int) -> Callable[[Cell], None]:
    def way(cell: Cell) -> None:
        with cell.host(kind) as host:
            host.process.send_signal(number)
            assert host.end() == code, host.log
            assert "left\n" not in host.log

    return way


def _ctrl_c(kind: str, code: int) -> Callable[[Cell], None]:
    """Ctrl-C in a terminal, which signals the whole foreground group."""

    def way(cell: Cell) -> None:
        with cell.host(kind, in_terminal=True) as host:
            host.press_ctrl_c()
            assert host.end() == code, host.log

    return way


def _twice(kind: str, code: int) -> Callable[[Cell], None]:
    """A second signal, in the middle of the stop: the servers have their time all the same."""

    def way(cell: Cell) -> None:
        def stopping() -> bool:
            return any(fake.records("eof") for fake in cell.fakes.values()) or host.process.poll() is not None

        with cell.host(kind) as host:
            host.process.send_signal(signal.SIGINT)
            until(stopping, "a server whose input is closed")
            host.process.send_signal(signal.SIGINT)
            assert host.end() == code, host.log

    return way


def _killed(kind: str) -> Callable[[Cell], None]:
    def way(cell: Cell) -> None:
        with cell.host(kind) as host:
            host.process.kill()
            host.process.wait()
        # If nothing were left now, nothing would be proven.
        if any(KINDS[name].survives for name in cell.kinds):
            assert cell.alive()
        _next_host_cleans(cell, kind)

    return way


def _next_host_cleans(cell: Cell, kind: str) -> None:
    before = set(cell.alive())
    with cell.host(kind, wait=None) as host:
        # What is being born at this moment is not in the list; a host that has come so far ends it before it ends.
        until(lambda: ("serves at" if kind == "worker" else "open\n") in host.log, "a host that has a manager")
        until(lambda: not before & set(cell.alive()), f"the end of what was left:\n{cell.described()}")
        host.process.send_signal(signal.SIGTERM)
        host.end()


def _fault(kind: str) -> Callable[[Cell], None]:
    """A fault of ours in every server's task: contained, and the servers are gone while the host lives on."""

    def way(cell: Cell) -> None:
        with cell.host(kind) as host:
            host.process.send_signal(signal.SIGUSR1)
            until(lambda: not cell.alive(), f"the end of the servers:\n{cell.described()}")
            assert host.process.poll() is None, host.log
            if kind == "worker":
                host.process.send_signal(signal.SIGTERM)
            else:
                host.tell("return")
            assert host.end() == 0, host.log

    return way


def _fault_let_out(cell: Cell) -> None:
    with cell.host("script", "--let-out") as host:
        host.process.send_signal(signal.SIGUSR1)
        assert host.end() == 1, host.log
        assert "InjectedFault" in host.log


def _start_cancelled(cell: Cell) -> None:
    with cell.host("script", wait="born") as host:
        host.tell("cancel")
        assert host.end() == 0, host.log


def _start_signalled(kind: str, number: int, code: int) -> Callable[[Cell], None]:
    def way(cell: Cell) -> None:
        with cell.host(kind, wait="born") as host:
            host.process.send_signal(number)
            assert host.end() == code, host.log

    return way


def _start_killed(kind: str) -> Callable[[Cell], None]:
    def way(cell: Cell) -> None:
        with cell.host(kind, wait="born") as host:
            host.process.kill()
            host.process.wait()
        _next_host_cleans(cell, kind)

    return way


WAYS: dict[str, Callable[[Cell], None]] = {
    "script: return": _returns,
    "script: exception": _raises,
    "script: cancelled": _cancelled,
    "script: SIGINT": _signalled("script", signal.SIGINT, 130),
    "script: SIGINT twice": _twice("script", 130),
    "script: Ctrl-C": _ctrl_c("script", 130),
    "script: SIGTERM": _signalled("script", signal.SIGTERM, -signal.SIGTERM),
    "script: SIGHUP": _signalled("script", signal.SIGHUP, -signal.SIGHUP),
    "script: SIGKILL": _killed("script"),
    "script: fault": _fault("script"),
    "script: fault let out": _fault_let_out,
    "worker: SIGINT": _signalled("worker", signal.SIGINT, 0),
    "worker: SIGINT twice": _twice("worker", 0),
    "worker: Ctrl-C": _ctrl_c("worker", 0),
    "worker: SIGTERM": _signalled("worker", signal.SIGTERM, 0),
    "worker: SIGHUP": _signalled("worker", signal.SIGHUP, 0),
    "worker: SIGKILL": _killed("worker"),
    "worker: fault": _fault("worker"),
}

START_WAYS: dict[str, Callable[[Cell], None]] = {
    "script: start cancelled": _start_cancelled,
    "script: SIGINT at start": _start_signalled("script", signal.SIGINT, 130),
    "script: SIGTERM at start": _start_signalled("script", signal.SIGTERM, -signal.SIGTERM),
    "script: SIGKILL at start": _start_killed("script"),
    "worker: SIGINT at start": _start_signalled("worker", signal.SIGINT, 0),
    "worker: SIGTERM at start": _start_signalled("worker", signal.SIGTERM, 0),
    "worker: SIGKILL at start": _start_killed("worker"),
}


def _try(folder: Path, way: str, kinds: tuple[str, ...]) -> None:
    with cell(folder, kinds) as made:
        {**WAYS, **START_WAYS}[way](made)
        made.assert_nothing_left(f"after {way}")


def _try_all(folder: Path, cells: list[tuple[str, tuple[str, ...]]]) -> None:
    """Try several at once, and tell of all that fail."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tries = [(way, kinds, pool.submit(_try, folder, way, kinds)) for way, kinds in cells]
        failed = [f"{way} with {', '.join(kinds)}: {found}" for way, kinds, one in tries if (found := one.exception())]
    assert not failed, "\n\n".join(failed)


def _in_fours(names: list[str]) -> list[list[str]]:
    return [names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE)]


@pytest.mark.parametrize("ways", _in_fours([*WAYS]), ids=", ".join)
def test_nothing_is_left_on_any_way_out_of_a_host_with_servers_of_all_kinds(ways: list[str], tmp_path: Path) -> None:
    _try_all(tmp_path, [(way, _kinds()) for way in ways])


@pytest.mark.parametrize("ways", _in_fours([*START_WAYS]), ids=", ".join)
def test_nothing_is_left_when_the_start_is_cut_short(ways: list[str], tmp_path: Path) -> None:
    _try_all(tmp_path, [(way, (*_kinds(), "starting")) for way in ways])


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_on_any_way_out_with_each_kind_of_server_alone(way: str, tmp_path: Path) -> None:
    _try_all(tmp_path, [(way, (kind,)) for kind in _kinds()])


@pytest.mark.long
@pytest.mark.parametrize("way", START_WAYS)
def test_nothing_is_left_of_each_kind_of_server_when_its_start_is_cut_short(way: str, tmp_path: Path) -> None:
    _try_all(tmp_path, [(way, (kind,)) for kind in (*_kinds(), "starting")])
