"""The model runner of decoders with a feedback strategy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.decode_step import DecodeStep
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.dual_ffn import row_kinds
from sglang_omni.model_runner.feedback import (
    FeedbackBatch,
    FeedbackBuffers,
    FeedbackStrategy,
    StateSink,
    prefill,
)
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.runner import ModelRunner


class FeedbackARModelRunner(ModelRunner):
    """Chooses each step's first code. ``strategy`` makes the input rows and chooses all other codes."""

    outbox: StateSink

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        strategy: FeedbackStrategy,
        suppress_token_ids: Sequence[int] = (),
        decode: DecodeStep | None = None,
    ) -> None:
        super().__init__(model, cache, suppress_token_ids, decode)
        self._strategy = strategy
        self.outbox = StateSink()
        self.feedback = FeedbackBuffers()

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        # One-token steps come first in a batch, then chunks of prompts.
        count = next((i for i, span in enumerate(batch.spans) if span.num_tokens > 1), len(batch.spans))
        steps, prompts = batch.spans[:count], batch.spans[count:]
        # New buffers: a failed step may have left rows in the old ones.
        self.feedback = FeedbackBuffers()
        if steps:
            self._strategy.write_buffers(self, FeedbackBatch(batch.spans), steps)
        if prompts:
            prefill(self._strategy, self, batch, prompts)
        return self.feedback.take_input_rows()

    def forward(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        # Steps of fixed shape have generated rows alone, which are of audio.
        if not self.model.config.dual_ffn or batch.step is not None:
            return super().forward(batch, rows)
        return self.model.forward(rows, batch, self.cache, kinds=row_kinds(batch.spans, self.model.device))

    def process_output(self, batch: ForwardBatch, hidden: Tensor, tokens: Sequence[int]) -> None:
        if tokens:
            self.feedback.output_rows = hidden
            sampled = [span for span in batch.spans if span.samples]
            self._strategy.extract_output(self, FeedbackBatch(batch.spans, tokens), sampled, self.outbox)
