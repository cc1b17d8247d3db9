"""Tools: as a server lists them, and as an agent calls them.

Owns: `RemoteTool` (one entry of ``tools/list``, repaired), `AgentTool` (one callable of the registry), and the way from
the first to the second. Each tool is read by itself, so that a bad one costs nobody else anything. Does not own: the
call; that is the ``invoke`` which somebody gives.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from attrs import field, frozen

from ._content import AgentToolResult, error_result
from ._json import to_json, written_json
from ._model import ModelSchema, model_view, root_choices
from ._names import NameStyle
from ._schema import InvalidSchema, normalize_input_schema

__all__ = ["AgentTool", "Invoke", "OnUpdate", "RemoteTool", "mount_tool", "parse_tools"]

OnUpdate = Callable[..., Awaitable[None]]
"""Told of progress while a call runs: ``await on_update(progress, total, message)``."""

Invoke = Callable[[dict[str, Any], str | None, OnUpdate | None], Awaitable[AgentToolResult]]
"""Does a call: arguments, the call's id, who wants to know of progress."""


@frozen(kw_only=True)
class RemoteTool:
    """One tool as its server listed it, repaired where it had to be (specification: server/tools, "Tool").

    ``name`` is the name on the wire. The annotations are hints of the server's and not to be trusted more than it.
    """

    name: str
    description: str = ""
    title: str | None = None
    input_schema: dict[str, Any] = field(factory=lambda: normalize_input_schema(None))
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = field(factory=dict)
    meta: dict[str, Any] = field(factory=dict)

    @property
    def read_only(self) -> bool:
        """Whether it says that it changes nothing."""
        return self.annotations.get("readOnlyHint") is True

    @property
    def destructive(self) -> bool:
        """Whether it may destroy something; so long as it does not say otherwise, it may."""
        return not self.read_only and self.annotations.get("destructiveHint") is not False

    @property
    def idempotent(self) -> bool:
        """Whether it says that a second run with the same arguments has no further effect."""
        return self.annotations.get("idempotentHint") is True

    @property
    def repeatable(self) -> bool:
        """Whether a call that may have run may be sent again."""
        return self.read_only or self.idempotent


@frozen(kw_only=True)
class AgentTool:
    """One callable of the registry, local or of an MCP server.

    Args:
        name: The name a model calls it by.
        description: What it does, for the model.
        parameters: The JSON Schema of its arguments, every keyword kept.
        label: What a human reads.
        toolsets: The groups it belongs to.
        defer: Whether it is offered only when searched for.
        annotations: The server's hints.
        server: The server's name; ``None`` for a local function.
        wire_name: The tool's name on the wire; ``None`` for a local function.
        invoke: Does the call. Two tools that differ only in this are equal: to a model they are the same.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    label: str = ""
    toolsets: tuple[str, ...] = ()
    defer: bool = False
    annotations: dict[str, Any] = field(factory=dict)
    server: str | None = None
    wire_name: str | None = None
    invoke: Invoke = field(eq=False, repr=False)

    @cached_property
    def for_models(self) -> ModelSchema:
        """The schema as model APIs accept it. Made once, and shared: not to be changed."""
        return model_view(self.parameters)

    async def execute(
        self,
        arguments: Mapping[str, Any] | str | None,
        *,
        call_id: str | None = None,
        on_update: OnUpdate | None = None,
    ) -> AgentToolResult:
        """Call the tool. To cancel it, cancel the scope around this.

        Args:
            arguments: An object, or its JSON as a model wrote it. Nothing and an empty text are ``{}``. They go out as
                they
                are: nothing is added, nothing is left out.
            call_id: The model's id of this call.
            on_update: Is awaited with (progress, total, message) while the call runs.

        Returns:
            The result; JSON that is not an object gives an error result, which a model can read and mend.
        """
        given = _arguments(arguments)
        if isinstance(given, str):
            return error_result(given, server=self.server or "", tool=self.wire_name or self.name)
        return await self.invoke(given, call_id, on_update)


def mount_tool(
    server: str,
    tool: RemoteTool,
    invoke: Invoke,
    *,
    name: str,
    toolsets: tuple[str, ...] | None = None,
    defer: bool = False,
    style: NameStyle = "plain",
) -> AgentTool:
    """A server's tool as a callable of the registry.

    Args:
        server: The server's name.
        tool: The tool as listed.
        invoke: Does the call.
        name: The name that `assign_names` gave it.
        toolsets: ``("mcp", "mcp:SERVER")`` unless told otherwise.
        defer: Whether it is offered only when searched for.
        style: With ``mcp`` the description begins with ``[server]``.
    """
    description = f"[{server}] {tool.description}".rstrip() if style == "mcp" else tool.description
    return AgentTool(
        name=name,
        description=description,
        parameters=tool.input_schema,
        label=tool.title or tool.name,
        toolsets=("mcp", f"mcp:{server}") if toolsets is None else tuple(toolsets),
        defer=defer,
        annotations=tool.annotations,
        server=server,
        wire_name=tool.name,
        invoke=invoke,
    )


def parse_tools(raw_tools: Any) -> tuple[list[RemoteTool], list[str]]:
    """Read the ``tools`` of ``tools/list``, each by itself.

    Args:
        raw_tools: The list as it came, of all pages.

    Returns:
        The tools in the order given, and the warnings: a sentence for each that was dropped or repaired, naming it.
    """
    tools: dict[str, RemoteTool] = {}
    warnings: list[str] = []
    if not isinstance(raw_tools, list):
        return [], ["the list of tools is not a list"]
    for position, raw in enumerate(raw_tools):
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not name:
            warnings.append(f"tool {position + 1} of the list was dropped: it has no name")
            continue
        shown = to_json(name[:100])
        if name in tools:
            warnings.append(f"tool {shown} was dropped: another of this server has the same name")
            continue
        try:
            tool, repaired = _tool(name, raw)
        except InvalidSchema as error:
            warnings.append(f"tool {shown} was dropped: {error}")
            continue
        tools[name] = tool
        warnings.extend(f"tool {shown}: {repair}" for repair in repaired)
    return list(tools.values()), warnings


def _tool(name: str, raw: dict[str, Any]) -> tuple[RemoteTool, list[str]]:
    repaired: list[str] = []
    # One pass of a fast encoder answers two questions that would cost a walk each: whether there are lone surrogates,
    # which would break every request that shows this tool, and whether there are references.
    written, is_clean = written_json(raw)
    if not is_clean:
        raw = json.loads(written)
    description = raw.get("description")
    if not isinstance(description, str):
        if description is not None:
            repaired.append("its description was not a text, and is left out")
        description = ""
    annotations = raw.get("annotations")
    if not isinstance(annotations, dict):
        if annotations is not None:
            repaired.append("its annotations were not an object, and are left out")
        annotations = {}
    output_schema = raw.get("outputSchema")
    if not isinstance(output_schema, dict):
        if output_schema is not None and output_schema is not True:
            repaired.append("its output schema was not a schema, and is left out")
        output_schema = None
    title = raw.get("title") or annotations.get("title")
    meta = raw.get("_meta")
    input_schema = normalize_input_schema(raw.get("inputSchema"))
    if root_choices(input_schema) or '"$ref"' in written:
        # Others get their copy for models when they are first shown to one.
        repaired.extend(model_view(input_schema).warnings)
    tool = RemoteTool(
        name=name,
        description=description,
        title=title if isinstance(title, str) else None,
        input_schema=input_schema,
        output_schema=output_schema,
        annotations=annotations,
        meta=meta if isinstance(meta, dict) else {},
    )
    return tool, repaired


def _arguments(arguments: Mapping[str, Any] | str | None) -> dict[str, Any] | str:
    """The arguments as an object, or what is wrong with them."""
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"The arguments are not valid JSON: {error}. Nothing was called; give one JSON object."
        if arguments is None:
            return {}
    if not isinstance(arguments, Mapping):
        return "The arguments are not a JSON object. Nothing was called; give one JSON object."
    return dict(arguments)
