"""Whole pipelines say over each relay what they say over shared memory: speech chat and a tiny Qwen3-Omni."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import soundfile
from qwen3_omni_cases import Case, differences
from qwen3_omni_oracle import Oracle, OracleAnswer
from relay_peers import BACKENDS, require
from sample_media import audio_part, image_part, picture, sound, user

from sglang_omni.config import PipelineConfig
from sglang_omni.models.qwen3_omni.config import Qwen3OmniPipelineConfig
from sglang_omni.models.speech_chat.config import SpeechChatPipelineConfig
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import OmniRequest

pytestmark = pytest.mark.long

BOTH = {"task": "chat", "output_modalities": ["text", "audio"]}


async def answers(config: PipelineConfig, *requests: OmniRequest) -> list[Any]:
    """What a pipeline answers, one after another."""
    runner = MultiProcessPipelineRunner(config)
    await runner.start(timeout=240)
    try:
        return [
            await runner.coordinator.submit(str(number), request) for number, request in enumerate(requests)
        ]
    finally:
        await runner.stop()


@cache
def question() -> str:
    """Three seconds of noise in base64: what is made of it is as good as any words to compare."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).normal(0, 0.1, 3 * 16_000)
    soundfile.write(buffer, noise, 16_000, format="WAV")
    return base64.b64encode(buffer.getvalue()).decode()


async def spoken(backend: str) -> list[Any]:
    """What the speech pipeline answers to speech, which is too large for a message, and to text."""
    heard = {"type": "input_audio", "input_audio": {"data": question(), "format": "wav"}}
    contents: list[Any] = [[heard], "What is the capital of France?"]
    params = {"temperature": 0.0, "max_new_tokens": 16}
    return await answers(
        SpeechChatPipelineConfig(relay_backend=backend),
        *(OmniRequest({"messages": [{"role": "user", "content": it}]}, params, BOTH) for it in contents),
    )


# Four pipelines with three models each, one after the other.
@pytest.mark.timeout(900)
async def test_every_relay_gives_the_same_tokens_and_the_same_speech() -> None:
    for backend in BACKENDS:
        require(backend)
    expected, *others = [await spoken(backend) for backend in BACKENDS]
    assert all(answer["decode"]["token_ids"] for answer in expected)
    for backend, got in zip(BACKENDS[1:], others, strict=True):
        for answer, right in zip(got, expected, strict=True):
            assert answer["decode"] == right["decode"], backend
            np.testing.assert_array_equal(
                answer["speak"]["audio_data"], right["speak"]["audio_data"], backend
            )


@pytest.fixture(scope="module")
def shown_and_told(qwen3_omni: Callable[..., Oracle]) -> tuple[Oracle, Case, OracleAnswer]:
    """A question with a picture, whose patches are too large for a message."""
    oracle, asked = qwen3_omni(), [image_part(picture(3, 400, 300)), audio_part(sound(1)), "Do they fit?"]
    return oracle, *Case("shown and told", [user(*asked)]).spoken_by(oracle)


@pytest.mark.parametrize("backend", BACKENDS)
async def test_qwen3_omni_over_every_relay_says_what_the_oracle_says(
    backend: str, shown_and_told: tuple[Oracle, Case, OracleAnswer]
) -> None:
    require(backend)
    oracle, case, right = shown_and_told
    params = {**case.params, "max_new_tokens": case.max_tokens, "voice": case.speaker}
    engine = {"engine": "omni", "num_threads": 1}
    config = Qwen3OmniPipelineConfig(
        model_path=str(oracle.path),
        relay_backend=backend,
        runtime_overrides={"thinker": engine, "talker": engine},
    )
    # Two processes instead of five, which take their time to start. What is large goes from one to the other:
    # the picture's patches, and what the thinker streams to the talker.
    together = {"encoders": "thinker", "io": "talker", "code2wav": "talker"}
    for stage in config.stages:
        stage.process = together.get(stage.process or "", stage.process)
    (answer,) = await answers(config, OmniRequest({"messages": case.messages}, params, BOTH))
    assert right.codes
    assert differences(right, answer) == ""
