"""The state of speech that is made frame by frame: the prompt's text and frames, and the frames spoken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.model_runner.feedback import FrameOutputs
from sglang_omni.model_runner.request_sampling import RequestSampling
from sglang_omni.models.frames.delay import DelayedRows, DelayPattern


class FramePrompt(NamedTuple):
    """
    Attributes:
        rows: A text token or a frame, (G,) int64 codes, for each place. Of models that read text while they
            speak, (P, 1 + G): a text token and codes, each negative if there is none.
        beside: Text tokens beside the frames spoken, of such models. The last stands beside all that follow.
        speaker: (hidden size,) float32, the voice itself, of models that read it as a vector.
    """

    rows: Sequence[int | Tensor] | Tensor
    beside: Sequence[int] = ()
    speaker: Tensor | None = None


class FrameState(FrameOutputs):
    """Of which ``frames`` are (G,) int64 codes each.

    Args:
        prompt: What is read before the speech, and beside it.
        sampling: Of the codes after a frame's first.
        pattern: Of prompt and speech, whose frames are then its rows.

    Attributes:
        delay: The spoken rows of the pattern; None without one.
        generator: Random generator of the codes; None if they are not drawn.
        is_over: True once a frame was the last.
    """

    def __init__(
        self,
        prompt: FramePrompt,
        sampling: RequestSampling,
        pattern: DelayPattern | None = None,
    ) -> None:
        super().__init__()
        self.sampling = sampling
        self.delay: DelayedRows | None = None
        if pattern is not None:
            self.delay = DelayedRows(pattern, [row for row in prompt.rows if isinstance(row, Tensor)])
        self.generator: random.Random | None = None
        self.is_over = False
        # Of a pattern's frames.
        self._num_taken = 0
        self.prompt = prompt

    def is_ready(self, num_tokens: int) -> bool:
        return True

    def row(self, place: int) -> int | Tensor:
        """The text token or the frame at index ``place`` of the sequence."""
        spoken = place - len(self.prompt.rows)
        return self.frames[spoken] if spoken >= 0 else self.prompt.rows[place]

    def beside(self, index: int) -> int:
        """The text token beside the frame spoken at ``index``."""
        tokens = self.prompt.beside
        return tokens[min(index, len(tokens) - 1)]

    def is_audio(self, place: int) -> bool:
        """True if ``row(place)`` is a frame."""
        return isinstance(self.row(place), Tensor)

    def spoken(self) -> Tensor:
        """All frames (n, G) as the codec has them: of a pattern, on the host."""
        if self.delay is not None:
            return self.delay.frames(0)
        return torch.stack(self.frames) if self.frames else torch.zeros((0, 0), dtype=torch.int64)

    def take_arrived(self) -> Tensor | None:
        """As the codec has them, too."""
        if self.delay is None:
            return super().take_arrived()
        new = self.delay.frames(self._num_taken)
        self._num_taken += len(new)
        return new if len(new) else None

    def ends(self) -> bool:
        """``EngineRequest.ends``."""
        return self.is_over

    def draw(self) -> float:
        """The next random number in [0, 1); 0 without a generator."""
        return 0.0 if self.generator is None else self.generator.random()
