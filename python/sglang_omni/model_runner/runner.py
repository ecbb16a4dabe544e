"""Runs a forward batch and chooses the next tokens. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.sampling import SamplingRow, sample


class RunnerOutput(NamedTuple):
    """``tokens`` holds one id for each of the batch's logit rows."""

    tokens: list[int]


class ModelRunner:
    """A decoder with its cache. Everything about the sequences comes in with each batch.

    A step is input rows -> forward -> choice of tokens -> output. Models that do more than tokens in, tokens
    out override ``input_rows``, ``forward`` and ``process_output``; what they know of a sequence is in its
    span's state.

    Args:
        suppress_token_ids: Never chosen.
    """

    def __init__(self, model: Decoder, cache: PagedKVCache, suppress_token_ids: Sequence[int] = ()) -> None:
        self.model = model
        self.cache = cache
        self._suppressed = torch.tensor(suppress_token_ids, dtype=torch.long)

    @torch.inference_mode()
    def execute(self, batch: ForwardBatch, sampling: Sequence[SamplingRow]) -> RunnerOutput:
        """One step; ``sampling`` is in the order of ``batch.logit_rows``."""
        hidden = self.forward(batch, self.input_rows(batch))
        if batch.logit_rows is not None:
            hidden = hidden[batch.logit_rows]
        tokens = self.choose(hidden, sampling) if sampling else []
        self.process_output(batch, hidden, tokens)
        return RunnerOutput(tokens)

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        """What enters the first layer, (T, hidden_size)."""
        return self.model.embed(batch.token_ids)

    def forward(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Hidden states after the last norm, (T, hidden_size)."""
        return self.model.forward(rows, batch, self.cache)

    def choose(self, hidden: Tensor, sampling: Sequence[SamplingRow]) -> list[int]:
        """The next tokens after ``hidden`` (S, hidden_size)."""
        logits = self.model.logits(hidden)
        if len(self._suppressed):
            logits.index_fill_(1, self._suppressed, float("-inf"))
        return sample(logits, sampling)

    def process_output(self, batch: ForwardBatch, hidden: Tensor, tokens: Sequence[int]) -> None:
        """Completes a step, of which nothing may be chosen yet.

        Args:
            hidden: (S, hidden_size) of the batch's logit rows: those of the spans that sample.
            tokens: The chosen token of each.
        """
