"""The step of a decoder that reads what its last step put out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.feedback import FeedbackStrategy
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.runner import ModelRunner


class FeedbackARModelRunner(ModelRunner):
    """Chooses each step's first code itself, and leaves input rows and all other codes to ``strategy``."""

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        strategy: FeedbackStrategy,
        suppress_token_ids: Sequence[int] = (),
    ) -> None:
        super().__init__(model, cache, suppress_token_ids)
        self._strategy = strategy

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        # Steps of one token come first in a batch, chunks of prompts after them.
        count = next((i for i, span in enumerate(batch.spans) if span.num_tokens > 1), len(batch.spans))
        steps, prompts = batch.spans[:count], batch.spans[count:]
        if not prompts:
            return self._strategy.write_buffers(steps)
        rows = self._strategy.prefill_forward(prompts)
        return torch.cat((self._strategy.write_buffers(steps), rows)) if steps else rows

    def process_output(self, batch: ForwardBatch, hidden: Tensor, tokens: Sequence[int]) -> None:
        if tokens:
            self._strategy.extract_output([span for span in batch.spans if span.samples], hidden, tokens)
