"""The slow decoder's prompts: a voice, earlier passages with their speech, and the passage to speak."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sglang_omni.models.frames.earlier import SpokenTurn
from sglang_omni.models.frames.speaking import Speech
from sglang_omni.models.frames.state import FramePrompt
from sglang_omni.preprocessing.tokenizing import TextTokenizer

_TASK = "convert the provided text to speech"


class FishPrompts:
    """Writes prompts as the model was trained on them: a conversation whose answers are speech."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        encode = tokenizer.encode
        system = encode("<|im_start|>system\n")
        self._plain = system + encode(_TASK)
        self._before_voice = system + encode(f"{_TASK} reference to the following:\n\nText:\n")
        self._before_codes = encode("\n\nSpeech:\n")
        self._to_user = encode("<|im_end|>\n<|im_start|>user\n")
        self._to_speech = encode("<|im_end|>\n<|im_start|>assistant\n<|voice|>")

    def __call__(self, speech: Speech, turns: Sequence[SpokenTurn], text: list[int]) -> FramePrompt:
        """The prompt for a passage.

        Args:
            turns: A recording of the voice that is to speak, if there is one; then passages that it has
                spoken before.
            text: The passage's token ids.
        """
        rows: list[int | Tensor] = []
        if not (turns and turns[0].is_voice):
            rows += self._plain
        for turn in turns:
            if turn.is_voice:
                rows += [*self._before_voice, *turn.text, *self._before_codes]
            else:
                rows += [*self._to_user, *turn.text, *self._to_speech]
            rows += turn.frames.unbind()
        return FramePrompt([*rows, *self._to_user, *text, *self._to_speech])
