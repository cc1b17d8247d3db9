"""Signing in through a worker: its routes, the commands, and that no secret is in anything that they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp.auth.tokens import TokenStore
from openprogram_mcp.web.client import ProblemAnswer, WorkerClient
from openprogram_mcp.web.worker_file import WorkerInfo
from tests._authority import Authority, Protected, consent, get, serving
from tests._worker_process import Command, WorkerProcess, command, worker, write_servers


async def in_thread(act: Any, *args: Any) -> Any:
    return await trio.to_thread.run_sync(act, *args, abandon_on_cancel=True)


@asynccontextmanager
async def working(state_dir: Path, server: Protected, **more: Any) -> AsyncIterator[tuple[WorkerProcess, WorkerClient]]:
    """A worker in a process of its own, with one server that wants a sign-in."""
    write_servers(state_dir, {"x": {"type": "http", "url": server.address} | more})
    running = worker(state_dir)
    process = await in_thread(running.__enter__)
    try:
        yield process, WorkerClient(WorkerInfo(**_info(process)))
    finally:
        await in_thread(running.__exit__, None, None, None)


def _info(process: WorkerProcess) -> dict[str, Any]:
    import attrs

    wanted = {one.name for one in attrs.fields(WorkerInfo)}
    return {name: value for name, value in process.info.items() if name in wanted}


async def test_the_routes_sign_in_and_forget(state_dir: Path) -> None:
    server = Protected(authority=Authority())
    with trio.fail_after(60):
        async with serving(server, server.authority), working(state_dir, server) as (_, client):
            begun = await in_thread(client.post, "servers", "x", "auth")
            assert set(begun) == {"server", "authorization_url", "state", "expires_at", "redirect_uri"}
            [row] = (await in_thread(client.get, "servers"))["servers"]
            assert row["authorization_url"] == begun["authorization_url"]
            assert await in_thread(client.get, "auth", "pending") == [begun]
            with pytest.raises(ProblemAnswer) as caught:
                await in_thread(
                    lambda: client.post("servers", "x", "auth", "callback", body={"code": "c", "state": "s"})
                )
            assert caught.value.problem["code"] == "invalid_arguments"
            _, headers, _ = await get(begun["authorization_url"])
            body = {"redirect_url": headers["location"]}
            row = await in_thread(lambda: client.post("servers", "x", "auth", "callback", body=body))
            assert (row["status"], row["auth"]) == ("connected", {"kind": "oauth", "state": "logged_in"})
            await in_thread(client.delete, "servers", "x", "auth")
            row = await in_thread(client.get, "servers", "x")
            assert (row["status"], row["auth"]["state"]) == ("needs_auth", "not_logged_in")
            begun = await in_thread(client.post, "servers", "x", "auth")
            await in_thread(client.delete, "auth", "pending", begun["state"])
            assert await in_thread(client.get, "auth", "pending") == []


_BROWSERS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


class Typing:
    """A command that runs, and what it says while it does."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.out = ""

    async def line(self, begins: str) -> str:
        """Its next whole line that begins so."""
        assert self.process.stdout is not None
        while True:
            for line in self.out.split("\n")[:-1]:
                if line.startswith(begins):
                    return line
            self.out += (await self.process.stdout.receive_some()).decode()


@asynccontextmanager
async def typed(*argv: str) -> AsyncIterator[Typing]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "openprogram_mcp", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={
            name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        },
    )
    try:
        yield Typing(process)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


@pytest.mark.parametrize("with_worker", [True, False])
@pytest.mark.parametrize("way", ["redirect", "paste address", "paste code"])
async def test_auth_signs_in_with_a_worker_and_without(state_dir: Path, way: str, with_worker: bool) -> None:
    server = Protected(authority=Authority())
    with trio.fail_after(90):
        async with serving(server, server.authority):
            if with_worker:
                async with working(state_dir, server) as (_, client):
                    await _sign_in_by_command(way)
                    assert (await in_thread(client.get, "servers", "x"))["ready"]
            else:
                write_servers(state_dir, {"x": {"type": "http", "url": server.address}})
                await _sign_in_by_command(way)
            status: Command = await in_thread(command, "auth", "x", "--status", "--json")
            assert status.json == {"server": "x", "kind": "oauth", "state": "logged_in", "authorization_url": None}
            server.authority.seen.clear()
            tools: Command = await in_thread(command, "tools", "--json")
            assert [tool["name"] for tool in tools.json["tools"]] == ["x__read", "x__write"]
            assert server.authority.count("/authorize") == 0
            forgotten: Command = await in_thread(command, "auth", "x", "--forget")
            assert forgotten.code == 0
            assert TokenStore.of(state_dir / "mcp_tokens", "x").read() is None


async def _sign_in_by_command(way: str) -> None:
    async with typed("auth", "x", "--no-browser" if way == "redirect" else "--paste") as auth:
        url = await auth.line("http")
        if way == "redirect":
            assert (await consent(url))[0] == 200
        else:
            _, headers, _ = await get(url)
            address = headers["location"]
            answer = address if way == "paste address" else address.partition("code=")[2].partition("&")[0]
            assert auth.process.stdin is not None
            await auth.process.stdin.send_all(f"{answer}\n".encode())
        await auth.line("x\tconnected")
        await auth.process.wait()
        assert auth.process.returncode == 0


async def test_auth_that_is_ended_gives_the_sign_in_up(state_dir: Path) -> None:
    import signal

    server = Protected(authority=Authority())
    with trio.fail_after(60):
        async with serving(server, server.authority), working(state_dir, server) as (_, client):
            async with typed("auth", "x", "--no-browser") as auth:
                await auth.line("http")
                pending: Command = await in_thread(command, "auth", "--pending", "--json")
                assert [one["server"] for one in pending.json] == ["x"]
                auth.process.send_signal(signal.SIGINT)
            assert auth.process.returncode == 130
            assert await in_thread(client.get, "auth", "pending") == []


async def test_what_auth_is_not_for_is_told(state_dir: Path) -> None:
    write_servers(state_dir, {"l": {"command": ["true"]}})
    ran: Command = await in_thread(command, "auth")
    assert ran.code == 2
    ran = await in_thread(command, "auth", "l", "--status")
    assert ran.out.split() == ["l", "none", "unsupported"]
    ran = await in_thread(command, "auth", "--pending")
    assert (ran.code, ran.out) == (0, "")
    ran = await in_thread(command, "auth", "nobody", "--status")
    assert ran.code == 1


CANARY = "canary-7f3a"


def _files(folder: Path, allowed: set[str]) -> list[str]:
    """What is in the files that may hold no secret."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "mcp_tokens"]
    return [path.read_text(errors="replace") for path in files if path.name not in allowed]


async def test_secret_01_the_canary_of_signing_in(state_dir: Path) -> None:
    authority = Authority()
    secret = f"{CANARY}-client-secret"
    redirect = "http://127.0.0.1:20131/mcp/oauth/callback"
    authority.clients["me"] = {"client_id": "me", "client_secret": secret, "redirect_uris": [redirect]}
    server = Protected(authority=authority)
    canaries = {secret, f"{CANARY}-query", f"{CANARY}-header"}
    more: dict[str, Any] = {
        "auth": {"kind": "oauth", "client_id": "me", "client_secret": secret, "redirect_port": 20131},
        "headers": {"X-Api-Key": f"{CANARY}-header"},
    }

    async def echo_all(seen: Any) -> Any:
        canaries.update(value for name, value in seen.form.items() if name in ("code", "code_verifier"))
        said = f"{seen.form} {seen.headers}"
        return 400, {"error": "invalid_grant", "error_description": said}

    with trio.fail_after(90):
        async with serving(server, authority):
            more["url"] = f"{server.address}?key={CANARY}-query"
            async with working(state_dir, server, **more) as (process, client):
                said: list[str] = []
                token, authority.routes["/token"] = authority.routes["/token"], echo_all
                begun = await in_thread(client.post, "servers", "x", "auth")
                status, page = await consent(begun["authorization_url"])
                assert status == 400
                said.append(page)
                authority.routes["/token"] = token
                begun = await in_thread(client.post, "servers", "x", "auth")
                _, headers, _ = await get(begun["authorization_url"])
                canaries.update(one.partition("=")[2] for one in headers["location"].partition("?")[2].split("&")[:1])
                status, _, page = await get(headers["location"])
                assert status == 200
                said.append(page)
                kept = TokenStore.of(state_dir / "mcp_tokens", "x").read()
                assert kept is not None
                assert kept.tokens is not None
                canaries |= {kept.tokens.access_token, kept.tokens.refresh_token or ""}
                # A renewal that is refused, and whose refusal quotes it all.
                server.refused.add(kept.tokens.access_token)
                authority.routes["/token"] = echo_all
                ran: Command = await in_thread(command, "call", "x__read")
                said += [ran.out, ran.err]
                for argv in (["show", "x"], ["show", "x", "--json"], ["list", "--json"], ["auth", "x", "--status"]):
                    ran = await in_thread(command, *argv)
                    said += [ran.out, ran.err]
                said.append(json.dumps(await in_thread(lambda: client.get("events", since=0))))
                said.append(json.dumps(await in_thread(client.get, "logs")))
                said.append(process.log)
            allowed = {"mcp_servers.json", "mcp_worker.json", "mcp_servers.json.bak"}
            said += _files(state_dir, allowed)
            told = "\n".join(said)
            assert "invalid_grant" in told
            assert {one for one in canaries if one and one in told} == set()
