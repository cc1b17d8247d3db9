"""The commands that change servers, with a worker and without one: what is printed, saved, started and left alone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openprogram_mcp.testing import FakeServer, do

from ._worker_process import Command, WorkerProcess, command, until, worker, write_servers

ALONE, WORKER = "without a worker", "with a worker"


@pytest.fixture(params=[ALONE, WORKER])
def place(request: pytest.FixtureRequest) -> str:
    """Whether a worker runs."""
    return str(request.param)


@pytest.fixture
def started(place: str, state_dir: Path) -> Iterator[Starter]:
    starter = Starter(place, state_dir)
    yield starter
    starter.end()


class Starter:
    """Writes the configuration, and starts a worker where one is wanted."""

    def __init__(self, place: str, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.with_worker = place == WORKER
        self.process: WorkerProcess | None = None
        self._running: Any = None

    def __call__(self, servers: dict[str, Any] | None = None, *options: str, **settings: Any) -> None:
        if servers is not None:
            write_servers(self.state_dir, servers, **settings)
        if self.with_worker:
            self.state_dir.mkdir(mode=0o700, exist_ok=True)
            self._running = worker(self.state_dir, *options)
            self.process = self._running.__enter__()

    def end(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.__exit__(None, None, None)

    @property
    def path(self) -> Path:
        return self.state_dir / "mcp_servers.json"

    @property
    def entries(self) -> Any:
        return json.loads(self.path.read_text())["servers"] if self.path.exists() else {}

    def row(self, name: str) -> Any:
        return next(row for row in command("list", "--json").json["servers"] if row["name"] == name)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def argv_of(server: FakeServer) -> list[str]:
    return [str(word) for word in server.config()["command"]]


def env_of(server: FakeServer) -> list[str]:
    return [word for key, value in server.config().get("env", {}).items() for word in ("--env", f"{key}={value}")]


def editing(code: str, tmp_path: Path) -> dict[str, str]:
    """An environment whose editor is a few lines of Python: ``text`` is what it shows, and what it saves."""
    script = tmp_path / "editor.py"
    script.write_text(
        "import json, os, re, sys\nfrom pathlib import Path\n"
        "file = Path(sys.argv[1])\ntext = file.read_text()\n"
        f"Path({str(tmp_path / 'shown')!r}).open('a').write(text)\n"
        f"Path({str(tmp_path / 'mode')!r}).write_text(oct(os.stat(file).st_mode & 0o777)"
        " + ' ' + oct(os.stat(file.parent).st_mode & 0o777))\n"
        "def entry(): return json.loads(re.sub(r'(?m)^//.*$', '', text))\n"
        f"{code}\nfile.write_text(text)\n"
    )
    return {"VISUAL": f"{sys.executable} {script}"}


def change(field: str) -> str:
    """An editor's code that changes one field."""
    return f"data = entry(); {field}; text = json.dumps(data)"


def edit(name: str, env: dict[str, str], *options: str) -> Command:
    """``edit`` with this environment."""
    ran = subprocess.run(
        [sys.executable, "-m", "openprogram_mcp", "edit", name, *options],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    return Command(ran.returncode, ran.stdout, ran.stderr)


# add


def test_add_starts_a_program_and_saves_it_once_it_is_up(started: Starter) -> None:
    server = FakeServer().tool("echo")
    started()
    said = command("add", "mine", *env_of(server), "--timeout", "7", "--", *argv_of(server))
    assert (said.code, said.out) == (0, "mine: connected, 1 tool\n")
    entry = started.entries["mine"]
    assert (entry["command"], entry["timeout_seconds"]) == (argv_of(server), 7)
    assert mode(started.path) == 0o600
    assert server.starts == 1
    assert ("No worker is running" in said.err) is not started.with_worker
    if started.with_worker:
        assert command("call", "mine__echo").code == 0
        assert server.starts == 1
    else:
        assert server.alive() == []


def test_add_saves_nothing_when_it_does_not_come_up_and_says_how_it_could(started: Starter) -> None:
    broken = FakeServer().on_start(do.stderr("licence not found\n"), do.exit(3))
    started({"other": {"command": ["x"], "enabled": False}})
    before = started.path.read_bytes()
    typed = ("add", "mine", *env_of(broken))
    said = command(*typed, "--", *argv_of(broken))
    assert (said.code, said.out) == (1, "")
    assert "exited with code 3" in said.err
    assert "licence not found" in said.err
    assert "--force saves it" in said.err
    error = command(*typed, "--json", "--", *argv_of(broken)).json["error"]
    assert (error["code"], error["phase"], error["exit_code"]) == ("server_failed", "initialize", 3)
    assert started.path.read_bytes() == before
    forced = command(*typed, "--force", "--", *argv_of(broken))
    assert (forced.code, forced.out.partition(":")[0]) == (0, "mine")
    assert started.entries["mine"]["command"] == argv_of(broken)


def test_add_of_a_disabled_server_starts_nothing_and_what_is_behind_the_dashes_is_its_own(started: Starter) -> None:
    started()
    said = command("add", "mine", "--disabled", "--", "no-such-program", "--json", "--force", "--", "worker")
    assert (said.code, said.out) == (0, "mine: disabled\n")
    assert started.entries["mine"] == {
        "command": ["no-such-program", "--json", "--force", "--", "worker"],
        "enabled": False,
    }


def test_add_keeps_references_and_shows_no_secret(started: Starter) -> None:
    started()
    typed = ["--header", "Authorization: Bearer ${DOCS_TOKEN}", "--header", "X-Key:hunter2-hunter2"]
    said = command("add", "docs", "https://docs.invalid/mcp", *typed, "--disabled", "--json")
    assert said.code == 0
    assert "hunter2" not in said.out + said.err
    assert (said.json["name"], said.json["status"], said.json["type"]) == ("docs", "disabled", "auto")
    assert started.entries["docs"] == {
        "url": "https://docs.invalid/mcp",
        "headers": {"Authorization": "Bearer ${DOCS_TOKEN}", "X-Key": "hunter2-hunter2"},
        "enabled": False,
    }


def test_add_of_a_name_that_is_taken_changes_nothing(started: Starter) -> None:
    started({"mine": {"command": ["x"], "enabled": False}, "wrong": {"command": ["x"], "timeout_seconds": "soon"}})
    before = started.path.read_bytes()
    for name in ("mine", "wrong"):
        assert command("add", name, "--disabled", "--json", "--", "y").json["error"]["code"] == "server_exists"
    assert started.path.read_bytes() == before


def test_add_that_is_interrupted_takes_everything_back(started: Starter) -> None:
    # A name that stands among the arguments where the worker's own command would.
    server = FakeServer(era="legacy").on("initialize")
    started({})
    argv = ["add", "worker", *env_of(server), "--", *argv_of(server)]
    process = subprocess.Popen(
        [sys.executable, "-m", "openprogram_mcp", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until(lambda: server.starts, "a start")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, b"Traceback" in said) == (130, False)
    until(lambda: server.alive() == [], "the end of its process")
    assert started.entries == {}
    if started.with_worker:
        until(lambda: command("list", "--json").json["servers"] == [], "no server")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["add", "mine"], "Neither a command nor a URL"),
        (["add", "mine", "--"], "Neither a command nor a URL"),
        (["add", "mine", "npx"], "there has to be --"),
        (["add", "mine", "npx", "-y", "x"], "unrecognized|Unrecognized"),
        (["add", "mine", "https://x", "--", "y"], "Both a URL and a command"),
        (["add", "mine", "https://x", "--env", "A=b"], "--env is for a program"),
        (["add", "mine", "--header", "A:b", "--", "x"], "--header is for a remote server"),
        (["add", "mine", "--env", "hunter2", "--", "x"], "expected KEY=VALUE"),
        (["add", "mine", "--env", "A=1", "--env", "A=2", "--", "x"], "given twice"),
        (["add", "mine", "--timeout", "0", "--", "x"], "above 0"),
        (["logs", "--level", "loud"], "invalid choice"),
        (["events", "--since", "-1"], "expected"),
        (["completion"], "Which shell"),
    ],
)
def test_what_is_typed_wrong_is_2_and_says_what_to_write(argv: list[str], said: str, state_dir: Path) -> None:
    ran = command(*argv)
    assert (ran.code, ran.out) == (2, "")
    assert any(one in ran.err for one in said.split("|"))
    assert "hunter2" not in ran.err
    assert not state_dir.exists()


# rm, enable, disable


def test_rm_takes_the_entry_and_the_process(started: Starter) -> None:
    server = FakeServer().tool("echo")
    started({"mine": server.config(), "other": {"command": ["x"], "enabled": False}})
    said = command("rm", "mine")
    assert (said.code, said.out, said.err) == (0, "mine: removed\n", "")
    assert list(started.entries) == ["other"]
    assert server.alive() == []
    assert server.starts == (1 if started.with_worker else 0)
    assert command("rm", "other", "--json").json == {"name": "other", "removed": True}
    gone = command("rm", "mine", "--json")
    assert (gone.code, gone.json["error"]["code"]) == (1, "unknown_server")


def test_rm_takes_an_entry_that_cannot_be_understood(started: Starter) -> None:
    started({"wrong": {"command": ["x"], "timeout_seconds": "soon"}})
    assert command("rm", "wrong").code == 0
    assert started.entries == {}


def test_disable_and_enable_are_saved_and_say_what_came_of_it(started: Starter) -> None:
    server = FakeServer().tool("echo")
    started({"mine": server.config()})
    said = command("disable", "mine")
    assert (said.code, said.out) == (0, "mine: disabled\n")
    assert started.entries["mine"]["enabled"] is False
    assert server.alive() == []
    starts = server.starts
    said = command("enable", "mine", "--json")
    assert (said.code, said.json["status"], said.json["enabled"]) == (0, "connected", True)
    assert started.entries["mine"].get("enabled", True) is True
    assert server.starts == starts + 1


def test_what_is_enabled_and_does_not_come_up_stays_enabled_and_is_1(started: Starter) -> None:
    broken = FakeServer().on_start(do.stderr("licence not found\n"), do.exit(3))
    started({"mine": broken.config(enabled=False)})
    said = command("enable", "mine")
    assert said.code == 1
    assert said.out.startswith("mine: failed: initialize: ")
    assert "licence not found" in said.err
    assert "It is enabled all the same" in said.err
    assert started.entries["mine"].get("enabled", True) is True


@pytest.mark.parametrize("verb", ["rm", "enable", "disable", "edit", "connect", "disconnect", "restart"])
def test_a_name_that_nobody_has_is_told_with_the_one_that_was_meant(started: Starter, verb: str) -> None:
    started({"mine": {"command": ["x"], "enabled": False}})
    if not started.with_worker and verb in ("connect", "disconnect", "restart"):
        return
    said = command(verb, "mien")
    assert said.code == 1
    assert "Did you mean 'mine'?" in said.err


# connect, disconnect, restart


@pytest.mark.parametrize("started", [WORKER], indirect=True)
@pytest.mark.parametrize("place", [WORKER])
def test_connect_disconnect_and_restart_are_the_worker_s(started: Starter) -> None:
    server = FakeServer().tool("echo")
    started({"mine": server.config()})
    before = started.path.read_bytes()
    assert command("disconnect", "mine").out == "mine: disconnected\n"
    assert server.alive() == []
    assert command("connect", "mine").out == "mine: connected, 1 tool\n"
    assert command("restart", "mine", "--json").json["generation"] == 3
    assert server.starts == 3
    assert started.path.read_bytes() == before


@pytest.mark.parametrize(
    "argv", [["connect", "mine"], ["disconnect", "mine"], ["restart", "mine"], ["logs"], ["logs", "-f"], ["events"]]
)
def test_what_only_a_worker_has_says_that_there_is_none(argv: list[str], state_dir: Path) -> None:
    server = FakeServer()
    write_servers(state_dir, {"mine": server.config()})
    said = command(*argv)
    assert (said.code, said.out) == (1, "")
    assert f"No worker is running in {state_dir}" in said.err
    assert "openprogram-mcp worker" in said.err
    assert command(*argv, "--json").json["error"]["code"] == "worker_unreachable"
    assert server.starts == 0


# edit


def test_edit_shows_masks_changes_what_was_changed_and_keeps_the_rest(started: Starter, tmp_path: Path) -> None:
    server = FakeServer().tool("echo")
    config = server.config()
    env = {**config.get("env", {}), "API_KEY": "hunter2-hunter2"}
    started({"mine": {**config, "env": env, "deny": ["x"], "future": {"a": 1}}})
    said = edit("mine", editing(change("data['description'] = 'better'; del data['deny']"), tmp_path))
    assert (said.code, said.out) == (0, "mine: connected, 1 tool\n")
    shown = (tmp_path / "shown").read_text()
    assert '"API_KEY": "********"' in shown
    assert "hunter2" not in shown + said.out + said.err
    assert started.entries["mine"] == {
        **config,
        "env": env,
        "future": {"a": 1},
        "description": "better",
    }
    assert (tmp_path / "mode").read_text() == "0o600 0o700"


def test_edit_replaces_and_deletes_secrets_and_drops_a_field_that_is_taken_out(
    started: Starter, tmp_path: Path
) -> None:
    started({"mine": {"command": ["x"], "enabled": False, "env": {"A": "hunter2-a", "B": "hunter2-b", "C": "c"}}})
    code = change("data['env']['A'] = 'new'; del data['env']['B']; data['timeout_seconds'] = 5")
    assert edit("mine", editing(code, tmp_path)).code == 0
    assert started.entries["mine"] == {
        "command": ["x"],
        "enabled": False,
        "env": {"A": "new", "C": "c"},
        "timeout_seconds": 5,
    }
    assert edit("mine", editing(change("del data['timeout_seconds']; del data['env']"), tmp_path)).code == 0
    assert started.entries["mine"] == {"command": ["x"], "enabled": False}


@pytest.mark.parametrize("code", ["pass", "text = text + '\\n'", "text = ''", "text = '// nothing\\n'"])
def test_edit_that_changes_nothing_changes_nothing(started: Starter, tmp_path: Path, code: str) -> None:
    server = FakeServer()
    started({"mine": server.config()})
    before, starts = started.path.read_bytes(), server.starts
    said = edit("mine", editing(code, tmp_path))
    assert (said.code, said.out) == (0, "mine: nothing was changed\n")
    assert (started.path.read_bytes(), server.starts) == (before, starts)


@pytest.mark.parametrize(
    ("code", "error", "told"),
    [
        ("text = text + '}'", "invalid_config", "Line "),
        ("text = '[]'", "invalid_config", "Expected an object"),
        (change("data['timeout_seconds'] = 'soon'"), "invalid_config", "servers.mine.timeout_seconds"),
        (change("data['env'] = {'NEW': '********'}"), "invalid_config", "servers.mine.env.NEW"),
        (change("data['command'] = ['no-such-program-here']"), "server_failed", "no-such-program-here"),
    ],
)
def test_edit_that_is_wrong_or_does_not_come_up_changes_nothing_and_loses_no_work(
    started: Starter, tmp_path: Path, code: str, error: str, told: str
) -> None:
    server = FakeServer().tool("echo")
    started({"mine": server.config()})
    before = started.path.read_bytes()
    said = edit("mine", editing(code, tmp_path), "--json")
    assert (said.code, said.json["error"]["code"]) == (1, error)
    assert told in said.json["error"]["detail"]
    kept = Path(said.err.partition("what you wrote is in ")[2].partition(";")[0])
    assert kept.exists()
    assert (mode(kept), mode(kept.parent)) == (0o600, 0o700)
    assert started.path.read_bytes() == before
    if started.with_worker:
        assert started.row("mine")["status"] == "connected"
        assert command("call", "mine__echo").code == 0


def test_edit_is_told_when_somebody_else_has_changed_the_entry_meanwhile(started: Starter, tmp_path: Path) -> None:
    started({"mine": {"command": ["x"], "enabled": False}})
    meanwhile = (
        f"path = Path({str(started.path)!r}); other = json.loads(path.read_text())\n"
        "other['servers']['mine']['description'] = 'theirs'; path.write_text(json.dumps(other))\n"
    )
    said = edit("mine", editing(meanwhile + change("data['timeout_seconds'] = 5"), tmp_path), "--json")
    assert (said.code, said.json["error"]["code"]) == (1, "revision_conflict")
    assert started.entries["mine"] == {"command": ["x"], "enabled": False, "description": "theirs"}


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"VISUAL": "no-such-editor"}, "cannot be started"),
        ({"VISUAL": "false"}, "ended with 1"),
        ({"VISUAL": "'x"}, "$VISUAL cannot be understood"),
        ({"VISUAL": "", "EDITOR": "false"}, "ended with 1"),
    ],
)
def test_an_editor_that_fails_changes_nothing(state_dir: Path, env: dict[str, str], told: str) -> None:
    write_servers(state_dir, {"mine": {"command": ["x"], "enabled": False}})
    before = (state_dir / "mcp_servers.json").read_bytes()
    said = edit("mine", env)
    assert said.code == (2 if "understood" in told else 1)
    assert told in said.err
    assert (state_dir / "mcp_servers.json").read_bytes() == before


def test_an_entry_that_cannot_be_understood_is_not_shown_because_its_secrets_are_not_known(
    started: Starter, tmp_path: Path
) -> None:
    started({"wrong": {"command": ["x"], "timeout_seconds": "soon", "env": {"A": "hunter2-a"}}})
    said = edit("wrong", editing("pass", tmp_path), "--json")
    assert (said.code, said.json["error"]["code"]) == (1, "invalid_config")
    assert "servers.wrong.timeout_seconds" in said.json["error"]["detail"]
    assert str(started.path) in said.json["error"]["remedy"]
    assert not (tmp_path / "shown").exists()


# The file


@pytest.mark.parametrize(
    "argv", [["add", "x", "--disabled", "--", "y"], ["rm", "x"], ["enable", "x"], ["disable", "x"]]
)
def test_a_file_that_cannot_be_read_is_never_overwritten(argv: list[str], started: Starter) -> None:
    started({})
    started.path.write_text('{"servers": {\n  "x": }')
    said = command(*argv)
    assert said.code == 1
    assert started.path.read_text() == '{"servers": {\n  "x": }'


def test_list_says_that_the_file_cannot_be_read_and_that_the_last_good_one_is_in_force(state_dir: Path) -> None:
    write_servers(state_dir, {"mine": FakeServer().config()})
    path = state_dir / "mcp_servers.json"
    with worker(state_dir):
        assert command("list", "--json").json["config_error"] is None
        good = path.read_text()
        path.write_text('{"servers": {\n  "x": }')
        until(lambda: command("list", "--json").json["config_error"], "a file that cannot be read")
        said = command("list")
        assert (said.code, said.out.split("\t")[:2]) == (0, ["mine", "connected"])
        assert "mcp_servers.json:2:8" in said.err
        assert "stays in force" in said.err
        path.write_text(good)
        until(lambda: command("list", "--json").json["config_error"] is None, "a file that can be read")
        assert command("list").err == ""
