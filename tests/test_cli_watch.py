"""``logs``, ``events`` and ``completion``: what a worker tells, what comes, and what the shell is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from openprogram_mcp.cli import main
from openprogram_mcp.testing import FakeServer, do

from ._worker_process import command, worker, write_servers


def talking() -> FakeServer:
    return (
        FakeServer()
        .tool("warn", do.log("hot", level="warning"), do.reply("done"))
        .tool("fail", do.log("burnt", level="error"), do.reply("done"))
        .tool("move", do.log("up\x1b[2J", level="info"), do.reply("done"))
        .tool("chat", do.log("nothing much", level="debug"), do.reply("done"))
    )


class Following:
    """A command that goes on; its lines as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def line(self) -> str:
        return self._lines.get(timeout=30)

    def until(self, text: str) -> list[str]:
        lines = [self.line()]
        while text not in lines[-1]:
            lines.append(self.line())
        return lines

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        return self.process.wait(30), self.process.stderr.read()


@contextmanager
def following(*argv: str) -> Iterator[Following]:
    process = subprocess.Popen(
        [sys.executable, "-m", "openprogram_mcp", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Following(process)
    finally:
        process.kill()
        process.wait()


def texts(said: str) -> list[str]:
    return [json.loads(line)["text"] for line in said.splitlines()]


def test_logs_are_told_by_server_and_level_and_as_they_come(state_dir: Path) -> None:
    write_servers(state_dir, {"a": talking().config(), "b": talking().config()})
    with worker(state_dir):
        for tool in ("a__warn", "a__fail", "b__chat"):
            assert command("call", tool).code == 0
        lines = [json.loads(line) for line in command("logs", "--json").out.splitlines()]
        assert all(line.keys() == {"id", "time", "server", "level", "logger", "text"} for line in lines)
        assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
        assert {"hot", "burnt", "nothing much"} <= {line["text"] for line in lines}
        assert texts(command("logs", "--server", "b", "--json").out) == ["nothing much"]
        assert texts(command("logs", "--level", "warning", "--json").out) == ["hot", "burnt"]
        assert texts(command("logs", "--server", "a", "--level", "error", "--json").out) == ["burnt"]
        told = command("logs", "--level", "error").out
        assert told.count("\n") == 1
        assert "a error: burnt" in told
        missing = command("logs", "--server", "c", "--json")
        assert (missing.code, missing.json["error"]["code"]) == (1, "unknown_server")
        with following("logs", "-f", "--level", "warning", "--json") as logs:
            assert texts(logs.line() + logs.line()) == ["hot", "burnt"]
            command("call", "b__chat")
            command("call", "b__warn")
            row = json.loads(logs.line())
            assert (row["server"], row["text"]) == ("b", "hot")
            assert logs.end(signal.SIGINT) == (130, "")


def test_what_a_server_writes_cannot_move_the_cursor_of_who_reads_its_log(state_dir: Path) -> None:
    write_servers(state_dir, {"a": talking().config()})
    with worker(state_dir):
        command("call", "a__move")
        said = command("logs", "--server", "a").out
        assert "a info: up\\x1b[2J" in said
        assert "\x1b" not in said


def test_events_are_told_from_a_number_on_and_as_they_come_until_the_worker_ends(state_dir: Path) -> None:
    write_servers(state_dir, {"a": talking().config()})
    with worker(state_dir) as running:
        events = [json.loads(line) for line in command("events", "--json").out.splitlines()]
        assert events[0]["id"] == 1
        assert {"StatusChanged", "StartupComplete"} <= {event["type"] for event in events}
        later = [json.loads(line) for line in command("events", "--since", "2", "--json").out.splitlines()]
        assert later[0]["id"] == 3
        assert any("StatusChanged a: connected (4 tools)" in line for line in command("events").out.splitlines())
        with following("events", "-f", "--since", "0", "--json") as replayed, following("events", "-f") as coming:
            assert json.loads(replayed.line())["id"] == 1
            # It is heard from once its first line is there.
            pressing = Thread(target=lambda: [command("call", "a__chat") for _ in range(3)])
            pressing.start()
            assert "ToolCallEnded" in coming.until("ToolCallEnded a:")[-1]
            pressing.join()
            assert running.end(signal.SIGTERM) == 0
            code, err = coming.wait()
            assert (code, "The worker has ended" in err) == (1, True)
            assert replayed.wait() == (1, "")
            assert json.loads(replayed.until('{"error": ')[-1])["error"]["code"] == "worker_unreachable"


def test_a_reader_of_events_that_leaves_ends_the_command_quietly(state_dir: Path) -> None:
    write_servers(state_dir, {"a": talking().config()})
    with worker(state_dir), following("events", "-f", "--since", "0") as events:
        events.line()
        assert events.process.stdout is not None
    argv = f"{sys.executable} -m openprogram_mcp events | head -1"
    with worker(state_dir):
        ran = subprocess.run(["/bin/sh", "-c", argv], capture_output=True, text=True, timeout=60, check=False)
        assert ran.stderr == ""
        assert len(ran.stdout.splitlines()) == 1


# Completion


def completed(line: str) -> set[str]:
    """What bash offers at the end of a line."""
    script = command("completion", "bash").out
    words = line.split(" ")
    typed = " ".join(word or "''" for word in words)
    asking = (
        f"{script}\nCOMP_WORDS=({typed})\nCOMP_CWORD={len(words) - 1}\n"
        "_shtab_openprogram_mcp\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs Linux with bash")
    ran = subprocess.run([bash, "-c", asking], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.split())


def test_bash_completes_commands_options_and_the_names_of_servers(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer()
    write_servers(
        state_dir, {"time": server.config(), "tickets": server.config(), "with space": server.config(), "$(x)": {}}
    )
    program = Path(sys.executable).with_name("openprogram-mcp")
    assert {"restart", "rm"} == completed(f"{program} r")
    assert {"--force", "--env", "--header"} <= completed(f"{program} add --")
    assert completed(f"{program} restart t") == {"time", "tickets"}
    assert completed(f"{program} logs --server ") == {"time", "tickets"}
    assert server.starts == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    from openprogram_mcp.cli._main import _COMMANDS

    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in _COMMANDS if name not in script] == []
    if (found := shutil.which(shell)) is not None:
        subprocess.run([found, "-n"], input=script, text=True, check=True, timeout=60)


# What a command costs

SLOW = (
    "mcp",
    "trio",
    "rich",
    "litestar",
    "hypercorn",
    "httpx2",
    "jsonschema",
    "shtab",
    "watchfiles",
    "pydantic",
    "asyncio",
)


def test_commands_that_ask_a_worker_import_nothing_slow(state_dir: Path) -> None:
    write_servers(state_dir, {"a": talking().config()})
    commands: list[Any] = [
        ["list", "--json"],
        ["restart", "a"],
        ["disconnect", "a"],
        ["connect", "a"],
        ["disable", "a"],
        ["enable", "a"],
        ["edit", "a"],
        ["logs"],
        ["events"],
        ["add", "b", "--disabled", "--", "x"],
        ["rm", "b"],
        ["completion", "--servers"],
    ]
    code = (
        "import json, sys\nfrom openprogram_mcp.cli import main\n"
        "argv = json.loads(sys.argv[1])\nassert main(argv) == 0\n"
        f"print([name for name in {SLOW!r} if name in sys.modules], file=sys.stderr)"
    )
    with worker(state_dir):
        for argv in commands:
            ran = subprocess.run(
                [sys.executable, "-c", code, json.dumps(argv)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "VISUAL": "true"},
            )
            assert ran.returncode == 0, ran.stderr
            assert ran.stderr.splitlines()[-1] == "[]", argv
