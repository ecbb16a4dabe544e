"""The state of an answer being spoken: its text so far, and the frames of its speech."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from sglang_omni.model_runner.feedback import FrameOutputs
from sglang_omni.models.omni.talker_state import TalkerState
from sglang_omni.models.qwen3_omni.components.talker_prompt import TalkerPrompt


class Qwen3TalkerState(FrameOutputs, TalkerState):
    """A ``TalkerState`` whose steps make frames, (G,) int64 codes of G groups.

    Its ``text_rows`` are projected to the talker's hidden size.

    Args:
        max_new_tokens: Limit of first codes; the last one makes no frame.

    Attributes:
        generator: Random generator of the residual codes; None for the likeliest codes. Shared with the first
            codes, because equal generators would repeat draws.
        media_hidden: (M, thinker hidden size), the thinker's hidden states of all placeholders of its prompt;
            needed if the user's turns have media.
    """

    def __init__(self, prompt: TalkerPrompt, *, max_new_tokens: int) -> None:
        super().__init__()
        self.prompt = prompt
        self.max_new_tokens = max_new_tokens
        self.generator: random.Random | None = None
        self.media_hidden: Tensor | None = None
        self._text_ids = list(prompt.answer_ids)
        self._num_generated = 0

    @property
    def num_prompt_rows(self) -> int:
        return self.prompt.num_rows

    @property
    def num_text(self) -> int:
        return len(self._text_ids) - (self._num_generated > 0)

    def feed(self, token_ids: Sequence[int]) -> None:
        """Adds the next tokens of the thinker's answer."""
        self._text_ids += token_ids
        self._num_generated += len(token_ids)

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens of the answer."""
        return self._text_ids[start:stop]

    def is_ready(self, num_tokens: int) -> bool:
        if len(self.prompt.media_rows) > 0 and self.media_hidden is None:
            return False
        return super().is_ready(num_tokens)
