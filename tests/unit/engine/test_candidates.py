"""Draws among the likeliest tokens choose what draws among all tokens choose, and know when they cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_omni.model_runner import draws
from sglang_omni.model_runner.penalties import TokenHistory
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import RepetitionRule, Sampler, SamplingRow

VOCAB = 60


def choose(rows: list[SamplingRow], logits: Tensor, candidates: int) -> tuple[list[int], bool]:
    """The tokens, and whether some had to be drawn among all tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "CANDIDATES", candidates)
        choice = Sampler([5]).choose(logits.clone(), rows)
        return choice.read().tolist(), choice.corrected


@st.composite
def logit_rows(draw: st.DrawFn) -> Tensor:
    """(VOCAB,) float32: spread, in few steps as bfloat16 makes them, all equal, or with tokens left out."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    values = torch.randn(VOCAB, generator=generator) * draw(st.sampled_from([0.01, 1.0, 3.0, 20.0]))
    match draw(st.sampled_from(["spread", "steps", "equal", "some"])):
        case "steps":
            values = values.round()
        case "equal":
            values = torch.full((VOCAB,), float(values[0]))
        case "some":
            values[torch.rand(VOCAB, generator=generator) < 0.9] = -torch.inf
            values[0] = 0.0
    return values


PARAMS = st.builds(
    RequestSampling,
    temperature=st.sampled_from([0.0, 1e-4, 0.6, 1.0, 5.0]),
    top_p=st.one_of(st.sampled_from([1e-6, 0.5, 0.9, 0.9999, 1.0]), st.floats(0.01, 1.0)),
    top_k=st.sampled_from([-1, 1, 3, 4, 5, 8, 40, VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 1e-3, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0]),
    filters_first=st.booleans(),
)
RULE = RepetitionRule(window=3, temperature=1.0, top_p=0.9)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Any, ...]:
    """A row's logits, parameters, two numbers and output, and whether it may be drawn twice."""
    uniform = st.one_of(st.floats(0.0, 1.0, exclude_max=True), st.sampled_from([0.0, 1.0 - 2**-53]))
    output = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)
    return draw(logit_rows()), draw(PARAMS), draw(uniform), draw(uniform), draw(output), draw(st.booleans())


def row_of(
    params: RequestSampling, first: float, second: float, output: list[int], twice: bool
) -> SamplingRow:
    history = TokenHistory(VOCAB, [1], output) if params.has_penalties else None
    redraw = RULE.redraw(params, second, output) if twice and params.temperature > 0 else None
    return SamplingRow(params, first, history, None, redraw)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(asked(), min_size=1, max_size=5), candidates=st.sampled_from([1, 4, 16, VOCAB - 1]))
def test_the_likeliest_give_what_all_tokens_give(rows: list[tuple[Any, ...]], candidates: int) -> None:
    logits = torch.stack([values for values, *_ in rows])

    together, _ = choose([row_of(*asked) for _, *asked in rows], logits, candidates)

    for index, (values, *asked) in enumerate(rows):
        alone, corrected = choose([row_of(*asked)], values[None], VOCAB)
        assert not corrected
        assert [together[index]] == alone


FLAT, PEAKED = torch.zeros(VOCAB), -torch.arange(VOCAB) * 2.0


@pytest.mark.parametrize(
    ("fields", "values", "corrected"),
    [
        ({"top_p": 0.9}, PEAKED, False),
        ({"top_p": 0.9}, FLAT, True),
        ({"top_p": 0.9999}, PEAKED, True),
        ({"top_p": 0.01}, FLAT, True),
        ({"min_p": 0.1}, PEAKED, False),
        ({"min_p": 1e-9}, PEAKED, True),
        ({"top_k": 3}, PEAKED, False),
        ({"top_k": 4}, PEAKED, False),
        # Which of equal tokens are among them is known of all tokens only.
        ({"top_k": 3}, FLAT, True),
        ({"top_k": 5}, PEAKED, True),
        # Not filtered at all.
        ({}, FLAT, False),
        ({"temperature": 0.0, "top_p": 0.5}, FLAT, False),
    ],
)
def test_all_tokens_are_looked_at_only_if_they_must_be(
    fields: dict[str, Any], values: Tensor, corrected: bool
) -> None:
    row = SamplingRow(RequestSampling.from_params(fields), 0.5)
    assert choose([row], values[None], 4)[1] is corrected
    assert choose([row], values[None], VOCAB)[1] is False


def test_rows_that_suffice_stay_as_they_are() -> None:
    """Even where another row of the step is drawn again."""
    peaked, flat = (SamplingRow(replace(RequestSampling(), top_p=0.9), number) for number in (0.3, 0.7))
    tokens, corrected = choose([peaked, flat], torch.stack([PEAKED, FLAT]), 4)
    assert corrected
    assert tokens == [choose([peaked], PEAKED[None], 4)[0][0], choose([flat], FLAT[None], VOCAB)[0][0]]
