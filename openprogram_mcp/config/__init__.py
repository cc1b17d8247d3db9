"""The configuration: which servers there are and how to treat them, read from a file and saved to it.

Owns the meaning of every field. A bad entry costs that entry alone; a file that cannot be read is never overwritten;
what is not understood is kept. Its rooms: ``_kinds`` (what a value must be), ``_parts`` and ``_server`` (the fields),
``_convert`` (JSON to attrs and back), ``_expand`` (``${NAME}``), ``_secrets`` and ``_shown`` (what may be seen),
``_hints`` (what looks like a mistake), ``_jsonc`` (the text), ``_document`` (the file).
"""

from __future__ import annotations

from ._document import ConfigDocument, load_configs, load_document, save_configs, save_document
from ._parts import (
    Auth,
    BearerAuth,
    ClientCredentialsAuth,
    EnterpriseAuth,
    Health,
    NoAuth,
    OAuthAuth,
    Reconnect,
    Source,
    WorkloadAuth,
)
from ._server import MCPServerConfig, ServerType

__all__ = [
    "Auth",
    "BearerAuth",
    "ClientCredentialsAuth",
    "ConfigDocument",
    "EnterpriseAuth",
    "Health",
    "MCPServerConfig",
    "NoAuth",
    "OAuthAuth",
    "Reconnect",
    "ServerType",
    "Source",
    "WorkloadAuth",
    "load_configs",
    "load_document",
    "save_configs",
    "save_document",
]
