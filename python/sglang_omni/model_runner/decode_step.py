"""The step of sequences with one new token each, of fixed shape, which CUDA graphs replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.model_runner.batch import ForwardBatch, PagedBatch
from sglang_omni.model_runner.cuda_graphs import GraphedStep, Recorder, batch_size_for
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.page_table import PageTable


class DecodeStep:
    """A decoder's forward pass over one token of each sequence, as a function of two tensors.

    Args:
        max_sequences: The most rows of a step.
        max_pages: The most pages of a sequence.
        captures: True to store the hidden states of the cache's ``capture_layer``.

    Attributes:
        table: The pages of the sequences, which steps read.
        max_rows: Steps of up to so many rows are filled up to the next of ``BATCH_SIZES``, and replayed.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        *,
        max_sequences: int,
        max_pages: int,
        captures: bool = False,
    ) -> None:
        self.table = PageTable(max_sequences, max_pages, cache.scratch.page, model.device)
        self.max_rows = 0
        self._max_length = max_pages * cache.page_size
        self._model = model
        self._cache = cache
        self._captures = captures
        self._mrope = model.config.mrope_section is not None
        self._graphed = GraphedStep("the decoder's step", model.device, self._forward)

    def record_graphs(self, recorder: Recorder, max_rows: int) -> None:
        """Records CUDA graphs for steps of up to ``max_rows`` rows, before the first request.

        If they cannot be recorded, a warning says why, and steps are computed without.
        """
        count = batch_size_for(max_rows)
        with torch.inference_mode(False), torch.no_grad():
            device = self._model.device
            step = to_device(torch.tensor([self._no_sequence] * count, dtype=torch.int32), device)
            hidden = torch.zeros(
                count, self._model.config.hidden_size, dtype=self._model.dtype, device=device
            )
        if self._graphed.record(recorder, (step, hidden)):
            self.max_rows = count

    def packed(self, rows: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Rows (7,) of a step, and behind them as many of no sequence as fill its batch size."""
        size = batch_size_for(len(rows)) if len(rows) <= self.max_rows else len(rows)
        return [*rows, *[self._no_sequence] * (size - len(rows))]

    @property
    def _no_sequence(self) -> list[int]:
        return [0, self._cache.scratch.slot, 1, 0, 0, 0, self.table.no_sequence]

    def __call__(self, step: Tensor, hidden: Tensor) -> Tensor:
        """
        Args:
            step: (B, 7) int32, rows as ``ForwardBatch.step`` has them.
            hidden: (n, hidden_size), the first layer's input; n is at most B.

        Returns:
            (B, hidden_size), after the last norm.
        """
        count = len(hidden)
        if count < len(step):
            hidden = pad(hidden, (0, 0, 0, len(step) - count))
        return self._graphed(step, hidden)[0]

    def _forward(self, step: Tensor, hidden: Tensor) -> tuple[Tensor]:
        """The step for B rows of input. Reads nothing on the host, and allocates by B alone."""
        numbers = step.t().to(torch.int64, memory_format=torch.contiguous_format)
        batch = ForwardBatch(
            token_ids=numbers[0],
            positions=numbers[3:6] if self._mrope else numbers[3],
            slots=numbers[1],
            decode=(),
            prefill=(),
            logit_rows=None,
            spans=[],
            pages=[],
            paged=PagedBatch(
                first_rows=torch.arange(len(step) + 1, dtype=torch.int32, device=step.device),
                lengths=step[:, 2].contiguous(),
                pages=self.table.rows.index_select(0, numbers[6]),
                max_rows=1,
                max_length=self._max_length,
            ),
        )
        return (self._model.forward(hidden, batch, self._cache, capture=self._captures),)
