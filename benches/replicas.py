"""What replicas of the slowest stage bring: its stage sleeps, as if a device of its own worked for it.

    python benches/replicas.py

Writes benches/results/replicas.json, which ``report.py`` and ``plot_replicas.py`` read: requests a second of
one, two and three replicas under the same callers, and what autoscaling does when those come and go. Fails
where three replicas bring less than 2.5 times what one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from measure import RESULTS, Block, Result, Samples, conditions, interleaved, progress, write_results

from sglang_omni.config import AutoscalingConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import StagePayload

ROUNDS = 5
CALLERS = 12
REPLICAS = (1, 2, 3)
SLEEP_S = 0.02
BLOCK_S = 1.0
MUST, AIM = 2.5, 2.9
# The run with autoscaling: how long the callers ask, how long nobody does, and what is one point of it.
BUSY_S, IDLE_S, POINT_S = 8.0, 4.0, 0.25
AUTOSCALING = AutoscalingConfig(
    min_replicas=1, max_replicas=3, target_ongoing_requests=4, upscale_delay_s=0.5, downscale_delay_s=1.0
)


def create_front() -> Callable[[StagePayload], Any]:
    return lambda payload: {}


def create_slow() -> Callable[[StagePayload], Any]:
    def work(payload: StagePayload) -> dict[str, Any]:
        time.sleep(SLEEP_S)
        return {}

    return work


def config(**slow: Any) -> PipelineConfig:
    def stage(name: str, factory: str, **fields: Any) -> StageConfig:
        return StageConfig(name=name, process=name, factory=f"replicas.{factory}", **fields)

    return PipelineConfig(
        model_path="none",
        stages=[
            stage("front", "create_front", next="slow"),
            stage("slow", "create_slow", next="back", **slow),
            stage("back", "create_front", terminal=True),
        ],
    )


class Callers:
    """They ask again as soon as they are answered."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.answered: list[float] = []
        self._coordinator = coordinator
        self._numbers = itertools.count()

    async def ask(self, seconds: float) -> None:
        """For so long; returns when the last request is answered."""
        end = time.perf_counter() + seconds

        async def caller() -> None:
            while time.perf_counter() < end:
                await self._coordinator.submit(f"{next(self._numbers)}", {})
                self.answered.append(time.perf_counter())

        await asyncio.gather(*(caller() for _ in range(CALLERS)))


def throughput(name: str, coordinator: Coordinator) -> Block:
    callers = Callers(coordinator)

    async def run() -> Samples:
        callers.answered.clear()
        began = time.perf_counter()
        await callers.ask(BLOCK_S)
        return {name: [len(callers.answered) / (time.perf_counter() - began)]}

    return run


async def replicated() -> dict[str, float]:
    """Requests a second by number of replicas."""
    async with contextlib.AsyncExitStack() as stack:
        blocks = []
        for count in REPLICAS:
            progress(f"{count} replicas start")
            runner = await stack.enter_async_context(MultiProcessPipelineRunner(config(num_replicas=count)))
            blocks.append(throughput(str(count), runner.coordinator))
        progress("measuring")
        found = await interleaved(blocks, ROUNDS)
    return {name: found[name] for name in map(str, REPLICAS)}


async def autoscaled() -> list[tuple[float, float, int]]:
    """Seconds, requests a second and replicas that are up: from when the callers come until all are gone."""
    points = []
    async with MultiProcessPipelineRunner(config(autoscaling=AUTOSCALING)) as runner:
        callers = Callers(runner.coordinator)
        began = time.perf_counter()
        asking = asyncio.create_task(callers.ask(BUSY_S))
        while (seconds := time.perf_counter() - began) < BUSY_S + IDLE_S:
            since = time.perf_counter() - POINT_S
            rate = sum(when > since for when in callers.answered) / POINT_S
            points.append(
                (seconds, rate, sum("slow" in name for name in runner.coordinator.health()["stages"]))
            )
            await asyncio.sleep(POINT_S)
        await asking
    return points


async def main() -> int:
    began = conditions()
    rates = await replicated()
    progress("autoscaling")
    points = await autoscaled()
    one, most = rates["1"], str(REPLICAS[-1])
    results = [
        Result(
            f"a stage that sleeps {SLEEP_S * 1000:g} ms, {count} replicas: requests/s at {CALLERS}",
            rates[str(count)],
            "/s",
            limit=count / SLEEP_S,
            limit_name="without any cost",
            must=MUST * one if str(count) == most else None,
            aim=AIM * one if str(count) == most else None,
        )
        for count in REPLICAS
    ]
    path = write_results("replicas", began, results)
    content = json.loads(path.read_text()) | {"rates": rates, "autoscaled": points, "sleep_s": SLEEP_S}
    (RESULTS / "replicas.json").write_text(json.dumps(content, indent=1) + "\n")
    progress(f"wrote {path}: {most} replicas bring {rates[most] / one:.2f} times what one does")
    return 0 if rates[most] >= MUST * one else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
