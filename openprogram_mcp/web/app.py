"""The management API as one ASGI application: the routes, the translation of errors, and the guard in front."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import trio
from attrs import field, frozen
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins.attrs import AttrsSchemaPlugin

from .. import __version__
from ._config_schema import describe_configurations
from ._guard import BODY_SECONDS, ASGIApp, Guard, allowed_hosts
from ._json import encode
from ._metrics import Meter
from ._problems import EXCEPTION_HANDLERS
from ._sessions import Sessions

if TYPE_CHECKING:
    from ..manager import MCPManager

__all__ = ["API", "build_app", "openapi_document"]

_MAX_BODY_BYTES = 16 * 1024 * 1024


@frozen
class API:
    """What every route works with.

    Args:
        manager: The servers and their tools.
        stop: Set when the worker stops; open streams end then.
        read_only: Refuse what changes something.
        heartbeat_seconds: How often an idle stream of events sends a comment.
        sessions: The browsers that were let in.
        meter: Counts what ``/metrics`` shows.
    """

    manager: MCPManager
    stop: trio.Event = field(factory=trio.Event)
    read_only: bool = False
    heartbeat_seconds: float = 15.0
    sessions: Sessions = field(factory=Sessions)
    meter: Meter = field(factory=Meter)


def build_app(api: API, *, host: str, token: str, body_seconds: float = BODY_SECONDS) -> ASGIApp:
    """The application.

    Args:
        api: What the routes work with.
        host: The address it is served at; requests addressed to other names are refused.
        token: The owner's token.
        body_seconds: How long a request's body may take to arrive.
    """
    routes = _routes(api)
    app = Litestar(
        routes,
        # The document is made apart, when it is asked for: the framework's own routes for it would answer HTML, also
        # below /api.
        openapi_config=None,
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=_MAX_BODY_BYTES,
        plugins=[AttrsSchemaPlugin()],
        logging_config=None,
    )
    return Guard(app, token, allowed_hosts(host), api.sessions, body_seconds)  # type: ignore[arg-type]  # its ASGI types are TypedDicts, ours mappings


def openapi_document(api: API) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the routes, made from their attrs classes."""
    config = OpenAPIConfig(
        title="openprogram_mcp management API",
        version=__version__,
        description="Servers, tools, calls and events of a running worker. Errors are problem documents (RFC 9457).",
        components=Components(security_schemes={"owner": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"owner": []}],
    )
    app = Litestar(_routes(api), openapi_config=config, plugins=[AttrsSchemaPlugin()], logging_config=None)
    document: dict[str, Any] = json.loads(encode(app.openapi_schema.to_schema()))
    describe_configurations(document)
    return document


def _routes(api: API) -> list[HTTPRouteHandler]:
    from . import (
        _routes_auth,
        _routes_catalogs,
        _routes_edits,
        _routes_entry,
        _routes_events,
        _routes_servers,
        _routes_tools,
    )

    rooms = (
        _routes_servers,
        _routes_edits,
        _routes_auth,
        _routes_tools,
        _routes_catalogs,
        _routes_events,
        _routes_entry,
    )
    return [handler for room in rooms for handler in room.routes(api)]
