"""SIGTERM to a program that says nothing about it: its servers are put away first, and then it does what it does."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from openprogram_mcp import open_manager
from openprogram_mcp.testing import FakeServer, do

from ._worker_process import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Linux or macOS: signals as POSIX has them")

_ROOT = Path(__file__).parents[1]
_PRELUDE = """\
    import signal, sys
    import trio
    from openprogram_mcp import open_manager

    def say(text):
        print(text, flush=True)

    def servers(number):
        return {"f": {"command": sys.argv[number].split("\\t"), "stop_timeout_seconds": 0.3}}
"""


@contextmanager
def _host(body: str, *fakes: FakeServer) -> Iterator[subprocess.Popen[str]]:
    """A program that runs until it has printed ``up``."""
    code = textwrap.dedent(_PRELUDE) + textwrap.dedent(body)
    argv = [sys.executable, "-c", code, *("\t".join(fake.command) for fake in fakes)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=_ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()
            for fake in fakes:
                fake.kill_all()


def _stubborn() -> FakeServer:
    return FakeServer(era="legacy").on_eof().on_signal("SIGTERM", do.note("SIGTERM"))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_servers_end_first_and_the_program_ends_by_the_signal(name: str) -> None:
    body = """
    async def main():
        try:
            async with open_manager(servers(1)) as manager:
                await manager.started.wait()
                say("up")
                try:
                    await trio.sleep_forever()
                finally:
                    say("body")
            say("behind the block")
        finally:
            say("finally")
    trio.run(main)
    """
    fake = _stubborn()
    with _host(body, fake) as process:
        process.send_signal(signal.Signals[name])
        said = process.communicate(timeout=30)[0]
        assert process.returncode == -signal.Signals[name]
        assert said == "body\n"
        assert fake.alive() == []
        assert [record.facts["value"] for record in fake.records("note")] == ["SIGTERM"]


def test_of_several_managers_all_have_ended_before_the_program_does() -> None:
    body = """
    async def one(number, after):
        async with open_manager(servers(number)) as manager:
            await manager.started.wait()
            await after()
        say("behind the block")

    async def main():
        async with open_manager(servers(1)) as outer:
            async with trio.open_nursery() as nursery:
                async def up():
                    say("up")
                    await trio.sleep_forever()
                async def beside():
                    nursery.start_soon(one, 3, up)
                    await trio.sleep_forever()
                nursery.start_soon(one, 2, beside)
    trio.run(main)
    """
    fakes = [_stubborn(), FakeServer(era="legacy"), _stubborn()]
    with _host(body, *fakes) as process:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[0]
        assert (process.returncode, said) == (-signal.SIGTERM, "")
        assert [fake.alive() for fake in fakes] == [[], [], []]


def test_a_second_signal_waits_for_nothing() -> None:
    body = """
    async def main():
        async with open_manager({}) as manager:
            with trio.CancelScope(shield=True):
                say("up")
                await trio.sleep_forever()
    trio.run(main)
    """
    with _host(body) as process:
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_a_host_that_handles_the_signal_itself_is_left_alone() -> None:
    body = """
    async def main():
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with open_manager(servers(1)) as manager:
                await manager.started.wait()
                say("up")
                async for _ in signals:
                    say("mine")
                    break
        say("behind the block")
    trio.run(main)
    """
    fake = FakeServer(era="legacy")
    with _host(body, fake) as process:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[0]
        assert (process.returncode, said) == (0, "mine\nbehind the block\n")
        assert fake.alive() == []


def test_a_child_that_the_host_forks_ends_by_the_signal_as_ever() -> None:
    body = """
    import os, time
    async def main():
        async with open_manager(servers(1)) as manager:
            await manager.started.wait()
            say("up")
            up, tell = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(tell, b"!")  # Python forgets what comes in the middle of a fork
                time.sleep(15)
                os._exit(1)
            os.read(up, 1)
            os.kill(child, signal.SIGTERM)
            say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            say(manager.server("f").status)
    trio.run(main)
    """
    fake = FakeServer(era="legacy")
    with _host(body, fake) as process:
        said = process.communicate(timeout=20)[0]
        assert (process.returncode, said) == (0, f"{-signal.SIGTERM}\nconnected\n")
        assert fake.alive() == []


def test_a_signal_in_the_middle_of_the_start_is_obeyed_when_all_is_put_away() -> None:
    body = """
    async def main():
        async with open_manager(servers(1)) as manager:
            say("up")
            await manager.started.wait()
    trio.run(main)
    """
    fake = _stubborn().on("initialize")
    with _host(body, fake) as process:
        until(lambda: fake.received("initialize"), "a server that starts")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
        assert fake.alive() == []


async def test_the_handlers_are_there_only_while_a_manager_is_open() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with open_manager({}):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        async with open_manager({}):
            pass
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before is signal.SIG_DFL


async def test_a_handler_that_the_host_sets_meanwhile_stays() -> None:
    try:
        async with open_manager({}):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_manager_in_another_thread_leaves_the_signals_alone() -> None:
    found: list[object] = []

    async def main() -> None:
        async with open_manager({}):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    thread.join(30)
    assert found == [signal.SIG_DFL]
