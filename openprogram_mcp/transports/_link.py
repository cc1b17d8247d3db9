"""A two-way stream of bytes as the dispatcher wants it: writing tries at once, and waits only when it must.

Two kinds: a pair of pipe ends, read and written without a hop through a stream object, and any pair of Trio streams (in
memory, or on Windows, where pipes cannot be polled).
"""

from __future__ import annotations

import os
import sys
from typing import Final, Protocol

import trio

__all__ = ["Link", "PipeLink", "StreamLink", "enlarge_pipe"]

_READ_SIZE: Final = 64 * 1024
_LARGE_READ_SIZE: Final = 256 * 1024
# So many bytes in a row that were there at once, and the others get their turn: about a millisecond of decoding.
_BYTES_BETWEEN_CHECKPOINTS: Final = 128 * 1024
# A user's pipes together may hold 64 MiB; past that the system makes every new one of theirs tiny.
_PIPE_SIZE: Final = 256 * 1024


class Link(Protocol):
    """What the dispatcher needs of a stream."""

    direct: bool
    """Whether what was taken by :meth:`try_send` is on its way, without :meth:`wait_sendable` after it."""

    async def receive(self) -> bytes:
        """The next bytes; none at the end of the stream."""
        ...

    def try_send(self, data: bytes | memoryview) -> int:
        """Send what can be sent at once and say how much that was.

        Raises:
            trio.BrokenResourceError: The other side is gone.
        """
        ...

    async def wait_sendable(self) -> None:
        """Wait until something can be sent.

        Raises:
            trio.BrokenResourceError: The other side is gone.
        """
        ...


class PipeLink:
    """A link over two file descriptors that belong to somebody else, who closes them.

    Args:
        read_fd: The end to read from; made non-blocking.
        write_fd: The end to write to; made non-blocking.
    """

    direct = True

    __slots__ = ("_read_fd", "_size", "_taken", "_write_fd")

    def __init__(self, read_fd: int, write_fd: int) -> None:
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._size = _READ_SIZE
        self._taken = 0

    async def receive(self) -> bytes:
        """See :class:`Link`."""
        if self._taken >= _BYTES_BETWEEN_CHECKPOINTS:
            self._taken = 0
            await trio.lowlevel.checkpoint()
        while True:
            try:
                chunk = os.read(self._read_fd, self._size)
            except BlockingIOError:
                self._taken = 0
                try:
                    await trio.lowlevel.wait_readable(self._read_fd)
                except trio.ClosedResourceError:
                    return b""
                continue
            except OSError:
                # The pipe was closed under us, or its other side died: for a reader both are the end.
                return b""
            self._size = _LARGE_READ_SIZE if len(chunk) == self._size else _READ_SIZE
            self._taken += len(chunk)
            return chunk

    def try_send(self, data: bytes | memoryview) -> int:
        """See :class:`Link`."""
        try:
            return os.write(self._write_fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("the server closed its standard input") from error

    async def wait_sendable(self) -> None:
        """See :class:`Link`."""
        try:
            await trio.lowlevel.wait_writable(self._write_fd)
        except trio.ClosedResourceError as error:
            raise trio.BrokenResourceError("the pipe was closed") from error


class StreamLink:
    """A link over a pair of Trio streams that belong to somebody else, who closes them.

    A stream cannot be asked without waiting, so what is to be sent is taken one piece at a time and sent by
    :meth:`wait_sendable`.
    """

    direct = False

    __slots__ = ("_pending", "_receive", "_send")

    def __init__(self, receive: trio.abc.ReceiveStream, send: trio.abc.SendStream) -> None:
        self._receive = receive
        self._send = send
        self._pending = b""

    async def receive(self) -> bytes:
        """See :class:`Link`."""
        try:
            return bytes(await self._receive.receive_some(_READ_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def try_send(self, data: bytes | memoryview) -> int:
        """See :class:`Link`."""
        if self._pending:
            return 0
        self._pending = bytes(data)
        return len(data)

    async def wait_sendable(self) -> None:
        """See :class:`Link`. Sends what was taken before."""
        if not self._pending:
            return
        try:
            await self._send.send_all(self._pending)
        except trio.ClosedResourceError as error:
            raise trio.BrokenResourceError("the stream was closed") from error
        self._pending = b""


def enlarge_pipe(fd: int, size: int = _PIPE_SIZE) -> None:
    """Ask for a larger pipe buffer where the system has one, so that large results take fewer steps."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)
        except OSError:
            # Over the user's limit for pipes: the usual size works too.
            return
