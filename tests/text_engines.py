"""Engines of our own for text checkpoints, and requests to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_runs import finish
from tiny_checkpoints import VOCAB_SIZE, TinyCheckpoint

from sglang_omni.engines import DecoderSpec, EngineOptions, EngineRequest, OmniEngine, RequestSampling
from sglang_omni.engines.base import Engine
from sglang_omni.engines.build import build_omni_engine


def text_engine(model_path: Path, **options: Any) -> OmniEngine:
    """``options`` are fields of ``EngineOptions``."""
    return build_omni_engine(DecoderSpec.from_dir(model_path), EngineOptions(**options))


def prompts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    """Random tokens of ``tiny_checkpoints``' vocabulary."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def greedy(request_id: str, prompt: list[int], max_new_tokens: int | None) -> EngineRequest:
    return EngineRequest(request_id, prompt, RequestSampling(temperature=0.0, max_new_tokens=max_new_tokens))


def serve_random_traffic(engine: Engine, checkpoint: TinyCheckpoint) -> None:
    """Requests share prefixes, join in the middle, are aborted at random: tokens are transformers'."""
    rng = random.Random(9)
    stems = prompts(9, [24, 12])
    requests: list[EngineRequest] = []
    for number, tail in enumerate(prompts(10, [rng.randrange(1, 30) for _ in range(24)])):
        request = greedy(str(number), rng.choice([[], *stems]) + tail, rng.randrange(1, 40))
        requests.append(request)
        engine.add(request)
        for _ in range(rng.randrange(6)):
            engine.step()
        if rng.random() < 0.3:
            engine.abort(rng.choice(requests).request_id)
    finish(engine)

    reasons = [request.finish_reason for request in requests]
    assert 0 < reasons.count("abort") < len(requests)
    for request in requests:
        expected = checkpoint.greedy(request.prompt_token_ids, request.sampling.max_new_tokens or 0)
        assert request.output_token_ids == expected[: len(request.output_token_ids)]
        if request.finish_reason == "length":
            assert len(request.output_token_ids) == len(expected)
