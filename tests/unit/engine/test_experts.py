"""A GPU's ways to compute experts give what the CPU's gives."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sglang_omni.model_runner import mlp
from sglang_omni.model_runner.linear import Linear

EXPERTS, HIDDEN, INNER, TOP_K = 12, 32, 24, 3
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["_gathered", "_dense", "_by_groups", "__call__"])
@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stacked_experts_are_listed_ones(device: str, way: str, count: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=generator).to(dtype) / 4
    down = torch.randn(EXPERTS, HIDDEN, INNER, generator=generator).to(dtype) / 4
    hidden = torch.randn(count, HIDDEN, generator=generator).to(dtype)
    shares, chosen = torch.rand(count, EXPERTS, generator=generator).topk(TOP_K)
    weights = shares.to(dtype)
    if way == "_by_groups" and (mlp.grouped_mm is None or (device == "cuda" and dtype == torch.float32)):
        pytest.skip("torch has no grouped products of this dtype")
    listed = mlp.ListedExperts(
        [mlp.DenseMLP(Linear(g), Linear(d)) for g, d in zip(gate_up, down, strict=True)]
    )
    stacked = mlp.StackedExperts(gate_up.to(device), down.to(device))

    got = getattr(stacked, way)(hidden.to(device), weights.to(device), chosen.to(device)).cpu()

    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(got, listed(hidden, weights, chosen), atol=tolerance, rtol=tolerance)


def test_a_long_prompt_passes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "_DENSE_ROWS", 7)
    stacked = mlp.StackedExperts(torch.randn(4, 16, 8), torch.randn(4, 8, 8))
    hidden, chosen = torch.randn(20, 8), torch.randint(0, 4, (20, 1))
    weights = torch.rand(20, 1)
    whole = stacked._dense(hidden, weights, chosen)
    torch.testing.assert_close(stacked(hidden, weights, chosen), whole)


@pytest.mark.parametrize(
    ("capability", "dtype", "inner", "has"),
    [
        ((8, 0), torch.bfloat16, 24, False),
        ((8, 9), torch.bfloat16, 24, False),
        ((9, 0), torch.bfloat16, 24, True),
        ((10, 0), torch.bfloat16, 24, True),
        ((10, 3), torch.bfloat16, 24, True),
        # RTX 50 and RTX PRO.
        ((12, 0), torch.bfloat16, 24, False),
        ((12, 1), torch.bfloat16, 24, False),
        ((9, 0), torch.float16, 24, False),
        ((9, 0), torch.bfloat16, 21, False),
    ],
)
def test_grouped_products_are_used_if_they_ask_nothing_of_the_host(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype, inner: int, has: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with FakeTensorMode():
        assert mlp._has_grouped_mm(torch.empty(4, 32, inner, dtype=dtype, device="cuda:1")) is has
