"""A stage that feeds two others, of which one is stopped: what the other edge notices of it.

    python benches/stalled.py

Writes benches/results/stalled.json, which ``report.py`` reads. An edge is measured in turns while its sibling
takes payloads and while it is stopped (SIGSTOP) with more payloads waiting than its edge has room for.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import MIB, Result, Samples, conditions, interleaved, progress, write_results

from sglang_omni.config import PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, StagePayload

ROUNDS = 10
CLIENTS = 4
# An edge has room for seven or eight payloads; as many again and more wait in the source.
RELAY = RelayConfig(slot_size_mb=4, credits=2)
WAITING = 40


def create_source() -> Callable[[StagePayload], Any]:
    """1 MiB for the stage the request names."""
    block = np.full(MIB, 7, np.uint8)
    return lambda payload: {"block": block}


def create_sink() -> Callable[[StagePayload], Any]:
    return lambda payload: int(payload.data["block"][-1])


def route_to_named(request_id: str, output: StagePayload) -> str:
    return output.request.inputs


def terminal_named(request: OmniRequest) -> list[str]:
    return [request.inputs]


def config() -> PipelineConfig:
    def stage(name: str, factory: str, **fields: Any) -> StageConfig:
        return StageConfig(name=name, process=name, factory=f"stalled.{factory}", relay=RELAY, **fields)

    return PipelineConfig(
        model_path="none",
        stages=[
            stage("source", "create_source", next=["free", "stalled"], route_fn="stalled.route_to_named"),
            stage("free", "create_sink", terminal=True),
            stage("stalled", "create_sink", terminal=True),
        ],
        terminal_stages_fn="stalled.terminal_named",
    )


class Edges:
    def __init__(self, runner: MultiProcessPipelineRunner) -> None:
        self._runner = runner
        self._numbers = itertools.count()

    async def _submit(self, to: str) -> None:
        await self._runner.coordinator.submit(f"{to} {next(self._numbers)}", OmniRequest(to))

    async def _free_edge(self, name: str) -> Samples:
        latency = []
        for _ in range(100):
            began = time.perf_counter()
            await self._submit("free")
            latency.append(time.perf_counter() - began)
        finished, began = 0, time.perf_counter()

        async def client() -> None:
            nonlocal finished
            while time.perf_counter() < began + 0.5:
                await self._submit("free")
                finished += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return {f"{name} p50": latency, f"{name} rate": [finished / (time.perf_counter() - began)]}

    async def alone(self) -> Samples:
        return await self._free_edge("alone")

    async def beside_stalled(self) -> Samples:
        stalled = self._runner.process_ids["stalled"]
        os.kill(stalled, signal.SIGSTOP)
        try:
            waiting = [asyncio.create_task(self._submit("stalled")) for _ in range(WAITING)]
            await asyncio.sleep(0.2)  # Until the edge is full.
            samples = await self._free_edge("beside")
            if any(task.done() for task in waiting):
                raise RuntimeError("a stopped process has answered: nothing was stalled")
        finally:
            os.kill(stalled, signal.SIGCONT)
        await asyncio.gather(*waiting)
        return samples


async def main() -> None:
    began = conditions()
    async with MultiProcessPipelineRunner(config()) as runner:
        edges = Edges(runner)
        found = await interleaved([edges.alone, edges.beside_stalled], ROUNDS)
    case = "1 MiB over an edge beside a stalled one"
    limit = "no stalled edge"
    results = [
        Result(f"{case}: p50 at 1", found["beside p50"], "s", limit=found["alone p50"], limit_name=limit),
        Result(
            f"{case}: requests/s at {CLIENTS}",
            found["beside rate"],
            "/s",
            limit=found["alone rate"],
            limit_name=limit,
        ),
    ]
    progress(f"wrote {write_results('stalled', began, results)}")


if __name__ == "__main__":
    asyncio.run(main())
