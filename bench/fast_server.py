"""An MCP server that costs next to nothing, so that a benchmark measures clients and not servers.

Speaks the legacy era over stdio. One tool, ``reply(size)``: a text of so many bytes, the same bytes every time.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_TOOL = {
    "name": "reply",
    "description": "Answer with a text of the given size in bytes.",
    "inputSchema": {"type": "object", "properties": {"size": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True},
}


@cache
def _result(size: int) -> bytes:
    return _encode({"content": [{"type": "text", "text": "x" * size}], "isError": False})


def answer(message: dict[str, Any]) -> bytes:
    """What a message is answered with, as a line; nothing for a notification."""
    if "id" not in message:
        return b""
    number = _encode(message["id"])
    method = message.get("method")
    if method == "tools/call":
        result = _result(message["params"].get("arguments", {}).get("size", 100))
    elif method == "initialize":
        result = _encode(
            {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fast", "version": "1"},
            }
        )
    elif method == "tools/list":
        result = _encode({"tools": [_TOOL]})
    elif method == "ping":
        result = b"{}"
    else:
        return b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32601,"message":"unknown method"}}\n' % number
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (number, result)


def main() -> None:
    """Serve until standard input ends."""
    rest = b""
    while chunk := os.read(0, 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        data = memoryview(b"".join(answer(_decode(line)) for line in lines if line))
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
