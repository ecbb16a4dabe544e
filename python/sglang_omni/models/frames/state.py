"""The state of speech that is made frame by frame: the prompt's text and frames, and the frames spoken."""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch import Tensor

from sglang_omni.model_runner.request_sampling import RequestSampling


class FrameState:
    """
    Args:
        prompt: A text token or a frame, (G,) int64 codes, for each place of the prompt.
        sampling: Of the codes after a frame's first.

    Attributes:
        frames: (G,) int64 codes of each spoken frame.
        generator: Random generator of the codes; None if they are not drawn.
        is_over: True once a frame was the last.
    """

    def __init__(self, prompt: Sequence[int | Tensor], sampling: RequestSampling) -> None:
        self.sampling = sampling
        self.frames: list[Tensor] = []
        self.generator: random.Random | None = None
        self.is_over = False
        self._prompt = prompt

    def is_ready(self, num_tokens: int) -> bool:
        return True

    def row(self, place: int) -> int | Tensor:
        """The text token or the frame at index ``place`` of the sequence."""
        spoken = place - len(self._prompt)
        return self.frames[spoken] if spoken >= 0 else self._prompt[place]

    def ends(self) -> bool:
        """``EngineRequest.ends``."""
        return self.is_over

    def draw(self) -> float:
        """The next random number in [0, 1); 0 without a generator."""
        return 0.0 if self.generator is None else self.generator.random()
