"""The inputs of a batch that SGLang does not pass to a model: spans, states, positions on three axes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from torch import Tensor

from sglang_omni.engines.request import EngineRequest
from sglang_omni.engines.sglang.request import ScheduledRequest
from sglang_omni.model_runner.sequence import SequenceSpan


class ExtendInputs(NamedTuple):
    """One batch of B sequences with T tokens of prompts.

    Attributes:
        spans: One for each sequence, in the order of the batch's rows.
        positions: (3, T) int64, for rotary embeddings on three axes.
        deltas: (B,) int64, added to the index of a generated token to get its position on every axis.
    """

    spans: list[SequenceSpan]
    positions: Tensor
    deltas: Tensor


def samples(batch: ScheduleBatch, req: ScheduledRequest) -> bool:
    """True if the batch reaches the end of a request's sequence, so that a token is chosen."""
    return not batch.forward_mode.is_extend() or req is not batch.chunked_req


def extend_inputs(batch: ScheduleBatch) -> ExtendInputs:
    """The inputs of a batch of prompts that SGLang is about to compute."""
    spans: list[SequenceSpan] = []
    positions: list[Tensor] = []
    deltas: list[int] = []
    row = 0
    for req in batch.reqs:
        start, count = req.prefix_len, req.extend_len
        spans.append(SequenceSpan(req.request.state, start, count, row, samples(batch, req)))
        positions.append(_positions(req.request, start, start + count))
        deltas.append(0 if req.request.positions is None else req.request.positions.delta)
        row += count
    return ExtendInputs(spans, torch.cat(positions, dim=1), torch.tensor(deltas))


def decode_spans(batch: ScheduleBatch) -> list[SequenceSpan]:
    """The spans of a batch that is about to compute one token of each sequence."""
    lengths = batch.seq_lens_cpu.tolist()
    return [
        SequenceSpan(req.request.state, length - 1, 1, row, True)
        for row, (req, length) in enumerate(zip(batch.reqs, lengths, strict=True))
    ]


def _positions(request: EngineRequest, start: int, stop: int) -> Tensor:
    """(3, n): prompts' tokens have given positions, generated ones the same on all axes."""
    if request.positions is None:
        return torch.arange(start, stop).expand(3, -1)
    prompt, delta = request.positions
    length = prompt.shape[1]
    generated = torch.arange(max(start, length), max(stop, length)) + delta
    return torch.cat((prompt[:, start:stop], generated.expand(3, -1)), dim=1)
