"""What every fake server has in common: what it offers, its script, and what it noted. Not how it is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import trio
from attrs import define, field

from ._records import Call, Record, calls_of, most_at_once
from ._step import Step

__all__ = ["Era", "Scripted"]

Era = Literal["both", "legacy", "modern"]

_LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_MODERN = ("2026-07-28",)
_VERSIONS: Mapping[str, tuple[str, ...]] = {"both": _LEGACY + _MODERN, "legacy": _LEGACY, "modern": _MODERN}
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@define(kw_only=True, eq=False)
class Scripted:
    """A server that does what its script says.

    Args:
        name: Its name, as it introduces itself.
        version: Its version, as it introduces itself.
        era: ``legacy`` is initialised (2025-11-25 and older) and refuses ``server/discover`` with -32601; ``modern`` is
            discovered (2026-07-28) and refuses ``initialize`` with -32022; ``both`` does as it is asked.
        versions: The protocol versions that it speaks, in place of the era's own.
        capabilities: Its capabilities, in place of those that its tools, resources and prompts imply.
        instructions: Its instructions.
        page_size: Tools on one page of ``tools/list``; all of them where ``None``.
        shuffled: List the tools in another order each time.
        single_threaded: Handle one request at a time, and read nothing meanwhile.
        recording: Whether it notes what happens to it.
    """

    name: str = "fake"
    version: str = "1.0.0"
    era: Era = "both"
    versions: Sequence[str] | None = None
    capabilities: Mapping[str, Any] | None = None
    instructions: str | None = None
    page_size: int | None = None
    shuffled: bool = False
    single_threaded: bool = False
    recording: bool = True
    info: Mapping[str, Any] = field(factory=dict)
    """More keys of its ``serverInfo``; placeholders such as ``$cwd`` become facts of its process."""

    _tools: dict[str, dict[str, Any]] = field(init=False, factory=dict)
    _resources: list[dict[str, Any]] = field(init=False, factory=list)
    _prompts: list[dict[str, Any]] = field(init=False, factory=list)
    _hooks: dict[str, list[dict[str, Any]]] = field(init=False, factory=dict)
    _in_memory: list[Record] = field(init=False, factory=list)
    _noted: trio.Event = field(init=False, factory=trio.Event)

    # What it offers.

    def tool(
        self,
        name: str,
        *steps: Step,
        description: str | None = None,
        input_schema: Any = _ANY_OBJECT,
        output_schema: Any = None,
        annotations: Mapping[str, Any] | None = None,
        read_only: bool | None = None,
        hidden: bool = False,
        **more: Any,
    ) -> Self:
        """Offer a tool, in place of one of the same name.

        Args:
            name: Its name.
            steps: What happens when it is called, and nothing else: steps that do not answer leave the call unanswered.
                Without steps it answers with its arguments.
            description: Its description.
            input_schema: Its ``inputSchema``, however wrong; left out where ``None``.
            output_schema: Its ``outputSchema``; left out where ``None``.
            annotations: Its annotations.
            read_only: Short for the annotation ``readOnlyHint``.
            hidden: Offer it only after :func:`do.show <openprogram_mcp.testing.do.show>`.
            more: Further keys of its entry in ``tools/list``.
        """
        listed: dict[str, Any] = {"name": name, "description": description, "inputSchema": input_schema}
        listed["outputSchema"] = output_schema
        hints = dict(annotations or {})
        if read_only is not None:
            hints["readOnlyHint"] = read_only
        listed["annotations"] = hints or None
        listed = {key: value for key, value in listed.items() if value is not None} | more
        played = [step.to_json() for step in steps]
        self._tools[name] = {"name": name, "listed": listed, "steps": played, "hidden": hidden}
        return self._changed()

    def resource(self, uri: str, text: str, *, name: str | None = None, mime_type: str = "text/plain") -> Self:
        """Offer a text resource."""
        contents = [{"uri": uri, "mimeType": mime_type, "text": text}]
        self._resources.append({"uri": uri, "name": name or uri, "mimeType": mime_type, "contents": contents})
        return self._changed()

    def prompt(self, name: str, text: str, *, arguments: Sequence[str] = ()) -> Self:
        """Offer a prompt that is one text of the user's."""
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        named = [{"name": argument, "required": True} for argument in arguments]
        self._prompts.append({"name": name, "arguments": named, "messages": messages})
        return self._changed()

    # What it does differently.

    def on(self, method: str, *steps: Step) -> Self:
        """Play steps whenever a message of this method comes in, and nothing else: without steps it is ignored."""
        self._hooks[method] = [step.to_json() for step in steps]
        return self._changed()

    def on_start(self, *steps: Step) -> Self:
        """Play steps before the first byte is read."""
        return self.on("start", *steps)

    @property
    def script(self) -> dict[str, Any]:
        """The whole server as JSON, as what plays it reads it."""
        return {
            "info": {"name": self.name, "version": self.version, **self.info},
            "versions": list(self.versions if self.versions is not None else _VERSIONS[self.era]),
            "capabilities": None if self.capabilities is None else dict(self.capabilities),
            "instructions": self.instructions,
            "page_size": self.page_size,
            "shuffled": self.shuffled,
            "single_threaded": self.single_threaded,
            "tools": list(self._tools.values()),
            "resources": self._resources,
            "prompts": self._prompts,
            "on": self._hooks,
        }

    # What happened to it.

    def records(self, event: str | None = None, *, method: str | None = None) -> list[Record]:
        """What it noted, over all its lives, oldest first; of one event or method only, where given."""
        records = self._all_records()
        if event is not None:
            records = [record for record in records if record.event == event]
        if method is not None:
            records = [record for record in records if record.method == method]
        return records

    def received(self, method: str | None = None) -> list[Any]:
        """The messages that came in, of one method only where given."""
        return [record.message for record in self.records("received", method=method)]

    def calls(self, tool: str | None = None) -> list[Call]:
        """The tool calls that came in, when each began and ended, in the order in which they began."""
        calls = calls_of(self.records())
        return calls if tool is None else [call for call in calls if call.tool == tool]

    def most_at_once(self, tool: str | None = None) -> int:
        """How many tool calls it handled at the same time, at most."""
        return most_at_once(self.calls(tool))

    async def wait_for(
        self, event: str, *, method: str | None = None, count: int = 1, within: float = 10.0
    ) -> list[Record]:
        """Wait until something was noted so many times.

        Args:
            event: Which event.
            method: Of which method only.
            count: How many times.
            within: Seconds of Trio's clock to wait at most.

        Returns:
            All records of that kind.

        Raises:
            trio.TooSlowError: It did not happen in time.
        """
        with trio.fail_after(within):
            while True:
                found = self.records(event, method=method)
                if len(found) >= count:
                    return found
                await self._next_record()

    # For those who play it.

    def _changed(self) -> Self:
        """Something else was said about it."""
        return self

    def _all_records(self) -> list[Record]:
        return list(self._in_memory)

    async def _next_record(self) -> None:
        """Wait until there may be one more."""
        await self._noted.wait()

    def _note(self, record: Record) -> None:
        self._in_memory.append(record)
        noted, self._noted = self._noted, trio.Event()
        noted.set()
