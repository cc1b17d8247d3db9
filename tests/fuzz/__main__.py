"""Look for bytes that break a stdio connection: ``python -m tests.fuzz [--seconds N] [--engine E] [FILE...]``.

With atheris (the extra ``fuzz``), what is looked for is guided by which lines of ours an input reaches. Where atheris
cannot be installed, Hypothesis makes the inputs up, without such a guide. With files, these inputs are played, no
others. What is found is written to ``.cache/fuzz``, and how to play it again is said.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
SEEDS = Path(__file__).parent / "corpus"
FOUND = ROOT / ".cache" / "fuzz"


def reproducer(data: bytes) -> str:
    """Write an input that has broken something, and say how to play it again."""
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"broken-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return (
        f"\nThis input breaks it: {data!r}\n"
        f"To play it again: {Path(sys.executable).name} -m tests.fuzz {path.relative_to(ROOT)}"
    )


def played(check: Callable[[bytes], None], data: bytes) -> None:
    """Play an input; one that breaks something is kept and said."""
    try:
        check(data)
    except BaseException:
        print(reproducer(data), file=sys.stderr, flush=True)
        raise


def with_atheris(atheris: Any, seconds: int) -> None:
    """Look with atheris. Does not return: libFuzzer ends the process."""
    with atheris.instrument_imports(include=["openprogram_mcp.transports"]):
        from ._target import MAX_BYTES, check

    corpus = FOUND / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-dict={SEEDS.parent / 'json.dict'}",
        f"-artifact_prefix={FOUND}/",
        "-timeout=20",  # an input that takes as long as this is a find, too
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus), str(SEEDS)], lambda data: played(check, data))
    atheris.Fuzz()


def with_hypothesis(seconds: float) -> int:
    """Look with Hypothesis; say how many inputs were played."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    from ._target import check

    seeds = [path.read_bytes() for path in sorted(SEEDS.iterdir())]
    words = [word for seed in seeds for word in seed.split(b'"')] + [b"\n", b'"', b'"id":1', b"\xff", b"\xe2\x80\xa8"]
    inputs = (
        st.binary(max_size=400)
        | st.lists(st.sampled_from(words) | st.binary(max_size=5), max_size=40).map(b"".join)
        | st.builds(
            lambda seed, start, cut, other: seed[: start % (len(seed) + 1)] + other + seed[cut % (len(seed) + 1) :],
            st.sampled_from(seeds),
            st.integers(0, 5000),
            st.integers(0, 5000),
            st.binary(max_size=20),
        )
    )
    count = 0
    failed: list[bytes] = []

    @settings(
        max_examples=100,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.generate, Phase.shrink],
    )
    @given(inputs)
    def look(data: bytes) -> None:
        nonlocal count
        count += 1
        try:
            check(data)
        except BaseException:
            failed.append(data)
            raise

    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            look()
    except BaseException:
        if failed:  # the last one is the smallest
            print(reproducer(failed[-1]), file=sys.stderr, flush=True)
        raise
    return count


def main(argv: list[str] | None = None) -> None:
    """Look for bytes that break it, or play those of files."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Look for bytes that break a stdio connection."
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long to look (60)")
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), help="atheris where it is installed")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="play these inputs instead")
    chosen = parser.parse_args(argv)
    if chosen.files:
        from ._target import check

        for path in chosen.files:
            played(check, path.read_bytes())
        print(f"{len(chosen.files)} played, and nothing broke.")
        return
    if chosen.engine != "hypothesis":
        try:
            atheris = importlib.import_module("atheris")
        except ImportError as error:
            if chosen.engine == "atheris":
                sys.exit(f"atheris is not installed: {error}")
            print("atheris is not installed here, so Hypothesis looks, without being guided by coverage.", flush=True)
        else:
            print(f"atheris looks for {chosen.seconds} s.", flush=True)
            with_atheris(atheris, chosen.seconds)
    count = with_hypothesis(chosen.seconds)
    print(f"{count} inputs in {chosen.seconds} s, and nothing broke.")


if __name__ == "__main__":
    main()
