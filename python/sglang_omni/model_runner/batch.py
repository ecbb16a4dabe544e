"""What one forward pass computes: tokens of several requests, flat, and where their keys and values lie."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sglang_omni.model_runner.sequence import SequenceSpan


class KVSource(NamedTuple):
    """Where the keys and values of one or more sequences are read from.

    Attributes:
        pages: (B, P) int64, page numbers in order; short rows are padded with any valid page.
        length: Tokens to read of each row, at most ``P * page_size``.
        start: The first slot, where a single row's pages follow one another: read without a copy.
    """

    pages: Tensor
    length: int
    start: int | None = None


class DecodeGroup(NamedTuple):
    """Sequences of similar length with one new token each, attended to in one call.

    ``mask`` is additive, (B, 1, 1, length) in the model's dtype; None where no row is padded.
    """

    first_row: int
    num_rows: int
    kv: KVSource
    mask: Tensor | None


class PrefillSpan(NamedTuple):
    """Consecutive new tokens of one sequence. ``mask`` is None where nothing was cached before them."""

    first_row: int
    num_rows: int
    kv: KVSource
    mask: Tensor | None


class ForwardBatch(NamedTuple):
    """T new tokens: those of ``decode`` groups first, then those of ``prefill`` spans.

    Attributes:
        token_ids: (T,) int64.
        positions: (T,) int64, the place of each token in its sequence; (3, T) for rotary embeddings on three
            axes.
        slots: (T,) int64, where each token's key and value are written.
        logit_rows: (S,) int64, the rows whose next token is wanted; None for all of them.
        spans: Which rows belong to which sequence, in the order of the rows.
        pages: Of each span's sequence, page numbers in order.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    decode: list[DecodeGroup]
    prefill: list[PrefillSpan]
    logit_rows: Tensor | None
    spans: list[SequenceSpan]
    pages: list[list[int]]
