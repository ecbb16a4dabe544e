"""The thinker on SGLang's scheduler: transformers' tokens and hidden states for every kind of prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_runs import run
from qwen3_omni_oracle import Oracle
from sample_media import audio_part, image_part, picture, sound, user, video, video_part
from sglang_engines import assert_empty, engines
from thinker_requests import ThinkerPrompt

from sglang_omni.engines.options import DecoderSpec
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.media import ThinkerState
from sglang_omni.models.qwen3_omni.components.checkpoint import Qwen3OmniCheckpoint
from sglang_omni.models.qwen3_omni.components.decoders import thinker_decoder

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [user("Hello, how are you?")],
    "image": [user(image_part(picture(1)), "What is this?")],
    "audio": [user("Listen:", audio_part(sound(1)))],
    "image and audio": [user(image_part(picture(2)), audio_part(sound(2)), "Do they fit?")],
    "video": [user(video_part(video(2, frames=4, width=64)), "And then?")],
    "several images": [user(image_part(picture(3, 64, 64)), "or", image_part(picture(4)), "?")],
    "image and video": [user(image_part(picture(5)), video_part(video(6, frames=2, width=64)))],
    "turns": [
        {"role": "system", "content": "You are terse."},
        user("Look.", image_part(picture(1))),
        {"role": "assistant", "content": "A blob."},
        user(audio_part(sound(2)), "And this?"),
        {"role": "assistant", "content": "A hum."},
        user("Why?"),
    ],
}
Prompts = dict[str, ThinkerPrompt]


@pytest.fixture(scope="module", params=[("deep", 2), ("narrow", 3)], ids=lambda p: p[0])
def case(request: pytest.FixtureRequest, qwen3_omni: Callable[..., Oracle]) -> tuple[DecoderSpec, Prompts]:
    shape, seed = request.param
    oracle = qwen3_omni(seed=seed, shape=shape)
    spec = thinker_decoder(Qwen3OmniCheckpoint.from_dir(oracle.path), for_speech=True)
    return spec, {name: ThinkerPrompt.of(oracle, messages) for name, messages in CONVERSATIONS.items()}


def requests_of(prompts: Prompts) -> list[EngineRequest]:
    return [prompt.request(name) for name, prompt in prompts.items()]


def assert_answers(requests: list[EngineRequest], prompts: Prompts) -> None:
    for request, (name, prompt) in zip(requests, prompts.items(), strict=True):
        assert request.output_token_ids == prompt.token_ids, name
        assert isinstance(request.state, ThinkerState)
        assert request.state.media_hidden is not None
        torch.testing.assert_close(request.state.media_hidden, prompt.hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [512, 16])
def test_alone_together_and_over_cached_media(case: tuple[DecoderSpec, Prompts], chunk: int) -> None:
    spec, prompts = case
    with engines() as build:
        engine = build(spec, chunked_prefill_size=chunk, max_total_tokens=4096)
        together = requests_of(prompts)
        run(engine, together)
        assert_answers(together, prompts)
        assert engine.stats()["max_batch_size"] == len(prompts)

        # What was tapped for others is found with their keys and values.
        again = requests_of(prompts)
        run(engine, again)
        assert_answers(again, prompts)
        assert [r.cached_tokens for r in again] == [len(r.prompt_token_ids) - 1 for r in again]

        engine.flush_cache()
        alone = requests_of(prompts)
        for request in alone:
            run(engine, [request])
        assert_answers(alone, prompts)
        assert_empty(engine)


def test_other_media_in_the_same_place_are_not_taken_for_cached(case: tuple[DecoderSpec, Prompts]) -> None:
    spec, prompts = case
    image, other = prompts["image"], prompts["turns"]
    swapped = image.request("swapped")
    swapped.key_token_ids = [key + 1 if key >= image.vocab_size else key for key in image.key_token_ids]
    with engines() as build:
        engine = build(spec)
        run(engine, [image.request("a"), other.request("b")])
        run(engine, [swapped])
    assert swapped.cached_tokens == int(image.media_positions[0])
    assert swapped.output_token_ids == image.token_ids


def test_put_out_and_back(case: tuple[DecoderSpec, Prompts], monkeypatch: pytest.MonkeyPatch) -> None:
    spec, prompts = case
    with engines() as build:
        # Without the prefix cache, all is computed again that is taken.
        engine = build(spec, chunked_prefill_size=16, max_total_tokens=2048, prefix_cache=False)
        # SGLang takes KV away from some requests every three steps, without need.
        monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT", True)
        requests = requests_of(prompts)
        run(engine, requests)
        assert_answers(requests, prompts)
        assert engine.stats()["num_retracted_requests_total"] > 2
        assert_empty(engine)
