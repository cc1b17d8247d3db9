"""What every test shares: a state directory of its own, so that no test sees or touches the user's."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory, named by the environment variable, for the time of one test."""
    path = tmp_path / "state"
    monkeypatch.setenv("OPENPROGRAM_MCP_STATE_DIR", str(path))
    return path
