"""The step of sequences with one new token each, of fixed shape: what CUDA graphs replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.model_runner.batch import ForwardBatch, PagedBatch
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.kv_cache import PagedKVCache

# Columns of a row before its pages: token, slot, length, positions on three axes.
_COLUMNS = 6


class DecodeStep:
    """A decoder's forward pass over one token of each sequence, as a function of two tensors.

    Args:
        max_pages: The most pages of a sequence.

    Attributes:
        sizes: The batch sizes that steps are filled up to; larger steps stay as they are.
    """

    def __init__(self, model: Decoder, cache: PagedKVCache, *, max_pages: int) -> None:
        self.max_pages = max_pages
        self.sizes: tuple[int, ...] = ()
        self._model = model
        self._cache = cache
        self._mrope = model.config.mrope_section is not None

    def packed(self, rows: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Rows (6 + max_pages,) of a step, and behind them as many of no sequence as fill its batch size."""
        size = next((size for size in self.sizes if size >= len(rows)), len(rows))
        return [*rows, *[self._no_sequence] * (size - len(rows))]

    @property
    def _no_sequence(self) -> list[int]:
        page, slot = self._cache.scratch
        return [0, slot, 1, 0, 0, 0, *[page] * self.max_pages]

    def __call__(self, step: Tensor, hidden: Tensor) -> Tensor:
        """
        Args:
            step: (B, 6 + max_pages) int32, rows as ``ForwardBatch.step`` has them.
            hidden: (n, hidden_size), the first layer's input; n is at most B.

        Returns:
            (B, hidden_size), after the last norm.
        """
        count = len(hidden)
        if count < len(step):
            hidden = pad(hidden, (0, 0, 0, len(step) - count))
        return self.forward(step, hidden)[0]

    def forward(self, step: Tensor, hidden: Tensor) -> tuple[Tensor]:
        """The step for B rows of input. Reads nothing on the host, and allocates by B alone."""
        numbers = step[:, :_COLUMNS].t().to(torch.int64, memory_format=torch.contiguous_format)
        batch = ForwardBatch(
            token_ids=numbers[0],
            positions=numbers[3:] if self._mrope else numbers[3],
            slots=numbers[1],
            decode=[],
            prefill=[],
            logit_rows=None,
            spans=[],
            pages=[],
            paged=PagedBatch(
                first_rows=torch.arange(len(step) + 1, dtype=torch.int32, device=step.device),
                lengths=step[:, 2].contiguous(),
                pages=step[:, _COLUMNS:],
                max_rows=1,
                max_length=self.max_pages * self._cache.page_size,
            ),
        )
        return (self._model.forward(hidden, batch, self._cache),)
