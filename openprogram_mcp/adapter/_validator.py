"""The full validator of arguments. Imported only when it is needed: jsonschema takes longer to import than most calls.

Owns: jsonschema, bound so that nothing is fetched and nothing runs for long, and its errors said in our own words.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import referencing
from jsonschema.exceptions import (  # type: ignore[import-untyped]  # it ships no types
    SchemaError,
    UnknownType,
    ValidationError,
    best_match,
)
from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]  # it ships no types
from referencing.exceptions import Unresolvable

from ..errors import InvalidArguments
from ._json import clean_text, to_json

__all__ = ["compile_validator"]

_MAX_PATTERN: Final = 256
_MAX_MATCHED: Final = 1000
_NO_FORMATS: Final = jsonschema.FormatChecker(formats=())
_EMPTY: Final[referencing.Registry[Any]] = referencing.Registry()

_MAX_FOLLOWED: Final = 10_000
"""So many references are followed in one check. References that multiply can make a small schema run for ever."""

_NAMES: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a text",
}


class _TooMany(Exception):
    """A check that would follow too many references."""


class _Followed(threading.local):
    count = 0


_followed = _Followed()


def compile_validator(schema: Mapping[str, Any]) -> Callable[[Any], InvalidArguments | None]:
    """A judge for one schema. For what is no valid schema it accepts everything: the server has the last word."""
    kind = _bounded(validator_for(schema, default=jsonschema.Draft202012Validator))
    try:
        kind.check_schema(schema, format_checker=_NO_FORMATS)
    except (SchemaError, RecursionError):
        return _accept
    validator = kind(schema, registry=_EMPTY)

    def judge(arguments: Any) -> InvalidArguments | None:
        _followed.count = 0
        try:
            error = best_match(validator.iter_errors(arguments))
        except (RecursionError, Unresolvable, UnknownType, _TooMany):
            return None
        return None if error is None else _in_words(error)

    return judge


def _accept(arguments: Any) -> None:
    del arguments


@cache
def _bounded(kind: Any) -> Any:
    """A draft's validator that leaves to the server what cannot be judged, or not in bounded time."""
    words: dict[str, Any] = {word: _forgiving(kind.VALIDATORS[word]) for word in _REF_WORDS if word in kind.VALIDATORS}
    words["pattern"] = _pattern
    # These run the server's patterns over every name, unbounded.
    words["patternProperties"] = _nothing
    words["unevaluatedProperties"] = _nothing
    words["additionalProperties"] = _additional(kind.VALIDATORS["additionalProperties"])
    return extend(
        kind,
        {word: function for word, function in words.items() if word in kind.VALIDATORS},
        type_checker=kind.TYPE_CHECKER.redefine("array", _is_array),
    )


def _is_array(checker: Any, instance: Any) -> bool:
    del checker
    return isinstance(instance, list | tuple)  # what Python callers give is written as a list, too


_REF_WORDS: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def _forgiving(check: Any) -> Any:
    def follow(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _followed.count += 1
        if _followed.count > _MAX_FOLLOWED:
            raise _TooMany
        try:
            yield from check(validator, value, instance, schema) or ()
        except Unresolvable:
            return

    return follow


def _nothing(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    del validator, value, instance, schema
    return iter(())


def _additional(check: Any) -> Any:
    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if not schema.get("patternProperties"):
            yield from check(validator, value, instance, schema) or ()

    return additional


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    del schema
    if validator.is_type(instance, "string") and len(instance) <= _MAX_MATCHED:
        found = _searcher(value)
        if found is not None and not found.search(instance):
            yield ValidationError("does not match")


@cache
def _searcher(pattern: str) -> re.Pattern[str] | None:
    """The pattern, if its search is sure to end soon and it means here what it means in ECMAScript.

    A pattern with nested or many unbounded repetitions can take hours on a short text, and the thread would be the
    whole host's.
    """
    if len(pattern) > _MAX_PATTERN or re.search(r"\)[*+?{]|\\[1-9kpPuxXcC]|\(\?", pattern):
        return None
    if len(re.findall(r"[*+]|,\d*\}", pattern)) > 2:
        return None
    try:
        with warnings.catch_warnings(action="error"):  # Python's own engine in doubt about the pattern
            return re.compile(pattern)
    except (re.error, FutureWarning, DeprecationWarning, RecursionError, OverflowError):
        return None


def _in_words(error: ValidationError) -> InvalidArguments:
    path = [clean_text(str(part)) for part in error.absolute_path]
    word, instance = str(error.validator), error.instance
    value: Any = error.validator_value
    if word in ("required", "dependentRequired") and isinstance(instance, Mapping):
        if word == "dependentRequired":
            value = [name for key, needs in value.items() if key in instance for name in needs]
        path.append(clean_text(next((str(name) for name in value if name not in instance), "")))
        said = "this argument is missing"
    elif word == "additionalProperties" and value is False and isinstance(instance, Mapping):
        known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
        path.append(clean_text(next((str(name) for name in instance if name not in known), "")))
        said = "the tool has no argument of this name"
        if known:
            said += f"; it has {', '.join(clean_text(str(name)) for name in list(known)[:30])}"
    else:
        said = _said(word, value, instance)
    place = ".".join(path)
    return InvalidArguments(f"{place or 'arguments'}: {said}", path=place or None)


_BOUNDS: Final = {
    "minimum": "expected at least {}",
    "maximum": "expected at most {}",
    "exclusiveMinimum": "expected more than {}",
    "exclusiveMaximum": "expected less than {}",
    "multipleOf": "expected a multiple of {}",
    "minLength": "expected at least {} characters",
    "maxLength": "expected at most {} characters",
    "minItems": "expected at least {} items",
    "maxItems": "expected at most {} items",
    "minProperties": "expected at least {} entries",
    "maxProperties": "expected at most {} entries",
    "pattern": "expected a text that matches {}",
    "const": "expected {}",
    "enum": "expected one of {}",
    "uniqueItems": "expected items that differ from each other",
    "anyOf": "fits none of the forms that the tool takes",
    "oneOf": "fits none, or more than one, of the forms that the tool takes",
    "not": "has a form that the tool does not take",
    "dependencies": "another argument is missing beside it",
}


def _said(word: str, value: Any, instance: Any) -> str:
    if word == "type":
        kinds = [_NAMES.get(str(kind), str(kind)) for kind in (value if isinstance(value, list) else [value])]
        return f"expected {' or '.join(kinds)}, got {_kind_of(instance)}"
    if word in _BOUNDS:
        return _BOUNDS[word].format(to_json(value)[:300])
    return f"does not fit the tool's schema ({word})"


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return _NAMES["boolean"]
    if isinstance(value, float):
        return _NAMES["number"]
    kinds: tuple[tuple[Any, str], ...] = ((str, "string"), (int, "integer"), (list | tuple, "array"), (dict, "object"))
    return next((_NAMES[name] for kind, name in kinds if isinstance(value, kind)), "null")
