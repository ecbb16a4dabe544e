"""Runs a forward batch and chooses the next tokens. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.sampling import SamplingRow, sample


class RunnerOutput(NamedTuple):
    """``tokens`` holds one id for each of the batch's logit rows."""

    tokens: list[int]


class ModelRunner:
    """A decoder with its cache. Everything about the sequences comes in with each batch."""

    def __init__(self, model: Decoder, cache: PagedKVCache) -> None:
        self.model = model
        self.cache = cache

    @torch.inference_mode()
    def execute(self, batch: ForwardBatch, sampling: Sequence[SamplingRow]) -> RunnerOutput:
        """Forward, then one token for each row of ``batch.logit_rows``; ``sampling`` is in their order."""
        hidden = self.model.forward(batch, self.cache)
        if not sampling:
            return RunnerOutput([])
        if batch.logit_rows is not None:
            hidden = hidden[batch.logit_rows]
        return RunnerOutput(sample(self.model.logits(hidden), sampling))
