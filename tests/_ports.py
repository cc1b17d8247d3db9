"""Ports of this machine, for servers that are programs of their own."""

from __future__ import annotations

import socket

import trio

__all__ = ["free_port", "until_listening"]


def free_port() -> int:
    """A port that nobody listened at a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until_listening(port: int, seconds: float) -> None:
    """Wait until somebody can be connected to there."""
    with trio.fail_after(seconds):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.05)  # nobody tells when another program listens
                continue
            await stream.aclose()
            return
