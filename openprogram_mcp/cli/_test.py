"""``test``: start one server alone, see whether it comes up, stop it again. Nothing is saved, no worker is asked."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from ..manager import MCPManager
from ._oneshot import entry, run_with_manager, saved_document
from ._output import Output
from ._parser import Options
from ._progress import Progress
from ._servers import print_server

__all__ = ["run_test"]


def run_test(options: Options, output: Output) -> int:
    """Start one server alone.

    One that is disabled is started too: to see whether it works before it is enabled is what this is for.
    """
    config = evolve(entry(saved_document(output), options.name), enabled=True)

    async def work(manager: MCPManager, _progress: Progress) -> dict[str, Any]:
        return (await manager.wait_settled(config.name)).to_dict()

    row = run_with_manager(work, output=output, configs=[config])
    if output.json:
        output.value(row)
    else:
        print_server(row, output)
        if row["ready"]:
            output.text("Its tools were listed; none was called, so that nothing is known of what they need besides.")
    return 0 if row["ready"] else 1
