"""Draws follow the distribution that temperature, filters and penalties define."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner import draws
from sglang_omni.model_runner.penalties import TokenHistory
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import RepetitionRule, Sampler, SamplingRow

VOCAB = 40

Choose = Callable[[Tensor, Sequence[SamplingRow]], Tensor]


def sample(logits: Tensor, rows: Sequence[SamplingRow], suppressed: Sequence[int] = ()) -> Tensor:
    return Sampler(suppressed).choose(logits, rows).read()


def sample_on_gpu(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """``logits`` keep their own device, and are changed all the same. Waiting for the GPU is an error."""
    on_gpu = logits.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        choice = Sampler().choose(on_gpu, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    logits.copy_(on_gpu)
    return choice.read()


SAMPLERS: list[Choose] = [sample, *([sample_on_gpu] if torch.cuda.is_available() else [])]
every_device = pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
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
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], candidates: int, choose: Choose
) -> None:
    monkeypatch.setattr(draws, "CANDIDATES", candidates)
    params = RequestSampling.from_params(fields)
    count = 20_000
    rows = [SamplingRow(params, (index + 0.5) / count) for index in range(count)]

    tokens = choose(logits().repeat(count, 1), rows)

    # Evenly spread uniform numbers hit each token as often as it is likely, to within one draw.
    shares = tokens.bincount(minlength=VOCAB) / count
    torch.testing.assert_close(shares, expected(logits(), params), atol=2 / count, rtol=0)


@every_sampler
def test_rows_do_not_influence_one_another(choose: Choose) -> None:
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
def test_penalties(choose: Choose) -> None:
    values = torch.zeros(1, VOCAB)
    values[0, :4] = torch.tensor([2.0, -1.0, 3.0, 1.0])
    history = TokenHistory(VOCAB, prompt=[0, 1], output=[2, 2])
    params = RequestSampling(
        temperature=0.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )

    choose(values, [SamplingRow(params, 0.0, history)])

    # Repetition counts the prompt; presence and frequency only the output.
    assert values[0, :4].tolist() == [1.0, -2.0, 1.5 - 0.5 - 2 * 0.25, 1.0]


@every_device
def test_a_seed_means_the_same_in_any_batch(device: str) -> None:
    """One sampler for all steps chooses as a new one for each row alone."""
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
    asked = [RequestSampling.from_params(each) for each in fields]
    prompt, output = [1, 2, 3], [7]
    histories = [TokenHistory(vocab, prompt, output) for _ in fields]
    outputs = [list(output) for _ in fields]
    generator, uniforms, sampler = torch.Generator().manual_seed(5), random.Random(5), Sampler([4])
    for step in range(steps):
        # Requests come and go, so that a history is not always in the same row; two steps each have the same.
        present = [index for index in range(len(fields)) if (step // 2 + index) % 3]
        values = torch.randn(len(present), vocab, generator=generator) * 3
        numbers = [uniforms.random() for _ in present]
        rows = [
            SamplingRow(asked[i], number, histories[i] if asked[i].has_penalties else None)
            for i, number in zip(present, numbers, strict=True)
        ]

        tokens = sampler.choose(values.to(device, copy=True), rows).read().tolist()

        for position, (index, number) in enumerate(zip(present, numbers, strict=True)):
            alone = SamplingRow(asked[index], number, TokenHistory(vocab, prompt, outputs[index]))
            assert [tokens[position]] == sample(
                values[position : position + 1].clone(), [alone], [4]
            ).tolist()
            histories[index].add(tokens[position])
            outputs[index].append(tokens[position])


def test_settings_stay_until_rows_change() -> None:
    def settings(*rows: SamplingRow) -> tuple[object, object]:
        sampler.choose(torch.zeros(len(rows), VOCAB), rows)
        return sampler._draws, sampler._penalties

    sampler = Sampler()
    drawn = SamplingRow(RequestSampling(top_p=0.9), 0.5)
    penalised = SamplingRow(RequestSampling(frequency_penalty=1.0), 0.5, TokenHistory(VOCAB, [], [3]))
    first = settings(drawn, penalised)
    assert settings(drawn._replace(uniform=0.1), penalised) == first
    # Another request with the same parameters has a history of its own.
    draws_of, penalties = settings(drawn, penalised._replace(history=TokenHistory(VOCAB, [], [3])))
    assert draws_of is first[0]
    assert penalties is not first[1]
    assert settings(penalised, drawn)[0] is not first[0]


def test_a_history_follows_its_tokens_in_any_batch() -> None:
    params = RequestSampling(temperature=0.0, frequency_penalty=1.0)
    one, other = (TokenHistory(VOCAB, [3], [5, 5]) for _ in range(2))
    sampler = Sampler()
    for together in (True, True, False, True):
        for histories in [[one, other]] if together else [[one], [other]]:
            rows = [SamplingRow(params, 0.0, history) for history in histories]
            sampler.choose(torch.zeros(len(rows), VOCAB), rows)
        one.add(5)
        other.add(8)
    sampler.choose(torch.zeros(2, VOCAB), [SamplingRow(params, 0.0, history) for history in (one, other)])
    for history, counts in ((one, {5: 6.0}), (other, {5: 2.0, 8: 4.0})):
        assert history.counts is not None
        assert history.seen is not None
        assert history.counts.nonzero().flatten().tolist() == list(counts)
        assert history.counts[list(counts)].tolist() == list(counts.values())
        assert history.seen.nonzero().flatten().tolist() == [3, *counts]


def test_a_token_that_repeats_a_recent_one_is_drawn_again() -> None:
    """By the other temperature and top_p, and the request's own top_k; all other rows stay as they are."""
    params = RequestSampling(temperature=0.5, top_k=6, top_p=0.7, seed=1)
    rule = RepetitionRule(window=3, temperature=1.0, top_p=0.9)
    number = random.Random(3)
    values = logits(4)
    best = int(values.argmax())
    outputs = [[best, 1, 2], [best, 1, 2, 3], [], [best]]
    again = RequestSampling(temperature=1.0, top_k=6, top_p=0.9)
    second, sampler = 0, Sampler()
    for _ in range(300):
        numbers = [(number.random(), number.random()) for _ in outputs]
        rows = [
            SamplingRow(params, first, redraw=rule.redraw(params, other, output))
            for (first, other), output in zip(numbers, outputs, strict=True)
        ]
        tokens = sampler.choose(values.repeat(len(rows), 1), rows).read().tolist()
        for token, output, (first, other) in zip(tokens, outputs, numbers, strict=True):
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
