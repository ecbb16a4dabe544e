"""The campaign in virtual time: random requests and faults, judged; what fails is shortened and printed.

python tests/campaign/run.py [--schedules 10000] [--seconds 3600] [--seed 1] [--only NUMBER]
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from campaign import schedules

# Played by one process at a time, and until the next line of progress.
_A_PIECE = 50
_A_ROUND = 1000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="none begins after so long")
    parser.add_argument("--seed", type=int, default=1, help="which (default: %(default)s)")
    parser.add_argument("--only", type=int, help="the number of one schedule, with its events")
    args = parser.parse_args(argv)
    if args.only is not None:
        events = schedules.drawn(args.seed, args.only)
        print(*events, sep="\n")
        verdict = schedules.play(events, args.seed, args.only)
        print(*verdict.outcomes, sep="\n")
        return _report(args.seed, {args.only: verdict.problems} if verdict.problems else {})
    began = time.monotonic()
    outcomes: Counter[str] = Counter()
    broken: dict[int, list[str]] = {}
    played_so_far = 0
    with ProcessPoolExecutor(os.process_cpu_count() if hasattr(os, "process_cpu_count") else None) as pool:
        while played_so_far < args.schedules:
            end = min(played_so_far + _A_ROUND, args.schedules)
            pieces = [range(at, min(at + _A_PIECE, end)) for at in range(played_so_far, end, _A_PIECE)]
            for counted, found in pool.map(partial(played, args.seed), pieces):
                outcomes += counted
                broken |= found
            played_so_far, seconds = end, time.monotonic() - began
            print(f"{played_so_far:,} schedules, {len(broken)} broken, {seconds:.0f} s", flush=True)
            if args.seconds is not None and seconds > args.seconds:
                break
    print(", ".join(f"{count:,} {kind}" for kind, count in outcomes.most_common()))
    return _report(args.seed, broken)


def played(seed: int, numbers: Sequence[int]) -> tuple[Counter[str], dict[int, list[str]]]:
    """How the requests of these schedules ended, and what was wrong with which schedule."""
    logging.disable(logging.CRITICAL)
    outcomes: Counter[str] = Counter()
    broken = {}
    for number in numbers:
        verdict = schedules.play(schedules.drawn(seed, number), seed, number)
        outcomes.update(outcome.partition(":")[0] for outcome in verdict.outcomes)
        if verdict.problems:
            broken[number] = verdict.problems
    return outcomes, broken


def _report(seed: int, broken: dict[int, list[str]]) -> int:
    logging.disable(logging.CRITICAL)
    for number, problems in broken.items():
        print(f"\nschedule {number} of seed {seed} (--seed {seed} --only {number}):", *problems, sep="\n  ")
        shortest = schedules.shortest(schedules.drawn(seed, number), seed, number)
        print("without the events that it fails without:", *shortest, sep="\n  ")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
