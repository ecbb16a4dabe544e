"""What biases, masks and scores cost a GPU: a few launches, no reads; and nothing if no request has any."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import DEVICE, Step, fake_gpu
from torch import Tensor

from sglang_omni.model_runner import sampling
from sglang_omni.model_runner.demands import TokenDemands
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import Sampler, SamplingRow

VOCAB = 152064
ROWS = 16


class OnlySome:
    def fill(self, masks: Tensor, row: int) -> None:
        masks[row, 3] = 1 << 7


def step(*demands: TokenDemands | None) -> Step:
    """A step of rows with these demands, in turn."""
    greedy = RequestSampling(temperature=0.0)
    rows = [SamplingRow(greedy, 0.5, None, demands[row % len(demands)]) for row in range(ROWS)]
    with fake_gpu():
        sampler = Sampler()
        sampler.choose(torch.zeros(ROWS, VOCAB, device=DEVICE), rows)
        logits = torch.zeros(ROWS, VOCAB, device=DEVICE)
        with Step() as counted:
            tokens = sampler.choose(logits, rows).tokens
        assert tokens.shape == (ROWS,)
    return counted


@pytest.mark.parametrize(
    ("demands", "launches", "uploads"),
    [
        ((None,), 1, 0),
        ((TokenDemands(logit_bias=((5, 1.0), (9, -1.0))), None), 4, 1),
        ((TokenDemands(mask=OnlySome()), None), 9, 2),
        ((TokenDemands(num_top=5), None), 11, 1),
    ],
)
def test_budget(demands: tuple[TokenDemands | None, ...], launches: int, uploads: int) -> None:
    counted = step(*demands)

    assert counted.host_reads == 0
    assert counted.uploads == uploads
    assert counted.num_launches <= launches, counted.launches


def test_rows_without_demands_meet_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_scores", "add_biases", "apply_masks"):
        monkeypatch.delattr(sampling, name)
    assert step(None).num_launches == 1
    with pytest.raises(NameError):
        step(TokenDemands(num_top=0))
