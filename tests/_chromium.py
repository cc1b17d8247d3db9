"""A real Chromium, of npm, that runs one of the scripts beside the servers."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from . import servers

__all__ = ["browse", "needs_chromium"]

_UNPACKED = Path(__file__).parent.parent / ".cache" / "chromium"

needs_chromium = [
    pytest.mark.real,
    pytest.mark.usefixtures("npm_servers"),
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64", reason="needs Linux on x86_64: Chromium of npm"
    ),
]
"""The marks of a module whose tests use it."""


async def browse(script: str, *arguments: str, home: Path) -> dict[str, Any]:
    """Run a script in which Chromium goes somewhere; what it prints.

    Args:
        script: One of the scripts in ``servers``.
        arguments: What it is given.
        home: Where Chromium keeps what it keeps.
    """
    # It is unpacked once, beside what else is made once.
    await trio.Path(_UNPACKED).mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "TMPDIR": str(_UNPACKED), "HOME": str(home)}
    # The package unpacks the libraries that Chromium needs where it takes itself to be in that cloud.
    env["AWS_EXECUTION_ENV"] = "AWS_Lambda_nodejs22.x"
    done = await trio.run_process(servers.script(script, *arguments), capture_stdout=True, env=env)
    told: dict[str, Any] = json.loads(done.stdout)
    return told
