"""How the command line finds a worker and asks it; and what it says when that goes wrong."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server, socket
from typing import Any

import pytest
import trio
from attrs import evolve

from openprogram_mcp import MCPServerConfig, paths
from openprogram_mcp.adapter import AgentToolResult
from openprogram_mcp.errors import AlreadyRunning, InvalidArguments, StorageError, WorkerUnreachable
from openprogram_mcp.web.client import ProblemAnswer, WorkerClient, WorkerGone
from openprogram_mcp.web.worker_file import WorkerInfo, find_worker, hold_worker_lock, publish_worker

from ._fake_manager import FakeManager, remote_tool
from ._web import TOKEN, Site, serving


def info(url: str = "http://127.0.0.1:1", token: str = TOKEN) -> WorkerInfo:
    return WorkerInfo.of_this_process(url=url, token=token)


def client_of(site: Site, token: str = TOKEN) -> WorkerClient:
    return WorkerClient(info(site.address.url, token))


# The file


def test_the_file_is_private_tells_everything_and_goes_away() -> None:
    path = paths.worker_path()
    mine = info()
    assert find_worker() is None
    with publish_worker(mine):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        data = json.loads(path.read_text())
        assert list(data) == ["version", "pid", "started_at", "url", "token", "instance"]
        assert data["version"] == 1
        assert data["pid"] == os.getpid()
        assert data["started_at"].endswith("Z")
        assert find_worker() == mine
    assert not path.exists()


def test_the_token_shows_in_no_repr() -> None:
    assert TOKEN not in repr(info())
    assert TOKEN not in repr(WorkerClient(info()))


def test_a_file_that_another_has_written_meanwhile_stays() -> None:
    with publish_worker(info()):
        paths.worker_path().write_text(json.dumps(info().to_dict()))
    assert paths.worker_path().exists()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "pid": 1, "started_at": "", "url": "", "token": "", "instance": ""}',
        '{"version": 1, "pid": "1", "started_at": "", "url": "", "token": "", "instance": ""}',
        '{"version": 1, "pid": 0, "started_at": "", "url": "", "token": "", "instance": ""}',
        '{"version": 1, "pid": -1, "started_at": "", "url": "", "token": "", "instance": ""}',
        '{"version": 1, "pid": 99999999999999, "started_at": "", "url": "", "token": "", "instance": ""}',
        '{"version": 1, "pid": 1, "started_at": "", "url": 5, "token": "", "instance": ""}',
        "\xff",
    ],
)
def test_a_file_that_is_not_ours_is_no_worker(state_dir: Path, content: str) -> None:
    state_dir.mkdir()
    paths.worker_path().write_bytes(content.encode("latin-1"))
    assert find_worker() is None


def test_a_file_whose_process_is_gone_is_ignored(state_dir: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    state_dir.mkdir()
    paths.worker_path().write_text(json.dumps({**info().to_dict(), "pid": gone.pid}))
    assert find_worker() is None


def test_the_lock_is_held_by_one_process_and_its_end_frees_it() -> None:
    code = (
        "from openprogram_mcp.web.worker_file import *\n"
        "with hold_worker_lock(), publish_worker(WorkerInfo.of_this_process(url='http://x', token='t')):\n"
        "    print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning, match=f"process {holder.pid}, at http://x"), hold_worker_lock():
            pass
        holder.kill()
    with hold_worker_lock():
        pass
    with hold_worker_lock():
        pass


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_state_directory_that_cannot_be_used_is_told(
    state_dir: Path, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir.write_text("a file")
    monkeypatch.setenv("OPENPROGRAM_MCP_STATE_DIR", str(state_dir / below))
    with pytest.raises(StorageError, match="state"), hold_worker_lock():
        pass


# Questions


async def test_answers_and_problems_come_back() -> None:
    name = "no slash, but ü % and ?"

    def ask(client: WorkerClient) -> None:
        assert client.get("servers", name)["name"] == name
        assert client.get("events", since=0)["next"] == 0
        assert client.post("tools", f"{name}__t", "call", body={"call_id": "c"})["call_id"] == "c"
        with pytest.raises(ProblemAnswer, match="ghost") as caught:
            client.get("servers", "ghost")
        assert caught.value.to_problem()["code"] == "unknown_server"
        assert caught.value.server == "ghost"

    async with serving() as site:
        site.manager.put(name, remote_tool("t"))
        await trio.to_thread.run_sync(ask, client_of(site))


async def test_edits_carry_what_is_to_change_and_the_revision_that_was_read() -> None:
    def ask(client: WorkerClient) -> None:
        row, revision = client.get_with_revision("servers", "a")
        assert (row["name"], revision) == ("a", "now")
        assert client.post("servers", body={"name": "a", "command": "x"}, force=True)["name"] == "a"
        assert client.patch("servers", "a", body={"description": "y"}, revision=revision)["name"] == "a"
        assert client.patch("servers", "a", body={"description": None}, force=True, patient=True)["name"] == "a"
        wanted = {"roots": [{"uri": "file:///a", "name": None}]}
        assert client.put("roots", body=wanted, revision=revision) == wanted
        client.delete("servers", "a", revision=revision)
        client.delete("servers", "a")
        assert client.get_with_revision("tools")[1] is None
        with pytest.raises(ProblemAnswer) as refused:
            client.patch("servers", "a", body=[])
        assert refused.value.to_problem()["code"] == "invalid_arguments"

    async with serving() as site:
        site.manager.put("a")
        site.manager.document = evolve(site.manager.document, revision="now")
        await trio.to_thread.run_sync(ask, client_of(site))
        assert site.manager.asked == [
            ("add", "a", MCPServerConfig(name="a", command="x"), True),
            ("update", "a", {"description": "y"}, False, "now"),
            ("update", "a", {"description": None}, True, None),
            ("set_roots", "now"),
            ("remove", "a", "now"),
            ("remove", "a", None),
        ]


async def test_another_token_is_refused() -> None:
    def ask(client: WorkerClient) -> None:
        with pytest.raises(ProblemAnswer) as refused:
            client.get("servers")
        assert refused.value.to_problem()["code"] == "unauthorized"

    async with serving() as site:
        await trio.to_thread.run_sync(ask, client_of(site, "another"))


async def test_a_streamed_call_gives_its_events_one_by_one() -> None:
    async def work(_: Any, on_progress: Any) -> AgentToolResult:
        await on_progress(1, 2, "half\nway ☃")
        return AgentToolResult(content=(), details={"is_error": False})

    def ask(client: WorkerClient) -> list[tuple[str, Any]]:
        return list(client.stream("tools", "a__t", "call", body={"call_id": "c"}))

    async with serving(FakeManager(answer=work)) as site:
        site.manager.put("a", remote_tool("t"))
        events = await trio.to_thread.run_sync(ask, client_of(site))
    assert events[0] == ("progress", {"call_id": "c", "progress": 1, "total": 2, "message": "half\nway ☃"})
    assert events[1][0] == "result"


async def test_a_streamed_call_that_fails_ends_with_its_problem() -> None:
    async def work(*_: Any) -> AgentToolResult:
        raise InvalidArguments("x: expected text", path="x")

    def ask(client: WorkerClient) -> list[tuple[str, Any]]:
        with pytest.raises(ProblemAnswer):  # refused before the stream has begun
            list(client.stream("tools", "a__t", "call", body={"timeout_seconds": 0}))
        return list(client.stream("tools", "a__t", "call", body={}))

    async with serving(FakeManager(answer=work)) as site:
        site.manager.put("a", remote_tool("t"))
        events = await trio.to_thread.run_sync(ask, client_of(site))
    assert [(event, data["code"]) for event, data in events] == [("error", "invalid_arguments")]


async def test_a_body_over_the_limit_is_told_as_such() -> None:
    def ask(client: WorkerClient) -> None:
        with pytest.raises(ProblemAnswer) as refused:
            client.post("tools", "a__t", "call", body={"arguments": {"x": "y" * 40_000_000}})
        assert refused.value.to_problem()["code"] == "too_large"

    async with serving() as site:
        await trio.to_thread.run_sync(ask, client_of(site))


@contextmanager
def listening(serve: Callable[[socket], None]) -> Iterator[WorkerClient]:
    """Something that listens at a worker's address and is none."""
    with create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield WorkerClient(info(f"http://127.0.0.1:{server.getsockname()[1]}"))
        thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "ended before it had answered"),
        (b"SSH-2.0-OpenSSH\r\n", "ended before it had answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "ended before it had answered"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "is not a worker"),
    ],
)
def test_what_is_no_worker_is_told_in_a_sentence(answer: bytes, said: str) -> None:
    with (
        listening(lambda connection: connection.sendall(answer)) as client,
        pytest.raises(WorkerUnreachable, match=said),
    ):
        client.get("servers")


def test_an_error_page_of_somebody_else_is_a_problem() -> None:
    page = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>"
    with (
        listening(lambda connection: connection.sendall(page)) as client,
        pytest.raises(ProblemAnswer, match="HTTP 502"),
    ):
        client.get("servers")


def test_a_stream_that_breaks_off_is_told() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b"event: progress\ndata: {}\n\n"
    answer = head + b"%x\r\n%s\r\n" % (len(event), event) + b"10\r\nevent"
    with listening(lambda connection: connection.sendall(answer)) as client:
        events = client.stream("tools", "t", "call")
        assert next(events) == ("progress", {})
        with pytest.raises(WorkerUnreachable):
            next(events)


def test_a_worker_that_does_not_answer_is_told_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openprogram_mcp.web.client._ANSWER_SECONDS", 0.05)
    done = threading.Event()

    def keep_silent(_: socket) -> None:
        done.wait(10)

    with listening(keep_silent) as client:
        with pytest.raises(WorkerUnreachable, match=f"process {os.getpid()}.* does not answer") as silent:
            client.get("servers")
        done.set()
    assert f"kill {os.getpid()}" in str(silent.value.remedy)


def test_nobody_at_the_address_is_told_apart() -> None:
    with create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(WorkerGone):
        WorkerClient(info(f"http://127.0.0.1:{port}")).get("servers")


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    del state_dir
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with listening(lambda connection: connection.sendall(answer)) as client:
        assert client.get("servers") == {}
