"""What is to be started, and everything that can be said about it before it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openprogram_mcp.errors import ServerFailed
from openprogram_mcp.transports._containers import Container, with_own_container
from openprogram_mcp.transports._launch import Launch, child_environment, explain_spawn_error, prepare_launch

ENV = {"PATH": os.environ.get("PATH", os.defpath)}


def failure(argv: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> ServerFailed:
    with pytest.raises(ServerFailed) as caught:
        prepare_launch("s", argv, ENV if env is None else env, None if cwd is None else str(cwd))
    assert (caught.value.phase, caught.value.transient, caught.value.server) == ("spawn", False, "s")
    assert caught.value.remedy
    return caught.value


def script(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


# The environment.

OWN = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "GITHUB_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "LANG": "() { :; }; echo shellshock",
    "Path": "/odd",
}


def test_safe_inherits_what_programs_need_and_no_secret_and_no_code() -> None:
    assert child_environment(OWN, "safe", {}, platform="linux") == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
    }


def test_all_inherits_all_and_a_list_what_it_names() -> None:
    assert child_environment(OWN, "all", {}) == OWN
    assert child_environment(OWN, ["GITHUB_TOKEN", "MISSING"], {}) == {"GITHUB_TOKEN": "secret"}
    assert child_environment(OWN, [], {}) == {}


@pytest.mark.parametrize("inherit", ["safe", "all", ["PATH", "HOME"]])
def test_what_the_configuration_sets_wins_and_null_takes_a_variable_out(inherit: str | list[str]) -> None:
    env = child_environment(OWN, inherit, {"PATH": "/mine", "HOME": None, "NEW": "", "ABSENT": None}, platform="linux")
    assert (env["PATH"], env["NEW"]) == ("/mine", "")
    assert "HOME" not in env
    assert "ABSENT" not in env


def test_on_windows_names_are_the_same_in_either_case() -> None:
    own = {"Path": r"C:\bin", "SystemRoot": r"C:\Windows", "ComSpec": r"C:\Windows\cmd.exe", "TOKEN": "secret"}
    assert set(child_environment(own, "safe", {}, platform="win32")) == {"Path", "SystemRoot", "ComSpec"}


# Programs. START-07.


def test_start_07_a_missing_program_says_which_path_was_searched_and_how_it_is_installed(tmp_path: Path) -> None:
    error = failure(["npx", "-y", "pkg"], env={"PATH": f"{tmp_path}{os.pathsep}/other/bin"})
    assert error.message == f"command not found: npx; searched PATH: {tmp_path}{os.pathsep}/other/bin"
    assert "Node.js" in (error.remedy or "")
    assert "an empty PATH" in failure(["npx"], env={"PATH": ""}).message


def test_the_path_that_is_searched_is_the_servers_own(tmp_path: Path) -> None:
    script(tmp_path / "tool")
    assert prepare_launch("s", ["tool", "x"], {"PATH": str(tmp_path)}, None).argv == (str(tmp_path / "tool"), "x")
    failure(["tool"], env={"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/no/such/bin", "command not found: /no/such/bin"),
        ("./missing", "command not found"),
        ("./plain", "is not executable"),
        ("folder/", "is a folder"),
        ("./" + "x" * 300, "command not found"),
        ("~nobody-by-this-name/x", "command not found"),
    ],
)
def test_start_07_a_program_that_cannot_be_started_says_why(command: str, says: str, tmp_path: Path) -> None:
    script(tmp_path / "plain", mode=0o644)
    (tmp_path / "folder").mkdir()
    assert says in failure([command], cwd=tmp_path).message


@pytest.mark.skipif(os.geteuid() == 0, reason="needs not to be root")
def test_a_place_that_may_not_be_looked_into_is_a_failure_of_the_servers(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    assert "command not found" in failure([str(tmp_path / "closed" / "program")]).message
    assert "does not exist" in failure(["true"], cwd=tmp_path / "closed" / "folder").message


def test_start_08_the_working_directory_is_looked_at_first(tmp_path: Path) -> None:
    assert (
        "working directory /does/not/exist does not exist" in failure(["nosuch"], cwd=Path("/does/not/exist")).message
    )
    assert "is not a folder" in failure(["nosuch"], cwd=script(tmp_path / "file")).message
    assert "does not exist" in failure(["nosuch"], cwd=tmp_path / ("x" * 300)).message


def test_start_08_a_relative_program_is_found_from_its_working_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    script(tmp_path / "sub" / "server.py")
    for command in ("./sub/server.py", "sub/server.py"):
        assert prepare_launch("s", [command], ENV, str(tmp_path)).argv == (str(tmp_path / "sub" / "server.py"),)
    assert prepare_launch("s", ["./server.py"], ENV, str(tmp_path / "sub")).cwd == str(tmp_path / "sub")


def test_a_launch_shows_no_arguments_and_no_environment() -> None:
    launch = Launch(("/bin/x", "--token", "secret"), {"TOKEN": "secret"}, None, "secret")
    assert repr(launch) == "Launch('/bin/x', 2 arguments)"


# What the system says.


def explained(program: Path, error: OSError | ValueError, cwd: str | None = None) -> str:
    found = explain_spawn_error("s", Launch((str(program),), {}, cwd), error)
    assert found.remedy
    assert found.phase == "spawn"
    return found.message


def test_start_07_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    program = script(tmp_path / "a", "#! /no/such/python -u\nprint()\n")
    assert "bad interpreter" in explained(program, FileNotFoundError(2, "x"))
    assert "/no/such/python, which" in explained(program, FileNotFoundError(2, "x"))
    windows = script(tmp_path / "b", "#!/usr/bin/python3\r\nprint()\r\n")
    assert "carriage return" in explained(windows, FileNotFoundError(2, "x"))
    assert "bad interpreter" in explained(script(tmp_path / "c", "print()\n"), OSError(8, "x"))


def test_start_08_a_folder_that_may_not_be_entered_is_not_blamed_on_the_command(tmp_path: Path) -> None:
    said = explained(script(tmp_path / "a"), PermissionError(13, "x", str(tmp_path)), str(tmp_path))
    assert said == f"its working directory {tmp_path} cannot be entered: Permission denied"
    assert "may not be executed" in explained(
        tmp_path / "a", PermissionError(13, "x", str(tmp_path / "a")), str(tmp_path)
    )


def test_what_no_process_can_be_given_is_said_without_showing_it(tmp_path: Path) -> None:
    assert "secret" not in explained(tmp_path / "a", ValueError("secret\0"))


# Batch files. START-05.


def _read_by_cmd(line: str) -> str:
    """What cmd.exe makes of a line: a caret guards what follows, unless it is within quotes; nothing else happens."""
    text, quoted, characters = "", False, iter(line)
    for character in characters:
        if character == "^" and not quoted:
            text += next(characters)
        else:
            assert quoted or character not in "&|<>()", f"{character} has a meaning in {line}"
            quoted ^= character == '"'
            text += character
    return text


def _arguments(line: str) -> Iterator[str]:
    """A command line in arguments as programs on Windows read it (CommandLineToArgvW)."""
    place = 0
    while place < len(line):
        if line[place] == " ":
            place += 1
            continue
        argument, quoted = "", False
        while place < len(line) and (quoted or line[place] != " "):
            backslashes = len(line[place:]) - len(line[place:].lstrip("\\"))
            place += backslashes
            if line[place : place + 1] == '"':
                argument += "\\" * (backslashes // 2)
                if backslashes % 2:
                    argument += '"'
                else:
                    quoted = not quoted
                place += 1
            else:
                argument += "\\" * backslashes
                if place < len(line) and (quoted or line[place] != " "):
                    argument += line[place]
                    place += 1
        yield argument


@given(st.lists(st.text(alphabet="aZ09 &%^!()<>|\"'\\,;=*?[]{}~@#é", max_size=12), max_size=4))
@example(["-y", "pkg", "--path", r"C:\dir with space & x"])
@example(["C:\\ends with a backslash\\", "C:\\nospace\\", "\\"])
@example(['say "hi" & bye', '\\"', '"', '""', 'a\\\\"b'])
@example(["", " ", "^", "%PATH%", "!x!", "&calc&"])
def test_start_05_arguments_reach_the_program_behind_a_batch_file_unchanged(arguments: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda name, path=None: r"C:\Program Files (x86)\nodejs\npx.cmd")
        launch = prepare_launch(
            "s", ["npx", *arguments], {"PATH": "", "ComSpec": r"C:\W\cmd.exe"}, None, platform="win32"
        )
    assert launch.command_line is not None
    start = '"C:\\W\\cmd.exe" /d /s /c "'
    assert launch.command_line.startswith(start)
    assert launch.command_line.endswith('"')
    inner = launch.command_line[len(start) : -1]
    read = _read_by_cmd(inner)
    program = r"C:\Program Files (x86)\nodejs\npx.cmd"
    assert inner.startswith(r"C:\Program^ Files^ ^(x86^)\nodejs\npx.cmd")
    assert read.startswith(program)
    if not any('"' in argument for argument in arguments):
        assert list(_arguments(read[len(program) :])) == arguments
    # The batch file hands on what it was given (%*), which is read a second time on the way.
    assert list(_arguments(_read_by_cmd(read[len(program) :]))) == arguments


def test_start_05_a_line_break_cannot_be_handed_on_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: r"C:\npx.cmd")
    with pytest.raises(ServerFailed, match="line break"):
        prepare_launch("s", ["npx", "a\nb"], {"PATH": ""}, None, platform="win32")


# Containers. LIFE-06.


@pytest.mark.parametrize(
    ("command", "program", "place"),
    [
        ("docker run -i --rm img", "docker", 2),
        ("/usr/local/bin/docker run img", "/usr/local/bin/docker", 2),
        ("podman run img", "podman", 2),
        ("nerdctl run img", "nerdctl", 2),
        ("docker container run -i img", "docker", 3),
        ("docker --context far -H tcp://h:1 -D run img", "docker --context far -H tcp://h:1 -D", 6 + 1),
        ("docker --host=tcp://h:1 run img", "docker --host=tcp://h:1", 3),
        ("podman -r --connection c run img", "podman -r --connection c", 5),
        ("docker run -i img --name not-the-containers", "docker", 2),
        ("docker run -ie A=B img --name x", "docker", 2),
        ("docker run -iv /a:/b -p 1:1 --mount type=bind --env=A img --cidfile x", "docker", 2),
        ("docker run --init --read-only --privileged img --name x", "docker", 2),
        ("docker run -eA=--name img --name x", "docker", 2),
        ("docker run -- img --name x", "docker", 2),
        ("docker run", "docker", 2),
    ],
)
def test_life_06_a_container_without_a_name_gets_one_of_ours(command: str, program: str, place: int) -> None:
    words = command.split()
    named, container = with_own_container(words)
    assert container is not None
    assert container.name is not None
    assert container == Container(tuple(program.split()), container.name, ours=True)
    assert container.name.startswith("openprogram-mcp-")
    assert list(named) == [*words[:place], "--name", container.name, *words[place:]]
    assert with_own_container(words)[1] != container


@pytest.mark.parametrize(
    ("command", "container"),
    [
        ("docker run --name db -i img", Container(("docker",), "db")),
        ("docker run -i --name=db img", Container(("docker",), "db")),
        ("docker -H h run -it --rm --name db img", Container(("docker", "-H", "h"), "db")),
        ("docker run -e A=B --cidfile /run/id img", Container(("docker",), id_file="/run/id")),
        ("podman run --cidfile=id img", Container(("podman",), id_file="id")),
    ],
)
def test_life_06_a_container_that_has_a_name_keeps_it(command: str, container: Container) -> None:
    assert with_own_container(command.split()) == (tuple(command.split()), container)


@pytest.mark.parametrize(
    "command",
    [
        "docker exec -i box server",
        "docker start -ai box",
        "docker compose run img",
        "docker",
        "docker --context",
        "docker-mcp run img",
        "dockerize run img",
        "npx run img",
        "python docker run img",
    ],
)
def test_what_runs_no_container_is_left_as_it_is(command: str) -> None:
    assert with_own_container(command.split()) == (tuple(command.split()), None)


def test_life_06_a_launch_knows_its_container(tmp_path: Path) -> None:
    docker = script(tmp_path / "docker")
    launch = prepare_launch("s", ["docker", "run", "-i", "img"], {"PATH": str(tmp_path)}, None)
    assert launch.container is not None
    assert launch.container.program == (str(docker),)
    assert launch.argv == (str(docker), "run", "--name", launch.container.name, "-i", "img")
