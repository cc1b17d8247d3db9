"""What our connections have beyond those of the HTTP client: one write a request, and a sign of life.

The client writes the head and the body of a request one after the other. Between it and the network stands a stream
that holds a head back until what follows it is written, or until an answer is waited for: half the calls of the system,
one packet, one wake of the server. And a peer that has vanished without a word is noticed on a stream on which nothing
is due for hours, since the system asks for it now and then.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import httpx2

__all__ = ["cork"]

_END_OF_HEAD: Final = b"\r\n\r\n"
# A peer that has been silent for a minute is asked, and is gone when it has not answered four times.
_SIGNS_OF_LIFE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
]


class _CorkedStream:
    """A network stream of the client's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await self._flush(timeout)
        data: bytes = await self._stream.read(max_bytes, timeout)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not self._held and buffer.endswith(_END_OF_HEAD):
            self._held = buffer
            return
        held, self._held = self._held, b""
        await self._stream.write(held + buffer if held else buffer, timeout)

    async def _flush(self, timeout: float | None) -> None:
        if self._held:
            held, self._held = self._held, b""
            await self._stream.write(held, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> _CorkedStream:
        await self._flush(timeout)
        return _CorkedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CorkingBackend:
    """What makes the client's network streams."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> _CorkedStream:
        options = [*_SIGNS_OF_LIFE, *(kwargs.pop("socket_options", None) or ())]
        return _CorkedStream(await self._backend.connect_tcp(*args, **kwargs, socket_options=options))

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> _CorkedStream:
        return _CorkedStream(await self._backend.connect_unix_socket(*args, **kwargs))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def cork(client: httpx2.AsyncClient) -> None:
    """Let a client write heads together with bodies. Where it is not built as expected, it writes them as before."""
    for transport in (client._transport, *client._mounts.values()):  # there is no public way to its backend
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _CorkingBackend(backend)
