"""Decoders whose rows of audio pass norms and an MLP of their own, beside those of text.

The attention is common to both. Boson AI calls it DualFFN: https://www.boson.ai/blog/higgs-audio-v2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.mlp import DenseMLP, SparseMLP
from sglang_omni.model_runner.norm import RMSNorm
from sglang_omni.model_runner.sequence import SequenceSpan


class AudioWeights(NamedTuple):
    """What rows of audio pass in a layer in place of its own."""

    input_norm: RMSNorm
    post_norm: RMSNorm
    mlp: DenseMLP | SparseMLP


class RowKinds(NamedTuple):
    """The numbers of a batch's rows of text and of audio, (n,) int64 each, on the decoder's device."""

    text: Tensor
    audio: Tensor

    def apply(
        self, to_text: Callable[[Tensor], Tensor], to_audio: Callable[[Tensor], Tensor], rows: Tensor
    ) -> Tensor:
        """Each row (T, n) through the function of its kind, to a row of the same width."""
        result = torch.empty_like(rows)
        result.index_copy_(0, self.text, to_text(rows.index_select(0, self.text)))
        return result.index_copy_(0, self.audio, to_audio(rows.index_select(0, self.audio)))


class AudioState(Protocol):
    """A sequence's state, of such a decoder."""

    def is_audio(self, place: int) -> bool:
        """True if the row at index ``place`` of the sequence is one of audio."""
        ...


def row_kinds(spans: Sequence[SequenceSpan], device: torch.device) -> RowKinds | None:
    """Of a batch's rows; None if all are of audio."""
    audio = [
        cast(AudioState, span.state).is_audio(span.start + index)
        for span in spans
        for index in range(span.num_tokens)
    ]
    if all(audio):
        return None
    is_audio = torch.tensor(audio)
    return RowKinds(*(to_device(rows.nonzero().squeeze(1), device) for rows in (~is_audio, is_audio)))
