"""What the value of a field must be.

A :class:`Kind` says it once: in words, for the error, and as a function that gives the value its final form. A field's
annotation carries its kind (``timeout_seconds: Seconds``), so that the list of fields is the table of the interface.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

from attrs import frozen

__all__ = [
    "HEADER",
    "URL",
    "Command",
    "EnvMap",
    "Flag",
    "HeaderMap",
    "InheritEnv",
    "Kind",
    "Mismatch",
    "Seconds",
    "Secret",
    "Text",
    "Texts",
    "Url",
    "Word",
    "Words",
    "choice",
    "in_words",
    "is_object",
    "list_of",
    "server_name",
    "split_command",
    "whole",
]


class Mismatch(ValueError):
    """A value is not what its field must hold.

    Args:
        expected: What the field must hold, in words.
        got: What it holds, in words that give no secret away.
        at: The way from the field to the value, where it lies deeper.
    """

    def __init__(self, expected: str, got: str, at: tuple[str, ...] = ()) -> None:
        super().__init__(f"expected {expected}, got {got}")
        self.at = at


@frozen
class Kind:
    """What a value must be: in words, and as a function that raises ValueError or gives the value its final form."""

    expected: str
    parse: Callable[[Any], Any]
    secret: bool = False

    def __call__(self, value: Any) -> Any:
        """The value in its final form.

        Raises:
            Mismatch: It does not fit.
        """
        try:
            return self.parse(value)
        except Mismatch:
            raise
        except ValueError:
            raise Mismatch(self.expected, in_words(value, secret=self.secret)) from None


_JSON_TYPES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "true or false"),
    (str, "a text"),
    ((int, float), "a number"),
    ((list, tuple), "a list"),
    (Mapping, "an object"),
)


def in_words(value: Any, *, secret: bool) -> str:
    """What a value is, for an error: a short one literally, unless it may be a secret."""
    if value is None:
        return "null"
    if not secret:
        match value:
            case bool():
                return "true" if value else "false"
            case int() | float():
                return repr(value) if isinstance(value, float) or abs(value) < 10**20 else "a number out of range"
            case str():
                return f'"{value}"' if len(value) <= 40 and value.isprintable() else "a text that does not fit"
    return next((words for types, words in _JSON_TYPES if isinstance(value, types)), type(value).__name__)


def _check(fits: bool) -> None:
    if not fits:
        raise ValueError


def _text(value: Any) -> str:
    _check(isinstance(value, str) and "\0" not in value)
    return str(value)


def _word(value: Any) -> str:
    """A text, or a number or a truth value that somebody wrote without quotes (``PORT: 8080``, ``DEBUG: true``)."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            _check(math.isfinite(value))
            return repr(value)
        case _:
            return _text(value)


def _header(value: Any) -> str:
    text = _word(value).strip()
    _check(not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", text))
    return text


def _flag(value: Any) -> bool:
    _check(isinstance(value, bool))
    return bool(value)


def _seconds(value: Any) -> float:
    _check(isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9)  # NaN is not above 0
    return value  # type: ignore[no-any-return]  # an int stays one, so that 30 is not written back as 30.0


def _url(value: Any) -> str:
    text = _text(value).strip()
    _check(bool(re.match(r"(?i)https?://[^\s/?#]|\$\{", text)) and not re.search(r"[\s\x00-\x1f]", text))
    if "${" not in text:
        _ = urlsplit(text).port  # raises for what is no port, and for half an IPv6 address
    return text


def server_name(value: Any) -> str:
    """A server's name: it stands in file names, in routes and in the names of tools."""
    text = _text(value)
    _check(len(text.strip()) > 0 and len(text) <= 128 and "/" not in text)
    _check(not any(unicodedata.category(mark) in {"Cc", "Cs"} for mark in text))
    return text


def list_of(item: Kind) -> Callable[[Any], tuple[Any, ...]]:
    """The form of a list whose every item is of a kind."""

    def parse(value: Any) -> tuple[Any, ...]:
        _check(isinstance(value, list | tuple))
        return tuple(_inside(item, str(index), one) for index, one in enumerate(value))

    return parse


def map_of(item: Kind, *, name: Callable[[str], bool], keep_null: bool) -> Callable[[Any], dict[str, Any]]:
    """The form of an object whose every value is of a kind. A ``null`` stays as such, or is left out."""

    def parse(value: Any) -> dict[str, Any]:
        _check(isinstance(value, Mapping))
        for key in value:
            if not (isinstance(key, str) and name(key)):
                raise Mismatch("a name that the system can pass on", in_words(key, secret=False))
        return {
            key: None if one is None else _inside(item, key, one)
            for key, one in value.items()
            if one is not None or keep_null
        }

    return parse


def is_object(*names: str) -> Kind:
    """An object, kept as it is, that has these names."""

    def parse(value: Any) -> dict[str, Any]:
        _check(isinstance(value, Mapping) and all(isinstance(value.get(name), str) for name in names))
        return dict(value)

    needed = ", ".join(names)
    return Kind(f"an object with {needed}" if names else "an object", parse, secret=True)


def _inside(item: Kind, at: str, value: Any) -> Any:
    try:
        return item(value)
    except Mismatch as error:
        error.at = (at, *error.at)
        raise


_WORD = Kind("a text, a number, true or false", _word, secret=True)
URL: Final = Kind("an http:// or https:// address", _url, secret=True)
HEADER: Final = Kind("a text of one line", _header, secret=True)

Text: TypeAlias = Annotated[str, Kind("a text", _text)]
Secret: TypeAlias = Annotated[str, Kind("a text", _text, secret=True)]
Word: TypeAlias = Annotated[str, _WORD]
Flag: TypeAlias = Annotated[bool, Kind("true or false", _flag)]
Seconds: TypeAlias = Annotated[float, Kind("a number of seconds above 0", _seconds)]
Url: TypeAlias = Annotated[str, URL]
Texts: TypeAlias = Annotated[tuple[str, ...], Kind("a list of texts", list_of(Kind("a text", _text)))]
Words: TypeAlias = Annotated[tuple[str, ...], Kind("a list of texts", list_of(_WORD), secret=True)]


def split_command(text: str) -> tuple[str, ...]:
    """The words of a command line, as a shell splits them; a text that is the path of a file is one word."""
    if " " in text and os.path.isfile(text):  # noqa: PTH113 - which raises for a text too long for a path
        return (text,)
    return tuple(shlex.split(text, posix=os.name == "posix"))


def _command(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        _check(bool(split_command(_text(value))))
        return value
    words: tuple[str, ...] = list_of(_WORD)(value)
    _check(bool(words) and bool(words[0].strip()))
    return words


def _inherit(value: Any) -> str | tuple[str, ...]:
    return value if value in ("safe", "all") else list_of(Kind("the name of a variable", _text))(value)


Command: TypeAlias = Annotated[
    str | tuple[str, ...], Kind("a program with its arguments, as a list of texts or one text", _command, secret=True)
]
InheritEnv: TypeAlias = Annotated[
    str | tuple[str, ...], Kind('"safe", "all", or a list of names of variables', _inherit)
]
EnvMap: TypeAlias = Annotated[
    Mapping[str, str | None],
    Kind(
        "an object of names and texts",
        map_of(_WORD, name=lambda key: bool(key) and not set(key) & {"=", "\0"}, keep_null=True),
        secret=True,
    ),
]
HeaderMap: TypeAlias = Annotated[
    Mapping[str, str],
    Kind(
        "an object of names and texts",
        map_of(
            HEADER,
            name=lambda key: bool(re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", key)),
            keep_null=False,
        ),
        secret=True,
    ),
]


def whole(low: int, high: int | None = None) -> Kind:
    """A whole number within limits, both included."""

    def parse(value: Any) -> int:
        _check(isinstance(value, int) and not isinstance(value, bool) and low <= value <= (high or value))
        return int(value)

    return Kind(f"a whole number from {low} to {high}" if high else f"a whole number from {low} up", parse)


def choice(*words: str, aliases: Mapping[str, str] | None = None) -> Kind:
    """One of a few words, or another word for one of them."""

    def parse(value: Any) -> str:
        word = (aliases or {}).get(value, value) if isinstance(value, str) else ""
        _check(word in words)
        return word

    *most, last = (f'"{word}"' for word in words)
    return Kind(f"{', '.join(most)} or {last}" if most else last, parse)
