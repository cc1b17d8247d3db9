"""A server of the official SDK behind a reverse proxy: Node's http everywhere, and nginx where the machine has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from openprogram_mcp import ServerState, ServerStatus
from openprogram_mcp.manager import MCPManager
from tests import servers
from tests._living import until
from tests._ports import free_port, until_listening
from tests.faults._host import hosting
from tests.interaction._load import Load
from tests.interaction.test_sdk_over_http import serving, text

_S = ServerState
_NODE_PROXY = Path(__file__).with_name("_reverse_proxy.js")
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
PROXIES = ["node", *(["nginx"] if NGINX else [])]
KINDS = [("http", "auto"), ("http", "legacy"), ("json", "auto"), ("sse", "auto")]
AT_ONCE = {"initial_seconds": 0.05, "max_seconds": 0.5}

# Its own defaults but for the folders; with them a body may have 1 MB, and answers are held back unless a server says
# otherwise.
_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location {prefix}/ {{
      proxy_pass http://127.0.0.1:{behind}/; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
}}
"""


@asynccontextmanager
async def proxy(kind: str, behind: int, prefix: str, folder: Path) -> AsyncIterator[int]:
    """A reverse proxy, once it can be connected to; its port."""
    port = free_port()
    if kind == "node":
        command = [servers.node()[0], str(_NODE_PROXY), str(port), str(behind), prefix]
    else:
        configuration = folder / "nginx.conf"
        filled = _CONFIGURATION.format(folder=folder, port=port, behind=behind, prefix=prefix)
        configuration.write_text(filled, encoding="utf-8")
        command = [str(NGINX), "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log")]
    async with trio.open_nursery() as nursery:
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        await nursery.start(partial(trio.run_process, command, check=False, stdin=b"", **quiet))
        await until_listening(port, 30)
        yield port
        nursery.cancel_scope.cancel()


def prefix_of(kind: str) -> str:
    # The older transport names an absolute path, which does not know of the prefix.
    return "" if kind == "sse" else "/gw/v1"


def entry(kind: str, port: int, era: str) -> dict[str, Any]:
    path = "/sse" if kind == "sse" else f"{prefix_of(kind)}/mcp"
    # What others do to this machine's two cores is not under test.
    return {
        "url": f"http://127.0.0.1:{port}{path}",
        "era": era,
        "timeout_seconds": 60,
        "reconnect": AT_ONCE,
        "serialize": "none",
    }


def _is_after(generation: int, row: ServerStatus) -> bool:
    return row.generation > generation


async def add(manager: MCPManager, number: int) -> str:
    return await text(manager, "add", {"a": number, "b": 1000})


@pytest.mark.parametrize("proxied_by", PROXIES)
@pytest.mark.parametrize(("kind", "era"), KINDS)
async def test_a_server_behind_a_proxy_works_as_one_that_is_not(
    kind: str, era: str, proxied_by: str, tmp_path: Path
) -> None:
    behind, told = free_port(), []

    async def on_progress(progress: float, _total: float | None, _message: str | None) -> None:
        told.append(progress)

    async with (
        serving(kind, behind),
        proxy(proxied_by, behind, prefix_of(kind), tmp_path) as port,
        hosting({"sdk": entry(kind, port, era)}, seconds=120) as manager,
    ):
        assert manager.server("sdk").status is _S.CONNECTED, manager.server("sdk").error
        assert await add(manager, 1) == "1001"
        assert await text(manager, "count", {"upto": 3}, on_progress=on_progress) == "done"
        assert kind == "json" or told == [1, 2, 3]
        with trio.move_on_after(0.3) as patience:
            await text(manager, "sleep", {})
        assert patience.cancelled_caught
        if kind != "json":
            with trio.fail_after(20):
                # What is waited for is in another process.
                while await text(manager, "how_many_were_cancelled", {}) != "1":  # noqa: ASYNC110
                    await trio.sleep(0.05)
        assert manager.server("sdk").generation == 1


@pytest.mark.parametrize("proxied_by", PROXIES)
@pytest.mark.parametrize(("kind", "era"), KINDS)
async def test_a_server_behind_a_proxy_is_restarted_under_load_and_every_call_has_one_outcome(
    kind: str, era: str, proxied_by: str, tmp_path: Path
) -> None:
    behind = free_port()
    async with (
        serving(kind, behind) as process,
        proxy(proxied_by, behind, prefix_of(kind), tmp_path) as port,
        hosting({"sdk": entry(kind, port, era)}, seconds=120) as manager,
        trio.open_nursery() as nursery,
    ):
        load = Load(partial(add, manager))
        load.start(nursery, callers=4)
        await load.reaches(20)
        process.kill()
        await process.wait()
        await until(manager, "sdk", _S.RECONNECTING, _S.STARTING)
        async with serving(kind, behind):
            await until(manager, "sdk", _S.CONNECTED, where=partial(_is_after, 1))
            await load.more(20)
            with trio.fail_after(20):  # nobody still waits for the server that is gone
                await load.stop()
    others = load.other_than(lambda number: str(number + 1000))
    # One that was under way for each caller; and until its loss is known to us, one more of each may meet the gateway.
    assert len(others) <= 8, others
    assert all(outcome == "gone, may have run: True" for outcome in others.values()), others


@pytest.mark.parametrize("proxied_by", PROXIES)
async def test_a_request_that_a_proxy_finds_too_large_fails_alone(proxied_by: str, tmp_path: Path) -> None:
    behind = free_port()
    async with (
        serving("http", behind),
        proxy(proxied_by, behind, "/gw/v1", tmp_path) as port,
        hosting({"sdk": entry("http", port, "auto")}, seconds=120) as manager,
    ):
        result = await manager.call_tool("sdk__add", {"a": 1, "b": 2, "junk": "x" * 2_000_000})
        assert result.is_error
        assert "413" in result.text
        assert await add(manager, 2) == "1002"
        assert manager.server("sdk").generation == 1
