"""The copy of a tool's schema that model APIs accept.

Owns: what those APIs refuse, and how it is said to the model instead. One tool that an API refuses costs every request
of the session, so that the copy is made strictly: whatever a server sent, it is an object schema whose root has no
choice (``anyOf``, ``oneOf``, ``allOf``, ``not``, ``if``, ``enum``, ``const``, ``$ref``), it is valid by the metaschema
of JSON Schema 2020-12, its references lead into its own ``$defs``, and its arrays have ``items``. Where it cannot say
what the server's schema says, it allows more, and a rule in words stands beside it. The server's schema itself stays as
it is, for the server.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import define, field, frozen

from ._json import clean_text, to_json
from ._keywords import Keywords
from ._refs import REF_WORDS, Refs, base_of

__all__ = ["ModelSchema", "model_schema", "model_view", "root_choices"]

_ROOT_REFUSED: Final = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const")
"""What no model API takes at the root, in the order in which it is told."""

_MAX_RULE: Final = 600
_MAX_RULES: Final = 12
_MAX_BRANCHES: Final = 24
_MAX_ROOT_DEPTH: Final = 16


@frozen
class ModelSchema:
    """A schema that model APIs accept.

    ``rules`` say, a sentence each, what it could not hold; they belong into the tool's description. ``warnings`` say
    what was wrong with the original, or was simplified; they belong into the server's status.
    """

    schema: dict[str, Any]
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def model_schema(schema: Any) -> tuple[dict[str, Any], list[str]]:
    """The copy of a schema for model APIs, and the rules that it could not hold, a sentence each.

    Args:
        schema: A tool's input schema, of whatever kind.
    """
    view = model_view(schema)
    return view.schema, list(view.rules)


def root_choices(schema: dict[str, Any]) -> list[str]:
    """The words at the root of a schema that the copy for models has to do without."""
    return [word for word in _ROOT_REFUSED if word in schema]


def model_view(schema: Any) -> ModelSchema:
    """The copy of a schema for model APIs, with everything there is to say about it.

    Args:
        schema: A tool's input schema, of whatever kind.
    """
    if not isinstance(schema, dict):
        return ModelSchema({"type": "object", "properties": {}})
    choices = root_choices(schema)
    keywords = Keywords(Refs(schema), root_is_whole=not choices)
    root = _Root(keywords)
    flat = root.flatten(schema, keywords.refs.base, 0)
    copy: dict[str, Any] = {"type": "object"}
    copy.update(flat.rest)
    copy["properties"] = flat.properties
    if flat.required:
        copy["required"] = flat.required
        if choices:
            for name in flat.required:
                flat.properties.setdefault(name, {})
    definitions = keywords.definitions()
    if definitions:
        copy["$defs"] = definitions
    warnings = list(keywords.warnings)
    if choices:
        warnings.insert(0, f"schema simplified for models: its root has {', '.join(choices)}")
    return ModelSchema(copy, tuple(dict.fromkeys(flat.rules))[:_MAX_RULES], tuple(warnings))


@define
class _Flat:
    """What a schema says about an object, without any choice."""

    properties: dict[str, Any] = field(factory=dict)
    required: list[str] = field(factory=list)
    rest: dict[str, Any] = field(factory=dict)
    rules: list[str] = field(factory=list)
    possible: bool = True

    def both(self, other: _Flat) -> None:
        """Let this hold what the other says too."""
        for name, schema in other.properties.items():
            self.properties[name] = _both(self.properties[name], schema) if name in self.properties else schema
        self.required += [name for name in other.required if name not in self.required]
        for word in ("title", "description"):
            if word in other.rest:
                self.rest.setdefault(word, other.rest[word])
        self.rules += other.rules


@define
class _Root:
    """Takes the choices out of the root of a schema."""

    keywords: Keywords
    _open: set[int] = field(factory=set, init=False)

    def flatten(self, schema: Any, base: str, depth: int) -> _Flat:
        """The schema as properties and required names; each branch of a choice is flattened the same way.

        Args:
            schema: The schema.
            base: The address that its references are relative to, its own ``$id`` included.
            depth: How many choices and references lead here.
        """
        flat = _Flat()
        if not isinstance(schema, dict):
            flat.possible = schema is not False
            return flat
        if id(schema) in self._open or depth > _MAX_ROOT_DEPTH or self.keywords.exhausted:
            return flat  # a reference that leads back to where it stands says nothing new
        kind = schema.get("type")
        if kind is not None and kind != "object" and not (isinstance(kind, list) and "object" in kind):
            flat.possible = False  # arguments are always an object
            return flat
        self._open.add(id(schema))
        try:
            self._own(flat, schema, base)
            for word in REF_WORDS:
                if word in schema:
                    target = self.keywords.refs.resolve(schema[word], base)
                    if target is None:
                        self.keywords.warn_dangling(schema[word])
                    else:
                        flat.both(self.flatten(target.schema, target.base, depth + 1))
            for branch in _branches(schema.get("allOf")):
                flat.both(self._branch(branch, base, depth))
            for word, amount in (("anyOf", "at least one"), ("oneOf", "exactly one")):
                branches = _branches(schema.get(word))
                if branches:
                    self._choice(flat, [self._branch(branch, base, depth) for branch in branches], amount)
            self._negation(flat, schema.get("not"))
            self._condition(flat, schema, base, depth)
            for word in ("enum", "const"):
                if word in schema:
                    values = _shown(schema[word])
                    which = "one of these JSON values" if word == "enum" else "this JSON value"
                    flat.rules.append(f"The arguments as a whole must be {which}: {values}.")
        finally:
            self._open.discard(id(schema))
        return flat

    def _branch(self, branch: Any, base: str, depth: int) -> _Flat:
        return self.flatten(branch, base_of(branch, base) if isinstance(branch, dict) else base, depth + 1)

    def _own(self, flat: _Flat, schema: dict[str, Any], base: str) -> None:
        own = {word: value for word, value in schema.items() if word not in _ROOT_REFUSED}
        copy = self.keywords.convert(own, base)
        properties = copy.pop("properties", None)
        flat.properties = properties if isinstance(properties, dict) else {}
        flat.required = copy.pop("required", [])
        for word in ("type", "then", "else"):
            copy.pop(word, None)
        flat.rest = copy

    def _choice(self, flat: _Flat, branches: list[_Flat], amount: str) -> None:
        possible = [branch for branch in branches if branch.possible]
        if not possible:
            return
        variants: dict[str, list[Any]] = {}
        for branch in possible:
            for name, schema in branch.properties.items():
                seen = variants.setdefault(name, [])
                if schema not in seen:
                    seen.append(schema)
        for name, schemas in variants.items():
            either = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
            own = flat.properties.get(name)
            # An own schema with just one refinement in some branch must not become as narrow as that branch.
            refines_everywhere = all(name in branch.properties for branch in possible)
            if own is None:
                flat.properties[name] = either
            elif refines_everywhere:
                flat.properties[name] = _both(own, either)
        common = [name for name in possible[0].required if all(name in branch.required for branch in possible)]
        flat.required += [name for name in common if name not in flat.required]
        if len(possible) == 1:
            flat.rules += possible[0].rules
            return
        if all(branch.rest.get("additionalProperties") is False for branch in possible):
            flat.rest.setdefault("additionalProperties", False)
        told = [f"({number}) {_told(branch)}" for number, branch in enumerate(possible[:_MAX_BRANCHES], 1)]
        if len(possible) > _MAX_BRANCHES:
            told.append(f"and {len(possible) - _MAX_BRANCHES} more")
        flat.rules.append(f"Give {amount} of these sets of arguments: {'; '.join(told)}.")

    def _negation(self, flat: _Flat, negated: Any) -> None:
        if negated is None or negated is False:
            return
        names = negated.get("required") if isinstance(negated, dict) and len(negated) == 1 else None
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            together = " together" if len(names) > 1 else ""
            flat.rules.append(f"Do not give {' and '.join(clean_text(name) for name in names)}{together}.")
        else:
            flat.rules.append(f"The arguments must not fit this JSON Schema: {_shown(negated)}.")

    def _condition(self, flat: _Flat, schema: dict[str, Any], base: str, depth: int) -> None:
        if "if" not in schema:
            return
        told = []
        for word, text in (("then", "must fit"), ("else", "otherwise they must fit")):
            if word in schema:
                told.append(f"{text} {_shown(schema[word])}")
                branch = self._branch(schema[word], base, depth)
                for name, value in branch.properties.items():
                    flat.properties.setdefault(name, value)
                for name in branch.required:
                    flat.properties.setdefault(name, {})
        if told:
            for name in self._branch(schema["if"], base, depth).properties:
                flat.properties.setdefault(name, {})
            flat.rules.append(f"If the arguments fit the JSON Schema {_shown(schema['if'])}, they {', '.join(told)}.")


def _branches(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _both(first: Any, second: Any) -> Any:
    """A schema that says what both say, as flat as can be."""
    if first == second or second == {}:
        return first
    if first == {}:
        return second
    if not first.keys() & second.keys():
        return {**first, **second}
    return {"allOf": [first, second]}


def _told(branch: _Flat) -> str:
    """One branch of a choice, in words."""
    fixed = {
        name: schema["const"]
        for name, schema in branch.properties.items()
        if isinstance(schema, dict) and "const" in schema
    }
    needed = [
        f"{clean_text(name)} = {_shown(fixed[name], 60)}" if name in fixed else clean_text(name)
        for name in (*branch.required, *(name for name in fixed if name not in branch.required))
    ]
    others = [clean_text(name) for name in branch.properties if name not in branch.required and name not in fixed]
    told = ", ".join(needed)
    if others:
        told += f"{' and ' if told else ''}optionally {', '.join(others[:20])}"
    if not told:
        title = branch.rest.get("title") or branch.rest.get("description")
        told = clean_text(title)[:100] if isinstance(title, str) else "any others"
    if branch.rules:
        told += f" ({' '.join(branch.rules)[:300]})"
    return told if len(told) <= _MAX_RULE else f"{told[:_MAX_RULE]}…"


def _shown(value: Any, limit: int = _MAX_RULE) -> str:
    text = to_json(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
