"""Attention over the paged cache itself, on a CPU: a plain loop in place of torch's kernel."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_omni.model_runner import attention
from sglang_omni.model_runner.batch import PagedBatch


def plain_attention(queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch) -> Tensor:
    """As ``attention.paged_attention``, for any device, dtype and size of pages."""
    assert all(t.dtype == torch.int32 for t in (batch.first_rows, batch.lengths, batch.pages))
    assert batch.lengths.is_contiguous()
    assert batch.pages.stride(-1) == 1
    rows = batch.first_rows.tolist()
    assert rows[-1] == len(queries)
    out = []
    for i, (first, last) in enumerate(itertools.pairwise(rows)):
        length = int(batch.lengths[i])
        assert last - first <= batch.max_rows
        assert length <= batch.max_length
        pages = batch.pages[i, : -(-length // keys.shape[1])].long()
        k, v = (t[pages].flatten(0, 1)[:length].transpose(0, 1) for t in (keys, values))
        places = torch.arange(length - (last - first), length).unsqueeze(1)
        mask = torch.arange(length) <= places
        q = queries[first:last].transpose(0, 1)
        out.append(scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(0, 1))
    return torch.cat(out)


def attend_paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has engines that are built from now on read their caches as on a GPU."""
    monkeypatch.setattr(attention, "why_not_paged", lambda *args: "")
    monkeypatch.setattr(attention, "paged_attention", plain_attention)
