"""Readers of streams that are killed while much lies under way for them: their edge stays usable."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from edge_factories import CHUNK_BYTES, CHUNKS, PAYLOAD_BYTES
from waiting import PATIENCE

from sglang_omni.config import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest, Unavailable

DEATHS = 4
# Room for less than two requests at once: the others wait in the source.
RELAY = RelayConfig(slot_size_mb=1, credits=1)
ROUTE = ["left_one"]


def pipeline(folder: Path) -> PipelineConfig:
    """``source`` streams to ``left_one``, in another process."""
    return PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(
                name="source",
                factory="edge_factories.source",
                process="front",
                next=ROUTE,
                route_fn="edge_factories.route",
                stream_to=ROUTE,
                stream_done_to_fn="edge_factories.ended",
                relay=RELAY,
            ),
            StageConfig(
                name="left_one",
                factory="edge_factories.witness",
                factory_args={"name": "left_one"},
                process="left",
                can_accept_stream_before_payload=True,
                terminal=True,
            ),
        ],
        endpoints=EndpointsConfig(base_path=str(folder)),
    )


def held(runner: MultiProcessPipelineRunner, name: str) -> float:
    return runner.coordinator.stage_stats().get("source", {}).get(name, 0)


async def test_an_edge_is_usable_after_each_death_of_its_reader(tmp_path: Path) -> None:
    async with MultiProcessPipelineRunner(pipeline(tmp_path)) as runner, asyncio.timeout(PATIENCE):

        async def ask(name: str) -> None:
            answer = await runner.coordinator.submit(name, OmniRequest(None, {"route": ROUTE}))
            assert answer["chunks_right"] == [True] * CHUNKS

        await ask("first")
        for death in range(DEATHS):
            reader = runner.process_ids["left"]
            os.kill(reader, signal.SIGSTOP)
            waiting = [asyncio.create_task(ask(f"{death}:{number}")) for number in range(8)]
            # What lies under way leaves no room for another payload, or chunk.
            while held(runner, "relay_held_bytes") < 2**20 - PAYLOAD_BYTES - CHUNK_BYTES:
                await asyncio.sleep(0.01)
            os.kill(reader, signal.SIGKILL)
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [Unavailable] * len(ends)
            await ask(f"after {death}")
        while held(runner, "relay_held_bytes") or held(runner, "relay_held_slots"):
            await asyncio.sleep(0.01)
