"""Chaos: ``python -m tests.chaos [--seed N] [--seconds N | --faults N]``.

Real servers under random faults, against callers and editors; and afterwards the comparison of what the callers were
told, what the events said and what the servers themselves have written down. Says the seed, and how much there was of
everything; on a contradiction all that is known of the calls concerned, and where the servers' records are.

A seed gives the same choices again, and not the same moments: these are real processes.
"""

from __future__ import annotations

import argparse
import math
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio
from attrs import define

from ._fire import Folder
from ._life import Life, Report

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / ".cache" / "chaos"


@define(kw_only=True)
class Settings:
    """How long, and how much at once.

    Args:
        seed: What all choices are drawn from.
        seconds: After so many seconds no further round is begun.
        faults: Nor after so many faults.
        servers: How many local servers.
        remote: How many remote servers.
        callers: How many callers.
        rate: Faults a second.
        rounds: How many rounds a life has.
        round_faults: How many faults a round has.
        folder: Where the servers' folders are.
    """

    seed: int
    seconds: float = math.inf
    faults: float = math.inf
    servers: int = 8
    remote: int = 4
    callers: int = 16
    rate: float = 40.0
    rounds: int = 6
    round_faults: int = 200
    folder: Path = KEPT


async def chaos(settings: Settings, say: Callable[[str], None] = lambda _text: None) -> Report:
    """Lives until it is enough, or something is broken; then what has happened."""
    report = Report(settings.seed)
    end = time.monotonic() + settings.seconds

    def enough() -> bool:
        return bool(report.broken) or time.monotonic() >= end or report.total >= settings.faults

    while not enough():
        path = settings.folder / f"{settings.seed}.{report.lives + 1}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        life = Life(report, Folder(path, settings.servers, settings.remote), settings.callers, settings.rate, enough)
        await life.live(settings.rounds, settings.round_faults)
        if report.broken:
            say(f"The servers' records are in {path}.")
        else:
            shutil.rmtree(path)
        say(report.text())
    return report


def main(argv: list[str] | None = None) -> int:
    """Run it, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Real servers under random faults.")
    parser.add_argument("--seed", type=int, help="what all choices are drawn from (a new one, which is said)")
    parser.add_argument("--seconds", type=float, help="no further round after so many seconds (60)")
    parser.add_argument("--faults", type=int, help="no further round after so many faults; without a limit in time")
    parser.add_argument("--servers", type=int, default=8, help="how many local servers (8)")
    parser.add_argument("--remote", type=int, default=4, help="how many remote servers (4)")
    parser.add_argument("--callers", type=int, default=16, help="how many callers (16)")
    parser.add_argument("--rate", type=float, default=40.0, help="faults a second (40)")
    parser.add_argument("--round-faults", type=int, default=200, help="faults between two calms (200)")
    chosen = parser.parse_args(argv)
    settings = Settings(
        seed=secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed,
        seconds=chosen.seconds or (math.inf if chosen.faults else 60.0),
        faults=chosen.faults or math.inf,
        servers=chosen.servers,
        remote=chosen.remote,
        callers=chosen.callers,
        rate=chosen.rate,
        round_faults=chosen.round_faults,
    )
    print(f"seed {settings.seed}", flush=True)
    report = trio.run(chaos, settings, lambda text: print(text, flush=True))
    for sentence in report.broken:
        print(f"\nBROKEN: {sentence}", file=sys.stderr)
    if report.broken:
        print(f"\n{len(report.broken)} contradictions; again with: make chaos SEED={settings.seed}", file=sys.stderr)
        return 1
    print("Nothing was lost.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
