"""Our sampler inside SGLang's model runner, so that sampling parameters mean the same in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers import sampler
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import Choice, Sampler, SamplingRow

# For a row whose token is not used: leaving it out would need an index on the device.
_ANY_TOKEN = SamplingRow(RequestSampling(temperature=0.0), 0.0)


class OmniSampler(sampler.Sampler):
    """Chooses tokens by ``rows``, which the scheduler sets before each step, where the logits are.

    SGLang calls it after the forward, outside of its CUDA graphs.

    Args:
        suppress_token_ids: Tokens that are never chosen.
        launches_ahead: True if a choice is read after the next step has been launched.

    Attributes:
        rows: One for each sequence of the batch; None if its prompt is not complete yet.
        choice: The last step's.
    """

    choice: Choice

    def __init__(self, suppress_token_ids: Sequence[int], *, launches_ahead: bool = False) -> None:
        super().__init__()
        self._launches_ahead = launches_ahead
        self._sampler = Sampler(suppress_token_ids)
        self.rows: Sequence[SamplingRow | None] = ()

    def forward(
        self,
        logits_output: LogitsProcessorOutput,
        sampling_info: Any,
        return_logprob: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """``choice.tokens``, (B,) int64; any token for rows that do not sample. The logits are changed."""
        logits = logits_output.next_token_logits.float()
        rows = [_ANY_TOKEN if row is None else row for row in self.rows]
        self.choice = self._sampler.choose(logits, rows)
        if self._launches_ahead:
            self.choice.fetch()
        if return_logprob:
            # SGLang computes the scores of prompts, and then wants some for new tokens too.
            logits_output.next_token_logprobs = torch.zeros(len(rows))
        return self.choice.tokens
