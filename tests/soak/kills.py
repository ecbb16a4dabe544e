"""Soak: kill -9 of stages at random moments while a pipeline of three processes carries arrays.

    python tests/soak/kills.py        SOAK_KILLS=60 for a shorter run, SOAK_SEED=7 for another one

Whatever was under way when a process was killed must be answered or failed within a second of the kill, and
what comes later must be answered. In the end no process may hold a credit, a descriptor or a memory file that
it did not hold in the beginning, and /dev/shm and the runtime directory are as they were.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from traces import traces_of

from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

ROUNDS = int(os.environ.get("SOAK_KILLS", 200))
SEED = int(os.environ.get("SOAK_SEED", 1))
LOAD = 12
SETTLED_WITHIN = 1.0
SIZES = (100, 20_000, 300_000, 2_000_000, 9_000_000)
# Of the first edge: its sender, its receiver, both; and of the second one the same.
VICTIMS = (("a",), ("b",), ("a", "b"), ("c",), ("b", "c"), ("a", "b", "c"))


def config(folder: str) -> PipelineConfig:
    def stage(name: str, factory: str, **fields: Any) -> StageConfig:
        return StageConfig(
            name=name,
            process=name,
            factory=f"kill_factories.{factory}",
            factory_args={"name": name},
            relay=RelayConfig(slot_size_mb=8, credits=2),
            **fields,
        )

    return PipelineConfig(
        model_path="none",
        stages=[
            stage("a", "add_one", next="b"),
            stage("b", "add_one", next="c"),
            stage("c", "summarize", terminal=True),
        ],
        endpoints=EndpointsConfig(base_path=folder),
    )


class Load:
    """Requests without end: ``LOAD`` at a time, each checked, each with the time at which it was over."""

    def __init__(self, runner: MultiProcessPipelineRunner) -> None:
        self._runner = runner
        self._numbers = itertools.count()
        self._draw = random.Random(SEED)
        self.under_way: dict[int, asyncio.Future[float]] = {}
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.ending = False
        self._going = asyncio.Event()
        self._going.set()

    async def run(self) -> None:
        await asyncio.gather(*(self._keep_asking() for _ in range(LOAD)))

    async def _keep_asking(self) -> None:
        while not self.ending:
            await self._going.wait()
            number = next(self._numbers)
            over = self.under_way[number] = asyncio.get_running_loop().create_future()
            await self._ask(number)
            over.set_result(time.monotonic())
            del self.under_way[number]

    async def pause(self) -> None:
        """Return once nothing is under way."""
        self._going.clear()
        while self.under_way:
            await asyncio.wait(list(self.under_way.values()))
            await asyncio.sleep(0)

    def resume(self) -> None:
        self._going.set()

    async def _ask(self, number: int) -> None:
        size, value = self._draw.choice(SIZES), number % 250
        try:
            async with asyncio.timeout(60):
                result = await self._runner.coordinator.submit(
                    f"request {number}", {"size": size, "value": value}
                )
        except TimeoutError:
            self.outcomes["neither"] += 1
            self.problems.append(f"request {number} was neither answered nor failed")
        except RuntimeError as error:
            self.outcomes["failed"] += 1
            if "killed by SIGKILL" not in str(error):
                self.problems.append(f"request {number} failed for another reason: {error}")
        else:
            self.outcomes["answered"] += 1
            if result != {"size": size, "low": value + 2, "high": value + 2}:
                self.problems.append(f"request {number} of {size} x {value + 2} was answered {result}")


async def inspect(runner: MultiProcessPipelineRunner) -> dict[str, dict[str, int]]:
    """What each process holds once everything under way is over."""
    # Large and small once through each edge, so that what is made when first used is there.
    for size in SIZES:
        await runner.coordinator.submit(f"warm {size} {time.monotonic()}", {"size": size, "value": 1})
    result: dict[str, dict[str, int]] = await runner.coordinator.submit(
        f"inspect {time.monotonic()}", {"inspect": True}
    )
    here = traces_of(os.getpid())
    processes = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == os.getpid()
    ]
    return {
        **{name: held for name, held in result.items() if name in "abc"},
        "parent": {"descriptors": here.descriptors, "memfds": here.memfds, "children": len(processes)},
        "host": {
            "run files": sum(1 for _ in Path(runner.config.endpoints.base_path).rglob("*")),
        },
    }


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


async def all_up(
    runner: MultiProcessPipelineRunner, before: dict[str, int], victims: tuple[str, ...]
) -> None:
    async with asyncio.timeout(120):
        while any(runner.process_ids[name] == before[name] for name in victims):
            await asyncio.sleep(0.01)
        await runner.coordinator.submit(f"up {time.monotonic()}", {"size": 1, "value": 1})


async def main() -> None:
    draw = random.Random(SEED)
    times: list[float] = []
    shm = set(os.listdir("/dev/shm"))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        runner = MultiProcessPipelineRunner(config(folder), max_restarts=1_000_000, restart_window=0.5)
        await runner.start()
        try:
            first = await inspect(runner)
            load = Load(runner)
            asking = asyncio.create_task(load.run())
            victims_of: Counter[tuple[str, ...]] = Counter()
            for number in range(1, ROUNDS + 1):
                await asyncio.sleep(draw.uniform(0.0, 0.4))
                victims = draw.choice(VICTIMS)
                victims_of[victims] += 1
                before = runner.process_ids
                pending = list(load.under_way.values())
                killed = time.monotonic()
                for name in victims:
                    os.kill(before[name], signal.SIGKILL)
                await asyncio.wait(pending, timeout=30)
                late = [future for future in pending if not future.done()]
                settled = max((f.result() for f in pending if f.done()), default=killed) - killed
                times.append(settled)
                if late or settled > SETTLED_WITHIN:
                    load.problems.append(
                        f"round {number}, kill of {'+'.join(victims)}: {len(late)} of {len(pending)} "
                        f"requests still under way after 30 s, the others over after {settled:.2f} s"
                    )
                await all_up(runner, before, victims)
                # Each round for itself: what a survivor lost would be forgotten once it is killed too.
                await load.pause()
                last = await inspect(runner)
                load.problems += [f"round {number}: {found}" for found in differences(first, last)]
                load.resume()
                if number % max(ROUNDS // 20, 1) == 0:
                    each = (time.monotonic() - begin) / number
                    print(
                        f"{number:>4} kills, {each:.1f} s each, ETA {each * (ROUNDS - number):.0f} s; "
                        f"settled in {statistics.median(times):.3f} s (median), {max(times):.3f} s (worst); "
                        f"{dict(load.outcomes)}; {len(load.problems)} problems",
                        flush=True,
                    )
            load.ending = True
            await asyncio.wait_for(asking, 120)
        finally:
            await runner.stop()
        problems = load.problems
    children = [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(pid) == os.getpid()
    ]
    if children:
        problems.append(f"processes {children} are left after stop()")
    if left := set(os.listdir("/dev/shm")) - shm:
        problems.append(f"new in /dev/shm, of this or another program: {left}")
    print(f"kills of { ({'+'.join(k): v for k, v in victims_of.items()}) }; requests {dict(load.outcomes)}")
    print(
        f"over after the kill: median {statistics.median(times):.3f} s, "
        f"p95 {sorted(times)[int(len(times) * 0.95)]:.3f} s, worst {max(times):.3f} s"
    )
    print(f"in the beginning {first}\nin the end       {last}")
    if problems:
        raise SystemExit("FAILED:\n" + "\n".join(problems[:20]))
    print(f"{ROUNDS} kills in {time.monotonic() - begin:.0f} s: nothing lost")


def differences(first: dict[str, dict[str, int]], last: dict[str, dict[str, int]]) -> list[str]:
    """What there is more of in the end, and credits that are still out."""
    return [
        f"{place}: {what} {first[place][what]} -> {count}"
        for place, held in last.items()
        for what, count in held.items()
        if what != "shared" and (count > first[place][what] or (what == "credits" and count))
    ]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main())
