"""One answer being spoken: what came of its text, and the frames of its speech."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from sglang_omni.models.qwen3_omni.components.talker_prompt import TalkerPrompt


class TalkerState:
    """A talker's sequence: its prompt's rows, then one row a frame.

    Row ``P + i`` is frame ``i`` and the text that comes with it: the answer's token ``i + 1``, one marker of
    the text's end, padding from then on. The answer's last token is never spoken, so each token counts only
    once the next one, or the end, has come.

    Args:
        max_new_tokens: First codes to choose at most; the last one chosen makes no frame.

    Attributes:
        generator: What a frame's residual codes are drawn with; None for the likeliest. The same as the first
            codes', or their draws would repeat one another.
        media_hidden: (M, thinker hidden size), the thinker's hidden states of all of the prompt's
            placeholders. Needed where the user's turns have media.
        frames: (G,) int64 codes each, on the CPU; G is the number of code groups.
        text_rows: (talker hidden size,) each, the projected text that has been used so far.
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
        """Takes tokens of the thinker's answer, in order."""
        self._text_ids += token_ids
        self._num_generated += len(token_ids)

    def end_text(self) -> None:
        """The thinker's answer is complete."""
        self.text_ended = True

    @property
    def is_silent(self) -> bool:
        """Whether the answer is over and has nothing to speak: a single token, which is its end."""
        return self.text_ended and self.num_text == 0

    @property
    def num_text(self) -> int:
        """Tokens of the answer that are known to be spoken."""
        return len(self._text_ids) - (self._num_generated > 0)

    def text(self, start: int, stop: int) -> list[int]:
        """Tokens of the answer."""
        return self._text_ids[start:stop]

    def is_ready(self, num_tokens: int) -> bool:
        if self.num_text == 0 or (len(self.prompt.media_rows) > 0 and self.media_hidden is None):
            return False
        return self.text_ended or num_tokens - self.prompt.num_rows < self.num_text
