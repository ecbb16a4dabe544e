"""Soak: mixed traffic through a router process while its replicas are killed, stopped and revived.

    python tests/soak/router_soak.py --minutes 30 [--seed 7]

``router_traffic`` says what may become of a request. In the end nothing is in flight, the router has as many
descriptors open as before, and its memory has not grown since it had warmed up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.request import urlopen

from router_traffic import Traffic
from router_workers import Chaos

REPLICAS, CLIENTS = 4, 48
# Small enough to be full within the warm-up: a growing tree is not a leak.
TREE_BYTES = 1 << 20
# Silence after which a replica may be found hung.
HUNG_S = 2
# The first part of the run in which memory may grow, and by how much it may from its end on.
WARM_UP_SHARE, GROWTH_MB = 0.25, 8.0
# Idle connections to replicas that are gone are closed within 15 s.
SETTLE_S = 40.0


@contextlib.asynccontextmanager
async def router(urls: list[str], log: Path) -> AsyncIterator[tuple[int, str]]:
    """Process id and URL of a router."""
    # Each thread warms up its own memory: with one for every core of a large machine that takes much longer.
    options = ["--port", "0", "--threads", "4"]
    options += ["--max-tree-size", str(TREE_BYTES), "--hung-timeout", str(HUNG_S)]
    options += ["--worker-urls", *urls]
    with log.open("wb") as out:
        command = [sys.executable, "-m", "sglang_omni.launch_router", "--expose-worker-urls", *options]
        process = await asyncio.create_subprocess_exec(*command, stderr=out)
    try:
        while not (found := re.search(r"listening on (\S+)", log.read_text())):
            if process.returncode is not None:
                raise SystemExit(f"the router ended: {log.read_text()}")
            await asyncio.sleep(0.05)
        yield process.pid, found[1]
        process.terminate()
        if (status := await asyncio.wait_for(process.wait(), 30)) != 0:
            raise SystemExit(f"the router ended with status {status}: {log.read_text()[-2000:]}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def in_flight(url: str) -> dict[str, float]:
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\S*in_?flight\S*) (\S+)$", text, re.M)}


async def watch_memory(pid: int, samples: list[float], every: float) -> None:
    while True:
        samples.append(resident_mb(pid))
        await asyncio.sleep(every)


async def never(condition: Callable[[], Awaitable[str]]) -> list[str]:
    """What still stands in the way once it has had the time to go away; ``condition`` says what does."""
    deadline = time.monotonic() + SETTLE_S
    while found := await condition():
        if time.monotonic() > deadline:
            return [found]
        await asyncio.sleep(0.1)
    return []


async def leaks(pid: int, url: str, open_before: int, chaos: Chaos) -> list[str]:
    """What is still held after the traffic."""

    async def busy() -> str:
        gauges = await asyncio.to_thread(in_flight, url)
        return ", ".join(f"{name} is still {value:g}" for name, value in gauges.items() if value)

    async def more() -> str:
        count = descriptors(pid) - open_before
        return f"{count} descriptors more than before" if count > 0 else ""

    found = await never(busy)
    await chaos.stop()
    return found + await never(more)


def memory_problem(samples: list[float]) -> tuple[str, list[str]]:
    """The trend since the warm-up: medians of its first and its last quarter."""
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    quarter = max(len(warm) // 4, 1)
    first, last = statistics.median(warm[:quarter]), statistics.median(warm[-quarter:])
    text = (
        f"memory {samples[0]:.1f} MB at the start, {first:.1f} MB after the warm-up, {last:.1f} MB in the "
        f"end, {max(samples):.1f} MB at most"
    )
    return text, [f"grew: {text}"] if last - first > GROWTH_MB else []


async def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    seconds = arguments.minutes * 60
    chaos = Chaos(REPLICAS, arguments.seed)
    await chaos.start()
    samples: list[float] = []
    try:
        urls = [f"http://127.0.0.1:{replica.port}" for replica in chaos.replicas]
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            async with router(urls, Path(folder) / "router.log") as (pid, url):
                await asyncio.to_thread(in_flight, url)
                open_before = descriptors(pid)
                traffic = Traffic(url, chaos, arguments.seed)
                watching = asyncio.create_task(watch_memory(pid, samples, min(1.0, seconds / 60)))
                until = time.monotonic() + seconds
                await asyncio.gather(traffic.run(CLIENTS, until), chaos.run(until))
                watching.cancel()
                problems = traffic.problems + await leaks(pid, url, open_before, chaos)
                held = f"descriptors {open_before} before, {descriptors(pid)} after"
    finally:
        await chaos.stop()
    memory, grown = memory_problem(samples)
    print(summary(traffic, chaos), memory, held, sep="\n")
    if problems := problems + grown:
        raise SystemExit("FAILED:\n" + "\n".join(f"{count} x {text}" for text, count in kinds_of(problems)))
    print(f"{arguments.minutes:g} minutes: nothing lost, nothing leaked")


def kinds_of(problems: list[str]) -> list[tuple[str, int]]:
    """The most frequent ones; they differ in ports and times."""
    alike = Counter(re.sub(r"127\.0\.0\.1:\d+|after \d+\.\d+ s: ", "…", problem) for problem in problems)
    return alike.most_common(30)


def summary(traffic: Traffic, chaos: Chaos) -> str:
    disturbed = ", ".join(f"{count} {kind}" for kind, count in chaos.happened.items())
    lines = [f"replicas: {disturbed}", "| requests | what became of them | slowest |", "|---|---|---|"]
    for name, outcomes in sorted(traffic.outcomes.items()):
        text = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        lines.append(f"| {name} | {text} | {traffic.slowest[name]:.2f} s |")
    total = sum(sum(outcomes.values()) for outcomes in traffic.outcomes.values())
    return "\n".join([*lines, f"{total:,} requests"])


if __name__ == "__main__":
    asyncio.run(main())
