"""Fish's codes are drawn among those, and with the probabilities, that its authors' code draws with."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from fish_s2_oracle import authors, drawn
from torch import Tensor

from sglang_omni.model_runner import draws
from sglang_omni.model_runner.filters import Filters
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import Sampler, SamplingRow
from sglang_omni.models.fish_s2_pro.components.dual_ar import FILTERS_FIRST
from sglang_omni.models.frames.draws import draw_codes, draw_row

VOCAB = 700
ASKED = [
    {"temperature": 0.8, "top_p": 0.8, "top_k": 30},
    {"temperature": 0.3, "top_p": 0.9, "top_k": 30},
    {"temperature": 1.7, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.95, "top_k": 200},
    {"temperature": 0.6, "top_k": 3},
    # The likeliest alone is more than this.
    {"temperature": 0.9, "top_p": 0.01, "top_k": 30},
]


def fish(fields: dict[str, Any]) -> RequestSampling:
    return replace(RequestSampling.from_params(fields), filters_first=FILTERS_FIRST)


def logits(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # From flat distributions to peaked ones.
    return torch.randn(rows, VOCAB, generator=generator) * torch.linspace(0.5, 6.0, rows)[:, None]


@pytest.mark.parametrize("fields", ASKED)
def test_kept_codes_and_their_probabilities(fields: dict[str, Any]) -> None:
    values = logits(60, seed=1)
    shifted = values - values.amax(-1, keepdim=True)
    columns = [
        torch.full((len(values), 1), float(fields.get(name, other)))
        for name, other in (("temperature", 1.0), ("top_k", VOCAB), ("top_p", 1.0), ("min_p", 0.0))
    ]
    filters = Filters(*columns, torch.ones(len(values), 1, dtype=torch.bool))
    seen = filters.seen(shifted, shifted / columns[0])
    ordered, ids = seen.sort(dim=-1, descending=True)

    weights = filters.weights(ordered, seen.logsumexp(-1, keepdim=True))

    probabilities = torch.zeros_like(values).scatter(1, ids, weights / weights.sum(-1, keepdim=True))
    right = torch.stack([authors(row, **fields) for row in values])
    assert torch.equal(probabilities > 0, right > 0)
    torch.testing.assert_close(probabilities, right, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("candidates", [16, 512])
def test_draws_in_a_batch_with_others(monkeypatch: pytest.MonkeyPatch, candidates: int) -> None:
    monkeypatch.setattr(draws, "CANDIDATES", candidates)
    number = random.Random(2)
    others = [{"temperature": 0.7, "top_p": 0.8}, {"temperature": 0.0}, {"temperature": 1.3}, {"top_k": 40}]
    params = [fish(fields) for fields in ASKED] + [RequestSampling.from_params(fields) for fields in others]
    for seed in range(20):
        values = logits(len(params), seed)
        uniforms = [number.random() for _ in params]
        rows = [SamplingRow(p, u) for p, u in zip(params, uniforms, strict=True)]

        tokens = Sampler().choose(values.clone(), rows).read().tolist()

        for index, fields in enumerate(ASKED):
            assert tokens[index] == drawn(values[index], uniforms[index], **fields)
        # Rows of other models are drawn as without Fish's.
        alone = Sampler().choose(values[len(ASKED) :].clone(), rows[len(ASKED) :]).read()
        assert tokens[len(ASKED) :] == alone.tolist()


def test_residual_codes_are_drawn_so_too() -> None:
    number = random.Random(4)
    for seed in range(20):
        values = logits(len(ASKED), seed)
        uniforms = [number.random() for _ in ASKED]
        rows = [draw_row(fish(fields), [u]) for fields, u in zip(ASKED, uniforms, strict=True)]
        choose = draw_codes(torch.tensor(rows, dtype=torch.float64), filters_first=FILTERS_FIRST)
        right = [drawn(v, u, **fields) for v, u, fields in zip(values, uniforms, ASKED, strict=True)]
        assert choose(values, 1).tolist() == right
