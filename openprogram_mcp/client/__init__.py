"""One server: its state, its request queue, and its connections, one after the other.

The rooms inside: ``_client`` (the server's life), ``_attempt`` (one connection of it, from the start of its process to
the reaping), ``_connection`` (one that is up), ``_backoff`` (when a lost one is tried again), ``_turns`` (whose call is
next), ``_calls`` (what becomes of a call), ``_lingering`` (the turn of one that was given up), ``_changes`` (a list,
while it changes), ``_pace`` (how fast that is followed), ``_listening`` (how it is heard), ``_gate`` (how many start at
once), ``_protocol`` (where the SDK is met).
"""

from __future__ import annotations

from ._calls import Call, OnProgress
from ._client import MCPClient
from ._gate import StartGate

__all__ = ["Call", "MCPClient", "OnProgress", "StartGate"]
