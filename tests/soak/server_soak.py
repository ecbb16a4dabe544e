"""Soak of a whole server: hours of a little traffic of all sorts, while stages are killed now and then.

    python tests/soak/server_soak.py [--hours 2] [--out FOLDER] [SERVER'S OPTIONS]...

By default the server is a fleet of the bundled speech-chat behind its router. Every answer is checked, every
process that is killed must be back, and every ten seconds what each process has is written to samples.csv,
which is drawn in the end. After its first third no process may grow: in private memory by a megabyte a
minute, in descriptors, threads and memory files at all. Exits with status 1 if one of that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
from launched_server import Roles, load_of, server
from request_mix import Mix
from soak_plots import draw
from soak_samples import Growth, ProcessSampler, growths, table
from soak_traffic import Kills, PacedTraffic, unwell

FLEET = ["--dp-size", "2"]
SAMPLE_S, PROGRESS_S = 10.0, 60.0
# Idle connections are closed after 30 s at most.
SETTLE_S = 45.0


class CpuBudget:
    """Says when a server may be asked again, to use no more than so many cores in the mean."""

    def __init__(self, sampler: ProcessSampler, cores: float) -> None:
        self._sampler, self._cores = sampler, cores
        self._began, self._used = time.monotonic(), sampler.cpu_seconds

    @property
    def cores(self) -> float:
        """What was used of it so far, in the mean."""
        return (self._sampler.cpu_seconds - self._used) / max(time.monotonic() - self._began, 1e-9)

    def has_time(self) -> bool:
        return self.cores <= self._cores


async def sample(sampler: ProcessSampler) -> None:
    while True:
        await sampler.sample()
        await asyncio.sleep(SAMPLE_S)


async def show(traffic: PacedTraffic, sampler: ProcessSampler, budget: CpuBudget, until: float) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        last = sampler.samples[-1].seconds
        present = {each.role: each for each in sampler.samples if each.seconds > last - SAMPLE_S}.values()
        print(
            f"{last / 60:.0f} min, {max(0, until - time.monotonic()) / 60:.0f} to go: "
            f"{traffic.outcomes.total()} requests, slowest {traffic.slowest:.1f} s, {len(traffic.problems)} "
            f"problems; {sum(each.private for each in present) / 1e6:,.0f} MB, "
            f"{sum(each.descriptors for each in present)} descriptors, "
            f"{sum(each.threads for each in present)} threads; {budget.cores:.2f} cores",
            flush=True,
        )


async def run(arguments: argparse.Namespace, options: list[str], out: Path) -> list[str]:
    """Prints what happened; returns what does not hold."""
    log = out / "server.log"
    draw_kills = random.Random(arguments.seed)
    async with (
        server(options, log) as (launcher, url),
        # What a client waits by default: OpenAI's.
        httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client,
    ):
        mix = Mix(client, arguments.seed, is_short=False)
        await mix.prepare()
        roles = Roles(launcher, client)
        sampler = ProcessSampler(roles, out / "samples.csv")
        await sampler.sample()
        kills = Kills(roles, client, draw_kills)
        traffic = PacedTraffic(url, client, mix, kills, arguments.seed)
        until = time.monotonic() + arguments.hours * 3600
        budget = CpuBudget(sampler, arguments.cores)
        print(f"{url}: {', '.join(mix.kinds)}, for {arguments.hours * 60:.0f} minutes", flush=True)
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(sample(sampler)),
                tasks.create_task(show(traffic, sampler, budget, until)),
            ]
            await asyncio.gather(
                traffic.run(arguments.every, until, budget.has_time),
                kills.run(arguments.kill_every * 60, until),
            )
            await asyncio.sleep(SETTLE_S)
            for task in beside:
                task.cancel()
        problems = traffic.problems + kills.problems + sampler.problems
        if left := await load_of(client):
            problems.append(f"load {left} is left")
        if reason := await unwell(client):
            problems.append(reason)
        seen = [launcher, *launcher.children(recursive=True)]
    problems += [f"{process} is left" for process in seen if process.is_running()]
    found = growths(sampler.samples)
    problems += [problem for growth in found for problem in growth.problems]
    summarize(traffic, kills, found, budget)
    text = log.read_text()
    print(f"log: {len(text)} bytes, {text.count(' ERROR ')} errors, {text.count('Traceback')} tracebacks")
    print(*(f"wrote {file}" for file in draw(sampler.samples, out)), sep="\n")
    return problems


def summarize(traffic: PacedTraffic, kills: Kills, found: list[Growth], budget: CpuBudget) -> None:
    print(f"{traffic.outcomes.total()} requests, slowest {traffic.slowest:.1f} s; {budget.cores:.2f} cores")
    for outcome, count in sorted(traffic.outcomes.items()):
        print(f"{count:>6} {outcome}")
    for role, count in sorted(Counter(role for role, _ in kills.happened).items()):
        took = [seconds for each, seconds in kills.happened if each == role]
        print(f"{count:>6} kills of {role}: well again after {min(took):.1f} to {max(took):.1f} s")
    print(*table(found), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two requests, in the mean")
    parser.add_argument("--cores", type=float, default=0.2, help="no request beyond this use of CPU")
    parser.add_argument("--kill-every", type=float, default=10.0, help="minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    arguments, options = parser.parse_known_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    problems = asyncio.run(run(arguments, options or FLEET, arguments.out))
    for count, problem in enumerate(problems, 1):
        print(f"WRONG {count}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
