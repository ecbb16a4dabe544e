"""Attention of a batch's new tokens over the paged cache."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_omni.model_runner.batch import ForwardBatch, PagedBatch
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.masks import causal_mask

# torch's kernel reads pages of a multiple of this many tokens (``mha_varlen_fwd`` in its flash_api.cpp).
PAGE_SIZE = 256
# The most numbers of a mask on a GPU.
MASK_SIZE = 1 << 25


def avoid_cudnn() -> None:
    """Has torch compute attention in this process without cuDNN.

    cuDNN plans its kernels anew for each shape, in 40 ms and more: every length of a prompt and every count
    of sequences would wait for it once. From 2.15 on torch prefers it for paged caches, on GPUs of capability
    9.x and 10.x.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def why_not_paged(config: DecoderConfig, dtype: torch.dtype, device: torch.device, page_size: int) -> str:
    """Why torch's kernel for paged caches cannot compute this attention; empty if it can.

    Without it, keys and values are gathered for each layer, which any device and dtype can.
    """
    if config.sliding_layers:
        return "layers with a sliding window need masks"
    if device.type != "cuda":
        return "there is no kernel for paged caches on a CPU"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"torch's kernel for paged caches computes bfloat16 and float16, not {dtype}"
    if not has_paged_attention():
        return f"torch {torch.__version__} has no attention over a paged cache, as from 2.12 on"
    if config.head_dim % 8 or config.head_dim > 256:
        return f"heads of {config.head_dim} channels are no multiple of 8, or more than 256"
    if page_size % PAGE_SIZE:
        return f"page_size {page_size} is no multiple of {PAGE_SIZE}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than Ampere"
    return ""


def has_paged_attention() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"block_table", "seqused_k", "enable_gqa"} <= set(inspect.signature(varlen_attn).parameters)


def attend(
    queries: Tensor, layer: int, cache: PagedKVCache, batch: ForwardBatch, *, sliding: bool = False
) -> Tensor:
    """Attention of the queries over their sequences' keys and values in the cache.

    Args:
        queries: (T, heads, head_dim), rows in the batch's order.
        sliding: True for a layer with a sliding window.

    Returns:
        (T, heads * head_dim), rows in the batch's order.
    """
    if batch.paged is not None:
        return _attend_paged(queries, layer, cache, batch.paged)
    _, heads, dim = queries.shape
    parts: list[Tensor] = []
    for group in batch.decode:
        keys, values = cache.read(layer, group.kv)
        kv_heads = keys.shape[1]
        # The query heads that share a key head take the dimension of positions: no key is repeated.
        grouped = queries[group.first_row : group.first_row + group.num_rows].view(
            group.num_rows, kv_heads, heads // kv_heads, dim
        )
        mask = group.window_mask if sliding else group.mask
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        parts.append(out.reshape(group.num_rows, heads * dim))
    for span in batch.prefill:
        keys, values = cache.read(layer, span.kv)
        rows = queries[span.first_row : span.first_row + span.num_rows]
        if rows.is_cuda:
            out = attend_in_pieces(rows, keys, values, span.window if sliding else None)
        else:
            mask = span.window_mask if sliding else span.mask
            out = scaled_dot_product_attention(
                rows.transpose(0, 1).unsqueeze(0),
                *(keys, values),
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=True,
            )[0].transpose(0, 1)
        parts.append(out.reshape(span.num_rows, heads * dim))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_in_pieces(queries: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """Causal attention of a sequence's last tokens over all of its keys and values, for GPUs.

    torch's kernels that keep no scores take a mask, and float32, only for as many heads of keys as of
    queries. So each head of keys is a sequence here, and its query heads read it in place. A mask is made for
    as many rows at a time as ``MASK_SIZE`` has room for: that of a long prompt's step would take gigabytes.

    Args:
        queries: (n, heads, head_dim).
        keys, values: (1, kv_heads, length, head_dim).
        window: A token attends so many, itself counted; None for all before it.

    Returns:
        (n, heads, head_dim).
    """
    count, heads, dim = queries.shape
    _, kv_heads, length, _ = keys.shape
    shared = heads // kv_heads
    grouped = queries.view(count, kv_heads, shared, dim).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1).expand(-1, shared, -1, -1) for t in (keys, values))
    if count == length and (window is None or length <= window):
        out = scaled_dot_product_attention(grouped, keys, values, is_causal=True)
    else:
        start, size = length - count, max(1, MASK_SIZE // length)
        pieces = []
        for first in range(0, count, size):
            last = min(first + size, count)
            mask = causal_mask(start + first, last - first, window, queries.dtype, queries.device)
            seen = start + last
            pieces.append(
                scaled_dot_product_attention(
                    grouped[:, :, first:last], keys[:, :, :seen], values[:, :, :seen], attn_mask=mask
                )
            )
        out = torch.cat(pieces, dim=2)
    return out.permute(2, 0, 1, 3).reshape(count, heads, dim)


def _attend_paged(queries: Tensor, layer: int, cache: PagedKVCache, batch: PagedBatch) -> Tensor:
    keys, values = cache.paged(layer)
    return paged_attention(queries, keys, values, batch).flatten(1)


def paged_attention(queries: Tensor, keys: Tensor, values: Tensor, batch: PagedBatch) -> Tensor:
    """Causal attention of each sequence's last tokens over its pages, by torch's flash kernel.

    Args:
        queries: (T, heads, head_dim).
        keys, values: (all pages, page_size, kv_heads, head_dim).

    Returns:
        (T, heads, head_dim).
    """
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        queries,
        keys,
        values,
        batch.first_rows,
        # Not read if there are pages, but its shape and dtype are checked.
        batch.first_rows,
        batch.max_rows,
        batch.max_length,
        # Nothing is behind a sequence's only row, and without a window its query heads are folded into rows.
        window_size=(-1, -1) if batch.max_rows == 1 else (-1, 0),
        enable_gqa=True,
        seqused_k=batch.lengths,
        block_table=batch.pages,
    )
    assert isinstance(out, Tensor)
    return out
