"""The talker's prompt: two rows in time, of text and of sound, one above the other.

As ``Qwen3TTSForConditionalGeneration.generate`` of the authors' package lays it out. A text is read whole
before the speech, or, in the voice of a recording, one token a frame while it is spoken.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_omni.models.frames.earlier import SpokenTurn
from sglang_omni.models.frames.speaking import Speech
from sglang_omni.models.frames.state import FramePrompt
from sglang_omni.models.qwen3_tts.components.checkpoint import Qwen3TTSCheckpoint

# In the place of a text token or of a code.
NOTHING = -1
# In the place of a first code: the voice of the recording.
SPEAKER = -2

# A text token, and the codes beside it.
_Row = tuple[int, Sequence[int]]


class Qwen3TTSPrompts:
    """A ``Compose``. Its prompts' rows are (P, 1 + G), the first code of a row without others being a tag."""

    def __init__(self, checkpoint: Qwen3TTSCheckpoint) -> None:
        self._tags, self._text = checkpoint.tags, checkpoint.text
        self._groups = checkpoint.predictor.num_code_groups
        self._feeds_text = checkpoint.kind == "base"

    def __call__(self, speech: Speech, turns: Sequence[SpokenTurn], text: list[int]) -> FramePrompt:
        marks, tags = self._text, self._tags
        voice = [] if speech.speaker is None else [SPEAKER]
        # The start of speech stands beside the first token of the text.
        before = [*speech.tags, *voice, tags.pad]
        rows: list[_Row] = [(token, ()) for token in speech.opening]
        rows += [(marks.pad, (tag,)) for tag in before[:-1]]
        rows.append((marks.bos, (before[-1],)))
        if not self._feeds_text:
            rows += [(token, (tags.pad,)) for token in [*text, marks.eos]]
            rows.append((marks.pad, (tags.bos,)))
            return FramePrompt(self._packed(rows), [marks.pad], speech.speaker)
        said = [token for turn in turns for token in turn.text]
        frames: list[Sequence[int]] = [(tags.bos,)]
        frames += [frame for turn in turns for frame in turn.frames.tolist()]
        read = [*said, *text, marks.eos]
        # Until the recording's frames are over, and at least the first token.
        beside = [*read[: len(frames)], *[marks.pad] * (len(frames) - len(read))]
        rows += zip(beside, frames, strict=True)
        return FramePrompt(self._packed(rows), [*read[len(frames) :], marks.pad], speech.speaker)

    def _packed(self, rows: Sequence[_Row]) -> Tensor:
        packed = torch.full((len(rows), 1 + self._groups), NOTHING)
        for place, (token, codes) in enumerate(rows):
            packed[place, : 1 + len(codes)] = torch.tensor([token, *codes])
        return packed
