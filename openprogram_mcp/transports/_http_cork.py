"""Head and body of a request in one write: half the calls of the system, one packet, one wake of the server.

The HTTP client writes them one after the other. Between it and the network stands a stream that holds a head back until
what follows it is written, or until an answer is waited for.
"""

from __future__ import annotations

from typing import Any, Final

import httpx2

__all__ = ["cork"]

_END_OF_HEAD: Final = b"\r\n\r\n"


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
        return _CorkedStream(await self._backend.connect_tcp(*args, **kwargs))

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
