"""Autoregression over more than tokens: what step n put out feeds step n + 1 (talkers, dual AR models)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from sglang_omni.model_runner.sequence import SequenceSpan


class FeedbackStrategy(Protocol):
    """What differs between such models. Stateless: all of a sequence is in its span's state."""

    def prefill_forward(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """Input rows of prompts, or of what was computed before and has to be again: (rows, hidden_size)."""
        ...

    def write_buffers(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """Input rows of one-token steps, from what the last step put out: (len(spans), hidden_size)."""
        ...

    def extract_output(self, spans: Sequence[SequenceSpan], hidden: Tensor, tokens: Sequence[int]) -> None:
        """Completes a step: the rest of each sequence's output, into its state, where the next step finds it.

        Args:
            spans: Those that sample.
            hidden: (len(spans), hidden_size) after the last norm, of each span's last token.
            tokens: The chosen token of each.
        """
        ...
