"""Many who edit at once: two workers, the command line and an editor change one file, and no edit is lost or hidden.

Each of the four has a server of its own, which nobody else touches, and they share one. In its own the last edit that
was acknowledged has to stand at the end. The shared one holds a number that everybody reads and raises: had an edit
been lost unseen, the number would be less than the edits that were acknowledged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from openprogram_mcp.errors import OpenProgramMCPError
from openprogram_mcp.storage import PrivateFile
from openprogram_mcp.web.client import WorkerClient
from openprogram_mcp.web.worker_file import WorkerInfo

from ._worker_process import command, until, worker, write_servers

TOKEN = "a-token-of-a-secondary-worker"
SHARED = "shared"

# The editor of `edit`: raises the number that the entry has as its description.
RAISE = """
import json, pathlib, re, sys
file = pathlib.Path(sys.argv[1])
entry = json.loads(re.sub(r'(?m)^//.*$', '', file.read_text()))
entry['description'] = str(int(entry['description']) + 1)
file.write_text(json.dumps(entry))
"""


@define
class Tally:
    """What one of them has done."""

    name: str
    raised: int = 0
    conflicts: int = 0
    own: str = "0"
    faults: list[str] = field(factory=list)


def through_api(client: WorkerClient) -> Callable[[Tally, str, int], None]:
    """Edits through a worker's API, with the revision of what was read."""

    def edit(tally: Tally, server: str, _turn: int) -> None:
        row, revision = client.get_with_revision("servers", server)
        raised = str(int(row["config"]["description"]) + 1)
        client.patch("servers", server, body={"description": raised}, revision=revision)

    return edit


def through_command_line(tally: Tally, server: str, _turn: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "openprogram_mcp", "edit", server, "--json"],
        env={**os.environ, "VISUAL": f"{sys.executable} -c '{RAISE.replace(chr(39), chr(34))}'"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if ran.returncode:
        problem = json.loads(ran.stdout)["error"]
        raise Refused(problem["code"], f"{problem['detail']} {ran.stderr}")


def through_editor(path: Path) -> Callable[[Tally, str, int], None]:
    """An editor, which formats as it likes, and puts a new file in the place of the old one if that is as it was."""

    def edit(tally: Tally, server: str, turn: int) -> None:
        before = path.read_bytes()
        value = json.loads(before)
        entry = value["servers"][server]
        entry["description"] = str(int(entry["description"]) + 1)
        new = path.with_name("editor.new")
        new.write_text(json.dumps(value, indent=turn % 5 or None))
        new.chmod(0o600)
        # No editor has a lock; then whoever saves between this look and the next line is lost, and no test of ours.
        with PrivateFile(path).locked():
            if path.read_bytes() != before:
                raise Refused("revision_conflict", "the file was changed")
            new.replace(path)

    return edit


class Refused(Exception):
    """An edit was refused; ``code`` says why."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(f"{code}: {said}")
        self.code = code


def work(tally: Tally, edit: Callable[[Tally, str, int], None], turns: int) -> Tally:
    """Edit one's own server and the shared one in turn; note what was acknowledged and what was a conflict."""
    for turn in range(turns):
        server = SHARED if turn % 2 else tally.name
        try:
            edit(tally, server, turn)
        except (OpenProgramMCPError, Refused) as error:
            code = error.code if isinstance(error, Refused) else error.to_problem()["code"]
            if code == "revision_conflict":
                tally.conflicts += 1
            else:
                tally.faults.append(str(error))
            continue
        if server == SHARED:
            tally.raised += 1
        else:
            tally.own = str(int(tally.own) + 1)
    return tally


def secondary_client(log: str) -> WorkerClient:
    """The way to a worker that tells nobody where it is, but its log."""
    url = log.partition("serves at ")[2].split()[0]
    return WorkerClient(WorkerInfo(pid=os.getpid(), started_at="", url=url, token=TOKEN, instance=""))


def primary_client(info: dict[str, Any]) -> WorkerClient:
    return WorkerClient(WorkerInfo(**{key: info[key] for key in ("pid", "started_at", "url", "token", "instance")}))


@pytest.mark.parametrize("edits", [pytest.param(1000, marks=pytest.mark.long), 64])
def test_conf_of_all_edits_at_once_none_is_lost_and_no_conflict_goes_unreported(
    edits: int, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["first", "second", "typed", "editor"]
    secret = {"KEY": "hunter2"}
    entry = {"command": ["x"], "enabled": False, "description": "0", "env": secret, "future": [1]}
    write_servers(state_dir, dict.fromkeys([*names, SHARED, "bystander"], entry))
    path = state_dir / "mcp_servers.json"
    with worker(state_dir) as first:
        monkeypatch.setenv("OPENPROGRAM_MCP_TOKEN", TOKEN)
        with worker(state_dir, "--secondary") as second:
            ways = [
                through_api(primary_client(first.info)),
                through_api(secondary_client(second.log)),
                through_command_line,
                through_editor(path),
            ]
            # A start of Python costs as much as many edits through an API.
            shares = [3, 3, 1, 3]
            with ThreadPoolExecutor(len(ways)) as pool:
                turns = [max(4, edits * share // sum(shares)) for share in shares]
                tallies = list(pool.map(work, map(Tally, names), ways, turns))
            servers = json.loads(path.read_text())["servers"]
            said = f"{first.process.poll()} {second.process.poll()}\n{first.log[-2000:]}\n{second.log[-2000:]}"
            assert [tally.faults[:3] for tally in tallies] == [[], [], [], []], said
            assert set(servers) == {*names, SHARED, "bystander"}
            assert {tally.name: tally.own for tally in tallies} == {
                name: servers[name]["description"] for name in names
            }
            assert int(servers[SHARED]["description"]) == sum(tally.raised for tally in tallies)
            for name, found in servers.items():
                assert {**found, "description": "0"} == entry, name
            assert servers["bystander"] == entry
            assert path.stat().st_mode & 0o777 == 0o600
            assert sum(tally.raised + int(tally.own) + tally.conflicts for tally in tallies) == sum(turns)
            assert all(int(tally.own) for tally in tallies), "everybody got through"
            # Both workers follow the file to its end.
            for client in (primary_client(first.info), secondary_client(second.log)):
                for name in names:
                    until(
                        lambda client=client, name=name: (
                            client.get("servers", name)["config"]["description"]  # type: ignore[misc]  # what it stands for at this moment
                            == servers[name]["description"]
                        ),
                        f"{name} as it is in the file",
                    )
            assert command("list").code == 0
