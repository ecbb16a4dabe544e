"""One step of a decoder: a forward batch in, the next tokens out. Requests are the engine's matter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.decode_step import DecodeStep
from sglang_omni.model_runner.decoder import Decoder
from sglang_omni.model_runner.feedback import StateSink
from sglang_omni.model_runner.kv_cache import PagedKVCache
from sglang_omni.model_runner.sampling import Sampler, SamplingRow
from sglang_omni.model_runner.token_scores import PromptRows


class ModelRunner:
    """A decoder with its cache. Everything about the sequences comes in with each batch.

    A step is input rows -> forward -> choice of tokens -> output. Runners of models with more than tokens as
    input or output override ``input_rows``, ``forward`` and ``process_output``, and keep what they know of a
    sequence in its span's state.

    Args:
        suppress_token_ids: Tokens that are never chosen.
        decode: The step of batches that have ``step``.

    Attributes:
        outbox: Takes what steps put out beside tokens; None if they do not.
    """

    outbox: StateSink | None = None

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        suppress_token_ids: Sequence[int] = (),
        decode: DecodeStep | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self._decode = decode
        self._sampler = Sampler(suppress_token_ids)

    @torch.inference_mode()
    def execute(
        self, batch: ForwardBatch, sampling: Sequence[SamplingRow], prompts: Sequence[PromptRows] = ()
    ) -> list[int]:
        """One step.

        Args:
            sampling: Of each of the batch's logit rows, in their order.
            prompts: Chunks of prompts whose tokens' scores are wanted.

        Returns:
            The next token of each of them.
        """
        hidden = self.forward(batch, self.input_rows(batch))
        for chunk in prompts:
            rows = hidden[chunk.first_row : chunk.first_row + chunk.num_rows]
            chunk.scores.add(chunk.start, rows, self.model.logits)
        if batch.logit_rows is not None:
            hidden = hidden[batch.logit_rows]
        tokens = self.choose(hidden, sampling) if sampling else []
        self.process_output(batch, hidden, tokens)
        return tokens

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        """The first layer's input, (T, hidden_size)."""
        return self.model.embed(batch.token_ids)

    def forward(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        """Hidden states after the last norm, (T, hidden_size)."""
        if batch.step is not None:
            assert self._decode is not None
            return self._decode(batch.step, rows)[: len(batch.spans)]
        return self.model.forward(rows, batch, self.cache)

    def choose(self, hidden: Tensor, sampling: Sequence[SamplingRow]) -> list[int]:
        """The next tokens after ``hidden`` (S, hidden_size)."""
        chosen: list[int] = self._sampler.choose(self.model.logits(hidden), sampling).read().tolist()
        return chosen

    def process_output(self, batch: ForwardBatch, hidden: Tensor, tokens: Sequence[int]) -> None:
        """Completes a step.

        Args:
            hidden: (S, hidden_size) of the batch's logit rows, one for each span that samples.
            tokens: The token chosen for each of them; empty if no span samples.
        """
