"""Builds the tensors of a forward batch from the chunks of a planned step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.engines.planner import Chunk
from sglang_omni.engines.request import EngineRequest
from sglang_omni.model_runner.batch import DecodeGroup, ForwardBatch, KVSource, PagedBatch, PrefillSpan
from sglang_omni.model_runner.config import DecoderConfig
from sglang_omni.model_runner.decode_step import DecodeStep
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.masks import causal_mask, padding_mask
from sglang_omni.model_runner.sampling import SamplingRow
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.model_runner.token_scores import PromptRows

# Keys and values of a layer that are gathered for one call of attention. Sequences that share a prefix would
# gather it once each, and more than the KV cache holds.
_GATHERED_BYTES = 256 << 20


class StepBatch(NamedTuple):
    """``chunks`` are in the order of the batch's rows, ``sampling`` in that of its logit rows."""

    chunks: list[Chunk]
    forward: ForwardBatch
    sampling: list[SamplingRow]
    prompts: list[PromptRows]


class BatchBuilder:
    """Lays a step's tokens out flat: one-token chunks by the length of their sequence, then longer ones.

    All numbers of a step go to the device in one copy, for which the host does not wait.

    Args:
        dtype: Of the model.
        device: Of the model.
        decode: The step of one-token chunks, if attention reads the paged cache itself; None if keys and
            values are gathered.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        decode: DecodeStep | None = None,
    ) -> None:
        self._page_size = page_size
        self._vocab_size = config.vocab_size
        self._mrope = config.mrope_section is not None
        self._window = config.sliding_window
        self._dtype = dtype
        self._device = torch.device(device)
        self._decode = decode
        token_bytes = 2 * config.num_key_value_heads * config.head_dim * dtype.itemsize
        self._gathered_tokens = _GATHERED_BYTES // token_bytes

    def build(self, chunks: list[Chunk]) -> StepBatch:
        decode = sorted((c for c in chunks if c.num_tokens == 1), key=lambda c: c.request.num_computed)
        prefill = [c for c in chunks if c.num_tokens > 1]
        ordered = decode + prefill
        rows = self._rows(ordered)
        if self._decode is None:
            forward = self._gathered(rows, decode, prefill)
        elif not prefill and all(_is_generated(c) for c in decode):
            forward = self._one_token_each(rows, ordered, self._decode)
        else:
            forward = self._paged(rows, ordered)
        return StepBatch(
            ordered,
            forward,
            [c.request.sampling_row(self._vocab_size) for c in ordered if c.samples],
            rows.prompts,
        )

    def _rows(self, chunks: list[Chunk]) -> _Rows:
        rows = _Rows([], [[] for _ in range(3 if self._mrope else 1)], [], [], [], [], [])
        size = self._page_size
        for chunk in chunks:
            request, start = chunk.request, chunk.request.num_computed
            stop = start + chunk.num_tokens
            if (scores := request.prompt_scores) is not None and not scores.complete:
                rows.prompts.append(PromptRows(scores, start, len(rows.token_ids), chunk.num_tokens))
            rows.spans.append(
                SequenceSpan(request.state, start, chunk.num_tokens, len(rows.token_ids), chunk.samples)
            )
            rows.token_ids.extend(request.tokens(start, stop))
            # On three axes, prompts' tokens have given positions, generated ones the same on all axes.
            given = max(0, min(stop, len(request.prompt_token_ids)) - start)
            shift = 0
            if self._mrope and request.positions is not None:
                shift = request.positions.delta
                if given:
                    prompt = request.positions.prompt[:, start : start + given].tolist()
                    for axis, places in zip(rows.positions, prompt, strict=True):
                        axis.extend(places)
            else:
                given = 0
            for axis in rows.positions:
                axis.extend(range(start + given + shift, stop + shift))
            pages = request.pages
            rows.slots.extend([pages[p // size] * size + p % size for p in range(start, stop)])
            if chunk.samples:
                rows.logit_rows.append(len(rows.token_ids) - 1)
            rows.pages.append(pages)
        return rows

    def _gathered(self, rows: _Rows, decode: list[Chunk], prefill: list[Chunk]) -> ForwardBatch:
        """For attention that gathers keys and values."""
        numbers = _Numbers()
        place = rows.place(numbers)
        groups = [
            self._group(decode, first, last, numbers) for first, last in _alike(decode, self._gathered_tokens)
        ]
        sources = [self._source([c.request], c.request.num_computed + c.num_tokens, numbers) for c in prefill]
        ints = numbers.upload(torch.int64, self._device)
        spans: list[PrefillSpan] = []
        first_row = len(decode)
        for (request, count, _), source in zip(prefill, sources, strict=True):
            start = request.num_computed
            mask = window_mask = None
            # A GPU's masks are made in pieces, where they are used.
            if self._device.type == "cpu":
                mask = window_mask = self._causal(start, count) if start else None
                if self._slides(start + count):
                    window_mask = self._causal(start, count, self._window)
            spans.append(PrefillSpan(first_row, count, source.of(ints), mask, window_mask, self._window))
            first_row += count
        return place.batch(rows, ints, decode=[self._masked(group, ints) for group in groups], prefill=spans)

    def _masked(self, group: _Group, ints: Tensor) -> DecodeGroup:
        source, lengths = group.source, group.lengths.of(ints)
        mask = padding_mask(lengths, source.length, None, self._dtype) if group.uneven else None
        window_mask = mask
        if self._slides(source.length):
            window_mask = padding_mask(lengths, source.length, self._window, self._dtype)
        return DecodeGroup(group.first_row, group.num_rows, source.of(ints), mask, window_mask)

    def _slides(self, length: int) -> bool:
        """True if a sequence of this length is longer than the sliding window."""
        return self._window is not None and length > self._window

    def _paged(self, rows: _Rows, chunks: list[Chunk]) -> ForwardBatch:
        """For attention that reads the paged cache itself."""
        numbers = _Numbers()
        place = rows.place(numbers)
        counts = [chunk.num_tokens for chunk in chunks]
        lengths = [chunk.request.num_computed + chunk.num_tokens for chunk in chunks]
        first_rows = numbers.add([0, *accumulate(counts)])
        used = numbers.add(lengths)
        count = -(-max(lengths) // self._page_size)
        pages = numbers.add_rows([_padded(chunk.request.pages[:count], count) for chunk in chunks])
        ints = numbers.upload(torch.int32, self._device)
        paged = PagedBatch(first_rows.of(ints), used.of(ints), pages.of(ints), max(counts), max(lengths))
        return place.batch(rows, ints.long(), paged=paged)

    def _one_token_each(self, rows: _Rows, chunks: list[Chunk], decode: DecodeStep) -> ForwardBatch:
        """For a step of fixed shape, which CUDA graphs replay."""
        numbers = _Numbers()
        update = decode.table.update(rows.pages)
        packed = numbers.add_rows(
            decode.packed(
                [
                    (
                        rows.token_ids[row],
                        rows.slots[row],
                        chunk.request.num_computed + 1,
                        *(rows.positions[axis if self._mrope else 0][row] for axis in range(3)),
                        update.rows[row],
                    )
                    for row, chunk in enumerate(chunks)
                ]
            )
        )
        places, pages = numbers.add(update.places), numbers.add(update.pages)
        ints = numbers.upload(torch.int32, self._device)
        decode.table.write(update, places.of(ints), pages.of(ints))
        step = packed.of(ints)
        return ForwardBatch(
            token_ids=step[:, 0],
            positions=step[:, 3:6].t() if self._mrope else step[:, 3],
            slots=step[:, 1],
            decode=(),
            prefill=(),
            logit_rows=None,
            spans=rows.spans,
            pages=rows.pages,
            step=step,
        )

    def _group(self, decode: list[Chunk], first: int, last: int, numbers: _Numbers) -> _Group:
        requests = [chunk.request for chunk in decode[first:last]]
        lengths = [request.num_computed + 1 for request in requests]
        source = self._source(requests, max(lengths), numbers)
        uneven = min(lengths) < max(lengths)
        return _Group(first, last - first, source, numbers.add(lengths), uneven)

    def _source(self, requests: list[EngineRequest], length: int, numbers: _Numbers) -> _Source:
        count = -(-length // self._page_size)
        rows = [request.pages[:count] for request in requests]
        start = None
        if (
            len(rows) == 1
            and rows[0][-1] - rows[0][0] == count - 1
            and rows[0] == list(range(rows[0][0], rows[0][-1] + 1))
        ):
            start = rows[0][0] * self._page_size
        return _Source(numbers.add_rows([_padded(row, count) for row in rows]), length, start)

    def _causal(self, start: int, count: int, window: int | None = None) -> Tensor:
        return causal_mask(start, count, window, self._dtype, self._device)


class _Part(NamedTuple):
    """A tensor among a step's numbers."""

    first: int
    size: int
    # 0 for one dimension.
    num_rows: int = 0

    def of(self, numbers: Tensor) -> Tensor:
        part = numbers.narrow(0, self.first, self.size)
        return part.view(self.num_rows, -1) if self.num_rows else part


class _Source(NamedTuple):
    """A ``KVSource`` whose pages are among a step's numbers."""

    pages: _Part
    length: int
    start: int | None

    def of(self, numbers: Tensor) -> KVSource:
        return KVSource(self.pages.of(numbers), self.length, self.start)


class _Group(NamedTuple):
    """A ``DecodeGroup`` whose numbers are among a step's; ``uneven`` if its sequences differ in length."""

    first_row: int
    num_rows: int
    source: _Source
    lengths: _Part
    uneven: bool


class _Numbers:
    """Collects a step's whole numbers, to copy them to the device at once."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def add(self, values: Sequence[int]) -> _Part:
        first = len(self._values)
        self._values += values
        return _Part(first, len(values))

    def add_rows(self, rows: Sequence[Sequence[int]]) -> _Part:
        """Rows of equal length."""
        first = len(self._values)
        for row in rows:
            self._values += row
        return _Part(first, len(self._values) - first, len(rows))

    def upload(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return to_device(torch.tensor(self._values, dtype=dtype), device)


class _Rows(NamedTuple):
    """A step's rows on the host; ``positions`` are on one axis or on three."""

    token_ids: list[int]
    positions: list[list[int]]
    slots: list[int]
    logit_rows: list[int]
    spans: list[SequenceSpan]
    pages: list[list[int]]
    prompts: list[PromptRows]

    def place(self, numbers: _Numbers) -> _RowParts:
        everything = len(self.logit_rows) == len(self.token_ids)
        return _RowParts(
            numbers.add(self.token_ids),
            numbers.add_rows(self.positions) if len(self.positions) > 1 else numbers.add(self.positions[0]),
            numbers.add(self.slots),
            None if everything else numbers.add(self.logit_rows),
        )


class _RowParts(NamedTuple):
    """Where the rows are among a step's numbers."""

    token_ids: _Part
    positions: _Part
    slots: _Part
    logit_rows: _Part | None

    def batch(
        self,
        rows: _Rows,
        numbers: Tensor,
        decode: Sequence[DecodeGroup] = (),
        prefill: Sequence[PrefillSpan] = (),
        paged: PagedBatch | None = None,
    ) -> ForwardBatch:
        return ForwardBatch(
            token_ids=self.token_ids.of(numbers),
            positions=self.positions.of(numbers),
            slots=self.slots.of(numbers),
            decode=decode,
            prefill=prefill,
            logit_rows=None if self.logit_rows is None else self.logit_rows.of(numbers),
            spans=rows.spans,
            pages=rows.pages,
            paged=paged,
        )


def _is_generated(chunk: Chunk) -> bool:
    return chunk.samples and chunk.request.num_computed >= len(chunk.request.prompt_token_ids)


def _padded(pages: list[int], count: int) -> list[int]:
    return pages + [pages[-1]] * (count - len(pages))


def _alike(decode: list[Chunk], most_tokens: int) -> list[tuple[int, int]]:
    """Runs (first, last) of chunks, ordered by length, whose attention is one call.

    Rows are padded to the longest of their run: none reads more than about twice its own length. A run of
    several rows gathers up to ``most_tokens``.
    """
    runs: list[tuple[int, int]] = []
    first = 0
    while first < len(decode):
        limit = max(2 * decode[first].request.num_computed, 256)
        last = first + 1
        while last < len(decode):
            length = decode[last].request.num_computed
            if length > limit or (last + 1 - first) * (length + 1) > most_tokens:
                break
            last += 1
        runs.append((first, last))
        first = last
    return runs
