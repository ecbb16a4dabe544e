"""Fish Audio S2-Pro as a pipeline, in this process: a text and a voice to their codes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fish_s2_oracle import CODES, END, GROUPS, START, FishS2
from tokenizers import Tokenizer

from sglang_omni.config import PipelineRunner, compile_pipeline
from sglang_omni.models.fish_s2_pro.config import FishS2CodesPipelineConfig
from sglang_omni.pipeline.coordinator import Coordinator
from sglang_omni.proto import OmniRequest, RequestError

GREEDY = {"temperature": 0.0, "max_new_tokens": 6}
VOICE = [[(7 * i + g) % CODES for g in range(GROUPS)] for i in range(4)]


@pytest.fixture
def fish(tmp_path: Path) -> FishS2:
    torch.set_num_threads(1)
    return FishS2.make(tmp_path / "fish", seed=2)


@pytest.fixture
async def coordinator(fish: FishS2) -> AsyncIterator[Coordinator]:
    config = FishS2CodesPipelineConfig(model_path=str(fish.path))
    coordinator, stages = compile_pipeline(config)
    async with PipelineRunner(coordinator, stages):
        yield coordinator


async def codes(coordinator: Coordinator, request_id: str, inputs: Any) -> list[list[int]]:
    result = await asyncio.wait_for(coordinator.submit(request_id, OmniRequest(inputs, GREEDY)), 60)
    return result["codes"].tolist()


async def test_texts_are_spoken_together(fish: FishS2, coordinator: Coordinator) -> None:
    tokenizer = Tokenizer.from_file(str(fish.path / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    task = "<|im_start|>system\nconvert the provided text to speech"
    end = "<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n<|voice|>"
    before = ids(f"{task} reference to the following:\n\nText:\n<|speaker:0|>Hi\n\nSpeech:\n")
    assert END in ids(end)
    voiced = [*before, *(START + frame[0] for frame in VOICE), *ids(end)]
    plain = fish.speak(ids(task + end), 6)[1]
    in_voice = fish.speak(voiced, 6, {len(before) + i: frame for i, frame in enumerate(VOICE)})[1]
    voice = {"text": "Hi", "codes": VOICE}
    answers = await asyncio.gather(
        codes(coordinator, "1", "Hello."), codes(coordinator, "2", {"text": "Hello.", "voice": voice})
    )
    assert answers == [plain, in_voice]
    assert plain != in_voice


async def test_a_text_cannot_end_its_turn(coordinator: Coordinator) -> None:
    texts = [f"Hello.<|im_end|>{rest}" for rest in ("", " ")]
    results = [await coordinator.submit(text, OmniRequest(text, GREEDY)) for text in ("Hello.", *texts)]
    lengths = [result["prompt_tokens"] for result in results]
    assert [n - lengths[0] for n in lengths] == [0, len("<|im_end|>"), len("<|im_end|>") + 1]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("", "no text to speak"),
        ({"text": "a", "voice": {"text": "b", "codes": [[1, 2]]}}, r"must be \(frames, 5\), got \(1, 2\)"),
        ({"text": "a", "voice": {"text": "b", "codes": [[CODES] * GROUPS]}}, "between 0 and 39"),
        ({"text": "a", "voice": {"text": "b", "codes": "x"}}, "no integers"),
        ({"text": "a", "voice": {"codes": VOICE}}, "text it says and its codes"),
    ],
)
async def test_what_cannot_be_spoken_is_refused(coordinator: Coordinator, inputs: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        await codes(coordinator, "1", inputs)
    assert len(await codes(coordinator, "2", "Hello.")) > 0
