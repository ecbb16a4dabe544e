"""The feedback strategy of models whose codes have a delay pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sglang_omni.model_runner.feedback import FeedbackSink
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.frames.draws import draw_plain
from sglang_omni.models.frames.strategy import FrameDecoder, FrameStrategy, state_of


class DelayedDecoder(FrameDecoder, Protocol):
    """A ``FrameDecoder`` of the rows of a delay pattern."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(G, codes) of a row (hidden_size,)."""
        ...


class DelayedStrategy(FrameStrategy):
    """A ``FeedbackStrategy`` over ``FrameState``s with a ``delay``.

    A code that is drawn again is drawn from all codes, with no temperature and no filter. What is chosen
    greedily stays.
    """

    def __init__(self, decoder: DelayedDecoder) -> None:
        super().__init__(decoder)
        self._logits = decoder.logits

    def deliver(
        self,
        spans: Sequence[SequenceSpan],
        first_codes: Sequence[int],
        hidden: Tensor,
        codes: Tensor,
        outbox: FeedbackSink,
    ) -> None:
        states = [state_of(span) for span in spans]
        rows: list[list[int]] = []
        for index, (state, chosen) in enumerate(zip(states, codes.tolist(), strict=True)):
            assert state.delay is not None
            row = state.delay.settle(chosen)
            again = state.delay.repeated(row) if state.sampling.temperature > 0.0 else []
            if again:
                logits = self._logits(hidden[index])
                for group in again:
                    row[group] = draw_plain(logits[group], state.draw())
            state.is_over = state.delay.add(row)
            rows.append(row)
        for state, frame in zip(states, self.upload(torch.tensor(rows)).unbind(), strict=True):
            # For the next step. The host has them, for the stage's stream.
            if not state.is_over:
                state.frames.append(frame)
