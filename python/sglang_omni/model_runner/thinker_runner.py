"""The model runner of a thinker, whose prompts have rows of media."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sglang_omni.model_runner.batch import ForwardBatch
from sglang_omni.model_runner.media import captures_due, deepstack_of, has_media, merge_media, rows_due
from sglang_omni.model_runner.runner import ModelRunner


class ThinkerModelRunner(ModelRunner):
    """Injects the media of each sequence's ``ThinkerState``, and captures hidden states for it.

    Args:
        captures_all: True if they are captured of all tokens, not of prompts with media alone.
    """

    def __init__(self, *args: Any, captures_all: bool = False) -> None:
        super().__init__(*args)
        self._captures_all = captures_all

    def input_rows(self, batch: ForwardBatch) -> Tensor:
        rows = self.model.embed(batch.token_ids)
        merge_media(rows, batch.spans)
        return rows

    def forward(self, batch: ForwardBatch, rows: Tensor) -> Tensor:
        # The step of generated tokens captures by itself.
        if batch.step is not None or not (self._captures_all or has_media(batch.spans)):
            return super().forward(batch, rows)
        return self.model.forward(rows, batch, self.cache, deepstack=deepstack_of(batch.spans), capture=True)

    def process_output(self, batch: ForwardBatch, hidden: Tensor, tokens: Sequence[int]) -> None:
        for index, state in captures_due(batch.spans):
            state.media_hidden = self.cache.read_captured(batch.pages[index], state.media_positions)
        for index, state, first, end in rows_due(batch.spans):
            state.add_rows(self.cache.read_captured(batch.pages[index], torch.arange(first, end)))
