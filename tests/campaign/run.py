"""``make campaign``: random requests and faults in virtual time, judged; what fails is shortened and printed.

python tests/campaign/run.py [--schedules 10000] [--seed 1] [--only NUMBER]
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

_A_PIECE = 50


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (default: %(default)s)")
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
    pieces = [range(at, min(at + _A_PIECE, args.schedules)) for at in range(0, args.schedules, _A_PIECE)]
    with ProcessPoolExecutor(os.process_cpu_count() if hasattr(os, "process_cpu_count") else None) as pool:
        for done, (counted, found) in enumerate(pool.map(partial(played, args.seed), pieces), start=1):
            outcomes += counted
            broken |= found
            if done % 20 == 0 or done == len(pieces):
                seconds = time.monotonic() - began
                print(
                    f"{pieces[done - 1][-1] + 1:,} schedules, {len(broken)} broken, {seconds:.0f} s",
                    flush=True,
                )
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
