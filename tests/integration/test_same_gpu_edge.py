"""A stream between two processes whose stages are placed on one GPU, where it has no GPU's tensors."""

from __future__ import annotations

from pathlib import Path

from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner


async def test_words_go_as_ever(tmp_path: Path) -> None:
    third = {"resources": {"total_gpu_memory_fraction": 0.3}}
    config = PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(
                name="source",
                process="source",
                factory="process_factories.word_source",
                gpu=0,
                runtime=third,
                next="sink",
                stream_to=["sink"],
            ),
            StageConfig(
                name="sink",
                process="sink",
                factory="process_factories.word_sink",
                gpu=0,
                runtime=third,
                can_accept_stream_before_payload=True,
                terminal=True,
            ),
        ],
        endpoints=EndpointsConfig(base_path=str(tmp_path)),
    )
    async with MultiProcessPipelineRunner(config) as runner:
        assert len(set(runner.process_ids.values())) == 2
        assert await runner.coordinator.submit("r", "a stream of words") == {
            "count": 4,
            "words": "a+stream+of+words",
        }
