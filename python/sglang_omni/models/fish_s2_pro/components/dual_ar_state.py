"""The state of a text being spoken: its prompt, with a voice's frames, and the frames of its speech."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling


class DualARState:
    """
    Args:
        prompt_token_ids: Text tokens; a frame's token stands for its first code.
        prompt_frames: (G,) int64 codes by their index in the prompt.

    Attributes:
        frames: (G,) int64 codes of each spoken frame.
        generator: Random generator of the codes; None if they are not drawn.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        sampling: RequestSampling,
        *,
        prompt_frames: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.sampling = sampling
        self.frames: list[Tensor] = []
        self.generator: random.Random | None = None
        self._prompt = prompt_token_ids
        self._prompt_frames = prompt_frames or {}

    def is_ready(self, num_tokens: int) -> bool:
        return True

    def text_token(self, place: int) -> int:
        """The token at index ``place`` of the prompt."""
        return self._prompt[place]

    def frame(self, place: int) -> Tensor | None:
        """The frame at index ``place`` of the sequence; None for text."""
        spoken = place - len(self._prompt)
        return self.frames[spoken] if spoken >= 0 else self._prompt_frames.get(place)

    def draw(self) -> float:
        """The next random number in [0, 1); 0 without a generator."""
        return 0.0 if self.generator is None else self.generator.random()
