"""The state of an answer being spoken: its text so far, and the frames of its speech."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from sglang_omni.models.qwen3_omni.components.talker_prompt import TalkerPrompt


class Qwen3TalkerState:
    """A talker's sequence: the rows of its prompt, then one row for each frame.

    Row ``P + i`` is frame ``i`` and its text: token ``i + 1`` of the answer, after the text's end one end
    marker, then padding. The answer's last token is never spoken, so a token counts only once the next one,
    or the end, has come.

    Args:
        max_new_tokens: Limit of first codes; the last one makes no frame.

    Attributes:
        generator: Random generator of the residual codes; None for the likeliest codes. Shared with the first
            codes, because equal generators would repeat draws.
        media_hidden: (M, thinker hidden size), the thinker's hidden states of all placeholders of its prompt;
            needed if the user's turns have media.
        frames: (G,) int64 codes of each frame, on the talker's device; G is the number of code groups.
        text_rows: (talker hidden size,) each, the projected text used so far.
    """

    def __init__(self, prompt: TalkerPrompt, *, max_new_tokens: int) -> None:
        self.prompt = prompt
        self.max_new_tokens = max_new_tokens
        self.generator: random.Random | None = None
        self.media_hidden: Tensor | None = None
        self.frames: list[Tensor] = []
        self.text_rows: list[Tensor] = []
        self.text_ended = False
        self._text_ids = list(prompt.answer_ids)
        self._num_generated = 0

    @property
    def num_prompt_rows(self) -> int:
        return self.prompt.num_rows

    def feed(self, token_ids: Sequence[int]) -> None:
        """Adds the next tokens of the thinker's answer."""
        self._text_ids += token_ids
        self._num_generated += len(token_ids)

    def end_text(self) -> None:
        """The thinker's answer is complete."""
        self.text_ended = True

    @property
    def is_silent(self) -> bool:
        """True if the answer is complete and its only token is its end, so that nothing is spoken."""
        return self.text_ended and self.num_text == 0

    @property
    def num_text(self) -> int:
        """The number of the answer's tokens that are known to be spoken."""
        return len(self._text_ids) - (self._num_generated > 0)

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens of the answer."""
        return self._text_ids[start:stop]

    def is_ready(self, num_tokens: int) -> bool:
        if self.num_text == 0 or (len(self.prompt.media_rows) > 0 and self.media_hidden is None):
            return False
        return self.text_ended or num_tokens - self.prompt.num_rows < self.num_text
