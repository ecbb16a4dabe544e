"""What /metrics says of a stage in a process of its own, while requests come, go and are aborted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from tiny_checkpoints import TinyCheckpoint
from waiting import PATIENCE

from sglang_omni.client import Client
from sglang_omni.config import EndpointsConfig, PipelineConfig, StageConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.serve import create_app

PROMPT = [5, 9, 2, 77, 31]
# What an aborted request must not leave behind.
HELD = ("num_running_reqs", "num_queue_reqs", "kv_used_tokens", "relay_held_bytes", "relay_held_slots")


class Served:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def numbers(self) -> dict[str, float]:
        """What the thinker reports, by name."""
        text = (await self.http.get("/metrics")).text
        return {
            sample.name.removeprefix("sglang_omni_stage_"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if family.name.startswith("sglang_omni_stage_") and sample.labels == {"stage": "thinker"}
        }

    async def until(self, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        async with asyncio.timeout(PATIENCE):
            while not condition(found := await self.numbers()):
                await asyncio.sleep(0.01)
            return found

    async def is_empty(self) -> None:
        """Returns once nothing is held any more."""
        await self.until(lambda found: not any(found.get(name) for name in HELD))

    def generate(self, prompt: list[int] = PROMPT, **body: Any) -> asyncio.Task[httpx.Response]:
        sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": body.pop("tokens", 4)}
        body = {"input_ids": prompt, "sampling_params": sampling, **body}
        return asyncio.create_task(self.http.post("/generate", json=body))


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[..., TinyCheckpoint]) -> TinyCheckpoint:
    return tiny_checkpoint("llama")


@pytest.fixture
async def served(checkpoint: TinyCheckpoint, tmp_path: Path) -> AsyncIterator[Served]:
    thinker = StageConfig(
        name="thinker",
        factory="engine_factories.create_engine",
        factory_args={
            **{"max_running_requests": 2, "max_total_tokens": 1024, "prefix_cache": False},
            # A prompt of 240 tokens and an answer of as many take seconds, whatever the machine.
            **{"chunk": 2, "step_seconds": 0.02},
        },
        process="thinker",
        terminal=True,
    )
    config = PipelineConfig(
        model_path=str(checkpoint.path),
        stages=[thinker],
        endpoints=EndpointsConfig(base_path=str(tmp_path / "run")),
    )
    async with MultiProcessPipelineRunner(config) as runner:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            app = create_app(Client(runner.coordinator))
            server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as http:
                yield Served(http)
            server.should_exit = True
            await serving


async def test_a_finished_request_is_counted_and_leaves_nothing(
    served: Served, checkpoint: TinyCheckpoint
) -> None:
    answer = (await served.generate(tokens=6)).json()
    found = await served.until(lambda found: found.get("generation_tokens_total") == 6)

    assert answer["output_ids"] == checkpoint.greedy(PROMPT, 6, eos_token_id=None)
    assert found["prompt_tokens_total"] == 5
    assert found["max_batch_size"] == 1
    assert found["max_total_num_tokens"] == 1024
    await served.is_empty()


async def test_aborts_in_prefill_in_decode_and_in_line_free_all_and_disturb_nobody(
    served: Served, checkpoint: TinyCheckpoint
) -> None:
    expected = checkpoint.greedy(PROMPT, 40, eos_token_id=None)
    decoding = served.generate(tokens=240, rid="decoding")
    await served.until(lambda found: found.get("generation_tokens_total", 0) > 0)
    prefilling = served.generate([7] * 240, rid="prefilling")
    queued = [served.generate([8] * 20, tokens=20, rid=f"queued{n}") for n in range(2)]
    await served.until(lambda found: found["num_running_reqs"] == 2 and found["num_queue_reqs"] == 2)
    others = [served.generate(tokens=40) for _ in range(2)]

    # One by the operator's route, one by leaving, in each state.
    for rid in ("decoding", "queued0"):
        assert (await served.http.post("/abort_request", json={"rid": rid})).json()["success"]
    for task in (prefilling, queued[1]):
        task.cancel()

    for other in others:
        assert (await other).json()["output_ids"] == expected
    await served.is_empty()
    for task in (decoding, queued[0]):
        assert (await task).json()["meta_info"]["finish_reason"] == {"type": "abort"}
