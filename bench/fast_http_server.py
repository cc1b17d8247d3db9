"""The same server as ``fast_server`` over Streamable HTTP: as little as keeps a connection alive and answers at once.

Prints its address, then serves until standard input ends. Answers are JSON, in the legacy era and without a session;
there is no stream to listen on (405).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec

from bench.fast_server import answer

_decode = msgspec.json.Decoder().decode
_ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
_REFUSED = b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + size:
                return
            body, self._data = self._data[end + 4 : end + 4 + size], self._data[end + 4 + size :]
            self._transport.write(_response(body) if head.startswith(b"post") else _REFUSED)


def _response(body: bytes) -> bytes:
    said = answer(_decode(body))
    if not said:
        return _ACCEPTED
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said)


async def main() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
