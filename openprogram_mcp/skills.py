"""Skills that servers serve: their entries, and the check that a file is what its entry says. Pure.

A skill is a folder of files, ``SKILL.md`` first among them, that tells an agent how to do something. Its entry names
all of its files with their sizes and digests; no file is used that differs from it by a byte, and none that it does not
name. A digest shows that both came of one hand, not whose hand that is: what a skill says is a server's text.

Extension ``io.modelcontextprotocol/skills`` (SEP-2640).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin

from attrs import field, frozen

from .errors import ServerFailed

__all__ = ["LoadedSkill", "Skill", "SkillFile", "skill_in", "verify", "verify_frontmatter"]

_MAX_FILES: Final = 512
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_FRONTMATTER: Final = 64 * 1024
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_FRONTMATTER: Final = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


@frozen
class SkillFile:
    """A file of a skill: its URI, and the digest (``sha256:…``) and the number of its bytes."""

    uri: str
    digest: str
    size: int


@frozen
class Skill:
    """The entry of a skill: what is known of it before anything of it is read.

    Args:
        server: The server that serves it. Only the two together name a skill.
        uri: The URI of its ``SKILL.md``.
        frontmatter: What stands at the head of that, all of it.
        files: All of its files; ``None`` where they are made anew at every reading, so that nothing can be checked.
    """

    server: str
    uri: str
    frontmatter: Mapping[str, Any] = field(repr=False)
    files: tuple[SkillFile, ...] | None = field(repr=False)

    @property
    def name(self) -> str:
        """What it is called; two skills may have the same name."""
        return str(self.frontmatter["name"])

    @property
    def description(self) -> str:
        """What it is for."""
        return str(self.frontmatter["description"])

    @property
    def path(self) -> str:
        """The folder that it is, which no other skill of its server is."""
        return self.uri.partition("://")[2].removesuffix("/SKILL.md")

    def resolve(self, reference: str) -> str:
        """The URI of a file that is given relative to the skill's folder, or as a URI."""
        if "://" in reference:
            return reference
        root = self.uri.removesuffix("SKILL.md")
        scheme, _, rest = root.partition("://")
        # The standard knows how to resolve only for schemes that it knows.
        return urljoin(f"http://{rest}", reference).replace("http", scheme, 1)

    def file(self, uri: str) -> SkillFile:
        """The entry of one of its files.

        Raises:
            ServerFailed: It has no such file.
        """
        for one in self.files or ():
            if one.uri == uri:
                return one
        raise self.refused(f"it has no file {uri[:200]!r}")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        files = self.files
        return {
            "uri": self.uri,
            "name": self.name,
            "description": self.description,
            "frontmatter": dict(self.frontmatter),
            "files": None if files is None else [{"uri": f.uri, "digest": f.digest, "size": f.size} for f in files],
        }

    def refused(self, why: str) -> ServerFailed:
        """That it cannot be used."""
        return ServerFailed(
            f"skill {self.name[:80]!r} of server {self.server!r} is not used: {why}",
            phase="running",
            remedy="Ask for its entry anew, and look at what has changed; if it stays so, tell who runs the server.",
            server=self.server,
        )


@frozen
class LoadedSkill:
    """A skill whose ``SKILL.md`` was read and checked.

    Args:
        skill: Its entry, under which its other files are read.
        text: What its ``SKILL.md`` says.
    """

    skill: Skill
    text: str = field(repr=False)


def skill_in(server: str, entry: Any) -> Skill:
    """The entry of a skill, as a server gave it.

    Raises:
        ValueError: It is none; the text says why.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("uri"), str):
        raise ValueError("it has no uri")  # noqa: TRY004 - callers tell what is wrong by one class
    uri, frontmatter, files = entry["uri"], entry.get("frontmatter"), entry.get("resources")
    if not isinstance(frontmatter, Mapping) or not all(
        isinstance(frontmatter.get(name), str) for name in ("name", "description")
    ):
        raise ValueError("its frontmatter has no name or no description")
    steps = uri.partition("://")[2].split("/")
    if len(steps) < 2 or steps[-1] != "SKILL.md" or unquote(steps[-2]) != frontmatter["name"]:
        raise ValueError("its uri does not end in its name and SKILL.md")
    if files == "dynamic":
        return Skill(server, uri, dict(frontmatter), None)
    if not isinstance(files, list):
        raise ValueError("it does not say which files it has")  # noqa: TRY004 - as above
    read = tuple(_file(one, uri) for one in files)
    if len({one.uri for one in read}) < len(read) or uri not in {one.uri for one in read}:
        raise ValueError("its list of files lacks SKILL.md, or has one twice")
    if len(read) > _MAX_FILES or sum(one.size for one in read) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILES} files or {_MAX_BYTES} bytes")
    return Skill(server, uri, dict(frontmatter), read)


def _file(entry: Any, skill_uri: str) -> SkillFile:
    fields = entry if isinstance(entry, Mapping) else {}
    uri, digest, size = fields.get("uri"), fields.get("digest"), fields.get("size")
    if not isinstance(uri, str) or not uri.startswith(skill_uri.removesuffix("SKILL.md")):
        raise ValueError("a file of it lies elsewhere")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("a file of it has no digest")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError("a file of it has no size")
    return SkillFile(uri, digest, size)


def verify(skill: Skill, uri: str, content: bytes) -> None:
    """Check that a file is what its entry says.

    Args:
        skill: The skill, as it was when it was loaded.
        uri: The file's URI.
        content: Its bytes.

    Raises:
        ServerFailed: It is not, or the skill has no such file.
    """
    if skill.files is None:
        if len(content) > _MAX_BYTES:
            raise skill.refused(f"{uri[:200]} is larger than {_MAX_BYTES} bytes")
        return
    expected = skill.file(uri)
    if len(content) != expected.size:
        raise skill.refused(f"{uri[:200]} has {len(content)} bytes, and its entry says {expected.size}")
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != expected.digest:
        raise skill.refused(f"{uri[:200]} is not what the digest in its entry is of")


def verify_frontmatter(skill: Skill, text: str) -> None:
    """Check that the head of a ``SKILL.md`` is that of the entry, field by field. Blocks for what takes long to read.

    Raises:
        ServerFailed: It is not, or it cannot be read.
    """
    found = _FRONTMATTER.match(text)
    if found is None or len(found[1]) > _MAX_FRONTMATTER:
        raise skill.refused("its SKILL.md does not begin with frontmatter that can be read")
    head = _yaml(found[1])
    if head is None:
        raise skill.refused("the frontmatter of its SKILL.md cannot be read")
    names = {*head, *skill.frontmatter}
    differing = sorted(str(name) for name in names if _plain(head, name) != _plain(skill.frontmatter, name))
    if differing:
        named = ", ".join(name[:40] for name in differing[:5])
        raise skill.refused(f"the frontmatter of its SKILL.md is not that of its entry ({named})")


def _plain(head: Mapping[Any, Any], name: Any) -> str | None:
    """The value of a field in a form in which what JSON and YAML make of one text is equal."""
    return json.dumps(_as_json(head[name]), sort_keys=True, default=repr) if name in head else None


def _as_json(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_as_json(one) for one in value]
        case Mapping():
            return {str(name): _as_json(one) for name, one in value.items()}
        case _:
            return value


def _yaml(text: str) -> dict[Any, Any] | None:
    """A YAML mapping, with the plain values that JSON has; ``None`` for anything else."""
    import yaml  # type: ignore[import-untyped]  # it ships no types

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # it ships no types
        """The values of YAML 1.2: "yes" is a text, and so is a date."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                # Aliases can make a small text an endless one.
                raise yaml.YAMLError("aliases are not read")
            return super().compose_node(parent, index)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("bool", "timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), "tTfF")
    try:
        found = yaml.load(text, Loader)  # noqa: S506 - a loader that makes plain values only
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
