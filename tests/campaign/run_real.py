"""The campaign on real processes: schedules are drawn and judged; what fails is shortened and printed.

python tests/campaign/run_real.py processes|fleet [--schedules 300] [--seconds 3600] [--seed 1]
python tests/campaign/run_real.py processes|fleet --events FILE

``processes`` is a coordinator and its stages, each in a process of its own; ``fleet`` is a whole server with
a router and two replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from campaign.playing import Verdict

_TESTS = Path(__file__).resolve().parent.parent
_PATH = (_TESTS / "campaign" / "site", _TESTS, _TESTS / "soak")
_BOARD = "SGLANG_OMNI_FAULTS"
_CREATE = "import sys; from sglang_omni._core import Switchboard; Switchboard.create(sys.argv[1])"
# A schedule's faults may not strike in each run: so often an event is tried without.
_TRIES = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tier", choices=("processes", "fleet"))
    parser.add_argument("--schedules", type=int, default=300, help="how many (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="none begins after so long")
    parser.add_argument("--seed", type=int, default=1, help="which (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--only", type=int, help="the number of one schedule, with its events")
    parser.add_argument("--events", type=Path, help="a file with the events of one, as a failure prints them")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="what the processes write")
    args = parser.parse_args(argv)
    if _BOARD in os.environ:
        return asyncio.run(_run(args))
    # All processes find the switchboard, and their Python the points, by their environment.
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        board = str(Path(folder) / "board")
        subprocess.run([sys.executable, "-c", _CREATE, board], check=True)
        path = os.pathsep.join([*map(str, _PATH), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, _BOARD: board, "PYTHONPATH": path}
        command = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)]
        with args.log.open("ab") as log:
            return subprocess.run(command, env=environment, stderr=log).returncode


async def _run(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING)
    campaign = _Campaign(importlib.import_module(f"campaign.{args.tier}"), args.seed)
    if args.only is not None or args.events is not None:
        number = args.only or 0
        drawn = campaign.tier.drawn(args.seed, number)
        events = drawn if args.events is None else campaign.parsed(args.events.read_text())
        print(_shown(events))
        verdict = await campaign.played_alone(events, number)
        print(*verdict.outcomes, *verdict.fired, *verdict.problems, sep="\n")
        return 1 if verdict.problems else 0
    number, end = args.first, args.first + args.schedules
    while number < end and not campaign.is_over(args.seconds):
        number = await campaign.play_on(number, end, args.seconds)
    print(f"{number - args.first:,} schedules on {args.tier}, {len(campaign.broken)} broken")
    for name, counted in (("requests", campaign.outcomes), ("faults", campaign.fired)):
        print(f"{name}:", ", ".join(f"{count:,} {what}" for what, count in counted.most_common()))
    for each in campaign.broken:
        await campaign.report(each)
    return 1 if campaign.broken else 0


@dataclass
class _Campaign:
    """
    Attributes:
        tier: The module that draws and plays: ``campaign.processes`` or ``campaign.fleet``.
        broken: The numbers of schedules that failed.
    """

    tier: Any
    seed: int
    began: float = field(default_factory=time.monotonic)
    outcomes: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    broken: list[int] = field(default_factory=list)

    def is_over(self, seconds: float | None) -> bool:
        return seconds is not None and time.monotonic() - self.began > seconds

    async def play_on(self, number: int, end: int, seconds: float | None) -> int:
        """Plays on one pipeline until a schedule fails on it. Returns the next number."""
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            async with self.tier.running(folder) as running:
                while number < end and not self.is_over(seconds):
                    verdict = await running.play(self.tier.drawn(self.seed, number), number)
                    self.outcomes.update(outcome.partition(":")[0] for outcome in verdict.outcomes)
                    self.fired.update(verdict.fired)
                    number += 1
                    if number % 20 == 0:
                        took = time.monotonic() - self.began
                        print(f"{number:,} schedules, {len(self.broken)} broken, {took:.0f} s", flush=True)
                    if verdict.problems:
                        print(f"schedule {number - 1}:", *verdict.problems, sep="\n  ", flush=True)
                        self.broken.append(number - 1)
                        break
        return number

    def parsed(self, text: str) -> list[Any]:
        """The events that ``_shown`` wrote."""
        return [
            getattr(self.tier, kind)(**fields) for event in json.loads(text) for kind, fields in event.items()
        ]

    async def played_alone(self, events: Sequence[Any], number: int) -> Verdict:
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            async with self.tier.running(folder) as running:
                verdict: Verdict = await running.play(events, number)
                return verdict

    async def report(self, number: int) -> None:
        """Prints a schedule that failed, without the events that it fails without."""

        async def fails(events: Sequence[Any]) -> bool:
            for _ in range(_TRIES):
                if (await self.played_alone(events, number)).problems:
                    return True
            return False

        kept = self.tier.drawn(self.seed, number)
        print(f"\nschedule {number} of seed {self.seed} (--seed {self.seed} --only {number}):")
        if not await fails(kept):
            print(f"held in {_TRIES} more runs:", _shown(kept), sep="\n")
            return
        for event in list(kept):
            without = [each for each in kept if each is not event]
            if without and await fails(without):
                kept = without
        print("without the events that it fails without:", _shown(kept), sep="\n", flush=True)


def _shown(events: Sequence[Any]) -> str:
    """Events as JSON, one a line, which ``--events`` plays."""
    lines = (json.dumps({type(event).__name__: asdict(event)}) for event in events)
    return "[\n  " + ",\n  ".join(lines) + "\n]"


if __name__ == "__main__":
    sys.exit(main())
