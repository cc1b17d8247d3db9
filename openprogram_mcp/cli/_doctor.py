"""``doctor`` and ``config-path``: what can be told about the installation without starting any server."""

from __future__ import annotations

from typing import Any

from ..paths import config_path
from ._output import Output
from ._parser import Options

__all__ = ["run_config_path", "run_doctor"]

_MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warning", "yellow"), "error": ("error", "red")}


def run_config_path(_options: Options, output: Output) -> int:
    """Where the configuration file is."""
    path = config_path()
    if output.json:
        output.value({"path": str(path), "exists": path.exists()})
    else:
        output.text(str(path))
    return 0


def run_doctor(_options: Options, output: Output) -> int:
    """Check the configuration, the programs it names and the permissions of files."""
    from ._checks import check_all

    checks = check_all()
    healthy = not any(check.level == "error" for check in checks)
    if output.json:
        output.value({"ok": healthy, "checks": [check.to_dict() for check in checks]})
    elif output.terminal:
        rows: list[tuple[Any, ...]] = []
        for check in checks:
            rows.append((_MARKS[check.level], (check.subject, "bold"), check.text))
            if check.remedy:
                rows.append((("", ""), ("", ""), (check.remedy, "italic")))
        output.table(("", "", ""), rows)
    else:
        for check in checks:
            output.row(check.level, check.subject, check.text, check.remedy)
    return 0 if healthy else 1
