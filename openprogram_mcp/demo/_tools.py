"""The tools of the demonstration server, and what they work on: a scratch note and a growing list of tools.

A tool's function gets its checked arguments and a :class:`Call`, and returns the content of its result. Tools that wait
say so, and run in a thread of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

NOTE_URI = "demo://note"
_MAX_SLEEP = 3_600_000
_MAX_EXTRAS = 20


class ToolFailed(Exception):
    """The tool could not do it; the text is for whoever called it."""


class Call(Protocol):
    """The call that is being answered."""

    def sleep(self, seconds: float) -> None:
        """Wait; ends the call when the client cancels it."""
        ...

    def progress(self, done: float, total: float, message: str) -> None:
        """Report progress, where the client asked for it."""
        ...

    def ask(self, message: str, schema: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the user to fill in a form: what was filled in, or ``None`` where nothing was.

        Raises:
            ToolFailed: This client asks nobody.
        """
        ...

    def changed_tools(self) -> None:
        """Tell the client that the list of tools has changed."""
        ...

    def changed_resource(self, uri: str) -> None:
        """Tell the client that a resource has changed, if it wants to know."""
        ...


Function = Callable[..., "str | dict[str, Any]"]


class Tool:
    """A tool as it is listed, and the function behind it."""

    def __init__(self, function: Function, listed: dict[str, Any], *, waits: bool) -> None:
        self.function = function
        self.listed = listed
        self.waits = waits

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the tool knows; others are ignored.

        Raises:
            ToolFailed: One is missing, or is of another type.
        """
        schema = self.listed["inputSchema"]
        known = {}
        for name, expected in schema["properties"].items():
            if name in arguments:
                known[name] = _check(name, arguments[name], expected)
            elif name in schema["required"]:
                raise ToolFailed(f"{name}: is missing")
        return known


def _check(name: str, value: Any, expected: dict[str, Any]) -> Any:
    kinds: dict[str, type | tuple[type, ...]] = {"string": str, "number": (int, float), "integer": int}
    kind = expected["type"]
    if isinstance(value, float) and kind == "integer" and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, kinds[kind]):
        raise ToolFailed(f"{name}: expected {'an' if kind == 'integer' else 'a'} {kind}")
    if value < expected.get("minimum", value) or value > expected.get("maximum", value):
        raise ToolFailed(f"{name}: expected {expected['minimum']} to {expected['maximum']}")
    return value


class Toolbox:
    """Everything the server's tools share, and the list of those it offers."""

    def __init__(self) -> None:
        self.note = "The demonstration server keeps this note until it is restarted."
        self._extras = 0
        text = {"type": "string"}
        number = {"type": "number"}
        self._tools = [
            _tool(self.echo, "Echo", "Says the text again.", {"text": text}),
            _tool(self.add, "Add", "Adds two numbers.", {"a": number, "b": number}),
            _tool(
                self.sleep,
                "Sleep",
                "Waits for so many milliseconds and reports progress meanwhile.",
                {"ms": {"type": "integer", "minimum": 0, "maximum": _MAX_SLEEP}},
                waits=True,
            ),
            _tool(self.now, "Now", "Tells the time, in UTC."),
            _tool(self.read_note, "Read the note", "Reads the scratch note."),
            _tool(
                self.write_note,
                "Write the note",
                "Replaces the scratch note by another text.",
                {"text": text},
                read_only=False,
                destructive=True,
                idempotent=True,
            ),
            _tool(self.picture, "Picture", "Paints a small picture."),
            _tool(
                self.measure,
                "Measure",
                "Measures the weather at a place, as structured data. The numbers are made up, from the place's name.",
                {"place": text},
                output={"place": text, "temperature_celsius": number, "humidity_percent": {"type": "integer"}},
            ),
            _tool(self.fail, "Fail", "Fails, with a message.", {"message": text}, optional=("message",)),
            _tool(self.ask_name, "Ask for a name", "Asks the user's name, and greets.", waits=True),
            _tool(
                self.grow,
                "Grow",
                "Adds a tool to the list.",
                read_only=False,
                destructive=False,
                idempotent=False,
            ),
            _tool(
                self.shrink,
                "Shrink",
                "Takes the last tool that was added off the list.",
                read_only=False,
                destructive=True,
                idempotent=False,
            ),
        ]

    def tools(self) -> list[Tool]:
        """The tools that are offered now."""
        return [*self._tools, *(_extra(number) for number in range(1, self._extras + 1))]

    def tool(self, name: Any) -> Tool | None:
        """The tool of this name, if it is offered."""
        return next((tool for tool in self.tools() if tool.listed["name"] == name), None)

    def echo(self, _call: Call, text: str) -> str:
        return text

    def add(self, _call: Call, a: float, b: float) -> str:
        try:
            return str(a + b)
        except (OverflowError, ValueError):
            raise ToolFailed("these numbers are too large to add") from None

    def sleep(self, call: Call, ms: int) -> str:
        step = min(max(ms / 10, 50), 1000)  # ten reports, but neither a flood nor a silence
        done = 0.0
        while done < ms:
            pause = min(step, ms - done)
            call.sleep(pause / 1000)
            done += pause
            call.progress(done, ms, f"{done:.0f} of {ms} ms")
        return f"slept {ms} ms"

    def now(self, _call: Call) -> str:
        from datetime import UTC, datetime  # only this tool pays for it

        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def read_note(self, _call: Call) -> str:
        return self.note

    def write_note(self, call: Call, text: str) -> str:
        self.note = text
        call.changed_resource(NOTE_URI)
        return f"wrote {len(text)} characters"

    def picture(self, _call: Call) -> dict[str, Any]:
        from base64 import b64encode

        data = b64encode(paint(64)).decode("ascii")
        return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}

    def measure(self, _call: Call, place: str) -> dict[str, Any]:
        from json import dumps
        from zlib import crc32

        seed = crc32(place.encode("utf-8", "surrogatepass"))
        measured = {
            "place": place,
            "temperature_celsius": seed % 400 / 10 - 5,
            "humidity_percent": 30 + seed // 400 % 60,
        }
        return {"content": [{"type": "text", "text": dumps(measured)}], "structuredContent": measured}

    def fail(self, _call: Call, message: str = "This tool always fails.") -> str:
        raise ToolFailed(message)

    def ask_name(self, call: Call) -> str:
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string", "title": "Your name"}},
            "required": ["name"],
        }
        answer = call.ask("What is your name?", schema)
        if answer is None:
            return "Nice to meet you, whoever you are."
        return f"Nice to meet you, {answer.get('name')}."

    def grow(self, call: Call) -> str:
        if self._extras == _MAX_EXTRAS:
            raise ToolFailed(f"{_MAX_EXTRAS} more tools are enough")
        self._extras += 1
        call.changed_tools()
        return f"added extra_{self._extras}"

    def shrink(self, call: Call) -> str:
        if self._extras == 0:
            raise ToolFailed("there is no tool to take away")
        self._extras -= 1
        call.changed_tools()
        return f"removed extra_{self._extras + 1}"


def _tool(
    function: Function,
    title: str,
    description: str,
    properties: dict[str, dict[str, Any]] | None = None,
    *,
    optional: tuple[str, ...] = (),
    output: dict[str, dict[str, Any]] | None = None,
    read_only: bool = True,
    destructive: bool = False,
    idempotent: bool = True,
    waits: bool = False,
    name: str | None = None,
) -> Tool:
    properties = properties or {}
    required = [key for key in properties if key not in optional]
    listed: dict[str, Any] = {
        "name": name or function.__name__,
        "title": title,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties, "required": required},
        "annotations": {
            "title": title,
            "readOnlyHint": read_only,
            "destructiveHint": destructive,
            "idempotentHint": idempotent,
            "openWorldHint": False,
        },
    }
    if output is not None:
        listed["outputSchema"] = {"type": "object", "properties": output, "required": list(output)}
    return Tool(function, listed, waits=waits)


def _extra(number: int) -> Tool:
    def say(_call: Call) -> str:
        return f"This is extra_{number}."

    return _tool(say, f"Extra {number}", "Says which tool it is.", name=f"extra_{number}")


def paint(size: int) -> bytes:
    """A PNG of ``size`` by ``size`` pixels: a disc on a gradient."""
    from struct import pack
    from zlib import compress, crc32

    middle = (size - 1) / 2
    rows = bytearray()
    for y in range(size):
        rows.append(0)  # this row is not filtered
        for x in range(size):
            inside = (x - middle) ** 2 + (y - middle) ** 2 < (size * 0.35) ** 2
            rows += bytes((250, 190, 60) if inside else (40, 80 + 120 * y // size, 120 + 120 * x // size))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", crc32(kind + data))

    header = pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", compress(bytes(rows))) + chunk(b"IEND", b"")
