"""Our sampler inside SGLang's model runner, so that sampling parameters mean the same in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import Sampler
from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.model_runner.sampling import SamplingRow, sample

# For a row whose token is not used: leaving it out would need an index on the device.
_ANY_TOKEN = SamplingRow(RequestSampling(temperature=0.0), 0.0)


class OmniSampler(Sampler):
    """Chooses tokens by ``rows``, which the scheduler sets before each step, where the logits are.

    SGLang calls it after the forward, outside of its CUDA graphs.

    Args:
        suppress_token_ids: Tokens that are never chosen.

    Attributes:
        rows: One for each sequence of the batch; None if its prompt is not complete yet.
    """

    def __init__(self, suppress_token_ids: Sequence[int]) -> None:
        super().__init__()
        self._suppressed = torch.tensor(suppress_token_ids, dtype=torch.long)
        self.rows: Sequence[SamplingRow | None] = ()

    def forward(self, logits_output: LogitsProcessorOutput, *args: Any, **kwargs: Any) -> Tensor:
        """The next token of every sequence, (B,) int64; any token for rows that do not sample.

        The logits are changed.
        """
        logits = logits_output.next_token_logits.float()
        if len(self._suppressed):
            self._suppressed = self._suppressed.to(logits.device)
            logits.index_fill_(1, self._suppressed, float("-inf"))
        return sample(logits, [_ANY_TOKEN if row is None else row for row in self.rows])
