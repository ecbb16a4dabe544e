"""Overload: a server, or a fleet, is asked for many times what it can do, and does what it can.

    python tests/soak/overload.py [--seconds 600] [--times 10] [SERVER'S OPTIONS]...

What it can do is measured first, by clients of whom each asks again when it is answered. Then requests come
at ``--times`` that rate, whether others are answered or not, until all clients leave at once. In the end
clients come all at once and obey ``Retry-After``. What must hold is a line each, with its limit; the exit
status is 1 if one does not.

The program that asks takes CPU from the server, and more of it under overload. So capacity is scaled to the
cores that it and other programs leave.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from crowds import Crowd, Outcomes, percentile
from launched_server import Roles, load_of, server
from request_mix import Mix
from shares import Meter, Shares
from soak_samples import ProcessSampler, Sample, median_slope

POLL_S, SAMPLE_S = 0.5, 5.0
LEAST_GOODPUT = 0.9
# Of the time that all requests take which a server holds, running or waiting.
LONGEST = 2.0
# By what a process may grow in the last two thirds of the overload.
MOST_GROWTH_MB = 32.0
RECOVERED_AFTER_S = 5.0
# Beside what a request took before.
SLOWER, SLOWER_S = 2.0, 0.5
# Of those of a burst that come back when they may, so many are refused again, and all is over within so much
# of the time that it takes.
REFUSED_AGAIN, BURST_LATE = 0.1, 1.5
# Nobody is asked to come later than after a minute.
COMES_BACK_S = 50.0


@dataclass
class Property:
    """What must hold: a value, and the most or the least that it may be."""

    name: str
    value: float
    limit: float
    unit: str = ""
    is_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.is_least else self.value <= self.limit

    def __str__(self) -> str:
        limit = f"at {'least' if self.is_least else 'most'} {self.limit:.2f}"
        return f"{'holds' if self.holds else 'WRONG':<6}{self.name}: {self.value:.2f} {self.unit}, {limit}"


@dataclass
class HealthPoll:
    """What a server's health check says meanwhile."""

    client: httpx.AsyncClient
    reported: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    async def poll(self) -> None:
        while True:
            began = time.monotonic()
            try:
                answer = await self.client.get("/health", timeout=30)
                status = f"{answer.status_code} {answer.json().get('status', '')}".strip()
            except httpx.HTTPError as exc:
                status = type(exc).__name__
            self.reported[status] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(POLL_S)


async def keep_sampling(sampler: ProcessSampler) -> None:
    while True:
        await sampler.sample()
        await asyncio.sleep(SAMPLE_S)


@contextlib.asynccontextmanager
async def beside(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs these meanwhile. An error in one of them ends the run."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each) for each in coroutines]
        yield
        for task in running:
            task.cancel()


def held_by(log: str) -> tuple[int, int]:
    """How many requests run at once and how many wait, by what the launcher says of each replica."""
    found = re.findall(r"holds (\d+) requests at once .*?, (\d+) more wait", log)
    return sum(int(running) for running, _ in found), sum(int(waiting) for _, waiting in found)


def burst_size(running: int, waiting: int, capacity: float) -> int:
    """Half as much again as a server holds, or as many as have their turn before the latest Retry-After."""
    beyond = min((running + waiting) / 2, COMES_BACK_S * capacity - waiting / 2)
    return running + waiting + max(5, round(beyond))


def growth_mb(samples: Sequence[Sample]) -> tuple[float, str]:
    """By how much a process has at most grown in the last two thirds of these, steps aside, and which."""
    found = []
    for pid in {sample.pid for sample in samples}:
        own = [sample for sample in samples if sample.pid == pid]
        late = own[len(own) // 3 :]
        seconds = [each.seconds for each in late]
        if len(late) > 1:
            slope = median_slope(seconds, [each.private for each in late])
            found.append((slope * (seconds[-1] - seconds[0]) / 1e6, own[-1].role))
    return max(found, default=(0.0, "none"))


async def run(arguments: argparse.Namespace, options: list[str], folder: Path) -> list[str]:
    """Prints what was measured and what must hold; returns what does not."""
    log = folder / "log"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
    async with (
        server(options, log) as (launcher, url),
        httpx.AsyncClient(base_url=url, limits=limits, timeout=300, trust_env=False) as client,
    ):
        running, waiting = held_by(log.read_text())
        mix = Mix(client, arguments.seed, is_short=True)
        await mix.prepare()
        crowd = Crowd(client, mix)
        sampler = ProcessSampler(Roles(launcher, client), folder / "samples.csv")
        await sampler.sample()
        await crowd.closed_loop(len(mix.kinds), 1.0)
        before = await crowd.in_turn(2)

        meter, measured = Meter(sampler), arguments.capacity_seconds
        async with beside(keep_sampling(sampler)):
            alone = await crowd.closed_loop(arguments.clients, measured)
        if not alone.done:
            raise SystemExit(f"nothing was answered: {dict(alone.statuses)}")
        capacity, had = alone.per_second(measured / 5, measured), await meter.read()
        print(f"asked: {', '.join(mix.kinds)}; held: {running} running, {waiting} waiting")
        print(f"capacity: {capacity:.2f} requests/s of {arguments.clients} clients; {had}")
        print(f"a request costs {had.server / capacity:.3f} s of the server's CPU", flush=True)

        meter, health = Meter(sampler), HealthPoll(client)
        first, draw = len(sampler.samples), random.Random(arguments.seed)
        async with beside(keep_sampling(sampler), health.poll()):
            outcomes, sent, left = await crowd.open_loop(arguments.times * capacity, arguments.seconds, draw)
        has = await meter.read()
        # Until as many have come as it holds, and the first of these end, it has less to do.
        goodput = outcomes.per_second(min(20.0, arguments.seconds / 4), arguments.seconds)
        growth, grown = growth_mb(sampler.samples[first:])
        await asyncio.sleep(RECOVERED_AFTER_S)
        after, load = await crowd.in_turn(2), await load_of(client)
        report(outcomes, sent, left, goodput, has)
        print(f"health: {dict(health.reported)}, slowest {health.slowest:.2f} s", flush=True)

        scaled = capacity * min(1.0, has.left / had.left)
        burst_of = burst_size(running, waiting, capacity)
        burst, refused = await crowd.obedient_burst(burst_of)
        burst_s, again = max(burst.done, default=burst.started) - burst.started, len(burst.refusals) - refused
        print(
            f"burst of {burst_of}: {dict(burst.statuses)}, {refused} refused at first; "
            f"Retry-After {spread(burst)}; over after {burst_s:.1f} s"
        )
        ended = outcomes.statuses.total() + left
        unwell = sum(n for status, n in health.reported.items() if not status.startswith("200"))
        strange = {
            each: n
            for each, n in (outcomes.statuses + burst.statuses + after.statuses).items()
            if each not in ("200", "429")
        }
        slower = max(
            statistics.median(after.seconds[kind] or [float("inf")])
            / (SLOWER * statistics.median(before.seconds[kind]) + SLOWER_S)
            for kind in mix.kinds
        )
        all_hold = [
            Property(
                "goodput of what capacity is beside the load", goodput / scaled, LEAST_GOODPUT, "", True
            ),
            Property(
                f"99th percentile of what was admitted ({running} running and {waiting} waiting, {LONGEST:g} "
                f"times what they take)",
                percentile(outcomes.all_seconds, 0.99),
                LONGEST * (running + waiting) / goodput,
                "s",
            ),
            Property(f"memory that {grown} grows by", growth, MOST_GROWTH_MB, "MB"),
            Property(
                f"a request {RECOVERED_AFTER_S:g} s after the overload, of {SLOWER:g} times what it took "
                f"before and {SLOWER_S:g} s",
                slower,
                1.0,
            ),
            Property("requests that are left", float(load), 0.0),
            Property("requests without an end", float(sent - ended), 0.0),
            Property(f"neither answered nor refused {strange or ''}", float(sum(strange.values())), 0.0),
            Property("health checks that failed", float(unwell), 0.0),
            Property(
                f"share that is refused again of {len(burst.refusals)} that come back when Retry-After says",
                again / max(len(burst.refusals), 1),
                REFUSED_AGAIN,
            ),
            Property("a burst that obeys Retry-After", burst_s, BURST_LATE * burst_of / capacity, "s"),
            Property(f"connections left in CLOSE_WAIT {sampler.problems or ''}", len(sampler.problems), 0.0),
        ]
    print(*all_hold, sep="\n")
    return [str(each) for each in all_hold if not each.holds]


def spread(outcomes: Outcomes) -> str:
    reported = sorted(seconds for _, seconds in outcomes.refusals)
    return (
        f"{reported[0]} to {reported[-1]} s, median {statistics.median(reported):g}" if reported else "none"
    )


def report(outcomes: Outcomes, sent: int, left: int, goodput: float, has: Shares) -> None:
    print(f"sent {sent}, {left} left in the end; {json.dumps(outcomes.statuses)}")
    print(f"goodput: {goodput:.2f}/s; {has}")
    print(f"an answer costs {has.server / goodput:.3f} s of the server's CPU, refusals included")
    print(f"{'answered':<16}{'count':>7}{'p50':>9}{'p95':>9}{'p99':>9}")
    for kind, values in (*outcomes.seconds.items(), ("all", outcomes.all_seconds)):
        cells = "".join(f"{percentile(values, share):>8.2f}s" for share in (0.5, 0.95, 0.99))
        print(f"{kind:<16}{len(values):>7}{cells}")
    times = ", ".join(
        f"p{share * 100:.0f} {percentile(outcomes.refused_s, share):.3f} s" for share in (0.5, 0.95)
    )
    print(f"refused within {times}; Retry-After {spread(outcomes)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--capacity-seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=7)
    arguments, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(run(arguments, options, Path(folder)))
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
