"""The tools that an agent can call now: its own functions and those of MCP servers, in one table.

Owns: the table, its order, its version, and the snapshot that everything which shows tools is made from. Does not own:
which tools a server has and under which names (the manager says), and how a call is done (each tool's ``invoke``).

Not for several threads: everything here runs in the thread of the event loop, and nothing here waits.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints, overload

import msgspec
import trio
from attrs import define, field, frozen

from .adapter import (
    MAX_NAME,
    AgentTool,
    AgentToolResult,
    Invoke,
    NameStyle,
    RemoteTool,
    anthropic_tool,
    convert_call_result,
    error_result,
    mount_tool,
    normalize_input_schema,
    openai_tool,
)
from .errors import UnknownTool

__all__ = ["RegistrySnapshot", "ToolRegistry"]

_log = logging.getLogger(__name__)

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")

F = TypeVar("F", bound=Callable[..., Any])


@frozen
class RegistrySnapshot:
    """The tools at one moment. Immutable.

    ``version`` rises with each change that a model could see; ``tools`` is in the order they are offered in.
    """

    version: int
    tools: Mapping[str, AgentTool]

    def openai(self) -> list[dict[str, Any]]:
        """The tools for OpenAI's API, in order."""
        return [openai_tool(tool) for tool in self.tools.values()]

    def anthropic(self) -> list[dict[str, Any]]:
        """The tools for Anthropic's API, in order."""
        return [anthropic_tool(tool) for tool in self.tools.values()]


@define
class ToolRegistry:
    """The table of tools: local functions first, in the order they joined; then the servers' tools, server by server in
    the order the manager gives, each server's by name. So the list a model sees is the same at every start, and what it
    remembers of the list stays valid.
    """

    _local: dict[str, AgentTool] = field(factory=dict, init=False)
    _remote: dict[str, AgentTool] = field(factory=dict, init=False)
    _left_out: set[str] = field(factory=set, init=False)
    _used: Callable[[], None] = field(default=lambda: None, init=False)
    _snapshot: RegistrySnapshot = field(init=False, factory=lambda: RegistrySnapshot(0, MappingProxyType({})))

    @property
    def version(self) -> int:
        """Rises with each change that a model could see."""
        return self._snapshot.version

    def snapshot(self) -> RegistrySnapshot:
        """The tools now, as one immutable value, for a model's turn to hold on to.

        This is a use of the servers' lists: one that is too old to be used (``ttlMs``) is read anew soon, and the next
        snapshot has what came of it.
        """
        self._used()
        return self._snapshot

    @property
    def current(self) -> RegistrySnapshot:
        """The same for who only watches, which is no use of the lists."""
        return self._snapshot

    def when_used(self, tell: Callable[[], None]) -> None:
        """Let somebody know whenever the tools are looked at to be used. It must not wait, nor change the table."""
        self._used = tell

    def names(self) -> list[str]:
        """The names in the order the tools are offered in."""
        return list(self._snapshot.tools)

    def get(self, name: str) -> AgentTool | None:
        """The tool of exactly this name, or ``None``. A name is never taken apart or guessed."""
        return self._snapshot.tools.get(name)

    def __getitem__(self, name: str) -> AgentTool:
        tool = self._snapshot.tools.get(name)
        if tool is None:
            raise UnknownTool(f'there is no tool "{name}"', remedy="List the tools to see their names.")
        return tool

    def __contains__(self, name: object) -> bool:
        return name in self._snapshot.tools

    def __len__(self) -> int:
        return len(self._snapshot.tools)

    def openai(self) -> list[dict[str, Any]]:
        """The tools for OpenAI's Chat Completions API, in order."""
        return self.snapshot().openai()

    def anthropic(self) -> list[dict[str, Any]]:
        """The tools for Anthropic's Messages API, in order."""
        return self.snapshot().anthropic()

    def register(self, tool: AgentTool) -> AgentTool:
        """Add a tool. One with a server stands with that server's, others are local.

        Raises:
            ValueError: The name is taken. A tool never takes another's place in silence.
        """
        if tool.name in self._snapshot.tools:
            raise ValueError(f'a tool "{tool.name}" is registered already')
        if tool.server is None:
            self._local[tool.name] = tool
        else:
            self._remote = _ordered([*self._remote.values(), tool])
        self._publish(changed=True)
        return tool

    def unregister(self, name: str) -> None:
        """Take a tool out.

        Raises:
            UnknownTool: There is none of this name.
        """
        tool = self[name]
        del (self._local if name in self._local else self._remote)[tool.name]
        self._publish(changed=True)

    def register_remote_tool(
        self,
        server: str,
        tool: RemoteTool,
        invoke: Invoke,
        *,
        name: str,
        toolsets: tuple[str, ...] | None = None,
        defer: bool = False,
        style: NameStyle = "plain",
    ) -> AgentTool:
        """Mount one tool of a server. The manager, which knows all of them, uses `replace_remote` instead.

        Args:
            server: The server's name.
            tool: The tool as listed.
            invoke: Does the call.
            name: The name a model calls it by.
            toolsets: The groups it belongs to; ``("mcp", "mcp:SERVER")`` unless told otherwise.
            defer: Whether it is offered only when searched for.
            style: With ``mcp`` the description begins with ``[server]``.

        Raises:
            ValueError: The name is taken.
        """
        return self.register(
            mount_tool(server, tool, invoke, name=name, toolsets=toolsets, defer=defer, style=style),
        )

    def replace_remote(self, tools: Iterable[AgentTool]) -> tuple[list[str], list[str], list[str]]:
        """Put these in the place of all servers' tools, in one step.

        A tool with the name of a local function is left out and logged: the host's own comes first. The version rises
        once, and only if something changed that a model could see; a new ``invoke`` alone is not such a change.

        Args:
            tools: All servers' tools, in the order of the servers.

        Returns:
            The names added, removed, and changed. All three are empty where only the order of servers changed.
        """
        before = self._remote
        given: list[AgentTool] = []
        left_out: set[str] = set()
        for tool in tools:
            if tool.name not in self._local:
                given.append(tool)
                continue
            left_out.add(tool.name)
            if tool.name not in self._left_out:
                _log.warning('%s of server "%s" is left out: a local function has its name', tool.name, tool.server)
        self._left_out = left_out
        after = self._remote = _ordered(given)
        added = [name for name in after if name not in before]
        removed = [name for name in before if name not in after]
        changed = [name for name, tool in after.items() if name in before and tool != before[name]]
        self._publish(changed=bool(added or removed or changed) or list(before) != list(after))
        return added, removed, changed

    @overload
    def function(self, function: F, /) -> F: ...

    @overload
    def function(
        self, /, *, name: str | None = None, description: str | None = None, toolsets: tuple[str, ...] = ()
    ) -> Callable[[F], F]: ...

    def function(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        toolsets: tuple[str, ...] = (),
    ) -> F | Callable[[F], F]:
        """Let a function of the host's join as a tool: ``@registry.function``.

        Its schema is made from its type hints, its description from its docstring. It may be a coroutine function of
        Trio's; a plain one runs in a worker thread. What it returns becomes the result: a text as it is, an
        `AgentToolResult` as it is, anything else as JSON. What it raises becomes an error result.

        Args:
            function: The function.
            name: The tool's name, if not the function's.
            description: What it does, if not the docstring.
            toolsets: The groups it belongs to.

        Raises:
            ValueError: The name is taken, or is none that model APIs accept.
            TypeError: A parameter cannot be given by name, or its type has no JSON form.
        """

        def join(target: F) -> F:
            self.register(_local_tool(target, name=name, description=description, toolsets=toolsets))
            return target

        return join if function is None else join(function)

    def _publish(self, *, changed: bool) -> None:
        # Built anew and put in place in one assignment: whoever holds the old snapshot keeps a true picture of its
        # moment.
        version = self._snapshot.version + 1 if changed else self._snapshot.version
        self._snapshot = RegistrySnapshot(version, MappingProxyType({**self._local, **self._remote}))


def _ordered(tools: Iterable[AgentTool]) -> dict[str, AgentTool]:
    servers: dict[str | None, list[AgentTool]] = {}
    for tool in tools:
        servers.setdefault(tool.server, []).append(tool)
    ordered: dict[str, AgentTool] = {}
    for group in servers.values():
        for tool in sorted(group, key=lambda tool: tool.name):
            if tool.name in ordered:
                raise ValueError(f'two tools have the name "{tool.name}"')
            ordered[tool.name] = tool
    return ordered


def _local_tool(
    function: Callable[..., Any], *, name: str | None, description: str | None, toolsets: tuple[str, ...]
) -> AgentTool:
    called = name or function.__name__
    if not _NAME.fullmatch(called):
        raise ValueError(f'"{called}" cannot be a tool\'s name: letters, digits, _ and -, at most {MAX_NAME} of them')
    fields: list[Any] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{called}: parameter {parameter.name} cannot be given by name")
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # A default is shown only where it is JSON; the function itself fills in what is not given.
            fields.append((parameter.name, hint, _default(parameter.default)))
    model = msgspec.defstruct(called, fields, kw_only=True, forbid_unknown_fields=True)
    schema = msgspec.json.schema(model)
    parameters = _inlined(schema)
    is_async = inspect.iscoroutinefunction(function)
    names = [item[0] for item in fields]

    async def invoke(arguments: dict[str, Any], call_id: str | None, on_update: Any) -> AgentToolResult:
        del call_id, on_update
        try:
            values = msgspec.convert(arguments, model)
        except msgspec.ValidationError as error:
            return error_result(f"The arguments do not fit: {error}", tool=called)
        given = {key: getattr(values, key) for key in names if key in arguments}
        try:
            if is_async:
                value = await function(**given)
            else:
                value = await trio.to_thread.run_sync(lambda: function(**given))
            return _local_result(value, called)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the model to read, not the end of the agent
            _log.debug("local tool %s failed", called, exc_info=True)
            return error_result(f"{type(error).__name__}: {error}", tool=called)

    return AgentTool(
        name=called,
        description=inspect.getdoc(function) or "" if description is None else description,
        parameters=parameters,
        label=called,
        toolsets=toolsets,
        invoke=invoke,
    )


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: value)
    return value


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = dict(schema.get("$defs", {}))
    root = definitions.pop(schema["$ref"].rsplit("/", 1)[1])
    root.pop("title", None)
    if definitions:
        root["$defs"] = definitions
    return normalize_input_schema(root)


def _local_result(value: Any, name: str) -> AgentToolResult:
    if isinstance(value, AgentToolResult):
        return value
    if isinstance(value, str):
        return convert_call_result({"content": [{"type": "text", "text": value}]}, tool=name)
    if value is None:
        return convert_call_result({"content": []}, tool=name)
    return convert_call_result({"content": [], "structuredContent": msgspec.to_builtins(value)}, tool=name)
