"""``edit`` on a terminal, where it asks; and the difference between what was shown and what came back."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openprogram_mcp.cli._edit import _form, _parsed, _with_problem
from openprogram_mcp.cli._editor import applied, changes
from openprogram_mcp.config import MCPServerConfig
from openprogram_mcp.errors import ConfigError

from ._terminal import said_until_its_end
from ._worker_process import worker, write_servers

# An editor that plays a list of programs, one at each time it is opened; each sees and makes ``text``.
EDITOR = """
import json, re, sys
from pathlib import Path
here, file = Path(sys.argv[1]), Path(sys.argv[2])
steps = json.loads((here / "steps").read_text())
seen = here / "seen"
count = int(seen.read_text()) if seen.exists() else 0
seen.write_text(str(count + 1))
text = file.read_text()
(here / f"shown-{count}").write_text(text)
space = {"text": text, "json": json, "re": re, "Path": Path}
exec("def entry(): return json.loads(re.sub(r'(?m)^//.*$', '', text))\\n" + steps[count], space)
file.write_text(space["text"])
"""


class Desk:
    """A terminal with that editor."""

    def __init__(self, folder: Path, *steps: str) -> None:
        self.folder = folder
        (folder / "editor.py").write_text(EDITOR)
        (folder / "steps").write_text(json.dumps(steps))

    def edit(self, name: str, *answers: str) -> tuple[int, str]:
        """Type ``edit NAME`` and then the answers; the exit code, and all that was on the terminal."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["VISUAL"] = f"{sys.executable} {self.folder / 'editor.py'} {self.folder}"
            os.execv(sys.executable, [sys.executable, "-m", "openprogram_mcp", "edit", name])  # noqa: S606 - a shell is what this is to do without
        waiting = list(answers)

        def reply(said: bytes) -> None:
            if waiting and said.count(b"[Y/n]") == len(answers) - len(waiting) + 1:
                os.write(terminal, f"{waiting.pop(0)}\n".encode())

        code, said = said_until_its_end(pid, terminal, reply)
        return code, said.decode()

    def shown(self, number: int) -> str:
        return (self.folder / f"shown-{number}").read_text()


WRONG = "data = entry(); data['timeout_seconds'] = 'soon'; data['description'] = 'mine'; text = json.dumps(data)"
RIGHT = "data = entry(); data['timeout_seconds'] = 5; text = json.dumps(data)"


@pytest.mark.parametrize("with_worker", [False, True])
def test_what_is_wrong_can_be_put_right_in_the_editor_with_the_error_on_top(
    with_worker: bool, state_dir: Path, tmp_path: Path
) -> None:
    write_servers(state_dir, {"mine": {"command": ["x"], "enabled": False, "env": {"KEY": "hunter2-hunter2"}}})
    desk = Desk(
        tmp_path,
        "text = text + '}'",
        WRONG.replace("entry()", "json.loads(re.sub(r'(?m)^//.*$', '', text)[:-1])"),
        RIGHT,
    )

    def edit() -> tuple[int, str]:
        return desk.edit("mine", "", "y")

    if with_worker:
        with worker(state_dir):
            code, said = edit()
    else:
        code, said = edit()
    assert code == 0
    assert "Nothing was changed. Open the editor again?" in said
    assert desk.shown(1).startswith("// ERROR: Line ")
    assert desk.shown(2).startswith("// ERROR: servers.mine.timeout_seconds: ")
    assert desk.shown(2).count("// ERROR") == 1
    assert "hunter2" not in said + desk.shown(0) + desk.shown(2)
    entry = json.loads((state_dir / "mcp_servers.json").read_text())["servers"]["mine"]
    assert (entry["timeout_seconds"], entry["description"]) == (5, "mine")
    assert entry["env"] == {"KEY": "hunter2-hunter2"}


def test_who_does_not_want_the_editor_again_keeps_what_was_written_and_the_old_entry(
    state_dir: Path, tmp_path: Path
) -> None:
    write_servers(state_dir, {"mine": {"command": ["x"], "enabled": False}})
    before = (state_dir / "mcp_servers.json").read_bytes()
    code, said = Desk(tmp_path, WRONG).edit("mine", "n")
    assert code == 1
    kept = Path(said.partition("what you wrote is in ")[2].partition(";")[0])
    assert "soon" in kept.read_text()
    assert (state_dir / "mcp_servers.json").read_bytes() == before


@pytest.mark.parametrize("with_worker", [False, True])
def test_after_a_conflict_the_editor_shows_what_it_says_now_with_one_s_own_changes_on_top(
    with_worker: bool, state_dir: Path, tmp_path: Path
) -> None:
    write_servers(state_dir, {"mine": {"command": ["x"], "enabled": False, "description": "old"}})
    path = state_dir / "mcp_servers.json"
    meanwhile = (
        f"path = Path({str(path)!r}); other = json.loads(path.read_text())\n"
        "other['servers']['mine'].update(description='theirs', timeout_seconds=9); path.write_text(json.dumps(other))\n"
        "data = entry(); data['deny'] = ['mine']; text = json.dumps(data)"
    )
    desk = Desk(tmp_path, meanwhile, "pass")
    if with_worker:
        with worker(state_dir):
            code, _ = desk.edit("mine", "y")
    else:
        code, _ = desk.edit("mine", "y")
    assert code == 0
    assert desk.shown(1).startswith("// ERROR: ")
    assert json.loads(path.read_text())["servers"]["mine"] == {
        "command": ["x"],
        "enabled": False,
        "description": "theirs",
        "timeout_seconds": 9,
        "deny": ["mine"],
    }


# The difference

LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2)
VALUES = st.recursive(
    LEAVES.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abk", max_size=1), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "kind"]), VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_what_was_changed_put_on_what_was_shown_is_what_came_back(
    shown: dict[str, Any], edited: dict[str, Any]
) -> None:
    patch = changes(shown, edited)
    assert json.dumps(applied(shown, patch), sort_keys=True) == json.dumps(edited, sort_keys=True)
    assert changes(shown, shown) == {}


@pytest.mark.parametrize(
    ("shown", "edited", "patch"),
    [
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": 1}, {"a": 1.0}, {"a": 1.0}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"env": {"A": "*", "B": "*"}}, {"env": {"B": "*", "C": "c"}}, {"env": {"A": None, "C": "c"}}),
        ({"env": {"A": "*"}}, {}, {"env": None}),
        (
            {"auth": {"kind": "bearer", "token": "*"}},
            {"auth": {"kind": "oauth", "scope": "s"}},
            {"auth": {"kind": "oauth", "scope": "s"}},
        ),
    ],
)
def test_only_what_differs_is_sent(shown: dict[str, Any], edited: dict[str, Any], patch: dict[str, Any]) -> None:
    assert changes(shown, edited) == patch


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx -y thing --api-key hunter2hunter2", "args": ["--token", "hunter2hunter2"], "cwd": "~"},
        {"url": "https://u:hunter2hunter2@h/mcp?token=hunter2hunter2", "headers": {"X-Key": "hunter2hunter2"}},
        {"url": "https://h/mcp", "auth": {"kind": "bearer", "token": "hunter2hunter2"}},
        {
            "url": "https://h/mcp",
            "auth": {"kind": "client_credentials", "client_id": "c", "client_secret": "hunter2hunter2"},
            "reconnect": {"max_attempts": 3},
            "health": {"interval_seconds": 5},
        },
        {"command": ["x"], "reconnect": False, "env": {"A": None, "B": "hunter2hunter2"}, "timeout_seconds": 1.5},
    ],
)
def test_what_is_shown_holds_no_secret_and_sent_back_changes_nothing(entry: dict[str, Any]) -> None:
    config = MCPServerConfig.from_dict("a", entry)
    shown = _form(config.to_response_dict())
    assert "hunter2" not in json.dumps(shown)
    parsed = _parsed(f"// a comment\n{json.dumps(shown)}")
    assert parsed is not None
    assert config.merge_patch(changes(shown, parsed)) == config
    # A change of something else leaves every secret where it is.
    edited = config.merge_patch(changes(shown, {**parsed, "description": "new"}))
    assert edited.secret_values() == config.secret_values()
    assert edited.description == "new"


@pytest.mark.parametrize("text", ["", "\n\n", "// only\n  // comments\n"])
def test_an_empty_text_changes_nothing(text: str) -> None:
    assert _parsed(text) is None


@pytest.mark.parametrize("text", ["{", "1", "[]", '{"a": 1} x'])
def test_a_text_that_is_no_object_is_told(text: str) -> None:
    with pytest.raises(ConfigError):
        _parsed(text)


def test_an_error_on_top_takes_the_place_of_the_one_before() -> None:
    text = _with_problem({"detail": "first\nline", "remedy": "mend it", "stderr": ["no"]}, "// head\n{}\n")
    assert text == "// ERROR: first line\n//        no\n//        mend it\n// head\n{}\n"
    assert _with_problem({"detail": "second"}, text) == "// ERROR: second\n// head\n{}\n"
