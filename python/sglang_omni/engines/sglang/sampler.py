"""Our sampler inside SGLang's model runner, so that sampling parameters mean the same in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import Sampler
from torch import Tensor

from sglang_omni.model_runner.sampling import SamplingRow, sample


class OmniSampler(Sampler):
    """Chooses tokens by ``rows``, which the scheduler sets before each step.

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
        """The next token of every sequence, (B,) int64. Rows that do not sample get 0."""
        logits = logits_output.next_token_logits
        chosen = torch.zeros(len(self.rows), dtype=torch.int64)
        wanted = [index for index, row in enumerate(self.rows) if row is not None]
        if wanted:
            rows = [row for row in self.rows if row is not None]
            # Penalties read histories in host memory.
            picked = (logits[wanted] if len(wanted) < len(self.rows) else logits).float().cpu()
            if len(self._suppressed):
                picked.index_fill_(1, self._suppressed, float("-inf"))
            chosen[wanted] = sample(picked, rows)
        return chosen.to(logits.device)
