"""The worker as a process, and the commands that find it: what a user sees in two terminals."""

from __future__ import annotations

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from openprogram_mcp.testing import FakeServer, do

from ._terminal import said_until_its_end
from ._worker_process import WorkerProcess, command, descendants, until, worker, write_servers


def ask(running: WorkerProcess, method: str, path: str, body: Any = None) -> Any:
    """The worker's API, asked directly."""
    address = urlsplit(running.info["url"])
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
    headers = {"Authorization": f"Bearer {running.info['token']}"}
    connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def fake() -> FakeServer:
    """A server with tools of different manners."""
    return (
        FakeServer()
        .tool("echo", input_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
        .tool("fail", do.reply("it went wrong", is_error=True))
        .tool("hang", do.hang(), read_only=True)
        .tool("steps", do.progress(progress=1, total=2, message="half"), do.reply("done"))
    )


# One life


@pytest.mark.parametrize(
    ("options", "warned"),
    [((), False), (("--host", "localhost"), False), (("--host", "127.0.0.2"), False), (("--host", "0.0.0.0"), True)],  # noqa: S104 - what is warned of
)
def test_only_this_machine_reaches_it_unless_another_address_is_asked_for_and_then_it_warns(
    state_dir: Path, options: tuple[str, ...], warned: bool
) -> None:
    with worker(state_dir, *options) as running:
        assert ("other machines may reach it, and nothing is encrypted" in running.log) is warned
        assert ask(running, "GET", "/api/mcp/config-path")["path"] == str(state_dir / "mcp_servers.json")


def test_the_demo_is_used_where_nothing_is_configured_and_nothing_is_saved(state_dir: Path) -> None:
    with worker(state_dir, "--demo-if-empty") as running:
        assert "the demo server is used, and not saved" in running.log
        assert "call demo__echo text=hello" in running.log
        said = command("call", "demo__echo", "text=hello")
        assert (said.code, said.out, said.err) == (0, "hello\n", "")
        assert running.end(signal.SIGINT) == 0
        assert running.left() == set()
    assert not (state_dir / "mcp_servers.json").exists()
    assert not (state_dir / "mcp_worker.json").exists()


def test_the_demo_is_not_used_where_something_is_configured_even_if_it_cannot_be_read(state_dir: Path) -> None:
    write_servers(state_dir, {})
    (state_dir / "mcp_servers.json").write_text("{ this is not JSON")
    with worker(state_dir, "--demo-if-empty") as running:
        assert "demo server is used" not in running.log
        assert "mcp_servers.json:1:" in running.log
        assert command("list", "--json").json["servers"] == []
        assert running.end(signal.SIGTERM) == 0


def test_what_is_added_while_the_demo_is_served_is_there_when_the_worker_comes_back(state_dir: Path) -> None:
    server = fake()
    with worker(state_dir, "--demo-if-empty"):
        added = command("add", "mine", "--", *server.command)
        assert (added.code, added.err) == (0, "")
        assert [row["name"] for row in command("list", "--json").json["servers"]] == ["mine", "demo"]
    with worker(state_dir, "--demo-if-empty"):
        assert [row["name"] for row in command("list", "--json").json["servers"]] == ["mine"]
        assert command("call", "mine__echo", "n:=1").code == 0


def test_commands_reach_the_worker_and_answer_as_its_api_does(state_dir: Path) -> None:
    server = fake()
    # One that is not tried again: its row is the same whoever asks, and when.
    bad = {"command": ["sh", "-c", "echo lost >&2; exit 3"], "reconnect": False}
    write_servers(state_dir, {"good": server.config(), "bad": bad})
    with worker(state_dir) as running:
        listed = ask(running, "GET", "/api/mcp/servers")
        found = command("list", "--json").json
        known = {"version", "config_error", "processes_owned", "processes_leaked", "servers"}
        assert found.keys() == listed.keys() == known
        assert (found["processes_owned"], found["processes_leaked"]) == (1, 0)
        assert [row["processes"] for row in found["servers"]] == [1, 0]
        for mine, theirs in zip(found["servers"], listed["servers"], strict=True):
            assert {**mine, "uptime_seconds": 0} == {**theirs, "uptime_seconds": 0}
        assert [(row["name"], row["status"]) for row in found["servers"]] == [("good", "connected"), ("bad", "failed")]
        assert command("list").out.splitlines()[1].startswith("bad\tfailed\t0\tinitialize: ")
        shown = command("show", "bad")
        assert (shown.code, "stderr\tlost" in shown.out) == (0, True)
        assert command("show", "good", "--json").json["config"]["command"][0] == server.command[0]
        assert command("tools", "--json").json == ask(running, "GET", "/api/mcp/tools")
        assert [line.split("\t")[0] for line in command("tools").out.splitlines()] == [
            "good__echo",
            "good__fail",
            "good__hang",
            "good__steps",
        ]
        called = command("call", "good__echo", "n:=3", "--json").json
        assert called.keys() == {"call_id", "content", "text", "is_error", "details"}
        failed = command("call", "good__fail")
        assert (failed.code, failed.out, failed.err) == (1, "", "it went wrong\n")
        assert command("call", "good__steps").out == "done\n"
        assert server.starts == 1


FAULTS = [
    (["show", "ghost"], 1, "unknown_server", "ghost"),
    (["call", "good__ghost"], 1, "unknown_tool", "good__ghost"),
    (["call", "bad__x"], 1, "not_connected", "bad"),
    (["call", "good__echo"], 2, "invalid_arguments", "n"),
    (["call", "good__echo", "n=3"], 2, "invalid_arguments", "write n:=3"),
    (["call", "good__hang", "--timeout", "0.2"], 1, "timeout", "0.2"),
]


def check_fault(argv: list[str], code: int, error: str, said: str) -> None:
    told, as_json = command(*argv), command(*argv, "--json")
    assert (told.code, as_json.code) == (code, code)
    assert said in told.err
    assert told.out == ""
    assert "Traceback" not in told.err
    assert 1 <= len(told.err.splitlines()) <= 2
    assert as_json.json["error"]["code"] == error
    assert as_json.err == ""


def test_errors_of_the_worker_are_told_in_both_forms(state_dir: Path) -> None:
    write_servers(state_dir, {"good": fake().config(), "bad": {"command": ["sh", "-c", "exit 3"]}})
    with worker(state_dir):
        for argv, code, error, said in FAULTS:
            check_fault(argv, code, error, said)


@pytest.mark.parametrize(("argv", "code", "error", "said"), FAULTS)
def test_errors_without_a_worker_are_the_same(
    state_dir: Path, argv: list[str], code: int, error: str, said: str
) -> None:
    write_servers(state_dir, {"good": fake().config(), "bad": {"command": ["sh", "-c", "exit 3"]}})
    check_fault(argv, code, error, said)


def test_a_log_in_json_is_json_line_by_line(state_dir: Path) -> None:
    write_servers(state_dir, {"good": fake().config(), "bad": {"command": ["no-such-program-here"]}})
    with worker(state_dir, "--log-format", "json") as running:
        running.end(signal.SIGTERM)
        lines = [json.loads(line) for line in running.log.splitlines()]
    states = [(line["server"], line["status"]) for line in lines if "status" in line]
    assert [state for name, state in states if name == "good"] == [
        "pending",
        "starting",
        "connected",
        "disconnected",
    ]
    failed = next(line for line in lines if line.get("status") == "failed")
    assert (failed["server"], failed["level"], failed["phase"]) == ("bad", "warning", "spawn")
    assert all({"time", "level", "server", "message"} <= line.keys() for line in lines)
    assert lines[-1]["message"] == "stopped"


def test_the_token_and_other_secrets_stand_in_no_log(state_dir: Path) -> None:
    secret = "hunter2-hunter2"
    server = FakeServer().on_start(do.stderr(f"my key is {secret}\n"), do.exit(4))
    write_servers(state_dir, {"bad": server.config(env={"API_KEY": secret})})
    with worker(state_dir) as running:
        token = running.info["token"]
        shown = command("show", "bad", "--json")
        assert secret not in running.log + shown.out + command("show", "bad").out
        assert token not in running.log
        assert "my key is ********" in shown.out


def test_two_hundred_calls_at_once_over_http_each_get_their_own_answer(state_dir: Path) -> None:
    write_servers(state_dir, {"good": fake().config()})
    with worker(state_dir) as running, ThreadPoolExecutor(50) as pool:

        def call(number: int) -> str:
            answer = ask(running, "POST", "/api/mcp/tools/good__echo/call", {"arguments": {"n": number}})
            return str(answer["text"])

        for number, text in enumerate(pool.map(call, range(200))):
            assert json.loads(text) == {"n": number}


def test_a_client_that_has_gone_holds_no_connection(state_dir: Path) -> None:
    write_servers(state_dir, {"good": fake().config()})
    with worker(state_dir) as running:
        held = Path(f"/proc/{running.process.pid}/fd")
        before = len(list(held.iterdir()))
        for number in range(40):
            ask(running, "GET", "/api/mcp/servers/good")
            ask(running, "POST", "/api/mcp/tools/good__echo/call", {"arguments": {"n": number}})
            ask(running, "PATCH", "/api/mcp/servers/good", {"description": str(number)})
        # Well within the time for which a client may be idle.
        deadline = time.monotonic() + 5
        while len(list(held.iterdir())) > before + 5:
            assert time.monotonic() < deadline, "connections of clients that have gone are kept"
            time.sleep(0.01)


# The end


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGINT],
        [signal.SIGTERM],
        [signal.SIGHUP],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGINT],
    ],
)
def test_signals_end_it_with_0_and_without_a_child_left(state_dir: Path, signals: list[int]) -> None:
    stubborn = FakeServer().tool("t").on_eof().on_signal("SIGTERM")
    write_servers(state_dir, {"good": fake().config(), "stubborn": stubborn.config(stop_timeout_seconds=0.2)})
    with worker(state_dir) as running:
        assert len(running.children) >= 2
        assert running.end(*signals) == 0
        assert running.left() == set()
        assert not running.file.exists()
        assert "Traceback" not in running.log


def test_it_ends_cleanly_while_servers_are_still_starting(state_dir: Path) -> None:
    silent = FakeServer(era="legacy").on("initialize")
    write_servers(state_dir, {"silent": silent.config(), "good": fake().config()})
    with worker(state_dir, ready=False) as running:
        until(lambda: running.file.exists() and silent.starts, "a started server")
        assert running.end(signal.SIGINT) == 0
        assert running.left() == set()
        assert silent.alive() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_while_it_is_still_importing_ends_it_with_0(state_dir: Path, number: int) -> None:
    server = fake()
    write_servers(state_dir, {"good": server.config()})
    with worker(state_dir, ready=False) as running:
        # This extension is loaded in the midst of the imports, long before Trio runs.
        until(lambda: "msgspec" in Path(f"/proc/{running.process.pid}/maps").read_text(), "an import")
        assert running.end(number) == 0
        assert running.left() == set()
        assert "Traceback" not in running.log


def test_under_nohup_it_outlives_its_terminal(state_dir: Path) -> None:
    write_servers(state_dir, {})
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as from nohup
    try:
        with worker(state_dir) as running:
            running.process.send_signal(signal.SIGHUP)
            assert command("list").code == 0
            assert running.process.poll() is None
            assert running.end(signal.SIGTERM) == 0
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_client_that_stopped_reading_does_not_hold_up_the_end(state_dir: Path) -> None:
    noisy = FakeServer().tool("shout", do.stderr("x" * 2000 + "\n", times=3000), do.reply("done"))
    write_servers(state_dir, {"noisy": noisy.config()})
    with worker(state_dir) as running:
        address = urlsplit(running.info["url"])
        with socket.create_connection((str(address.hostname), address.port or 0)) as stuck:
            stuck.sendall(
                f"GET /api/mcp/events HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: text/event-stream\r\n"
                f"Authorization: Bearer {running.info['token']}\r\n\r\n".encode()
            )
            assert command("call", "noisy__shout").out == "done\n"
            began = time.monotonic()
            assert running.end(signal.SIGINT) == 0
            assert time.monotonic() - began < 6
            assert running.left() == set()


def test_a_reader_of_its_log_that_is_gone_or_stands_still_does_not_disturb_it(state_dir: Path) -> None:
    noisy = FakeServer().tool("warn", do.repeat(do.log("w" * 500, level="warning"), times=400), do.reply("done"))
    write_servers(state_dir, {"noisy": noisy.config()})
    for gone in (True, False):
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "openprogram_mcp", "worker"], stdout=writer, stderr=writer, start_new_session=True
        )
        os.close(writer)
        if gone:
            os.close(reader)
        try:
            until((state_dir / "mcp_worker.json").exists, "a worker")
            assert command("call", "noisy__warn").out == "done\n"
            children = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert not any(Path(f"/proc/{pid}").exists() for pid in children)
        finally:
            process.kill()
            process.wait()
            if not gone:
                os.close(reader)


# Two of them


def test_a_second_worker_is_refused_and_names_the_first(state_dir: Path) -> None:
    write_servers(state_dir, {"good": fake().config()})
    with worker(state_dir) as running:
        second = command("worker")
        assert second.code == 1
        assert f"process {running.process.pid}" in second.err
        assert command("worker", "--json").json["error"]["code"] == "already_running"
        assert running.info["pid"] == running.process.pid
        with worker(state_dir, "--secondary") as beside:
            assert running.info["pid"] == running.process.pid
            assert beside.end(signal.SIGINT) == 0
        assert running.info["pid"] == running.process.pid
        assert command("list").code == 0


def test_of_many_that_start_at_once_one_runs(state_dir: Path) -> None:
    write_servers(state_dir, {})
    start = [sys.executable, "-m", "openprogram_mcp", "worker"]
    started = [subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    try:
        ended = until(lambda: [p for p in started if p.poll() is not None][2:] and started, "three that ended")
        running = [process for process in ended if process.poll() is None]
        assert len(running) == 1
        for process in started:
            if process is not running[0]:
                assert process.returncode == 1
                assert f"process {running[0].pid}" in process.communicate()[1].decode()
        running[0].send_signal(signal.SIGTERM)
        assert running[0].wait(20) == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_what_a_killed_worker_left_behind_is_ignored(state_dir: Path) -> None:
    server = fake()
    write_servers(state_dir, {"good": server.config()})
    with worker(state_dir) as running:
        running.process.kill()
        running.process.wait()
        assert running.file.exists()
        assert command("call", "good__echo", "n:=1").code == 0
        # Its process number now belongs to somebody who listens to nothing.
        running.file.write_text(json.dumps({**running.info, "pid": os.getpid()}))
        assert command("call", "good__echo", "n:=1").code == 0
    server.kill_all()
    with worker(state_dir) as anew:
        assert anew.info["pid"] == anew.process.pid
        assert anew.end(signal.SIGTERM) == 0


def test_a_port_that_is_taken_is_told_in_two_lines(state_dir: Path) -> None:
    server = fake()
    write_servers(state_dir, {"good": server.config()})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = command("worker", "--port", str(port))
    assert failed.code == 1
    assert failed.err.startswith(f"openprogram-mcp: Cannot listen at 127.0.0.1 port {port}: ")
    assert len(failed.err.splitlines()) == 2
    assert server.alive() == []
    assert not (state_dir / "mcp_worker.json").exists()


def test_a_read_only_worker_refuses_to_restart(state_dir: Path) -> None:
    write_servers(state_dir, {"good": fake().config()})
    with worker(state_dir, "--read-only") as running:
        assert ask(running, "POST", "/api/mcp/servers/good/restart")["code"] == "read_only"
        assert ask(running, "POST", "/api/mcp/tools/good__echo/call", {"arguments": {"n": 1}})["code"] == "read_only"


def test_servers_are_restarted_disconnected_and_connected_over_http(state_dir: Path) -> None:
    server = fake()
    write_servers(state_dir, {"good": server.config()})
    with worker(state_dir) as running:
        assert ask(running, "POST", "/api/mcp/servers/good/restart")["generation"] == 2
        assert ask(running, "POST", "/api/mcp/servers/good/disconnect")["status"] == "disconnected"
        assert server.alive() == []
        assert ask(running, "POST", "/api/mcp/servers/good/connect")["status"] == "connected"
        assert server.starts == 3


# Ctrl-C during a call


@pytest.mark.parametrize("with_worker", [True, False])
@pytest.mark.parametrize("terminal", [True, False])
def test_life_07_ctrl_c_cancels_the_call_and_the_server_is_told(
    state_dir: Path, with_worker: bool, terminal: bool
) -> None:
    server = fake().on_signal("SIGINT", do.note("SIGINT"))
    write_servers(state_dir, {"good": server.config()})

    def interrupted() -> tuple[int, str]:
        argv = [sys.executable, "-m", "openprogram_mcp", "call", "good__hang"]
        return _in_terminal(argv, server) if terminal else _in_pipe(argv, server)

    if with_worker:
        with worker(state_dir) as running:
            code, said = interrupted()
            until(lambda: server.received("notifications/cancelled"), "a cancellation")
            assert running.process.poll() is None
            assert command("call", "good__echo", "n:=1").code == 0
            assert server.starts == 1
    else:
        code, said = interrupted()
        assert server.received("notifications/cancelled")
        assert server.alive() == []
    assert code == 130
    assert "Traceback" not in said
    assert [record for record in server.records() if "SIGINT" in str(record)] == []


def _in_pipe(argv: list[str], server: FakeServer) -> tuple[int, str]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: server.calls("hang"), "a call")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[0]
    return process.returncode, said.decode()


def _in_terminal(argv: list[str], server: FakeServer) -> tuple[int, str]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)  # noqa: S606 - a shell is what this is to do without
    until(lambda: server.calls("hang"), "a call")
    os.write(terminal, b"\x03")
    code, said = said_until_its_end(pid, terminal)
    return code, said.decode(errors="replace")
