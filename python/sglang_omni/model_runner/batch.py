"""The input of one forward pass: several requests' tokens, flat, and the slots of their keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sglang_omni.model_runner.sequence import SequenceSpan


class KVSource(NamedTuple):
    """The place of the keys and values of one or more sequences.

    Attributes:
        pages: (B, P) int64, page numbers in order; short rows are padded with any valid page.
        length: Tokens to read of each row, at most ``P * page_size``.
        start: The first slot if there is one row and its pages are consecutive, to read without a copy.
    """

    pages: Tensor
    length: int
    start: int | None = None


class DecodeGroup(NamedTuple):
    """Sequences of similar length with one new token each, whose attention is one call.

    Attributes:
        mask: Additive, (B, 1, 1, length) in the model's dtype; None if no row is padded.
        window_mask: The same for layers with a sliding window; None if no row is padded or longer.
    """

    first_row: int
    num_rows: int
    kv: KVSource
    mask: Tensor | None
    window_mask: Tensor | None = None


class PrefillSpan(NamedTuple):
    """Consecutive new tokens of one sequence.

    Attributes:
        mask: Additive, (num_rows, length) in the model's dtype; None if no tokens before them are cached, and
            on a GPU.
        window_mask: The same for layers with a sliding window.
        window: Of these layers; None if there are none.
    """

    first_row: int
    num_rows: int
    kv: KVSource
    mask: Tensor | None
    window_mask: Tensor | None = None
    window: int | None = None


class PagedBatch(NamedTuple):
    """N sequences for one attention over the paged cache, all on its device, int32.

    Attributes:
        first_rows: (N + 1,), the first row of each sequence, and the number of rows.
        lengths: (N,), tokens of each sequence, with the new ones.
        pages: (N, P), page numbers in order; short rows are padded with any valid page.
        max_rows: The most rows of a sequence.
        max_length: No sequence is longer.
    """

    first_rows: Tensor
    lengths: Tensor
    pages: Tensor
    max_rows: int
    max_length: int


class ForwardBatch(NamedTuple):
    """T new tokens: sequences with one each first, then those with more.

    Attention goes by ``decode`` groups and ``prefill`` spans, or if ``paged`` is set, by it alone.

    Attributes:
        token_ids: (T,) int64.
        positions: (T,) int64, each token's index in its sequence; (3, T) for rotary embeddings on three axes.
        slots: (T,) int64, where each token's key and value are written.
        logit_rows: (S,) int64, the rows whose next token is wanted; None for all rows.
        spans: The rows of each sequence, in the order of the rows.
        pages: The page numbers of each span's sequence, in order.
        step: Set if all sequences have one new token each: (T, 7) int32, one row for each token, of its id,
            slot, length, positions on three axes, and its row of the page table. Rows of no sequence may
            follow.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    decode: Sequence[DecodeGroup]
    prefill: Sequence[PrefillSpan]
    logit_rows: Tensor | None
    spans: list[SequenceSpan]
    pages: list[list[int]]
    paged: PagedBatch | None = None
    step: Tensor | None = None
