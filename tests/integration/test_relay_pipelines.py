"""The default speech pipeline over each relay says what it says over shared memory."""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import Any

import numpy as np
import soundfile
from relay_peers import BACKENDS, require

from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.pipeline.mp_runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest

BOTH = {"task": "chat", "output_modalities": ["text", "audio"]}


@cache
def question() -> str:
    """Three seconds of noise in base64: what is made of it is as good as any words to compare."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, 3 * 16_000)
    soundfile.write(buffer, noise, 16_000, format="WAV")
    return base64.b64encode(buffer.getvalue()).decode()


async def answers(backend: str) -> list[dict[str, Any]]:
    """What a pipeline answers to speech, which is too large for a message, and to text."""
    runner = MultiProcessPipelineRunner(SpeechChatPipelineConfig(relay_backend=backend))
    await runner.start(timeout=240)
    try:
        heard = {"type": "input_audio", "input_audio": {"data": question(), "format": "wav"}}
        contents: list[Any] = [[heard], "What is the capital of France?"]
        params = {"temperature": 0.0, "max_new_tokens": 16}
        return [
            await runner.coordinator.submit(
                str(number), OmniRequest({"messages": [{"role": "user", "content": content}]}, params, BOTH)
            )
            for number, content in enumerate(contents)
        ]
    finally:
        await runner.stop()


async def test_every_relay_gives_the_same_tokens_and_the_same_speech() -> None:
    for backend in BACKENDS:
        require(backend)
    expected, *others = [await answers(backend) for backend in BACKENDS]
    assert all(answer["decode"]["token_ids"] for answer in expected)
    for backend, got in zip(BACKENDS[1:], others, strict=True):
        for answer, right in zip(got, expected, strict=True):
            assert answer["decode"] == right["decode"], backend
            np.testing.assert_array_equal(
                answer["speak"]["audio_data"], right["speak"]["audio_data"], backend
            )
