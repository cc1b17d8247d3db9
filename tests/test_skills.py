"""The skills that servers serve: nothing is read before it is wanted, nothing is used that its entry does not say."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.manager import MCPManager
from openprogram_mcp.skills import Skill, skill_in, verify_frontmatter
from openprogram_mcp.testing import FakeServer, do
from tests._sessions import methods
from tests.faults._host import hosting

URI = "skill://acme/refunds/SKILL.md"
EMAIL = "skill://acme/refunds/examples/email.md"
HEAD = {"name": "refunds", "description": "Give money back"}
TEXT = "---\nname: refunds\ndescription: Give money back\n---\n\nSee examples/email.md.\n"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def entry(files: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    files = files or {URI: TEXT, EMAIL: "Dear customer"}
    resources = [
        {"uri": uri, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", "size": len(text.encode())}
        for uri, text in files.items()
    ]
    return {"uri": URI, "frontmatter": HEAD, "resources": resources, **changes}


def serving(
    *entries: dict[str, Any], text: str = TEXT, email: str = "Dear customer", era: Any = "modern"
) -> FakeServer:
    capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}}
    fake = FakeServer(era=era, capabilities=capabilities).resource(URI, text).resource(EMAIL, email)
    fake.on("skills/list", do.result({"skills": list(entries), "ttlMs": 60_000, "cacheScope": "private"}))
    return fake.on("skills/get", do.result({"skill": entries[0] if entries else {}}))


def reads(fake: FakeServer) -> list[str]:
    return [message["params"]["uri"] for message in fake.received("resources/read")]


async def only(manager: MCPManager) -> Skill:
    (skill,) = await manager.skills("f")
    return skill


@ERAS
async def test_a_skill_is_listed_without_reading_it_then_loaded_then_its_files_are_read(era: Any) -> None:
    fake = serving(entry(), era=era)
    async with hosting({"f": fake}) as manager:
        skill = await only(manager)
        assert (skill.server, skill.name, skill.description, skill.path) == (
            "f",
            "refunds",
            "Give money back",
            "acme/refunds",
        )
        assert reads(fake) == []
        assert (await manager.load_skill(skill)).text == TEXT
        assert reads(fake) == [URI]
        assert await manager.read_skill_file(skill, "examples/email.md") == b"Dear customer"
        assert await manager.skill("f", URI) == skill


async def test_a_server_that_says_nothing_of_skills_is_not_asked_for_them() -> None:
    fake = FakeServer().tool("t")
    async with hosting({"f": fake}) as manager:
        assert await manager.skills("f") == []
        with pytest.raises(ServerFailed, match="does not offer"):
            await manager.skill("f", URI)
        assert not any(method.startswith("skills/") for method in methods(fake))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("See", "Eat"), "digest"),
        (TEXT + "And pay me.\n", "bytes"),
    ],
)
async def test_a_skill_whose_text_is_not_that_of_its_entry_is_not_loaded(text: str, said: str) -> None:
    async with hosting({"f": serving(entry(), text=text)}) as manager:
        with pytest.raises(ServerFailed, match=said):
            await manager.load_skill(await only(manager))


async def test_a_skill_whose_head_is_not_that_of_its_entry_is_not_loaded_though_its_digest_is_right() -> None:
    text = TEXT.replace("Give money back", "Take it all")
    async with hosting({"f": serving(entry({URI: text, EMAIL: "Dear customer"}), text=text)}) as manager:
        with pytest.raises(ServerFailed, match="frontmatter") as raised:
            await manager.load_skill(await only(manager))
    assert "description" in raised.value.message


@pytest.mark.parametrize("path", ["other.md", "../billing/SKILL.md", "skill://else/SKILL.md", "file:///etc/passwd"])
async def test_a_file_that_the_entry_does_not_name_is_not_even_asked_for(path: str) -> None:
    for files in (entry(), entry(resources="dynamic")):
        fake = serving(files)
        async with hosting({"f": fake}) as manager:
            skill = await only(manager)
            if skill.files is None and path == "other.md":
                continue  # it may be there
            with pytest.raises(ServerFailed, match="no file"):
                await manager.read_skill_file(skill, path)
        assert reads(fake) == []


async def test_a_file_that_has_changed_since_is_not_used() -> None:
    async with hosting({"f": serving(entry(), email="Dear victims.")}) as manager:
        with pytest.raises(ServerFailed, match="digest"):
            await manager.read_skill_file(await only(manager), "examples/email.md")


BAD: dict[str, Any] = {
    "no files at all": {"resources": None},
    "files of another kind": {"resources": "many"},
    "no SKILL.md among them": {"resources": entry({EMAIL: "x"})["resources"]},
    "one twice": {"resources": entry()["resources"] * 2},
    "a file elsewhere": {"resources": entry({URI: TEXT, "skill://else/x": "x"})["resources"]},
    "a digest of another kind": {"resources": [{"uri": URI, "digest": "md5:1", "size": 1}]},
    "no size": {"resources": [{"uri": URI, "digest": f"sha256:{'0' * 64}", "size": True}]},
    "too much": {"resources": [{"uri": URI, "digest": f"sha256:{'0' * 64}", "size": 16 * 1024 * 1024 + 1}]},
    "another name": {"frontmatter": {**HEAD, "name": "other"}},
    "no description": {"frontmatter": {"name": "refunds"}},
    "no SKILL.md in its uri": {"uri": "skill://acme/refunds"},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
async def test_an_entry_that_breaks_the_rules_costs_itself_alone(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        skill_in("f", entry(**changes))
    bad = entry(**{"uri": "skill://b/refunds/SKILL.md", **changes}) if "uri" in changes else entry(**changes)
    good = entry(
        {"skill://ok/SKILL.md": "x"}, uri="skill://ok/SKILL.md", frontmatter={"name": "ok", "description": "x"}
    )
    async with hosting({"f": serving(bad, good)}) as manager:
        assert [skill.name for skill in await manager.skills("f")] == ["ok"]
        if changes.get("uri") is None:
            with pytest.raises(ServerFailed, match="cannot be used"):
                await manager.skill("f", URI)


@pytest.mark.parametrize(
    ("head", "written", "same"),
    [
        ({"tags": ["a", "b"], "n": 1}, "tags: [a, b]\nn: 1.0", True),
        ({"when": "2026-01-01", "fine": "yes"}, "when: 2026-01-01\nfine: yes", True),
        ({"on": True}, "on: true", True),
        ({"n": True}, "n: 1", False),
        ({}, "allowed-tools: Bash", False),
        ({"allowed-tools": "Bash"}, "", False),
        ({"a": [], "b": []}, "a: &x []\nb: *x", False),
        ({}, "a: [", False),
        ({}, "a: !!python/name:os.system x", False),
    ],
)
def test_the_head_is_compared_field_by_field(head: dict[str, Any], written: str, same: bool) -> None:
    skill = skill_in("f", entry(frontmatter={**HEAD, **head}))
    text = f"---\nname: refunds\ndescription: Give money back\n{written}\n---\nBody\n"
    if same:
        verify_frontmatter(skill, text)
        verify_frontmatter(skill, text.replace("\n", "\r\n"))
    else:
        with pytest.raises(ServerFailed):
            verify_frontmatter(skill, text)


@pytest.mark.parametrize(
    "text", ["", "Body", "---\nname: refunds\n", "---\n- a\n---\n", f"---\n{'a' * 70000}: 1\n---\n"][:]
)
def test_a_text_without_a_head_is_no_skill(text: str) -> None:
    with pytest.raises(ServerFailed, match="frontmatter"):
        verify_frontmatter(skill_in("f", entry()), text)


async def test_models_are_offered_skills_whose_origin_is_told() -> None:
    fake = serving(entry())
    async with hosting({"f": fake, "g": FakeServer().tool("t")}) as manager:
        assert [skill.name for skill in await manager.offer_skills()] == ["refunds"]
        await manager.offer_skills()
        load, read = manager.registry["load_skill"], manager.registry["read_skill_file"]
        assert "f/acme/refunds: Give money back (of the MCP server f)" in load.description
        early = await read.execute({"skill": "f/acme/refunds", "path": "examples/email.md"})
        assert early.is_error
        assert reads(fake) == []
        loaded = await load.execute({"skill": "f/acme/refunds"})
        assert not loaded.is_error
        assert "MCP server f" in loaded.text
        assert TEXT in loaded.text
        file = await read.execute({"skill": "f/acme/refunds", "path": "examples/email.md"})
        assert "Dear customer" in file.text
        assert (await load.execute({"skill": "g/nothing"})).is_error
