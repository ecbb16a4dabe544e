import asyncio
from pathlib import Path

import httpx

from sglang_omni import Client
from sglang_omni.client import CompletionResult, GenerateRequest
from sglang_omni.config import PipelineRunner, compile_pipeline, load_config

QUESTION = [{"role": "user", "content": "how are you"}]
ANSWER = "Hello! That is question 1, and it has 3 words."


def test_in_this_process() -> None:
    async def ask() -> CompletionResult:
        coordinator, stages = compile_pipeline(load_config(Path(__file__).with_name("pipeline.yaml")))
        async with PipelineRunner(coordinator, stages):
            return await Client(coordinator).completion(GenerateRequest(messages=QUESTION))

    assert asyncio.run(ask()).text == ANSWER


def test_over_http(url: str) -> None:
    body = {"messages": QUESTION, "modalities": ["text", "audio"]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).json()
    message = answer["choices"][0]["message"]
    assert message["content"] == ANSWER
    assert len(message["audio"]["data"]) > 10_000  # a WAV file as base64
