"""Which way a server speaks: the probe, the handshake, and what real servers get wrong about both.

MCP specification: basic/lifecycle (2025-11-25), server/discover and version negotiation (2026-07-28).
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import mcp_types as types
import trio
from attrs import define, field
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import Dispatcher
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION
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
    """Find out how the server speaks and adopt it. Gives warnings."""
    wanted = known_era if era == "auto" else era
    if wanted == "2026-07-28":
        await _discover_only(client, server)
        return []
    handshake = _Handshake(client, dispatcher, server)
    if wanted is None:
        return await _probe(client, handshake)
    await handshake.run()
    return handshake.warnings


async def _discover_only(client: ClientSession, server: str) -> None:
    try:
        await client.discover()
    except ConnectionClosed:
        raise
    except MCPError as error:
        raise _refused(server, "server/discover", error) from error
    except (ValidationError, RuntimeError) as error:
        raise _unreadable(server, "server/discover") from error


@define(eq=False)
class _Handshake:
    """``initialize`` and its answer, with what real servers get wrong about it."""

    _client: ClientSession
    _dispatcher: Dispatcher[Any]
    server: str
    warnings: list[str] = field(factory=list)

    async def run(self) -> None:
        """Initialize and adopt the answer.

        Raises:
            ServerFailed: The server refused, or speaks no revision of ours.
        """
        try:
            raw = await self._ask(LATEST_HANDSHAKE_VERSION)
        except ConnectionClosed:
            raise
        except MCPError as error:
            other = _other_version(error)
            if other is None:
                raise _refused(self.server, "initialize", error) from error
            try:
                raw = await self._ask(other)
            except ConnectionClosed:
                raise
            except MCPError as second:
                raise _refused(self.server, "initialize", second) from second
        self._adopt(raw)
        await self._client.send_notification(types.InitializedNotification())

    async def _ask(self, version: str) -> dict[str, Any]:
        params = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": CLIENT_INFO.model_dump(by_alias=True, mode="json", exclude_none=True),
        }
        # The specification forbids to cancel it.
        return await self._dispatcher.send_raw_request("initialize", params, {"cancel_on_abandon": False})

    def _adopt(self, raw: dict[str, Any]) -> None:
        answer = dict(raw)
        if not isinstance(answer.get("protocolVersion"), str):
            answer["protocolVersion"] = HANDSHAKE_PROTOCOL_VERSIONS[0]
            self.warnings.append("it named no protocol version; the oldest one is used")
        if not isinstance(answer.get("serverInfo"), dict):
            answer["serverInfo"] = {"name": self.server, "version": ""}
            self.warnings.append("it did not say its name")
        if not isinstance(answer.get("capabilities"), dict):
            answer["capabilities"] = {}
        version = answer["protocolVersion"]
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise ServerFailed(
                f"it speaks protocol revision {version[:40]!r}, which this client does not know",
                phase="initialize",
                remedy="Update this client, or use a version of the server that speaks "
                f"{LATEST_HANDSHAKE_VERSION} or {LATEST_MODERN_VERSION}.",
                server=self.server,
            )
        try:
            self._client.adopt(types.InitializeResult.model_validate(answer, by_name=False))
        except ValidationError as error:
            raise _unreadable(self.server, "initialize") from error


def _other_version(error: MCPError) -> str | None:
    """The revision to try instead, where a server refused ours: one that it names, or the oldest."""
    if error.code not in (INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION):
        return None
    named = _supported_versions(error)
    if named is None:
        return HANDSHAKE_PROTOCOL_VERSIONS[0] if error.code == INVALID_PARAMS else None
    ours = [version for version in HANDSHAKE_PROTOCOL_VERSIONS if version in named]
    return ours[-1] if ours else None


def _supported_versions(error: MCPError) -> list[str] | None:
    data = error.error.data
    supported = data.get("supported") if isinstance(data, dict) else None
    if isinstance(supported, list):
        return [version for version in supported if isinstance(version, str)]
    return None


async def _probe(client: ClientSession, handshake: _Handshake) -> list[str]:
    """Ask ``server/discover``, and ``initialize`` too when the answer is long in coming.

    The probe is not withdrawn when its time is up: a server that is still booting answers it later, has taken it as the
    word for the modern era by then, and refuses ``initialize``. So both are left to be answered, and the first that
    settles the matter does.
    """
    answered = trio.Event()
    modern: list[types.DiscoverResult] = []
    refusals: list[ServerFailed] = []

    async def discover() -> None:
        result = await _discover(client, handshake.server)
        if result is not None:
            modern.append(result)
            nursery.cancel_scope.cancel()
        answered.set()

    async def initialize() -> None:
        with trio.move_on_after(_PROBE_SECONDS):
            await answered.wait()
        try:
            await handshake.run()
        except ServerFailed as failure:
            if not _names_modern_era(failure):
                raise
            # It took the probe for the word: its answer to that is on the way, or worth a second asking.
            refusals.append(failure)
            return
        nursery.cancel_scope.cancel()

    failed: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(discover)
            nursery.start_soon(initialize)
    except* ServerFailed as failures:
        failed = _first(failures)
    except* ConnectionClosed:
        failed = ClosedWhileProbing()
    if failed is not None:
        raise failed
    if client.initialize_result is not None:
        return handshake.warnings
    if not modern and refusals and (result := await _discover(client, handshake.server)) is not None:
        modern.append(result)
    if not modern:
        raise refusals[0]
    client.adopt(modern[0])
    return []


async def _discover(client: ClientSession, server: str) -> types.DiscoverResult | None:
    """One probe; ``None`` for every answer that does not show a modern server.

    Raises:
        ServerFailed: It is a modern one, of revisions that this client does not know.
    """
    try:
        raw = await client.send_discover(LATEST_MODERN_VERSION)
        result = types.DiscoverResult.model_validate(raw)
    except ConnectionClosed:
        raise
    except MCPError as error:
        named = _supported_versions(error) if error.code == UNSUPPORTED_PROTOCOL_VERSION else None
        if named is not None and not set(named) & set(HANDSHAKE_PROTOCOL_VERSIONS):
            raise _refused(server, "server/discover", error) from error
        return None
    except ValidationError:
        return None
    return result if any(version in result.supported_versions for version in MODERN_PROTOCOL_VERSIONS) else None


def _names_modern_era(failure: ServerFailed) -> bool:
    cause = failure.__cause__
    return isinstance(cause, MCPError) and cause.code == UNSUPPORTED_PROTOCOL_VERSION


def _first(group: BaseExceptionGroup[ServerFailed]) -> ServerFailed:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast("ServerFailed", error)


def _refused(server: str, method: str, error: MCPError) -> ServerFailed:
    return ServerFailed(
        f"it refused {method}: {error.message[:300] or 'no reason given'} (code {error.code})",
        phase="initialize",
        remedy="See what the server needs (its documentation, and its standard error below).",
        server=server,
    )


def _unreadable(server: str, method: str) -> ServerFailed:
    return ServerFailed(
        f"its answer to {method} is not what the specification says",
        phase="initialize",
        remedy="Report this to the makers of the server.",
        server=server,
    )
