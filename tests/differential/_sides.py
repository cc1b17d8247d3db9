"""The two sides of a comparison: the SDK's dispatcher and ours, each with its peer's hand.

They stand behind the same small face: lines go in as bytes, messages come out as they were on the wire.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import anyio
import trio
import trio.testing
from mcp.shared.dispatcher import Dispatcher
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from openprogram_mcp.transports._link import Link, StreamLink
from openprogram_mcp.transports.stdio import StdioDispatcher

__all__ = ["SIDES", "HearNoise", "HearWire", "MakeSide", "Side", "SideName"]

SideName = Literal["sdk", "ours", "ours over streams"]
HearWire = Callable[[Mapping[str, Any]], None]
HearNoise = Callable[[], None]


class Side(Protocol):
    """A dispatcher, and its peer's hand."""

    dispatcher: Dispatcher[Any]
    link: Any

    async def feed(self, lines: bytes) -> None:
        """The peer writes whole lines."""

    def close(self) -> None:
        """The peer closes what it writes to."""

    def hang_up(self) -> None:
        """The peer closes what it reads."""

    def read(self, *, on: bool) -> None:
        """The peer reads no more, or on."""


class SdkSide:
    """The SDK's dispatcher on memory streams, and lines as its stdio transport reads and writes them."""

    def __init__(self, nursery: trio.Nursery, hear: HearWire, noise: HearNoise) -> None:
        self._to_client, from_peer = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        to_peer, self._from_client = anyio.create_memory_object_stream[SessionMessage](0)
        self._reads = trio.Event()
        self._reads.set()
        self._hear = hear
        self.link: Any = None
        self.streams = (from_peer, to_peer)
        """What the SDK's own client takes as a transport, instead of :attr:`dispatcher`."""

        async def on_stream_exception(_error: Exception) -> None:
            noise()

        self.dispatcher: Dispatcher[Any] = JSONRPCDispatcher(
            from_peer, to_peer, on_stream_exception=on_stream_exception
        )
        self._receiving = trio.CancelScope()
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        while True:
            await self._reads.wait()
            with trio.CancelScope() as self._receiving:
                try:
                    item = await self._from_client.receive()
                except (anyio.EndOfStream, anyio.ClosedResourceError):
                    return
                try:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                except ValueError:
                    # In its stdio transport this ends the task group, and the connection with it.
                    self.close()
                    return
                self._hear(json.loads(text))

    async def feed(self, lines: bytes) -> None:
        for text in lines.decode().splitlines():
            try:
                item: SessionMessage | Exception = SessionMessage(
                    jsonrpc_message_adapter.validate_json(text, by_name=False)
                )
            except ValueError as error:
                item = error
            try:
                self._to_client.send_nowait(item)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    def close(self) -> None:
        self._to_client.close()

    def hang_up(self) -> None:
        self.read(on=False)
        self._from_client.close()

    def read(self, *, on: bool) -> None:
        if on:
            self._reads.set()
        else:
            self._reads = trio.Event()
            self._receiving.cancel()


class HandLink:
    """A link as a pair of pipes is one, whose other end is moved by hand."""

    direct = True

    def __init__(self, written: Callable[[bytes], None]) -> None:
        self._written = written
        self._to_client, self._from_peer = trio.open_memory_channel[bytes](math.inf)
        self._changed = trio.lowlevel.ParkingLot()
        self._reads = True
        self._broken = False

    def feed(self, data: bytes) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self._to_client.send_nowait(data)

    def close(self) -> None:
        self._to_client.close()

    def hang_up(self) -> None:
        self._broken = True
        self._changed.unpark_all()

    def read(self, *, on: bool) -> None:
        self._reads = on
        self._changed.unpark_all()

    async def receive(self) -> bytes:
        try:
            return await self._from_peer.receive()
        except trio.EndOfChannel:
            return b""

    def try_send(self, data: bytes | memoryview) -> int:
        if self._broken:
            raise trio.BrokenResourceError
        if not self._reads:
            return 0
        self._written(bytes(data))
        return len(data)

    async def wait_sendable(self) -> None:
        while not self._reads and not self._broken:
            await self._changed.park()
        if self._broken:
            raise trio.BrokenResourceError


class _Lines:
    """Cuts what was written into messages."""

    def __init__(self, hear: HearWire) -> None:
        self._hear = hear
        self._partial = b""

    def __call__(self, data: bytes | bytearray) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for text in lines:
            self._hear(json.loads(text))


class OurSide:
    """Our dispatcher on a link that behaves as pipes do."""

    def __init__(self, nursery: trio.Nursery, hear: HearWire, noise: HearNoise) -> None:
        del nursery
        self._hand = HandLink(_Lines(hear))
        self.link: Link = self._hand
        self.dispatcher: Dispatcher[Any] = StdioDispatcher(self._hand, on_noise=lambda _noise: noise())

    async def feed(self, lines: bytes) -> None:
        self._hand.feed(lines)

    def close(self) -> None:
        self._hand.close()

    def hang_up(self) -> None:
        self._hand.hang_up()

    def read(self, *, on: bool) -> None:
        self._hand.read(on=on)


class OurSideOverStreams:
    """Our dispatcher on a pair of Trio streams, as it is used where pipes cannot be polled."""

    def __init__(self, nursery: trio.Nursery, hear: HearWire, noise: HearNoise) -> None:
        to_peer, self._from_client = trio.testing.memory_stream_one_way_pair()
        self._to_client, from_peer = trio.testing.memory_stream_one_way_pair()
        self._lines = _Lines(hear)
        self.link: Link = StreamLink(from_peer, to_peer)
        self.dispatcher: Dispatcher[Any] = StdioDispatcher(self.link, on_noise=lambda _noise: noise())
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            async for data in self._from_client:
                self._lines(data)

    async def feed(self, lines: bytes) -> None:
        await self._to_client.send_all(lines)

    def close(self) -> None:
        self._to_client.close()

    def hang_up(self) -> None:
        self._from_client.close()

    def read(self, *, on: bool) -> None:
        raise NotImplementedError("a memory stream takes whatever is written to it")


MakeSide = Callable[[trio.Nursery, HearWire, HearNoise], Side]
SIDES: Final[Mapping[SideName, MakeSide]] = {
    "sdk": SdkSide,
    "ours": OurSide,
    "ours over streams": OurSideOverStreams,
}
