"""JSON as people write it, with comments, trailing commas, a byte order mark: reading and changing it. Pure.

A text is read as the JSON that it should be. Only where that fails, comments and trailing commas are replaced by as
many blanks, so that every other character keeps its place and an error its line and column. A change touches the values
that changed and leaves all else as it was written: comments, order, spacing, and what is not understood.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from attrs import field, frozen

__all__ = ["Document", "Repeated", "Unreadable", "parse", "same"]

_BLANK: Final = " \t\r\n"
_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_COMMENT: Final = re.compile(rf"{_STRING}|(?P<comment>//[^\r\n]*|/\*.*?\*/)", re.DOTALL)
_COMMA: Final = re.compile(rf"{_STRING}|[\[{{,][{_BLANK}]*,|(?P<comma>,)(?=[{_BLANK}]*[\]}}])", re.DOTALL)


class Unreadable(ValueError):
    """A text is not the JSON it should be: what is wrong, and where, counted from 1."""

    def __init__(self, what: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{what} (line {line}, column {column})")
        self.what = what
        self.line = line
        self.column = column


class Repeated(tuple[Any, ...]):
    """The values of a name that stands several times in one object."""

    __slots__ = ()


@frozen
class Document:
    """A text and the value in it, in which a name that stands several times has a :class:`Repeated` as its value."""

    text: str = field(repr=False)
    value: Any = field(repr=False)
    mark: bytes = b""

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        return self.mark + self.text.encode()

    @property
    def comments(self) -> list[str]:
        """The comments in it."""
        return [match["comment"] for match in _COMMENT.finditer(self.text) if match["comment"]]

    def changed(self, value: dict[str, Any]) -> Document:
        """The same text with another value in it: what is equal stays as it is written."""
        return Document(_Rewriter(self.text).rewritten(self.value, value), value, self.mark)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; ``1`` is not ``true``, and the order of names does not count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return (
            isinstance(one, Repeated) == isinstance(other, Repeated)
            and len(one) == len(other)
            and all(map(same, one, other))
        )
    return type(one) is type(other) and (one == other or repr(one) == repr(other))  # NaN is not equal to itself


def parse(data: bytes) -> Document:
    """Read the bytes of a file.

    Raises:
        Unreadable: It is not UTF-8, not JSON even without its comments, or nested too deeply.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:4]:
        raise Unreadable("the file is UTF-16 or UTF-32 text (PowerShell's > writes such files), expected UTF-8")
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    try:
        text = data.removeprefix(mark).decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(errors="replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise Unreadable("a byte that is not UTF-8", line, column) from None
    if not text.strip():
        raise Unreadable("the file is empty, expected an object")
    try:
        return Document(text, _loads(text), mark)
    except Unreadable:
        return Document(text, _loads(_without_commas(_without_comments(text, lines=True))), mark)


def _loads(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:]
        raise Unreadable(what, error.lineno, error.colno) from None
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError:
        raise Unreadable("a number in it has too many digits") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    values: dict[str, list[Any]] = {name: [] for name in found}
    for name, value in pairs:
        values[name].append(value)
    return {name: Repeated(several) if len(several) > 1 else several[0] for name, several in values.items()}


def _without_comments(text: str, *, lines: bool) -> str:
    """Blanks in the place of comments. ``lines``: line breaks within a comment stay."""
    inside = re.compile(r"[^\r\n]" if lines else r"[\s\S]")
    return _COMMENT.sub(lambda match: inside.sub(" ", match[0]) if match["comment"] else match[0], text)


def _without_commas(text: str) -> str:
    return _COMMA.sub(lambda match: " " if match["comma"] else match[0], text)


@frozen
class _Member:
    """One name and value of an object: where they begin and end."""

    name: str
    start: int
    value: int
    end: int


@frozen
class _Written:
    """A member as it will stand: the blanks and comments before it, itself, and the rest of its last line."""

    lead: str
    text: str
    rest: str = ""


class _Rewriter:
    """Writes a text anew with another value in it.

    ``plain`` is the text as strict JSON, ``flat`` the same with its trailing commas, both with every character in its
    place.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.flat = _without_comments(text, lines=False)
        self.plain = _without_commas(self.flat)
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.decoder = json.JSONDecoder()

    def rewritten(self, old: Any, new: Any) -> str:
        """The whole text."""
        start = self._skip(0)
        end = self.decoder.raw_decode(self.plain, start)[1]
        return self.text[:start] + self._value(start, end, old, new, "") + self.text[end:]

    def _skip(self, at: int) -> int:
        while at < len(self.plain) and self.plain[at] in _BLANK:
            at += 1
        return at

    def _members(self, start: int) -> Iterator[_Member]:
        at = self._skip(start + 1)
        while self.plain[at] == '"':
            name, after = self.decoder.raw_decode(self.plain, at)
            value = self._skip(self._skip(after) + 1)
            end = self.decoder.raw_decode(self.plain, value)[1]
            yield _Member(name, at, value, end)
            at = self._skip(end)
            if self.plain[at] == ",":
                at = self._skip(at + 1)

    def _value(self, start: int, end: int, old: Any, new: Any, indent: str | None) -> str:
        """The text of the value that stands from ``start`` to ``end``.

        ``indent`` is what its line begins with; ``None`` when it shares a line with what is around it.
        """
        if same(old, new):
            return self.text[start:end]
        if isinstance(old, dict) and isinstance(new, dict) and self.text[start + 1 : end - 1].strip():
            return self._object(start, end, old, new, indent)
        return self._dumped(new, indent)

    def _object(self, start: int, end: int, old: dict[str, Any], new: dict[str, Any], indent: str | None) -> str:
        members = list(self._members(start))
        stops = [*(member.start for member in members), end - 1]
        first, lead = self._split(start + 1, stops[0])
        inner = self._inner(lead, indent) if "\n" in self.flat[start:end] else None
        comma = False
        written: list[_Written] = []
        seen: set[str] = set()
        for member, stop in zip(members, stops[1:], strict=True):
            comma = "," in self.flat[member.end : stop]
            rest, following = self._split(member.end, stop)
            untouched = member.name in new and same(old[member.name], new[member.name])
            if untouched or (member.name in new and member.name not in seen):
                was = old[member.name]
                value = self._value(member.value, member.end, was, new[member.name], inner)
                written.append(_Written(lead, self.text[member.start : member.value] + value, rest))
            seen.add(member.name)
            lead = following
        fresh = " " if inner is None else f"{self.newline}{inner}"
        written += [
            _Written(fresh, f"{self._dumped(name, None)}: {self._dumped(new[name], inner)}")
            for name in new
            if name not in old
        ]
        text, rest = "{" + first, first
        for index, one in enumerate(written):
            mark = "," if comma or index < len(written) - 1 else ""
            text += self._joined(rest, one.lead, inner) + one.text + mark + one.rest
            rest = one.rest
        return text + self._joined(rest, lead, indent) + "}"

    def _split(self, start: int, stop: int) -> tuple[str, str]:
        """What stands between two members, without its comma: the rest of the line, and what leads to the next one."""
        gap, flat = self.text[start:stop], self.flat[start:stop]
        at = flat.find(",")
        if at >= 0:
            gap, flat = gap[:at] + gap[at + 1 :], flat[:at] + flat[at + 1 :]
        line = re.search("\r?\n", flat)
        return (gap[: line.start()], gap[line.start() :]) if line else ("", gap)

    def _inner(self, lead: str, indent: str | None) -> str:
        """What the lines within an object begin with: as those that are there, else two blanks more than outside."""
        _, line, blanks = lead.rpartition("\n")
        return blanks if line and not blanks.strip() and blanks > (indent or "") else f"{indent or ''}  "

    def _joined(self, rest: str, lead: str, indent: str | None) -> str:
        """``lead``, on a line of its own when the line before it ends in a comment."""
        alone = lead.startswith(("\n", "\r\n")) or not rest.strip()
        return lead if alone else f"{self.newline}{indent or ''}{lead.lstrip()}"

    def _dumped(self, value: Any, indent: str | None) -> str:
        space = None if indent is None else 2
        text = json.dumps(value, indent=space, ensure_ascii=False)
        if not text.isascii() and any("\ud800" <= mark <= "\udfff" for mark in text):
            text = json.dumps(value, indent=space)  # half a surrogate pair has no UTF-8
        return text.replace("\n", f"{self.newline}{indent}")
