"""Our sampler inside SGLang's model runner, so that sampling parameters mean the same in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import Sampler
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import SamplingRow, next_tokens
from sglang_omni.model_runner.token_scores import StepScores

# For a row whose token is not used: leaving it out would need an index on the device.
_ANY_TOKEN = SamplingRow(RequestSampling(temperature=0.0), 0.0)


class OmniSampler(Sampler):
    """Chooses tokens by ``rows``, which the scheduler sets before each step, where the logits are.

    SGLang calls it after the forward, outside of its CUDA graphs.

    Args:
        suppress_token_ids: Tokens that are never chosen.

    Attributes:
        rows: One for each sequence of the batch; None if its prompt is not complete yet.
        scores: Of the last step's tokens, if any are wanted, to be delivered once these are read.
    """

    def __init__(self, suppress_token_ids: Sequence[int]) -> None:
        super().__init__()
        self._suppressed = torch.tensor(suppress_token_ids, dtype=torch.long)
        self.rows: Sequence[SamplingRow | None] = ()
        self.scores: StepScores | None = None

    def forward(
        self,
        logits_output: LogitsProcessorOutput,
        sampling_info: Any,
        return_logprob: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """The next token of every sequence, (B,) int64; any token for rows that do not sample.

        The logits are changed.
        """
        logits = logits_output.next_token_logits.float()
        if len(self._suppressed):
            self._suppressed = self._suppressed.to(logits.device)
        rows = [_ANY_TOKEN if row is None else row for row in self.rows]
        tokens, self.scores = next_tokens(logits, self._suppressed, rows)
        if return_logprob:
            # SGLang computes the scores of prompts, and then wants some for new tokens too.
            logits_output.next_token_logprobs = torch.zeros(len(rows))
        return tokens
