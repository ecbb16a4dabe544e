"""One stage that feeds two others, of which one stands still."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
from waiting import PATIENCE, until

from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner

BLOCK = 400_000
REQUESTS = 150


async def test_a_stalled_receiver_does_not_stop_the_other_edge(tmp_path: Path) -> None:
    def stage(name: str, factory: str, **fields: Any) -> StageConfig:
        return StageConfig(name=name, process=name, factory=f"stalled_factories.{factory}", **fields)

    # Room for five blocks on each edge.
    source = stage(
        "source",
        "block",
        next=["free", "stalled"],
        route_fn="stalled_factories.route_to_named",
        relay=RelayConfig(slot_size_mb=2, credits=1),
    )
    config = PipelineConfig(
        model_path="none",
        stages=[source, stage("free", "total", terminal=True), stage("stalled", "total", terminal=True)],
        terminal_stages_fn="stalled_factories.terminal_named",
        endpoints=EndpointsConfig(base_path=str(tmp_path)),
    )
    async with MultiProcessPipelineRunner(config) as runner:

        def submit(request_id: str, to: str) -> Any:
            return asyncio.create_task(runner.coordinator.submit(request_id, {"to": to}))

        async def goes_on(name: str) -> None:
            """Many requests over the free edge, four at once."""
            for first in range(0, REQUESTS, 4):
                batch = [submit(f"{name} {first + n}", "free") for n in range(4)]
                async with asyncio.timeout(PATIENCE):
                    assert await asyncio.gather(*batch) == [7 * BLOCK] * 4

        await goes_on("alone")
        stalled = runner.process_ids["stalled"]
        os.kill(stalled, signal.SIGSTOP)
        await until(lambda: psutil.Process(stalled).status() == psutil.STATUS_STOPPED)
        # Many more than the edge has room for: the rest wait in the source for all the time that follows.
        waiting = [submit(f"stalled {n}", "stalled") for n in range(40)]
        # An edge that shares anything with the stalled one would stand still.
        await goes_on("filling")
        await goes_on("beside")
        assert not any(task.done() for task in waiting)
        os.kill(stalled, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*waiting) == [7 * BLOCK] * 40
