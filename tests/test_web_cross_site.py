"""Pages that are not the worker's, in a real Chromium that was let in: they can read, add and call nothing."""

from __future__ import annotations

from pathlib import Path

import trio

from ._chromium import browse, needs_chromium
from ._fake_manager import remote_tool
from ._web import TOKEN, serving

pytestmark = needs_chromium

_PAGE = b"<!doctype html><title>foreign</title><body>foreign"


async def _foreign_site(stream: trio.SocketStream) -> None:
    """Answer whatever is asked with a page."""
    async with stream:
        await stream.receive_some()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        await stream.send_all(head % len(_PAGE) + _PAGE)


async def test_a_foreign_page_in_a_real_browser_can_read_add_and_call_nothing(tmp_path: Path) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    foreign = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, _foreign_site, listeners)
        async with serving(seconds=120) as site:
            site.manager.put("a", remote_tool("t"))
            link = (await site.post("/api/mcp/link")).json["url"]
            told = await browse("foreign_page", link, foreign, "a__t", home=tmp_path)
            # The browser is let in, and the worker's own page may do everything: so what stops the others is the guard.
            assert told["own"] == [200, 200]
            assert told["tried"] > 100
            assert told["read"] == []
            assert set(told["rebound"]) == {403}
            assert (site.manager.acts, site.manager.asked, site.manager.calls) == ([("restart", "a")], [], [])
            assert TOKEN not in str(told)
        nursery.cancel_scope.cancel()
