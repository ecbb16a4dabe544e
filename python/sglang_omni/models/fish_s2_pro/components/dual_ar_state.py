"""One text being spoken: its prompt, with the frames of a reference voice, and the frames of its speech."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling


class DualARState:
    """
    Args:
        prompt_token_ids: Of the text's vocabulary; frames of the prompt are the tokens of their first codes.
        prompt_frames: (G,) int64 codes by their place in the prompt.
        semantic_start: The token that stands for a first code of 0.

    Attributes:
        frames: (G,) int64 codes each, as they are spoken.
        generator: What codes are drawn with, where they are drawn.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        sampling: RequestSampling,
        *,
        semantic_start: int,
        prompt_frames: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.sampling = sampling
        self.frames: list[Tensor] = []
        self.generator: random.Random | None = None
        self._prompt = prompt_token_ids
        self._prompt_frames = prompt_frames or {}
        self._semantic_start = semantic_start

    def is_ready(self, num_tokens: int) -> bool:
        return True

    def token(self, place: int) -> int:
        """The text's token at a place of the sequence."""
        frame = self.frame(place)
        return self._prompt[place] if frame is None else int(frame[0]) + self._semantic_start

    def frame(self, place: int) -> Tensor | None:
        """The frame at a place of the sequence, None where there is text."""
        spoken = place - len(self._prompt)
        return self.frames[spoken] if spoken >= 0 else self._prompt_frames.get(place)

    def draw(self) -> float:
        """The next random number in [0, 1); 0 where nothing is drawn."""
        return 0.0 if self.generator is None else self.generator.random()
