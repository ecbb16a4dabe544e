"""Attention of a batch's new tokens over the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.kv_cache import PagedKVCache


def attend(queries: Tensor, layer: int, cache: PagedKVCache, batch: ForwardBatch) -> Tensor:
    """Attention of the queries over their sequences' keys and values in the cache.

    Args:
        queries: (T, heads, head_dim), rows in the batch's order.

    Returns:
        (T, heads * head_dim), rows in the batch's order.
    """
    _, heads, dim = queries.shape
    parts: list[Tensor] = []
    for group in batch.decode:
        keys, values = cache.read(layer, group.kv)
        kv_heads = keys.shape[1]
        # The query heads that share a key head take the dimension of positions: no key is repeated.
        grouped = queries[group.first_row : group.first_row + group.num_rows].view(
            group.num_rows, kv_heads, heads // kv_heads, dim
        )
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask)
        parts.append(out.reshape(group.num_rows, heads * dim))
    for span in batch.prefill:
        keys, values = cache.read(layer, span.kv)
        rows = queries[span.first_row : span.first_row + span.num_rows].transpose(0, 1).unsqueeze(0)
        out = scaled_dot_product_attention(
            rows, keys, values, attn_mask=span.mask, is_causal=span.mask is None, enable_gqa=True
        )
        parts.append(out.squeeze(0).transpose(0, 1).reshape(span.num_rows, heads * dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
