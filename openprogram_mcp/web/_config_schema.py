"""A server's configuration as the OpenAPI document describes it to those who send one. Pure.

The routes take any object: what a field must be is for :mod:`openprogram_mcp.config` to say, whose errors name the
place, and fields that are not known are kept. A test holds the names here to those of ``MCPServerConfig``.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["describe_configurations"]

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_FLAG: Final[Schema] = {"type": "boolean"}
_SECONDS: Final[Schema] = {"type": "number", "exclusiveMinimum": 0}
_OBJECT: Final[Schema] = {"type": "object"}


def _choice(*values: str) -> Schema:
    return {"enum": list(values)}


def _whole(low: int, high: int | None = None) -> Schema:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def _secrets(what: str) -> Schema:
    of_one = "A text, or null or an empty text, which deletes it; the mask keeps it."
    value = {"anyOf": [_TEXT, {"type": "null"}, {"$ref": "#/components/schemas/MaskedSecret"}], "description": of_one}
    return {"type": "object", "additionalProperties": value, "description": what}


_FIELDS: Final[dict[str, Schema]] = {
    "type": _choice("local", "http", "sse", "auto"),
    "command": {"anyOf": [_TEXT, _TEXTS], "description": "The program; one text is split as a shell would."},
    "args": _TEXTS,
    "env": _secrets("Variables of the program."),
    "cwd": _TEXT,
    "inherit_env": {"anyOf": [_choice("safe", "all"), _TEXTS]},
    "url": _TEXT,
    "headers": _secrets("Headers of every request."),
    "auth": {**_OBJECT, "properties": {"kind": _choice("none", "bearer", "oauth", "client_credentials")}},
    "ca_file": _TEXT,
    "client_cert_file": _TEXT,
    "client_key_file": _TEXT,
    "verify": _FLAG,
    "enabled": _FLAG,
    "timeout_seconds": _SECONDS,
    "startup_timeout_seconds": _SECONDS,
    "call_timeout_seconds": _SECONDS,
    "max_call_seconds": _SECONDS,
    "stop_timeout_seconds": _SECONDS,
    "max_concurrency": _whole(1, 1000),
    "serialize": _choice("writes", "all", "none"),
    "reconnect": {"anyOf": [_OBJECT, {"const": False}]},
    "health": _OBJECT,
    "max_frame_bytes": _whole(1),
    "max_result_chars": _whole(1),
    "always_load": _FLAG,
    "allow": _TEXTS,
    "deny": _TEXTS,
    "era": _choice("auto", "legacy", "2026-07-28"),
    "stop_first": _FLAG,
    "share": _choice("process", "directory"),
    "account": _TEXT,
    "sandbox_state": _FLAG,
    "source": _OBJECT,
    "description": _TEXT,
}

_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 128}

_SCHEMAS: Final[dict[str, Schema]] = {
    "MaskedSecret": {
        "type": "object",
        "description": "A secret as answers show it. Sent back, it is kept.",
        "properties": {"has_value": _FLAG, "masked": {"anyOf": [_TEXT, {"type": "null"}]}},
        "required": ["masked"],
    },
    "ServerConfig": {
        "type": "object",
        "description": "How to reach a server, and how to treat it; null is the default. The reference has all of it.",
        "properties": {name: {"anyOf": [schema, {"type": "null"}]} for name, schema in _FIELDS.items()},
    },
    "NewServer": {
        "description": "A server's name and its configuration, beside it or as `config`.",
        "anyOf": [
            {
                "allOf": [
                    {"$ref": "#/components/schemas/ServerConfig"},
                    {"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
                ]
            },
            {
                "type": "object",
                "properties": {"name": _NAME, "config": {"$ref": "#/components/schemas/ServerConfig"}},
                "required": ["name", "config"],
                "additionalProperties": False,
            },
        ],
    },
}

_BODIES: Final = {"mcp.add": "NewServer", "mcp.update": "ServerConfig", "mcp.test": "ServerConfig"}
"""What is sent to an operation."""


def describe_configurations(document: dict[str, Any]) -> None:
    """Say in an OpenAPI document what the bodies are that the framework knows as objects only."""
    document["components"]["schemas"].update(_SCHEMAS)
    for path in document["paths"].values():
        for operation in path.values():
            body = _BODIES.get(operation["operationId"])
            if body is not None:
                content = operation["requestBody"]["content"]["application/json"]
                content["schema"] = {"$ref": f"#/components/schemas/{body}"}
