"""Draws follow the distribution that temperature, filters and penalties define."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner import sampling
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import (
    RepetitionRule,
    SamplingRow,
    TokenHistory,
    next_tokens,
    sample,
    sample_unread,
)

VOCAB = 40

Sampler = Callable[[Tensor, Sequence[SamplingRow]], Tensor]


def sample_on_gpu(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """``logits`` keep their own device, and are changed all the same. Waiting for the GPU is an error."""
    on_gpu = logits.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens = sample(on_gpu, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    logits.copy_(on_gpu)
    return tokens.cpu()


# What a GPU computes is tried on a CPU too.
SAMPLERS: list[Sampler] = [sample, sample_unread, *([sample_on_gpu] if torch.cuda.is_available() else [])]
every_sampler = pytest.mark.parametrize("choose", SAMPLERS)


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


@every_sampler
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
def test_distribution(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], candidates: int, choose: Sampler
) -> None:
    monkeypatch.setattr(sampling, "CANDIDATES", candidates)
    params = RequestSampling.from_params(fields)
    draws = 20_000
    rows = [SamplingRow(params, (index + 0.5) / draws) for index in range(draws)]

    tokens = choose(logits().repeat(draws, 1), rows)

    # Evenly spread uniform numbers hit each token as often as it is likely, to within one draw.
    shares = tokens.bincount(minlength=VOCAB) / draws
    torch.testing.assert_close(shares, expected(logits(), params), atol=2 / draws, rtol=0)


@every_sampler
def test_rows_do_not_influence_one_another(choose: Sampler) -> None:
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

    together = choose(values.clone(), rows).tolist()

    assert together == [int(choose(values[i : i + 1].clone(), rows[i : i + 1])) for i in range(len(rows))]
    assert together[0] == int(values[0].argmax())
    assert together[4] != int(values[4].argmax())


@every_sampler
def test_penalties(choose: Sampler) -> None:
    values = torch.zeros(1, VOCAB)
    values[0, :4] = torch.tensor([2.0, -1.0, 3.0, 1.0])
    history = TokenHistory(VOCAB, prompt=[0, 1], output=[2, 2])
    params = RequestSampling(
        temperature=0.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )

    choose(values, [SamplingRow(params, 0.0, history)])

    # Repetition counts the prompt; presence and frequency only the output.
    assert values[0, :4].tolist() == [1.0, -2.0, 1.5 - 0.5 - 2 * 0.25, 1.0]


@pytest.mark.parametrize("choose", SAMPLERS[1:])
def test_a_seed_means_the_same_everywhere(choose: Sampler) -> None:
    vocab, steps = 3000, 30
    fields: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"top_k": 50, "top_p": 0.8, "repetition_penalty": 1.05},
        {"top_p": 0.95, "temperature": 1.5},
        {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"min_p": 0.02, "presence_penalty": 1.1},
        {"top_k": 2000},
    ]

    def tokens(sampler: Sampler) -> list[list[int]]:
        generator = torch.Generator().manual_seed(5)
        uniforms = random.Random(5)
        histories = [TokenHistory(vocab, [1, 2, 3], [7]) for _ in fields]
        chosen: list[list[int]] = []
        for step in range(steps):
            # Requests come and go, so that a history is not always in the same row.
            present = [index for index in range(len(fields)) if (step + index) % 3]
            values = torch.randn(len(present), vocab, generator=generator) * 3
            rows = [
                SamplingRow(
                    params := RequestSampling.from_params(fields[index]),
                    uniforms.random(),
                    histories[index] if params.has_penalties else None,
                )
                for index in present
            ]
            chosen.append(sampler(values, rows).tolist())
            for index, token in zip(present, chosen[-1], strict=True):
                histories[index].add(token)
        return chosen

    assert tokens(choose) == tokens(sample)


def test_a_history_follows_its_tokens_on_any_path() -> None:
    params = RequestSampling(temperature=0.0, frequency_penalty=1.0)
    one, other = (TokenHistory(VOCAB, [3], [5, 5]) for _ in range(2))
    for token in (5, 8):
        sample(torch.zeros(1, VOCAB), [SamplingRow(params, 0.0, one)])
        sample_unread(torch.zeros(1, VOCAB), [SamplingRow(params, 0.0, other)])
        one.add(token)
        other.add(token)
    for history, choose in ((one, sample), (other, sample_unread)):
        choose(torch.zeros(1, VOCAB), [SamplingRow(params, 0.0, history)])
        assert history.counts is not None
        assert history.seen is not None
        assert history.counts.nonzero().flatten().tolist() == [5, 8]
        assert history.counts[[5, 8]].tolist() == [3.0, 1.0]
        assert history.seen.nonzero().flatten().tolist() == [3, 5, 8]


def test_a_token_that_repeats_a_recent_one_is_drawn_again() -> None:
    """By the other temperature and top_p, and the request's own top_k; all other rows stay as they are."""
    params = RequestSampling(temperature=0.5, top_k=6, top_p=0.7, seed=1)
    rule = RepetitionRule(window=3, temperature=1.0, top_p=0.9)
    number = random.Random(3)
    values = logits(4)
    best = int(values.argmax())
    outputs = [[best, 1, 2], [best, 1, 2, 3], [], [best]]
    again = RequestSampling(temperature=1.0, top_k=6, top_p=0.9)
    second = 0
    for _ in range(300):
        numbers = [(number.random(), number.random()) for _ in outputs]
        rows = [
            SamplingRow(params, first, redraw=rule.redraw(params, other, output))
            for (first, other), output in zip(numbers, outputs, strict=True)
        ]
        tokens, _ = next_tokens(values.repeat(len(rows), 1), torch.tensor([], dtype=torch.long), rows)
        for token, output, (first, other) in zip(tokens.tolist(), outputs, numbers, strict=True):
            right = int(sample(values[None].clone(), [SamplingRow(params, first)]))
            if right in output[-3:]:
                right = int(sample(values[None].clone(), [SamplingRow(again, other)]))
                second += right != best
            assert token == right
    assert second > 100, "the flatter distribution gives other tokens too"


def test_a_request_draws_again_only_if_it_draws() -> None:
    rule = RepetitionRule(window=2, temperature=1.0, top_p=0.9)
    drawn = EngineRequest("drawn", [1], RequestSampling(seed=4), repetition=rule, output_token_ids=[5, 6, 7])
    row = drawn.sampling_row(VOCAB)
    assert row.redraw is not None
    assert row.redraw.recent == (6, 7)
    numbers = random.Random(4)
    assert (row.uniform, row.redraw.uniform) == (numbers.random(), numbers.random())
    greedy = EngineRequest("greedy", [1], RequestSampling(temperature=0.0), repetition=rule)
    assert greedy.sampling_row(VOCAB).redraw is None
