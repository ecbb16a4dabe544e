"""What the strategies of all talkers share: the order of input rows, and the text beside what was made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sglang_omni.model_runner.feedback import (
    FeedbackBatch,
    FeedbackModel,
    FeedbackWorker,
    rows_in_order,
)
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.model_runner.sequence import SequenceSpan
from sglang_omni.models.omni.checkpoint import MediaCheckpoint
from sglang_omni.models.omni.talker_state import TalkerState

State = TypeVar("State", bound=TalkerState)


class TalkerStrategy(ABC, Generic[State]):
    """A ``FeedbackStrategy`` over states of one kind, but for ``extract_output``.

    Rows are computed from the state at each call, so that prompts in chunks, and requests computed again
    after a preemption, need nothing else.

    Attributes:
        _after_text: (hidden size,) each, the rows of the text's end and of padding.
    """

    _after_text: Sequence[Tensor]

    def prefill_forward(
        self, tp_worker: FeedbackWorker, forward_batch: Any, requests: Sequence[SequenceSpan]
    ) -> None:
        tp_worker.model.feedback.input_rows.append(self._rows(requests))

    def write_buffers(
        self, model: FeedbackModel, schedule_batch: FeedbackBatch, requests: Sequence[SequenceSpan]
    ) -> None:
        model.feedback.input_rows.append(self._rows(requests))

    @abstractmethod
    def _prompt_rows(self, state: State, start: int, stop: int) -> Tensor:
        """The rows (stop - start, hidden size) of a prompt."""

    @abstractmethod
    def _step_rows(self, places: Sequence[tuple[State, int]]) -> Tensor:
        """The rows (len(places), hidden size) of what the steps at ``places`` made, without their text."""

    @abstractmethod
    def _new_text_rows(self, state: State, start: int, stop: int) -> Tensor:
        """The rows (stop - start, hidden size) of the answer's tokens."""

    def _rows(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """The rows (n, hidden size) of spans."""
        rows = rows_in_order(spans, lambda state: state.num_prompt_rows, self._prompt_rows, self._spoken_rows)
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _spoken_rows(self, places: Sequence[tuple[State, int]]) -> list[Tensor]:
        """The rows of the steps at ``places``, each with its text; nothing if there are none."""
        if not places:
            return []
        text = torch.stack([self._text_row(state, index + 1) for state, index in places])
        return [self._step_rows(places) + text]

    def _text_row(self, state: State, index: int) -> Tensor:
        """The row (hidden size,) of token ``index`` of the answer, or of what follows its text."""
        beyond = index - state.num_text
        if beyond >= 0:
            return self._after_text[min(beyond, 1)]
        known = len(state.text_rows)
        if index >= known:
            # All new text at once: it is usually ahead of speech.
            state.text_rows += self._new_text_rows(state, known, state.num_text).unbind()
        return state.text_rows[index]


def thinker_embeddings(checkpoint: MediaCheckpoint[Any, Any], hidden_size: int) -> Tensor:
    """(vocabulary, hidden size) of the thinker, in the stored dtype: the checkpoint's largest table stays a
    mapped file, of which few rows are read.

    Raises:
        ValueError: The table is missing or misshapen.
    """
    name = "thinker.model.embed_tokens.weight"
    vocab_size = int(checkpoint.thinker_config["text_config"]["vocab_size"])
    return Checkpoint(checkpoint.path, None, name).take(name, (vocab_size, hidden_size))
