"""What the sampler costs a GPU: few launches whatever the batch, one copy to it, and nothing read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu

from sglang_omni.model_runner.penalties import TokenHistory
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import Sampler, SamplingRow

# Qwen3-Omni's thinker.
VOCAB = 152064
ROWS = 16


def step(*fields: dict[str, Any], num_rows: int = ROWS) -> Step:
    """The second step of rows with these parameters, in turn."""
    params = [RequestSampling.from_params(fields[row % len(fields)]) for row in range(num_rows)]
    histories = [TokenHistory(VOCAB, range(100), []) if each.has_penalties else None for each in params]
    rows = [SamplingRow(each, 0.5, history) for each, history in zip(params, histories, strict=True)]
    with fake_gpu():
        sampler = Sampler()
        sampler.choose(torch.zeros(num_rows, VOCAB, device=DEVICE), rows)
        for history in histories:
            if history is not None:
                history.add(7)
        logits = torch.zeros(num_rows, VOCAB, device=DEVICE)
        with Step() as counted:
            tokens = sampler.choose(logits, rows).tokens
        assert tokens.shape == (num_rows,)
        assert tokens.dtype == torch.int64
        assert tokens.device == torch.device(DEVICE)
    return counted


GREEDY: dict[str, Any] = {"temperature": 0.0}
PLAIN: dict[str, Any] = {"temperature": 0.9}
FILTERED: dict[str, Any] = {"top_k": 50, "top_p": 0.8}
NUCLEUS: dict[str, Any] = {"top_p": 0.8}
PENALISED: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("fields", "launches", "uploads"),
    [
        ([GREEDY], 1, 0),
        ([PLAIN], 12, 1),
        ([FILTERED], 34, 1),
        ([NUCLEUS], 34, 1),
        ([PENALISED], 20, 1),
        ([GREEDY, PLAIN, FILTERED, NUCLEUS, PENALISED], 59, 1),
    ],
)
def test_budget(fields: list[dict[str, Any]], launches: int, uploads: int) -> None:
    counted = step(*fields)

    assert counted.host_reads == 0
    assert counted.uploads == uploads
    assert counted.num_launches <= launches, counted.launches


def test_more_rows_cost_no_more_launches() -> None:
    mixed = [GREEDY, PLAIN, FILTERED, NUCLEUS, PENALISED]

    assert step(*mixed, num_rows=60).launches == step(*mixed, num_rows=10).launches


@pytest.mark.parametrize("fields", [FILTERED, NUCLEUS])
@pytest.mark.parametrize("short", [False, True])
def test_all_tokens_are_sorted_only_if_the_likeliest_did_not_suffice(
    fields: dict[str, Any], short: bool
) -> None:
    """The mark for it comes with the tokens: the host waits once, and again only if it is so."""
    rows = [SamplingRow(RequestSampling.from_params(fields), 0.5)] * ROWS
    with fake_gpu():
        choice = Sampler().choose(torch.zeros(ROWS, VOCAB, device=DEVICE), rows)
        with Step(value=int(short)) as counted:
            choice.read()
    assert counted.host_reads == 1 + short
    assert counted.uploads == 0
    assert counted.launches["sort"] == int(short)
    assert counted.launches["topk"] == 0
    assert (counted.num_launches > 0) is short
