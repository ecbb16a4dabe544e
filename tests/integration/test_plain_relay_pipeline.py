"""A pipeline of two processes whose payloads and streams go through a third party's relay."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner


async def test_everything_arrives_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "relay"
    folder.mkdir()
    relay = RelayConfig(backend_options={"folder": str(folder)})
    config = PipelineConfig(
        model_path="none",
        relay_backend="plain_relays.FileRelay",
        stages=[
            StageConfig(
                name="source",
                process="source",
                factory="process_factories.word_source",
                relay=relay,
                next="sink",
                stream_to=["sink"],
            ),
            StageConfig(
                name="sink",
                process="sink",
                factory="process_factories.word_sink",
                relay=relay,
                can_accept_stream_before_payload=True,
                terminal=True,
            ),
        ],
        endpoints=EndpointsConfig(base_path=str(tmp_path)),
    )
    async with MultiProcessPipelineRunner(config) as runner:
        requests = [runner.coordinator.submit(f"r{number}", "a stream of words") for number in range(8)]
        for result in await asyncio.gather(*requests):
            assert result == {"count": 4, "words": "a+stream+of+words"}
    assert not [*folder.iterdir()], "what was read is still at the relay"
