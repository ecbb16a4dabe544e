"""Draws follow the distribution that temperature, filters and penalties define."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_omni.model_runner import sampling
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import SamplingRow, TokenHistory, sample

VOCAB = 40


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def expected(values: torch.Tensor, params: RequestSampling) -> torch.Tensor:
    """The distribution by its definition: temperature, then top_k, then top_p of what is left, and min_p."""
    order = values.argsort(descending=True)
    weights = (values / params.temperature).softmax(-1)[order]
    if params.top_k > 0:
        weights[params.top_k :] = 0
    weights /= weights.sum()
    kept, mass = 0, 0.0
    while mass < params.top_p and kept < len(weights):
        mass += float(weights[kept])
        kept += 1
    weights[kept:] = 0
    weights[weights < params.min_p * weights[0]] = 0
    result = torch.zeros(VOCAB)
    result[order] = weights / weights.sum()
    return result


@pytest.mark.parametrize("candidates", [4, 512])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 7},
        {"top_k": 1},
        {"top_k": 10**30},
        {"top_p": 0.8},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.7, "min_p": 0.01},
        {"temperature": 1e-6, "top_p": 0.9},
    ],
)
def test_distribution(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], candidates: int) -> None:
    monkeypatch.setattr(sampling, "CANDIDATES", candidates)
    params = RequestSampling.from_params(fields)
    draws = 20_000
    rows = [SamplingRow(params, (index + 0.5) / draws) for index in range(draws)]

    tokens = sample(logits().repeat(draws, 1), rows)

    # Evenly spread uniform numbers hit each token as often as it is likely, to within one draw.
    shares = tokens.bincount(minlength=VOCAB) / draws
    torch.testing.assert_close(shares, expected(logits(), params), atol=2 / draws, rtol=0)


def test_rows_do_not_influence_one_another() -> None:
    params = [
        RequestSampling(temperature=0.0),
        RequestSampling(),
        RequestSampling(top_k=3),
        RequestSampling(top_p=0.95, temperature=2.0),
        RequestSampling(temperature=0.0, repetition_penalty=3.0),
    ]
    values = torch.stack([logits(seed) for seed in range(len(params))])
    rows = [
        SamplingRow(p, 0.1 + 0.17 * i, TokenHistory(VOCAB, [1, 2], [int(values[i].argmax())]))
        for i, p in enumerate(params)
    ]

    together = sample(values.clone(), rows).tolist()

    assert together == [int(sample(values[i : i + 1].clone(), rows[i : i + 1])) for i in range(len(rows))]
    assert together[0] == int(values[0].argmax())
    assert together[4] != int(values[4].argmax())


def test_penalties() -> None:
    values = torch.zeros(1, VOCAB)
    values[0, :4] = torch.tensor([2.0, -1.0, 3.0, 1.0])
    history = TokenHistory(VOCAB, prompt=[0, 1], output=[2, 2])
    params = RequestSampling(
        temperature=0.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )

    sample(values, [SamplingRow(params, 0.0, history)])

    # Repetition counts the prompt; presence and frequency only the output.
    assert values[0, :4].tolist() == [1.0, -2.0, 1.5 - 0.5 - 2 * 0.25, 1.0]
