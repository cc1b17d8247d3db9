"""Which way a server speaks: the probe, the handshake, and what real servers get wrong about both.

MCP specification: basic/lifecycle (2025-11-25), server/discover and version negotiation (2026-07-28).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import mcp_types as types
import trio
from attrs import define, field
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import Dispatcher
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)
from pydantic import ValidationError

from ..errors import ServerFailed
from ..transports.stdio import ConnectionClosed

__all__ = ["CLIENT_INFO", "ClosedWhileProbing", "Era", "negotiate"]

Era = Literal["legacy", "2026-07-28"]

_PROBE_SECONDS: Final = 0.75
_VERSION: Final = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
CLIENT_INFO: Final = types.Implementation(name="openprogram-mcp", version="0.1.0")


class ClosedWhileProbing(Exception):
    """The server ended when it was asked ``server/discover``: an old one, to be asked only ``initialize``."""


async def negotiate(
    client: ClientSession,
    dispatcher: Dispatcher[Any],
    server: str,
    era: Literal["auto", "legacy", "2026-07-28"],
    known_era: Era | None,
) -> list[str]:
    """Find out how the server speaks and adopt it. Gives warnings.

    Raises:
        ServerFailed: In phase ``initialize``: it refused, or it speaks no revision of ours.
        ClosedWhileProbing: Try again with ``legacy``.
        ConnectionClosed: The connection ended.
    """
    asking = _Negotiation(client, dispatcher, server)
    if era == "2026-07-28":
        client.adopt(await asking.discover())
    elif era == "legacy":
        await asking.initialize()
    elif known_era == "2026-07-28":
        # It was that when we last met; it may have been replaced since.
        found = await asking.discover_if_modern()
        if found is None:
            await asking.initialize()
        else:
            client.adopt(found)
    elif known_era == "legacy":
        try:
            await asking.initialize()
        except ServerFailed as failure:
            if not _says_modern(failure):
                raise
            client.adopt(await asking.discover())
    else:
        await asking.probe()
    return asking.warnings


@define(eq=False)
class _Negotiation:
    """The questions that are asked of one server, and what it got wrong in its answers."""

    _client: ClientSession
    _dispatcher: Dispatcher[Any]
    server: str
    warnings: list[str] = field(factory=list)

    async def probe(self) -> None:
        """Ask ``server/discover``, and ``initialize`` too when the answer is long in coming; adopt what counts first.

        The probe is not withdrawn when its time is up: a server that is still booting answers it later, has taken it as
        the word for the modern era by then, and refuses ``initialize``. So both are left to be answered.
        """
        answered = trio.Event()
        modern: list[types.DiscoverResult] = []
        failures: list[ServerFailed | ClosedWhileProbing] = []
        refused: list[ServerFailed] = []

        async def discover() -> None:
            found = await self.discover_if_modern()
            answered.set()
            if found is not None:
                modern.append(found)
                nursery.cancel_scope.cancel()

        async def initialize() -> None:
            with trio.move_on_after(_PROBE_SECONDS):
                await answered.wait()
            try:
                await self.initialize()
            except ServerFailed as failure:
                if not _says_modern(failure):
                    raise
                # It took the probe for the word: its answer to that is on the way, or was lost while it booted.
                refused.append(failure)
                with trio.move_on_after(_PROBE_SECONDS):
                    await answered.wait()
            nursery.cancel_scope.cancel()

        async def noting_failure(ask: Callable[[], Awaitable[None]]) -> None:
            try:
                await ask()
            except ServerFailed as failure:
                failures.append(failure)
            except ConnectionClosed:
                failures.append(ClosedWhileProbing())
            else:
                return
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(noting_failure, discover)
            nursery.start_soon(noting_failure, initialize)
        if modern:
            # Also where both were answered in one breath: it is what the server was asked first.
            self._client.adopt(modern[0])
        elif self._client.initialize_result is None:
            if failures:
                raise failures[0]
            found = await self.discover_if_modern()
            if found is None:
                raise _lost_or_refused(self.server, refused[0])
            self._client.adopt(found)

    # 2026-07-28.

    async def discover(self) -> types.DiscoverResult:
        """Ask ``server/discover``.

        Not through the SDK, whose limit of its own would end the wait for a server that takes long to boot. Where it
        refuses the revision and names one of ours, it is asked once more, in that one.

        Raises:
            ServerFailed: It refused, or it speaks no revision of ours.
        """
        try:
            raw = await self._ask_discover(LATEST_MODERN_VERSION)
        except ConnectionClosed:
            raise
        except MCPError as error:
            other = _modern_version(error)
            if other is None:
                raise _refused(self.server, "server/discover", error) from error
            try:
                raw = await self._ask_discover(other)
            except ConnectionClosed:
                raise
            except MCPError as second:
                raise _refused(self.server, "server/discover", second) from second
        try:
            # How long the answer may be kept does not matter here, and is often wrong.
            answer = {key: value for key, value in raw.items() if key not in ("ttlMs", "cacheScope")}
            found = types.DiscoverResult.model_validate(answer, by_name=False)
        except ValidationError as error:
            raise _unreadable(self.server, "server/discover") from error
        if not any(version in found.supported_versions for version in MODERN_PROTOCOL_VERSIONS):
            raise _unknown_version(self.server, ", ".join(found.supported_versions))
        return found

    async def _ask_discover(self, version: str) -> dict[str, Any]:
        envelope = {
            PROTOCOL_VERSION_META_KEY: version,
            CLIENT_INFO_META_KEY: _client_info(),
            CLIENT_CAPABILITIES_META_KEY: {},
        }
        # The specification forbids to cancel it.
        return await self._dispatcher.send_raw_request(
            "server/discover", {"_meta": envelope}, {"cancel_on_abandon": False}
        )

    async def discover_if_modern(self) -> types.DiscoverResult | None:
        """Ask ``server/discover``; ``None`` for every answer that does not show a modern server.

        Raises:
            ServerFailed: It is a modern one, of revisions that this client does not know.
        """
        try:
            return await self.discover()
        except ServerFailed as failure:
            refusal = failure.__cause__
            if isinstance(refusal, MCPError) and refusal.code == UNSUPPORTED_PROTOCOL_VERSION:
                named = _supported_versions(refusal)
                if named and not set(named) & set(HANDSHAKE_PROTOCOL_VERSIONS):
                    if set(named) & set(MODERN_PROTOCOL_VERSIONS):
                        raise  # it names what it refuses, again and again
                    raise _unknown_version(self.server, ", ".join(named)) from refusal
            return None

    # 2025-11-25 and older.

    async def initialize(self) -> None:
        """Ask ``initialize``, adopt the answer and tell the server so.

        Raises:
            ServerFailed: It refused, or it speaks no revision of ours.
        """
        try:
            raw = await self._ask_initialize(LATEST_HANDSHAKE_VERSION)
        except ConnectionClosed:
            raise
        except MCPError as error:
            other = _other_version(error)
            if other is None:
                raise _refused(self.server, "initialize", error) from error
            try:
                raw = await self._ask_initialize(other)
            except ConnectionClosed:
                raise
            except MCPError as second:
                raise _refused(self.server, "initialize", second) from second
        self._adopt_initialized(raw)
        await self._client.send_notification(types.InitializedNotification())

    async def _ask_initialize(self, version: str) -> dict[str, Any]:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": _client_info()}
        # The specification forbids to cancel it.
        return await self._dispatcher.send_raw_request("initialize", params, {"cancel_on_abandon": False})

    def _adopt_initialized(self, raw: dict[str, Any]) -> None:
        answer = dict(raw)
        if not isinstance(answer.get("protocolVersion"), str):
            answer["protocolVersion"] = HANDSHAKE_PROTOCOL_VERSIONS[0]
            self.warnings.append("it named no protocol version; the oldest one is used")
        if not isinstance(answer.get("serverInfo"), dict):
            answer["serverInfo"] = {"name": self.server, "version": ""}
            self.warnings.append("it did not say its name")
        if not isinstance(answer.get("capabilities"), dict):
            answer["capabilities"] = {}
            self.warnings.append("it did not say what it offers; it is asked for nothing")
        if answer["protocolVersion"] not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise _unknown_version(self.server, answer["protocolVersion"])
        try:
            self._client.adopt(types.InitializeResult.model_validate(answer, by_name=False))
        except ValidationError as error:
            raise _unreadable(self.server, "initialize") from error


def _client_info() -> dict[str, Any]:
    return CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True)


def _says_modern(failure: ServerFailed) -> bool:
    """Whether a server refused ``initialize`` as one does that speaks 2026-07-28 and later."""
    cause = failure.__cause__
    return isinstance(cause, MCPError) and cause.code == UNSUPPORTED_PROTOCOL_VERSION


def _other_version(error: MCPError) -> str | None:
    """The revision to try instead, where a server refused ours: the newest one that it names, else the oldest."""
    if error.code not in (INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION):
        return None
    named = _supported_versions(error)
    if named is None:
        # Older servers say it in words only.
        named = [version for version in _VERSION.findall(error.message) if version != LATEST_HANDSHAKE_VERSION]
    ours = [version for version in HANDSHAKE_PROTOCOL_VERSIONS if version in named]
    if ours:
        return ours[-1]
    return HANDSHAKE_PROTOCOL_VERSIONS[0] if error.code == INVALID_PARAMS and not named else None


def _modern_version(error: MCPError) -> str | None:
    """The newest revision of the modern era that a server names which refused ours, if it is one that we speak."""
    named = _supported_versions(error) if error.code == UNSUPPORTED_PROTOCOL_VERSION else None
    return next((version for version in reversed(MODERN_PROTOCOL_VERSIONS) if version in (named or ())), None)


def _supported_versions(error: MCPError) -> list[str] | None:
    data = error.error.data
    supported = data.get("supported") if isinstance(data, dict) else None
    if isinstance(supported, list):
        return [version for version in supported if isinstance(version, str)]
    return None


def _refused(server: str, method: str, error: MCPError) -> ServerFailed:
    return ServerFailed(
        f"it refused {method}: {error.message[:300] or 'no reason given'} (code {error.code})",
        phase="initialize",
        remedy="See what the server needs (its documentation, and its standard error below).",
        server=server,
    )


def _lost_or_refused(server: str, refusal: ServerFailed) -> ServerFailed:
    """Why neither era was agreed on. Who names a revision of ours speaks it: then only its answers were lost."""
    cause = refusal.__cause__
    if not isinstance(cause, MCPError) or _modern_version(cause) is None:
        return refusal
    return ServerFailed(
        "it speaks the newer era, but no usable answer to server/discover came",
        phase="initialize",
        transient=True,
        remedy="It is tried again. If this stays so, see its log, and what stands between us.",
        server=server,
    )


def _unreadable(server: str, method: str) -> ServerFailed:
    return ServerFailed(
        f"its answer to {method} is not what the specification says",
        phase="initialize",
        remedy="Report this to the makers of the server.",
        server=server,
    )


def _unknown_version(server: str, version: str) -> ServerFailed:
    return ServerFailed(
        f"it wants to speak protocol revision {version[:80]!r}, which this client does not know",
        phase="initialize",
        remedy="Update this client, or use a version of the server that speaks "
        f"{LATEST_HANDSHAKE_VERSION} or {LATEST_MODERN_VERSION}.",
        server=server,
    )
