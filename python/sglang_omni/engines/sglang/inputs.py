"""The inputs of a batch that SGLang does not pass to a model: spans, states, positions on three axes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.sequence import SequenceSpan


class StepInputs(NamedTuple):
    """One batch of B sequences with T new tokens.

    Attributes:
        spans: One for each sequence, in the order of the batch's rows.
        positions: (3, T) int64, for rotary embeddings on three axes.
        prefill: True for a batch of prompts, False for one token of each sequence.
    """

    spans: list[SequenceSpan]
    positions: Tensor
    prefill: bool

    @property
    def last_rows(self) -> Tensor:
        """(B,) int64, the row of each sequence's last new token."""
        return torch.tensor([span.first_row + span.num_tokens - 1 for span in self.spans])


def lay_out(batch: ScheduleBatch) -> StepInputs:
    """The inputs of a batch that SGLang is about to compute."""
    prefill = batch.forward_mode.is_extend()
    if prefill:
        extents = [(req.prefix_len, req.extend_len) for req in batch.reqs]
    else:
        extents = [(length - 1, 1) for length in batch.seq_lens_cpu.tolist()]
    spans: list[SequenceSpan] = []
    positions: list[Tensor] = []
    row = 0
    for req, (start, count) in zip(batch.reqs, extents, strict=True):
        spans.append(SequenceSpan(req.request.state, start, count, row, req.samples))
        positions.append(_positions(req.request, start, start + count))
        row += count
    return StepInputs(spans, torch.cat(positions, dim=1), prefill)


def _positions(request: EngineRequest, start: int, stop: int) -> Tensor:
    """(3, n): prompts' tokens have given positions, generated ones the same on all axes."""
    if request.positions is None:
        return torch.arange(start, stop).expand(3, -1)
    prompt, delta = request.positions
    length = prompt.shape[1]
    generated = torch.arange(max(start, length), max(stop, length)) + delta
    return torch.cat((prompt[:, start:stop], generated.expand(3, -1)), dim=1)
