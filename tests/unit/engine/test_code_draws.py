"""Fish's residual codes are drawn on the device as the sampler draws tokens with the same numbers."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import Sampler, SamplingRow
from sglang_omni.models.frames.draws import draw_codes, draw_row

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FILTERED = [
    RequestSampling(temperature=0.8, top_p=0.8, top_k=30),
    RequestSampling(temperature=1.3, min_p=0.05),
    RequestSampling(temperature=0.5, top_p=0.95),
    RequestSampling(temperature=1.0, top_k=1),
]
PLAIN = [RequestSampling(temperature=0.7), RequestSampling(temperature=0.0), RequestSampling()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("samplings", [FILTERED, PLAIN, FILTERED + PLAIN], ids=["filtered", "plain", "mixed"])
def test_draws_are_the_samplers(device: str, samplings: list[RequestSampling]) -> None:
    generator, chance, sampler = torch.Generator().manual_seed(3), random.Random(3), Sampler()
    for _ in range(30):
        uniforms = [[chance.random() for _ in range(2)] for _ in samplings]
        uniforms[0][0] = 0.0
        drawn = [draw_row(s, numbers) for s, numbers in zip(samplings, uniforms, strict=True)]
        choose = draw_codes(torch.tensor(drawn, dtype=torch.float64, device=device))
        for group in (1, 2):
            logits = torch.randn(len(samplings), 400, generator=generator) * 3
            rows = [SamplingRow(s, draws[group - 1]) for s, draws in zip(samplings, uniforms, strict=True)]
            assert choose(logits.to(device), group).tolist() == sampler.choose(logits, rows).read().tolist()
