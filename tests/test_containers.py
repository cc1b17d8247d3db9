"""Servers in containers: what ends the container when its client has ended. The docker is a fake one."""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from openprogram_mcp.testing import FakeServer
from openprogram_mcp.transports._containers import Container, end_container
from openprogram_mcp.transports._launch import Launch, prepare_launch
from openprogram_mcp.transports._process import ServerProcess
from tests._processes import ENV, started, talking
from tests._strike import descriptors


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    fake = FakeServer(era="legacy")
    yield fake
    assert fake.kill_all() == []


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """A docker whose containers live in a session of their own, ignore EOF and SIGTERM, and outlive their client."""
    program = tmp_path / "docker"
    program.write_text(
        textwrap.dedent(f"""\
            #!{sys.executable} -SE
            import json, os, signal, subprocess, sys
            folder = {str(tmp_path)!r}
            with open(folder + "/calls", "a") as file:
                file.write(json.dumps(sys.argv[1:]) + "\\n")
            words = sys.argv[1:]
            if words[0] == "run":
                name = words[words.index("--name") + 1] if "--name" in words else "id-of-it"
                if "--cidfile" in words:
                    with open(words[words.index("--cidfile") + 1], "w") as file:
                        file.write(name)
                container = subprocess.Popen(["/bin/sh", "-c", os.environ["CONTAINER"]], start_new_session=True)
                with open(folder + "/" + name, "w") as file:
                    file.write(str(container.pid))
                signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
                sys.exit(container.wait())
            elif words[0] == "kill":
                with open(folder + "/" + words[1]) as file:
                    os.kill(int(file.read()), signal.SIGKILL)
            """)
    )
    program.chmod(0o755)
    return program


def _calls(docker: Path) -> list[list[str]]:
    return [json.loads(line) for line in (docker.parent / "calls").read_text().splitlines()]


def _docker_launch(docker: Path, fake: FakeServer, *options: str) -> Launch:
    env = {"PATH": f"{docker.parent}:{ENV['PATH']}", "CONTAINER": "exec " + shlex.join(fake.command)}
    return prepare_launch("s", ["docker", "run", "-i", "--rm", *options, "img"], env, str(docker.parent))


async def _stopped(launch: Launch, fake: FakeServer) -> ServerProcess:
    async with started(launch) as process:
        async with talking(process, fake):
            pass
        await process.stop(0.1)
    return process


async def test_life_06_a_container_that_outlives_its_client_is_ended_by_its_exact_name(
    docker: Path, fake: FakeServer
) -> None:
    fake.on_eof().on_signal("SIGTERM")
    assert (await _stopped(_docker_launch(docker, fake), fake)).exit_way == "term"
    assert fake.alive() == []
    run, kill = _calls(docker)
    assert run[:2] == ["run", "--name"]
    assert kill == ["kill", run[2]]
    assert run[2].startswith("openprogram-mcp-")


@pytest.mark.parametrize(
    ("options", "name"), [(["--name", "mine"], "mine"), (["--cidfile", "id"], "id-of-it")], ids=["name", "cidfile"]
)
async def test_life_06_a_container_that_the_configuration_names_is_ended_where_its_client_had_to_be(
    options: list[str], name: str, docker: Path, fake: FakeServer
) -> None:
    fake.on_eof().on_signal("SIGTERM")
    await _stopped(_docker_launch(docker, fake, *options), fake)
    assert fake.alive() == []
    assert _calls(docker) == [["run", "-i", "--rm", *options, "img"], ["kill", name]]


async def test_life_06_a_container_that_the_configuration_names_is_left_alone_where_its_client_ended_by_itself(
    docker: Path, fake: FakeServer
) -> None:
    """Its name may be another's by then; most of all where it could not start because another has it."""
    process = await _stopped(_docker_launch(docker, fake, "--name", "mine"), fake)
    assert process.exit_way == "eof"
    assert [words[0] for words in _calls(docker)] == ["run"]


@pytest.mark.parametrize("program", ["sleep 600", "exit 1", None])
async def test_life_06_ending_a_container_is_bounded_and_never_fails(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openprogram_mcp.transports._containers._END_SECONDS", 0.2)
    docker = tmp_path / "docker"
    if program is not None:
        docker.write_text(f"#!/bin/sh\n{program}\n")
        docker.chmod(0o755)
    before = descriptors()
    with trio.fail_after(5):
        await end_container(Container((str(docker),), "openprogram-mcp-x", ours=True), ENV, None, "eof")
    assert descriptors() == before


@pytest.mark.parametrize("content", [None, "", "--all", "a b", "$(x)"])
async def test_life_06_only_what_can_be_an_id_is_ended(content: str | None, docker: Path) -> None:
    if content is not None:
        await trio.Path(docker.parent / "id").write_text(content)
    await end_container(Container((str(docker),), id_file="id"), ENV, str(docker.parent), "term")
    assert not (docker.parent / "calls").exists()
