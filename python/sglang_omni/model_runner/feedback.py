"""Feedback strategies, for models whose step n + 1 reads more of step n than its token (talkers, dual AR)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from sglang_omni.model_runner.host_copies import HostCopy
from sglang_omni.model_runner.sequence import SequenceSpan

State = TypeVar("State")


@dataclass(slots=True)
class FeedbackBuffers:
    """One step's rows, exchanged between a strategy and its decoder.

    Attributes:
        input_rows: (n, hidden_size) each, together the input of the first layer in the order of the batch's
            spans. The strategy appends them; the decoder's forward takes them.
        output_rows: (S, hidden_size) after the last norm, of the last token of each span that samples. Set by
            the decoder.
    """

    input_rows: list[Tensor] = field(default_factory=list)
    output_rows: Tensor | None = None

    def take_input_rows(self) -> Tensor:
        """Removes and returns the rows, (T, hidden_size); no copy is made of a single tensor."""
        rows, self.input_rows = self.input_rows, []
        return rows[0] if len(rows) == 1 else torch.cat(rows)


class FeedbackModel(Protocol):
    """The decoder of a strategy, in either engine."""

    feedback: FeedbackBuffers


class FeedbackWorker(NamedTuple):
    """What a strategy sees of the worker that computes a batch."""

    model: FeedbackModel


class FeedbackBatch(NamedTuple):
    """A batch as it was scheduled.

    Attributes:
        spans: All spans, in the order of the batch's rows.
        tokens: The token chosen for each span that samples; empty before the forward.
    """

    spans: Sequence[SequenceSpan]
    tokens: Sequence[int] = ()


class FeedbackSink(Protocol):
    """Takes the outputs of a step that are not tokens."""

    def put(self, requests: Sequence[SequenceSpan], outputs: Tensor) -> None:
        """
        Args:
            outputs: (n, ...), one for each of ``requests``, on the decoder's device.
        """
        ...


class FrameOutputs:
    """The part of a sequence's state that a ``StateSink`` fills.

    Attributes:
        frames: What each step put out, on the decoder's device, for the input of the next.
        arrived: Those that have been copied to the host and not been taken yet, (1, ...) each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Tensor] = []
        self.arrived: list[Tensor] = []

    def take_arrived(self) -> Tensor | None:
        """Removes and returns what has arrived, (n, ...); None if there is nothing."""
        if not self.arrived:
            return None
        arrived, self.arrived = self.arrived, []
        return arrived[0] if len(arrived) == 1 else torch.cat(arrived)


class Departed(NamedTuple):
    """The outputs of one step on their way to the host, in the order of ``states``."""

    states: Sequence[FrameOutputs]
    copy: HostCopy

    def deliver(self) -> None:
        """Gives the states their outputs. Waits for the copy."""
        for state, output in zip(self.states, self.copy.read().split(1), strict=True):
            state.arrived.append(output)


class StateSink:
    """Gives each output to its sequence's ``FrameOutputs``: to the next step at once, and to the host by one
    copy for all of a step.
    """

    def __init__(self) -> None:
        self._departed: list[Departed] = []

    def put(self, requests: Sequence[SequenceSpan], outputs: Tensor) -> None:
        states = [cast(FrameOutputs, request.state) for request in requests]
        for state, output in zip(states, outputs.unbind(), strict=True):
            state.frames.append(output)
        self._departed.append(Departed(states, HostCopy(outputs)))

    def take(self) -> list[Departed]:
        """Removes and returns what was put since the last call."""
        departed, self._departed = self._departed, []
        return departed


def rows_in_order(
    spans: Sequence[SequenceSpan],
    prompt_length: Callable[[State], int],
    prompt_rows: Callable[[State, int, int], Tensor],
    step_rows: Callable[[Sequence[tuple[State, int]]], list[Tensor]],
) -> list[Tensor]:
    """Input rows (n, hidden_size) of spans whose states have a prompt, then a row a step. Steps between two
    prompts are computed together.

    Args:
        prompt_length: Rows of a state's prompt.
        prompt_rows: Those of them from one place to another.
        step_rows: Of the steps of states, by their numbers; nothing for none.
    """
    rows: list[Tensor] = []
    steps: list[tuple[State, int]] = []
    for span in spans:
        state = cast(State, span.state)
        boundary, stop = prompt_length(state), span.start + span.num_tokens
        if span.start < boundary:
            rows += step_rows(steps)
            steps = []
            rows.append(prompt_rows(state, span.start, min(stop, boundary)))
        steps += [(state, place - boundary) for place in range(max(span.start, boundary), stop)]
    return rows + step_rows(steps)


class FeedbackStrategy(Protocol):
    """The parts of a step that differ between such models.

    A strategy is stateless: it keeps all data of a sequence in the state of its span. ``requests`` are the
    spans of the batch that a call is about.
    """

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> object | None:
        """Adds the input rows of prompts, and of tokens that must be computed again.

        Args:
            forward_batch: The engine's batch that is about to be computed.

        Returns:
            None: the decoder's forward follows. Any other result is an error: the keys and values of prompts
            that a strategy computed itself would not be in the cache.
        """
        ...

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        """Adds the input rows of one-token steps, made of the outputs of the last step."""
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
            model: Has one of ``feedback.output_rows`` for each of ``requests``, in order.
            schedule_batch: Has one of ``tokens`` for each of ``requests``, in order.
            requests: The spans that sample.
        """
        ...


def prefill(
    strategy: FeedbackStrategy, model: FeedbackModel, forward_batch: Any, requests: Sequence[SequenceSpan]
) -> None:
    """Has the strategy write the input rows of prompts.

    Raises:
        TypeError: The strategy returned a result, so it has computed the prompts itself.
    """
    if strategy.prefill_forward(FeedbackWorker(model), forward_batch, requests) is not None:
        raise TypeError(
            f"{type(strategy).__name__}.prefill_forward returned a result: it must add the prompts' input "
            "rows to tp_worker.model.feedback, and leave the forward to the engine"
        )
