from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from openprogram_mcp.transports._census import MARK, marked
from openprogram_mcp.transports._ownership import Instance, end_marked, marked_environment, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

Start = Callable[..., "subprocess.Popen[bytes]"]

_SLEEPER = "import sys, time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program and waits until it has printed a line."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-S", "-c", code], env=env, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _env(mark: str, own: dict[str, str] | None = None) -> dict[str, str]:
    return marked_environment({"PATH": os.environ["PATH"]}, mark, own or {})


def test_a_process_is_found_by_its_mark_and_by_its_instance_and_by_nothing_else(start: Start) -> None:
    instance, other = Instance.claim(None), Instance.claim(None)
    first, second = instance.next_mark(), instance.next_mark()
    process = start(_SLEEPER, _env(first))
    assert marked(first) == [process.pid]
    assert marked(f"{instance.id}.") == [process.pid]
    assert marked(second) == []
    assert marked(f"{other.id}.") == []
    assert marked(first[:-2]) == []


def test_a_mark_is_a_whole_word(start: Start) -> None:
    instance = Instance.claim(None)
    marks = [instance.next_mark() for _ in range(12)]
    process = start(_SLEEPER, _env(marks[11]))
    assert marked(marks[11]) == [process.pid]
    assert marked(marks[0]) == []  # "….1" is not "….12"


def test_a_variable_that_only_ends_with_the_name_of_the_mark_is_none(start: Start) -> None:
    instance = Instance.claim(None)
    mark = instance.next_mark()
    start(_SLEEPER, {"PATH": os.environ["PATH"], f"NOT_{MARK}": mark})
    assert marked(mark) == []


def test_a_host_that_is_a_server_itself_hands_the_outer_mark_on(start: Start) -> None:
    outer, inner = Instance.claim(None).next_mark(), Instance.claim(None).next_mark()
    process = start(_SLEEPER, _env(inner, {MARK: outer}))
    assert marked(outer) == [process.pid]
    assert marked(inner) == [process.pid]


async def test_children_that_left_the_group_are_ended_too(start: Start) -> None:
    mark = Instance.claim(None).next_mark()
    code = (
        "import os, subprocess, sys, time\n"
        f"for _ in range(3): subprocess.Popen([sys.executable, '-S', '-c', {_SLEEPER!r}],"
        " start_new_session=True, stdout=subprocess.DEVNULL)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    process = start(code, _env(mark))
    assert len(marked(mark)) == 4
    assert await end_marked(mark, seconds=10) == 0
    assert process.wait() == -signal.SIGKILL
    assert marked(mark) == []


async def test_a_process_that_forks_again_and_again_does_not_get_away(start: Start) -> None:
    mark = Instance.claim(None).next_mark()
    code = (
        "import os, sys, time\n"
        "print('up', flush=True)\n"
        "end = time.monotonic() + 30\n"
        "while time.monotonic() < end:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid(); time.sleep(0.002)\n"
    )
    start(code, _env(mark))
    assert await end_marked(mark, seconds=20) == 0
    assert marked(mark) == []


async def test_life_04_what_a_dead_instance_left_is_ended_and_a_living_one_is_left_alone(
    tmp_path: Path, start: Start
) -> None:
    holder = (
        "from pathlib import Path\n"
        "from openprogram_mcp.transports._ownership import Instance\n"
        f"instance = Instance.claim(Path({str(tmp_path)!r}))\n"
        "print(instance.next_mark(), flush=True)\n"
        "import time; time.sleep(600)"
    )
    host = subprocess.Popen(  # noqa: ASYNC220 - it is only started here
        [sys.executable, "-c", holder], stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    assert host.stdout is not None
    with host, host.stdout:
        mark = host.stdout.readline().decode().strip()
        server = start(_SLEEPER, _env(mark))
        living = Instance.claim(tmp_path)
        mine = start(_SLEEPER, _env(living.next_mark()))
        assert await sweep(tmp_path) == []
        host.kill()
        host.wait()
    assert await sweep(tmp_path) == [mark.partition(".")[0]]
    assert server.wait() == -signal.SIGKILL
    assert mine.poll() is None
    assert os.listdir(tmp_path) == [f"{living.id}.lock"]  # noqa: PTH208 - names are wanted
    living.close()
    assert not await trio.Path(tmp_path).exists()


async def test_ending_what_is_not_there_takes_no_time_at_all(autojump_clock: trio.testing.MockClock) -> None:
    del autojump_clock
    assert await end_marked("nobody.1", seconds=1) == 0


def test_an_instance_is_closed_twice_without_harm(tmp_path: Path) -> None:
    instance = Instance.claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{instance.id}.lock"]
    instance.close()
    instance.close()
    assert not tmp_path.exists()
