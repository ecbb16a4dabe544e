"""The model runner of a thinker, whose prompts have rows of media."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.media import captures_due, deepstack_of, has_media, merge_media
from sglang_omni.model_runner.runner import ModelRunner


class ThinkerModelRunner(ModelRunner):
    """Injects the media of each sequence's ``ThinkerState``, and captures hidden states for it."""

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        rows = self.model.embed(batch.token_ids)
        merge_media(rows, batch.spans)
        return rows

    def forward(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        if not has_media(batch.spans):
            return super().forward(batch, rows)
        return self.model.forward(rows, batch, self.cache, deepstack=deepstack_of(batch.spans), capture=True)

    def process_output(self, batch: ForwardBatch, hidden: Tensor, tokens: Sequence[int]) -> None:
        for index, state in captures_due(batch.spans):
            state.media_hidden = self.cache.read_captured(batch.pages[index], state.media_positions)
