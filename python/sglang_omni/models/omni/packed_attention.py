"""Attention within the segments of a packed batch, for transformers' encoders; none of it waits for a GPU.

transformers splits a packed batch by lengths that it reads from the device, three times a layer, and attends
to each segment by itself. Here the lengths are known on the host: a GPU takes all segments at once
(``torch.nn.attention.varlen``), and elsewhere neighbours of equal length, as a video's frames, are one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

# The kernel's own limits: Ampere and later, half precision, heads of whole vectors.
_CAPABILITY = (8, 0)
_DTYPES = (torch.float16, torch.bfloat16)
_HEAD_STEP, _LARGEST_HEAD = 8, 256
# Longer and shorter segments than those for which torch would choose another kernel.
_TRIED_LENGTHS = (160, 64)


# torch's ``varlen_attn``: rows (T, heads, d), bounds (n + 1,) int32 and the longest segment, each for queries
# and for keys, to (T, heads, d).
Varlen = Callable[..., Any]


class _Segments(NamedTuple):
    """Where the segments of a batch lie.

    Attributes:
        runs: First row, number and length of segments that are equally long and side by side.
        bounds: (n + 1,) int32 on the device; None without ``varlen``.
        longest: Rows of the longest segment.
        varlen: Attends within all of them at once; None if runs are attended to one after the other.
    """

    runs: list[tuple[int, int, int]]
    bounds: Tensor | None
    longest: int
    varlen: Varlen | None


# Of each kind of layers; those whose attention has no ``segmentation`` are of kind 0.
_current: ContextVar[tuple[_Segments, ...]] = ContextVar("segments")


@contextmanager
def segments(
    lengths: Sequence[int], device: str, varlen: Varlen | None, *others: Sequence[int]
) -> Iterator[Tensor]:
    """Has the encoders' attention stay within segments of these lengths, in this thread.

    Args:
        lengths: Of the segments.
        others: Of the segments of modules whose ``segmentation`` is 1, 2, ...; each sums up to as many rows.

    Yields:
        ``cu_seqlens`` for transformers: (2,) int32 on the host. To it all rows are one segment.
    """
    token = _current.set(tuple(_segments_of(each, device, varlen) for each in (lengths, *others)))
    try:
        yield torch.tensor([0, sum(lengths)], dtype=torch.int32)
    finally:
        _current.reset(token)


def _segments_of(lengths: Sequence[int], device: str, varlen: Varlen | None) -> _Segments:
    runs = []
    start = 0
    for length, equal in groupby(lengths):
        count = len(list(equal))
        runs.append((start, count, length))
        start += count * length
    bounds = None
    if varlen is not None:
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device)
    return _Segments(runs, bounds, max(lengths), varlen)


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_: object, scaling: float, **__: object
) -> tuple[Tensor, None]:
    """Attention in the form of transformers' ``AttentionInterface``; must be called inside ``segments``.

    Args:
        query, key, value: (1, heads, T, d).

    Returns:
        (1, T, heads, d), and no weights.
    """
    here = _current.get()[getattr(module, "segmentation", 0)]
    rows = [part[0].transpose(0, 1) for part in (query, key, value)]
    if here.varlen is not None and here.bounds is not None:
        bounds, longest = here.bounds, here.longest
        return here.varlen(*rows, bounds, bounds, longest, longest, scale=scaling).unsqueeze(0), None
    attended = []
    for start, count, length in here.runs:
        end = start + count * length
        batch = [part[start:end].unflatten(0, (count, length)).transpose(1, 2) for part in rows]
        out = F.scaled_dot_product_attention(batch[0], batch[1], batch[2], scale=scaling)
        attended.append(out.transpose(1, 2).flatten(0, 1))
    return (attended[0] if len(attended) == 1 else torch.cat(attended)).unsqueeze(0), None


def load_varlen(device: str, dtype: torch.dtype, num_heads: int, head_dim: int) -> Varlen | None:
    """torch's attention over segments of any length, tried once; None if it cannot serve these heads.

    A GPU on which it cannot be used has one line in the log that says why.
    """
    if torch.device(device).type != "cuda":
        return None
    try:
        return _tried(device, dtype, num_heads, head_dim)
    except (ImportError, TypeError, RuntimeError) as error:
        logger.warning(
            "The encoder on %s attends to frames of different sizes one after the other: torch %s has no "
            "attention over segments for it: %s",
            device,
            torch.__version__,
            error,
        )
        return None


def _tried(device: str, dtype: torch.dtype, num_heads: int, head_dim: int) -> Varlen:
    """Raises ImportError, TypeError or RuntimeError if it cannot be used."""
    if dtype not in _DTYPES:
        raise TypeError(f"it takes float16 and bfloat16, not {dtype}")
    if head_dim % _HEAD_STEP or head_dim > _LARGEST_HEAD:
        raise TypeError(
            f"it takes heads of at most {_LARGEST_HEAD}, in steps of {_HEAD_STEP}, not {head_dim}"
        )
    if (capability := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        raise RuntimeError(f"a GPU of capability {capability} is too old, {_CAPABILITY} is the least")
    from torch.nn.attention.varlen import varlen_attn

    # cuDNN, torch's other choice, would make a plan for each new size of a picture; one that must not
    # split keys is never its. Versions of torch that know no such option have no cuDNN here either.
    chosen: Varlen = partial(varlen_attn, num_splits=1)
    try:
        _try(chosen, device, dtype, num_heads, head_dim)
    except TypeError:
        chosen = varlen_attn
        _try(chosen, device, dtype, num_heads, head_dim)
    return chosen


def _try(varlen: Varlen, device: str, dtype: torch.dtype, num_heads: int, head_dim: int) -> None:
    """A failure of the kernel must be noticed here, and not in the middle of a request."""
    rows = torch.zeros(sum(_TRIED_LENGTHS), num_heads, head_dim, dtype=dtype).to(device)
    bounds = torch.tensor([0, *accumulate(_TRIED_LENGTHS)], dtype=torch.int32).to(device)
    longest = max(_TRIED_LENGTHS)
    varlen(rows, rows, rows, bounds, bounds, longest, longest, scale=1.0)
    torch.cuda.synchronize(device)
