"""Masks of attention over gathered keys: 0 for what a token attends, minus infinity for what it does not."""

from __future__ import annotations

import torch
from torch import Tensor

# torch's kernels for GPUs copy a mask whose rows do not begin at a multiple of so many numbers.
_ALIGNED = 8


def padding_mask(lengths: Tensor, longest: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, longest), which hides what is behind each sequence, and before its last ``window``."""
    return _mask(lengths - 1, longest, window, dtype)[:, None, None, :]


def causal_mask(
    start: int, count: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(count, start + count), of the last ``count`` tokens of a sequence."""
    return _mask(torch.arange(start, start + count, device=device), start + count, window, dtype)


def _mask(rows: Tensor, length: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """(n, length), of the tokens at ``rows`` (n,) of their sequences."""
    width = -(-length // _ALIGNED) * _ALIGNED
    columns, last = torch.arange(width, device=rows.device), rows.unsqueeze(1)
    hidden = columns > last
    if window is not None:
        hidden |= columns <= last - window
    zeros = torch.zeros(hidden.shape, dtype=dtype, device=rows.device)
    return zeros.masked_fill_(hidden, float("-inf"))[:, :length]
