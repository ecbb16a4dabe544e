"""Overload: a server, or a fleet, is asked for many times what it can do, and does what it can.

    python tests/soak/overload.py [--seconds 120] [--times 10] [--least-goodput 0.9] [SERVER'S OPTIONS]...

What it can do is measured first, by clients of whom each asks again when it is answered. Then requests come
at ``--times`` that rate, whether others are answered or not. Every one of them must be answered, or refused
with 429 and ``Retry-After``; the share of ``--least-goodput`` of what it can do must be done; and all of it
must be over as soon as the last client has left. Exits with status 1 if one of that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
from answer_checks import has_failed
from launched_server import load_of, server
from request_mix import Call, Mix

SETTLE_S = 10.0
POLL_S = 0.5


@dataclass
class Outcomes:
    """What became of requests. ``done`` and ``seconds`` are of those that were answered."""

    started: float = field(default_factory=time.monotonic)
    done: list[float] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    retry_after: list[int] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def per_second(self, warm_up: float, until: float) -> float:
        """How many ended a second between two times after the start."""
        ended = [at for at in self.done if warm_up <= at - self.started < until]
        return len(ended) / (until - warm_up)


async def ask(client: httpx.AsyncClient, call: Call, outcomes: Outcomes) -> None:
    began = time.monotonic()
    try:
        async with client.stream("POST", call.path, **call.body) as answer:
            body = b"".join([piece async for piece in answer.aiter_raw()])
    except httpx.HTTPError as exc:
        outcomes.statuses[f"{call.kind}: {type(exc).__name__}"] += 1
        return
    now = time.monotonic()
    outcomes.statuses[str(answer.status_code)] += 1
    if answer.status_code == 200 and not has_failed(body):
        outcomes.done.append(now)
        outcomes.seconds[call.kind].append(now - began)
    elif answer.status_code == 429:
        outcomes.retry_after.append(int(answer.headers["retry-after"]))
        outcomes.refused_s.append(now - began)
    else:
        outcomes.statuses[f"{call.kind}: {answer.status_code} {body[-300:]!r}"] += 1


class Watch:
    """Memory of a server's processes, and what its health check says."""

    def __init__(self, launcher: psutil.Process, client: httpx.AsyncClient) -> None:
        self._launcher, self._client = launcher, client
        self.cpu: dict[str, float] = {}
        self.first = self._memory()
        self._began, self._own_began = dict(self.cpu), time.process_time()
        self.most = dict(self.first)
        self.health: Counter[str] = Counter()
        self.slowest = 0.0

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                answer = await self._client.get("/health", timeout=30)
                said = f"{answer.status_code} {answer.json().get('status', '')}".strip()
            except httpx.HTTPError as exc:
                said = type(exc).__name__
            self.health[said] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            for name, size in self._memory().items():
                self.most[name] = max(self.most.get(name, 0), size)
            await asyncio.sleep(POLL_S)

    def cpu_seconds(self, name: str) -> float:
        return self.cpu.get(name, 0.0) - self._began.get(name, 0.0)

    def own_cpu_seconds(self) -> float:
        """What asking has cost."""
        return time.process_time() - self._own_began

    def _memory(self) -> dict[str, int]:
        found = {}
        for process in (self._launcher, *self._launcher.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = " ".join(process.cmdline())
                kind = (
                    "router" if "router_process" in line else "server" if "launch_server" in line else "stage"
                )
                found[f"{kind} {process.pid}"] = process.memory_info().rss
                times = process.cpu_times()
                self.cpu[f"{kind} {process.pid}"] = times.user + times.system
        return found


async def closed_loop(client: httpx.AsyncClient, mix: Mix, clients: int, seconds: float) -> Outcomes:
    """So many clients, of whom each asks again when it is answered."""
    outcomes = Outcomes()
    kinds = itertools.cycle(mix.kinds)

    async def keep_asking() -> None:
        while time.monotonic() - outcomes.started < seconds:
            await ask(client, mix.draw(next(kinds)), outcomes)

    await asyncio.gather(*(keep_asking() for _ in range(clients)))
    return outcomes


async def open_loop(
    client: httpx.AsyncClient, mix: Mix, rate: float, seconds: float, rng: random.Random
) -> tuple[Outcomes, int, float]:
    """Requests that come at random, so many a second. Also: how many, and when the last was answered."""
    outcomes = Outcomes()
    kinds = itertools.cycle(mix.kinds)
    asked: set[asyncio.Task[None]] = set()
    sent, due = 0, outcomes.started
    while (due := due + rng.expovariate(rate)) < outcomes.started + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asking = asyncio.ensure_future(ask(client, mix.draw(next(kinds)), outcomes))
        asked.add(asking)
        asking.add_done_callback(asked.discard)
        sent += 1
    if asked:
        await asyncio.wait(asked, timeout=SETTLE_S + 120)
    return outcomes, sent, time.monotonic() - outcomes.started


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.floor(share * len(values)))] if values else math.nan


async def run(arguments: argparse.Namespace, options: list[str], log: Path) -> list[str]:
    """Prints the table; returns what does not hold."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
    async with (
        server(options, log) as (launcher, url),
        httpx.AsyncClient(base_url=url, limits=limits, timeout=SETTLE_S + 300, trust_env=False) as client,
    ):
        for line in log.read_text().splitlines():
            if " holds " in line:
                print(line[line.index("[") :])
        mix = Mix(client, arguments.seed, is_short=True)
        await mix.prepare()
        await closed_loop(client, mix, len(mix.kinds), 1.0)
        measured = arguments.capacity_seconds
        alone = await closed_loop(client, mix, arguments.clients, measured)
        if not alone.done:
            raise SystemExit(f"nothing was answered: {dict(alone.statuses)}")
        capacity = alone.per_second(measured / 5, measured)
        print(f"capacity: {capacity:.2f} requests/s ({', '.join(mix.kinds)}; {arguments.clients} clients)")
        watch = Watch(launcher, client)
        watching = asyncio.ensure_future(watch.run())
        rate, rng = arguments.times * capacity, random.Random(arguments.seed)
        outcomes, sent, over_after = await open_loop(client, mix, rate, arguments.seconds, rng)
        left = await load_of(client)
        watching.cancel()
        # Until as many have come as it holds, and the first of these end, it has less to do.
        goodput = outcomes.per_second(min(20.0, arguments.seconds / 4), arguments.seconds)
        report(outcomes, sent, goodput, capacity, watch, rate)
        print(f"all over {over_after - arguments.seconds:.1f} s after the last was sent; load then {left}")
        wrong = []
        if goodput < arguments.least_goodput * capacity:
            wrong.append(f"goodput is {goodput / capacity:.0%} of capacity")
        if strange := {each: n for each, n in outcomes.statuses.items() if each not in ("200", "429")}:
            wrong.append(f"neither answered nor refused: {strange}")
        if outcomes.statuses.total() != sent:
            wrong.append(f"{sent - outcomes.statuses.total()} of {sent} have no answer")
        if left:
            wrong.append(f"load {left} is left")
        if strange := {each: n for each, n in watch.health.items() if not each.startswith("200")}:
            wrong.append(f"health: {strange}")
        return wrong


def report(outcomes: Outcomes, sent: int, goodput: float, capacity: float, watch: Watch, rate: float) -> None:
    print(f"sent: {sent} at {rate:.1f}/s; {json.dumps(outcomes.statuses)}")
    print(f"goodput: {goodput:.2f}/s, {goodput / capacity:.0%} of capacity")
    print(f"{'answered':<16}{'count':>7}{'p50':>9}{'p95':>9}{'most':>9}")
    all_seconds = [each for values in outcomes.seconds.values() for each in values]
    for kind, values in (*outcomes.seconds.items(), ("all", all_seconds)):
        print(
            f"{kind:<16}{len(values):>7}{percentile(values, 0.5):>8.2f}s{percentile(values, 0.95):>8.2f}s"
            f"{max(values, default=math.nan):>8.2f}s"
        )
    if outcomes.retry_after:
        reported = outcomes.retry_after
        print(
            f"refused: within p50 {percentile(outcomes.refused_s, 0.5):.3f} s, p95 "
            f"{percentile(outcomes.refused_s, 0.95):.3f} s; Retry-After {min(reported)} to {max(reported)}, "
            f"median {statistics.median(reported):g}"
        )
    print(f"health: {dict(watch.health)}, slowest {watch.slowest:.2f} s")
    for name, most in watch.most.items():
        print(
            f"{name}: {watch.first.get(name, 0) / 2**20:.0f} MB, most {most / 2**20:.0f} MB, "
            f"{watch.cpu_seconds(name):.1f} s of CPU"
        )
    print(f"this process: {watch.own_cpu_seconds():.1f} s of CPU")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    number: Callable[[str], float] = float
    parser.add_argument("--seconds", type=number, default=120.0)
    parser.add_argument("--capacity-seconds", type=number, default=60.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--times", type=number, default=10.0)
    parser.add_argument("--least-goodput", type=number, default=0.9)
    parser.add_argument("--seed", type=int, default=7)
    arguments, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        wrong = asyncio.run(run(arguments, options, log))
        print(f"log: {log.stat().st_size} bytes")
    for each in wrong:
        print(f"WRONG: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
