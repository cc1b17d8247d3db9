"""Fake MCP servers for tests: ours, and yours.

:class:`FakeServer` is a server that does what its script says, down to the byte: well-behaved, slow, rude or dying. It
runs as a real subprocess that starts in about 20 ms, or in memory under Trio's autojump clock, and plays the same
script in both. :class:`FakeHttpServer` plays it over HTTP, on a real socket. The steps of scripts stand in
:mod:`~openprogram_mcp.testing.do`; what happened is read from the server's record.
"""

from . import do
from ._fake import FakeServer
from ._http.seen import HttpRequest
from ._http.server import FakeHttpServer
from ._memory import MemoryServer
from ._records import Call, Record
from .do import Step

__all__ = ["Call", "FakeHttpServer", "FakeServer", "HttpRequest", "MemoryServer", "Record", "Step", "do"]
