"""Engines of our own for text checkpoints, and requests to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_checkpoints import VOCAB_SIZE

from sglang_omni.engines import DecoderSpec, EngineOptions, EngineRequest, OmniEngine, SamplingParams
from sglang_omni.engines.build import build_omni_engine


def text_engine(model_path: Path, **options: Any) -> OmniEngine:
    """``options`` are those of ``EngineOptions``."""
    return build_omni_engine(DecoderSpec.from_dir(model_path), EngineOptions(**options))


def prompts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    """Random tokens of ``tiny_checkpoints``' vocabulary."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def greedy(request_id: str, prompt: list[int], max_new_tokens: int | None) -> EngineRequest:
    return EngineRequest(request_id, prompt, SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens))
