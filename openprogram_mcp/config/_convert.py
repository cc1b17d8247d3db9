"""The one cattrs converter: JSON to the attrs classes of this package and back, its errors as :class:`ConfigError`.

A ``null`` is a field left out, fields nobody knows are kept in ``unknown``, and what equals its default is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import ClassValidationError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from ..errors import ConfigError
from ._kinds import Kind, Mismatch, choice, in_words
from ._parts import AUTH_KINDS, NoAuth, Reconnect

__all__ = ["from_json", "json_fields", "plain", "refused", "to_json"]

_T = TypeVar("_T")


def from_json(data: Any, form: type[_T], path: str, *, server: str | None = None) -> _T:
    """Make an instance of one of our attrs classes from JSON.

    Args:
        data: The JSON value.
        form: The class.
        path: Where the value stands, for the error.
        server: The server it is about, for the error.

    Raises:
        ConfigError: It does not fit. The message names every fault, ``path`` is the place of the first one.
    """
    try:
        return _converter.structure(data, form)
    except (ClassValidationError, Mismatch) as error:
        faults = list(_faults(error, path))
    raise refused(faults, server)


def refused(faults: Sequence[tuple[str, str]], server: str | None) -> ConfigError:
    """One error for all faults, each a place and what is wrong there; its path is the place of the first one."""
    return ConfigError("; ".join(f"{at}: {what}" for at, what in faults), path=faults[0][0], server=server)


def to_json(value: Any) -> Any:
    """The JSON of an instance: what equals its default is left out, unknown fields are put back."""
    return plain(_converter.unstructure(value))


def plain(value: Any) -> Any:
    """JSON with lists and dicts of its own."""
    match value:
        case Mapping():
            return {key: plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            return value


def json_fields(form: type[Any]) -> tuple[attrs.Attribute[Any], ...]:
    """The fields of one of our classes that stand in JSON."""
    return tuple(one for one in attrs.fields(form) if one.name != "unknown" and "memory" not in one.metadata)


def _faults(error: BaseException, path: str) -> Iterator[tuple[str, str]]:
    match error:
        case ClassValidationError():
            for inner, note in error.group_exceptions()[0]:
                yield from _faults(inner, f"{path}.{note.name}")
        case Mismatch():
            yield ".".join((path, *error.at)), str(error)
        case KeyError():
            yield path, "is missing"
        case _:
            raise error  # a fault of ours


def _kind_of(annotation: Any) -> Kind | None:
    if get_origin(annotation) is Annotated:
        return next((one for one in get_args(annotation) if isinstance(one, Kind)), None)
    return None


def _by_kind(annotation: Any) -> Callable[[Any, Any], Any]:
    kind = _kind_of(annotation)
    return lambda value, _: kind(value) if kind else value


def _reader(form: type[Any]) -> Callable[[Any, Any], Any]:
    """Read one of our classes: nulls are nothing, what is unknown is kept."""
    make = make_dict_structure_fn(form, _converter)
    names = {one.name for one in json_fields(form)}

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Mismatch("an object", in_words(value, secret=True))
        known = {key: one for key, one in value.items() if key in names and one is not None}
        ignored = {"kind"} if hasattr(form, "kind") else set()
        unknown = {key: one for key, one in value.items() if key not in names | ignored}
        return make({**known, "unknown": unknown}, form)

    return read


def _writer(form: type[Any]) -> Callable[[Any], dict[str, Any]]:
    omitted = {one.name: override(omit=True) for one in set(attrs.fields(form)) - set(json_fields(form))}
    make = make_dict_unstructure_fn(form, _converter, _cattrs_omit_if_default=True, **omitted)  # type: ignore[arg-type]  # the names of fields are not those of its options

    def write(value: Any) -> dict[str, Any]:
        kind = {"kind": value.kind} if hasattr(form, "kind") else {}
        return {**kind, **make(value), **value.unknown}

    return write


_AUTH_KIND = choice(*AUTH_KINDS)


def _read_auth(value: Any, _: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Mismatch("an object", in_words(value, secret=True))
    try:
        kind = _AUTH_KIND(value.get("kind"))
    except Mismatch as error:
        error.at = ("kind",)
        raise
    return _converter.structure(value, AUTH_KINDS[kind])


def _read_reconnect(value: Any, _: Any) -> Any:
    match value:
        case False:
            return False
        case True | None:
            return Reconnect()
        case _:
            return _converter.structure(value, Reconnect)


def _make_converter() -> Converter:
    converter = Converter(detailed_validation=True)
    converter.register_structure_hook_factory(_is_ours, _reader)
    converter.register_unstructure_hook_factory(_is_ours, _writer)
    converter.register_structure_hook_factory(lambda annotation: _kind_of(annotation) is not None, _by_kind)
    converter.register_structure_hook_func(lambda annotation: NoAuth in get_args(annotation), _read_auth)
    converter.register_structure_hook_func(lambda annotation: Reconnect in get_args(annotation), _read_reconnect)
    return converter


def _is_ours(form: Any) -> bool:
    return attrs.has(form) and any(one.name == "unknown" for one in attrs.fields(form))


_converter = _make_converter()
