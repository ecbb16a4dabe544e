"""The model runner of decoders that hear while they write: to each token's embedding a row is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.runner import ModelRunner
from sglang_omni.model_runner.sequence import SequenceSpan


class RowSource(Protocol):
    """The rows of sequences' tokens."""

    def __call__(self, spans: Sequence[SequenceSpan]) -> Tensor:
        """(T, hidden_size), of all tokens of ``spans`` in their order. Their states are ready."""
        ...


class AddedRowsModelRunner(ModelRunner):
    """Adds what ``rows`` has to the embeddings."""

    def __init__(self, rows: RowSource, *args: Any) -> None:
        super().__init__(*args)
        self._rows = rows

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        rows = self._rows(batch.spans)
        # A step of fixed shape has tokens of no sequence behind.
        return self.model.embed(batch.token_ids[: len(rows)]).add_(rows)
