"""Autoregression over more than tokens: what step n put out feeds step n + 1 (talkers, dual AR models)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from sglang_omni.model_runner.sequence import SequenceSpan, SequenceState


@dataclass(slots=True)
class FeedbackBuffers:
    """Where a strategy and its decoder meet, one step long.

    Attributes:
        input_rows: (n, hidden_size) each, of the step to come: together what enters the first layer, in the
            order of the batch's spans. A strategy adds to them; the decoder's forward takes them.
        output_rows: (S, hidden_size) after the last norm, of the last token of each span that samples. Set by
            the decoder.
    """

    input_rows: list[Tensor] = field(default_factory=list)
    output_rows: Tensor | None = None

    def take_input_rows(self) -> Tensor:
        """(T, hidden_size), without a copy if they were written at once."""
        rows, self.input_rows = self.input_rows, []
        return rows[0] if len(rows) == 1 else torch.cat(rows)


class FeedbackModel(Protocol):
    """A strategy's decoder, in either engine."""

    feedback: FeedbackBuffers


class FeedbackWorker(NamedTuple):
    """What computes a batch, as far as a strategy knows it."""

    model: FeedbackModel


class FeedbackBatch(NamedTuple):
    """A batch as it was scheduled.

    Attributes:
        spans: All of it, in the order of its rows.
        tokens: The chosen token of each span that samples; none before the forward.
    """

    spans: Sequence[SequenceSpan]
    tokens: Sequence[int] = ()


class FeedbackSink(Protocol):
    """Takes what a step put out beside its tokens."""

    def put(self, request: SequenceSpan, output: Tensor) -> None: ...


class _FramesState(SequenceState, Protocol):
    frames: list[Tensor]


class StateSink:
    """Puts each output into its sequence's state, where the next step and the stage's stream find it."""

    def put(self, request: SequenceSpan, output: Tensor) -> None:
        cast(_FramesState, request.state).frames.append(output)


class FeedbackStrategy(Protocol):
    """What differs between such models. Stateless: all of a sequence is in its span's state.

    ``requests`` are those of the batch that a call is about, each with its state and its part of the batch.
    """

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> object | None:
        """Adds the input rows of prompts, or of what was computed before and has to be again.

        Args:
            forward_batch: The engine's own, about to be computed.

        Returns:
            None: the decoder's forward follows. A strategy that computes the prompts itself is refused, since
            nothing would keep their keys and values.
        """
        ...

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        """Adds the input rows of one-token steps, made of what the last step put out."""
        ...

    def extract_output(
        self,
        model: FeedbackModel,
        schedule_batch: FeedbackBatch,
        requests: Sequence[SequenceSpan],
        outbox: FeedbackSink,
    ) -> None:
        """Completes a step: puts the rest of each sequence's output into ``outbox``.

        Args:
            model: Its ``output_rows`` are those of ``requests``, in their order.
            schedule_batch: So are its ``tokens``.
            requests: Those that sample.
        """
        ...


def prefill(
    strategy: FeedbackStrategy, model: FeedbackModel, forward_batch: Any, requests: Sequence[SequenceSpan]
) -> None:
    """Has the strategy write the rows of prompts.

    Raises:
        TypeError: It has computed them itself.
    """
    if strategy.prefill_forward(FeedbackWorker(model), forward_batch, requests) is not None:
        raise TypeError(
            f"{type(strategy).__name__}.prefill_forward returned a result: it must add the prompts' input "
            "rows to tp_worker.model.feedback, and leave the forward to the engine"
        )
