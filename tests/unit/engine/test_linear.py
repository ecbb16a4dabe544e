"""Projections and norms computed in fewer or faster operations give what torch's own give."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, rms_norm

from sglang_omni.model_runner.linear import Linear
from sglang_omni.model_runner.norm import RMSNorm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 8, 100])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_large_projection(dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(600, 501, generator=generator)
    bias = torch.randn(600, generator=generator).to(dtype) if has_bias else None
    # A slice, as the rows of an expert are.
    rows = torch.randn(num_rows + 3, 501, generator=generator).to(dtype)[3:]
    with torch.inference_mode():
        ours = Linear(weight.to(dtype), bias)(rows)

    assert ours.dtype == dtype
    exact = linear(rows.double(), weight.to(dtype).double(), bias.double() if bias is not None else None)
    torch.testing.assert_close(ours.double(), exact, atol=1e-3, rtol=1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_with_weights_of_its_own_for_every_head(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(3, 32, generator=generator).to(dtype)
    rows = torch.randn(5, 3, 32, generator=generator).to(dtype) * 1e-3
    expected = torch.stack([rms_norm(rows[:, head], (32,), weight[head], 1e-6) for head in range(3)], dim=1)

    torch.testing.assert_close(RMSNorm.of(weight, 1e-6)(rows), expected)
