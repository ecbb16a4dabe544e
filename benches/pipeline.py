"""Pipelines of SimpleScheduler stages: one request at a time, many at once, and streams; beside the peer.

    python benches/pipeline.py

Writes benches/results/pipeline.json, which ``report.py`` reads. Blocks of our samples and of the peer's
take turns; the peer takes part where `make bench-peers` has installed it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from measure import Block, Result, conditions, interleaved, progress, write_results
from peer import Peer
from three_stages import PIPELINES, Load, streaming, three_stages

from sglang_omni.config import PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

MESSAGES = "sglang_omni.scheduling.messages"
STREAM = "stream chunk hop, 4 KiB"
# Latency to reach and to aim for in seconds, then the rate per second.
GOALS = {
    "own processes, no tensor": (1.2e-3, 0.5e-3, 2_000, 5_000),
    "own processes, 16 MiB tensor": (12e-3, 5e-3, None, None),
    "one process": (0.4e-3, 0.15e-3, 8_000, 15_000),
    STREAM: (0.25e-3, 0.1e-3, 10_000, 25_000),
}
ROUNDS = 5


def make(
    name: str, process: str, factory: str, args: dict[str, Any] | None = None, **fields: Any
) -> StageConfig:
    path = f"three_stages.{factory}"
    return StageConfig(name=name, process=process, factory=path, factory_args=args or {}, **fields)


def pipeline(stages: list[StageConfig]) -> PipelineConfig:
    return PipelineConfig(model_path="none", stages=stages)


async def requests(name: str, peer: Peer) -> list[Result]:
    processes, nbytes, clients = PIPELINES[name]
    count = 20 if nbytes else 200
    linked = partial(make, relay=RelayConfig(slot_size_mb=64, credits=4))
    config = pipeline(three_stages(linked, processes, nbytes))
    async with MultiProcessPipelineRunner(config) as runner:
        load = Load(runner.coordinator)
        await peer.block("open_pipeline", name)()
        latency = [lambda: load.latency(count), peer.block("latency", count)]
        found = await interleaved(latency, 2 * ROUNDS)
        found |= await interleaved(
            [lambda: load.rate(clients, 1.0), peer.block("rate", clients, 1.0)], ROUNDS
        )
    must, aim, must_rate, aim_rate = GOALS[name]
    case, ours, theirs = f"3 stages, {name}", found["latency"], found.get("peer latency")
    rate, their_rate = found["rate"], found.get("peer rate")
    return [
        Result(f"{case}: p50 at 1", ours, "s", must, aim, peer=theirs),
        Result(f"{case}: requests/s at {clients}", rate, "/s", must_rate, aim_rate, peer=their_rate),
    ]


async def streams(peer: Peer) -> list[Result]:
    """Chunks are tensors, as the peer's must be; ours may as well be any object, so bytes are there too."""
    must, aim, must_rate, aim_rate = GOALS[STREAM]
    results = []
    async with MultiProcessPipelineRunner(pipeline(streaming(make, MESSAGES))) as runner:
        load = Load(runner.coordinator)
        await peer.block("open_pipeline", STREAM)()
        for content in ("tensor", "bytes"):
            hop: list[Block] = [partial(load.hop, content, 100)]
            rate: list[Block] = [partial(load.chunk_rate, content, 10_000)]
            if content == "tensor":
                hop.append(peer.block("hop", content, 100))
                rate.append(peer.block("chunk_rate", content, 10_000))
            found = await interleaved(hop, ROUNDS) | await interleaved(rate, ROUNDS)
            ours, theirs, case = found["hop"], found.get("peer hop"), f"{STREAM} {content}, two processes"
            results.append(Result(f"{case}: p50", ours, "s", must, aim, peer=theirs))
            ours, theirs = found["chunk rate"], found.get("peer chunk rate")
            results.append(Result(f"{case}: chunks/s", ours, "/s", must_rate, aim_rate, peer=theirs))
    return results


async def main() -> None:
    began = conditions()
    results: list[Result] = []
    async with Peer("peer_pipeline.py") as peer:
        for name in PIPELINES:
            results += await requests(name, peer)
            progress(f"{name}: {results[-2].ours * 1e3:.3f} ms, {results[-1].ours:,.0f}/s")
        results += await streams(peer)
    path = write_results("pipeline", began, results)
    progress(f"wrote {path}")


if __name__ == "__main__":
    asyncio.run(main())
