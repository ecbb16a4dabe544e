"""Builds the tensors of a forward batch from the chunks of a planned step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.engines.planner import Chunk
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.batch import DecodeGroup, ForwardBatch, KVSource, PrefillSpan
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.sampling import SamplingRow
from sglang_omni.model_runner.sequence import SequenceSpan


class StepBatch(NamedTuple):
    """``chunks`` are in the order of the batch's rows, ``sampling`` in that of its logit rows."""

    chunks: list[Chunk]
    forward: ForwardBatch
    sampling: list[SamplingRow]


class BatchBuilder:
    """Lays a step's tokens out flat: one-token chunks by the length of their sequence, then longer ones."""

    def __init__(self, config: DecoderConfig, *, page_size: int, dtype: torch.dtype) -> None:
        self._page_size = page_size
        self._vocab_size = config.vocab_size
        self._mrope = config.mrope_section is not None
        self._dtype = dtype

    def build(self, chunks: list[Chunk]) -> StepBatch:
        decode = sorted((c for c in chunks if c.num_tokens == 1), key=lambda c: c.request.num_computed)
        prefill = [c for c in chunks if c.num_tokens > 1]
        ordered = decode + prefill

        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        spans: list[SequenceSpan] = []
        size = self._page_size
        for chunk in ordered:
            request, start = chunk.request, chunk.request.num_computed
            stop = start + chunk.num_tokens
            spans.append(SequenceSpan(request.state, start, chunk.num_tokens, len(token_ids), chunk.samples))
            token_ids += request.tokens(start, stop)
            shift = request.positions.delta if request.positions is not None else 0
            positions += range(start + shift, stop + shift)
            pages = request.pages
            slots += [pages[p // size] * size + p % size for p in range(start, stop)]
            if chunk.samples:
                logit_rows.append(len(token_ids) - 1)

        places = torch.tensor(positions)
        forward = ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=_on_three_axes(places, ordered) if self._mrope else places,
            slots=torch.tensor(slots),
            decode=self._decode_groups(decode),
            prefill=self._prefill_spans(prefill, len(decode)),
            logit_rows=None
            if len(logit_rows) == len(token_ids)
            else torch.tensor(logit_rows, dtype=torch.long),
            spans=spans,
            pages=[chunk.request.pages for chunk in ordered],
        )
        return StepBatch(
            ordered, forward, [c.request.sampling_row(self._vocab_size) for c in ordered if c.samples]
        )

    def _decode_groups(self, decode: list[Chunk]) -> list[DecodeGroup]:
        groups: list[DecodeGroup] = []
        first = 0
        while first < len(decode):
            # Rows are padded to the longest of their group: none reads more than about twice its own length.
            limit = max(2 * decode[first].request.num_computed, 256)
            last = first
            while last < len(decode) and decode[last].request.num_computed <= limit:
                last += 1
            requests = [chunk.request for chunk in decode[first:last]]
            lengths = [request.num_computed + 1 for request in requests]
            kv = self._source(requests, max(lengths))
            mask = None
            if min(lengths) < max(lengths):
                mask = self._mask(torch.arange(kv.length) >= torch.tensor(lengths).unsqueeze(1))[
                    :, None, None, :
                ]
            groups.append(DecodeGroup(first, last - first, kv, mask))
            first = last
        return groups

    def _prefill_spans(self, prefill: list[Chunk], first_row: int) -> list[PrefillSpan]:
        spans: list[PrefillSpan] = []
        for request, count, _ in prefill:
            start = request.num_computed
            mask = None
            if start > 0:
                columns, rows = torch.arange(start + count), torch.arange(start, start + count)
                mask = self._mask(columns > rows.unsqueeze(1))
            spans.append(PrefillSpan(first_row, count, self._source([request], start + count), mask))
            first_row += count
        return spans

    def _source(self, requests: list[EngineRequest], length: int) -> KVSource:
        count = -(-length // self._page_size)
        rows = [request.pages[:count] for request in requests]
        start = None
        if (
            len(rows) == 1
            and rows[0][-1] - rows[0][0] == count - 1
            and rows[0] == list(range(rows[0][0], rows[0][-1] + 1))
        ):
            start = rows[0][0] * self._page_size
        pages = torch.tensor([row + [row[-1]] * (count - len(row)) for row in rows])
        return KVSource(pages, length, start)

    def _mask(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))


def _on_three_axes(places: Tensor, chunks: list[Chunk]) -> Tensor:
    """(T,) -> (3, T): prompts' tokens have given positions, generated ones the same on all axes."""
    axes = places.expand(3, -1)
    row = 0
    for request, count, _ in chunks:
        start = request.num_computed
        stop = min(start + count, len(request.prompt_token_ids))
        if request.positions is not None and start < stop:
            if not axes.is_contiguous():
                axes = axes.contiguous()
            axes[:, row : row + stop - start] = request.positions.prompt[:, start:stop]
        row += count
    return axes
