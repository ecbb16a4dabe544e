"""A pipeline whose stages share a GPU from processes of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner


async def test_chunks_and_payloads_are_lent(tmp_path: Path) -> None:
    def stage(name: str, **fields: Any) -> StageConfig:
        return StageConfig(
            name=name,
            process=name,
            factory=f"gpu_stages.{name}",
            gpu=0,
            runtime={"resources": {"total_gpu_memory_fraction": 0.3}},
            **fields,
        )

    config = PipelineConfig(
        model_path="none",
        stages=[
            stage("source", next="sink", stream_to=["sink"]),
            stage("sink", terminal=True, can_accept_stream_before_payload=True),
        ],
        endpoints=EndpointsConfig(base_path=str(tmp_path)),
    )
    async with MultiProcessPipelineRunner(config) as runner:
        requests = [runner.coordinator.submit(f"r{n}", (100, 1000 * n)) for n in range(1, 9)]
        for result in await asyncio.gather(*requests):
            # With many at once some may be copied, which the pressure on the edge decides.
            assert "cuda" in result["rows on"]
            assert result["equal"]
        # Alone, a payload has its edge to itself.
        assert (await runner.coordinator.submit("last", (2, 1000)))["matrix on"] == "cuda"
