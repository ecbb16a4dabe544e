"""Attention over gathered keys and values, as GPUs compute it, beside one call with one mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sglang_omni.model_runner import attention


@pytest.mark.parametrize("window", [None, 5, 64])
@pytest.mark.parametrize("mask_size", [1, 60, 1 << 25])
@pytest.mark.parametrize("start", [0, 1, 21])
def test_pieces_are_the_whole(
    monkeypatch: pytest.MonkeyPatch, start: int, mask_size: int, window: int | None
) -> None:
    monkeypatch.setattr(attention, "MASK_SIZE", mask_size)
    torch.manual_seed(0)
    rows, length = 9, start + 9
    queries = torch.randn(rows, 6, 8)
    keys, values = torch.randn(2, 1, 2, length, 8)
    found = attention.attend_in_pieces(queries, keys, values, window)

    places, others = torch.arange(start, length).unsqueeze(1), torch.arange(length)
    seen = (others <= places) & (others > places - (window or length))
    wanted = scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=seen, enable_gqa=True
    )
    torch.testing.assert_close(found, wanted[0].transpose(0, 1))
