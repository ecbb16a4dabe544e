import asyncio
from pathlib import Path

import httpx
import numpy as np

from sglang_omni import Client
from sglang_omni.client import TranscriptionResult
from sglang_omni.client.audio import encode_wav
from sglang_omni.config import PipelineRunner, compile_pipeline, load_config

TONE = encode_wav(0.5 * np.sin(np.arange(16_000) / 8), 16_000)
SILENCE = encode_wav(np.zeros(16_000), 16_000)


def test_in_this_process() -> None:
    async def listen() -> TranscriptionResult:
        coordinator, stages = compile_pipeline(load_config(Path(__file__).with_name("pipeline.yaml")))
        async with PipelineRunner(coordinator, stages):
            return await Client(coordinator).transcribe(TONE)

    assert asyncio.run(listen()).text == "I hear something."


def test_over_http(url: str) -> None:
    for recording, text in ((TONE, "I hear something."), (SILENCE, "I hear nothing.")):
        answer = httpx.post(
            f"{url}/v1/audio/transcriptions", files={"file": ("a.wav", recording)}, timeout=30
        )
        assert answer.json()["text"] == text
