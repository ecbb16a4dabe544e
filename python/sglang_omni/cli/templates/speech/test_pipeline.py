import asyncio
from pathlib import Path

import httpx

from sglang_omni import Client
from sglang_omni.client import GenerateRequest, SpeechResult
from sglang_omni.config import PipelineRunner, compile_pipeline, load_config

TEXT = "hello world"  # ten letters of 0.1 s
SAMPLES = 24_000


def test_in_this_process() -> None:
    async def speak() -> SpeechResult:
        coordinator, stages = compile_pipeline(load_config(Path(__file__).with_name("pipeline.yaml")))
        async with PipelineRunner(coordinator, stages):
            request = GenerateRequest(prompt=TEXT, metadata={"task": "speech"})
            return await Client(coordinator).speech(request, response_format="pcm")

    assert len(asyncio.run(speak()).audio_bytes) == 2 * SAMPLES


def test_over_http(url: str) -> None:
    body = {"input": TEXT, "voice": "high", "response_format": "pcm"}
    whole = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=30)
    assert len(whole.content) == 2 * SAMPLES
    streamed = httpx.post(f"{url}/v1/audio/speech", json={**body, "stream": True}, timeout=30)
    assert streamed.content == whole.content
