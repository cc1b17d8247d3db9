"""One server: its state, its request queue, and its connections, one after the other.

The rooms inside: ``_client`` (the server's life), ``_attempt`` (one connection of it, from the start of its process to
the reaping), ``_connection`` (one that is up), ``_backoff`` (when a lost one is tried again), ``_turns`` (whose call is
next), ``_calls`` (what becomes of a call), ``_lingering`` (the turn of one that was given up), ``_inquiries`` (what
becomes of other requests), ``_catalogs`` (its lists), ``_changes`` (one of them, while it changes), ``_subscriptions``
(resources that tell their changes), ``_pace`` (how fast changes are followed), ``_listening`` (how they are heard),
``_gate`` (how many start at once), ``_protocol`` (where the SDK is met).
"""

from __future__ import annotations

from ._calls import Call, OnProgress
from ._client import MCPClient
from ._gate import StartGate

__all__ = ["Call", "MCPClient", "OnProgress", "StartGate"]
