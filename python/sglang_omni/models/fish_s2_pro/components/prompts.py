"""The slow decoder's prompts: a voice, earlier passages with their speech, and the passage to speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sglang_omni.preprocessing.tokenizing import TextTokenizer

_TASK = "convert the provided text to speech"


class SpokenPassage(NamedTuple):
    """A text and its speech.

    Attributes:
        text: Token ids.
        first_codes: Of each frame, as tokens of the slow decoder.
        frames: (groups,) int64 each.
    """

    text: list[int]
    first_codes: list[int]
    frames: Sequence[Tensor]


class FishPrompt(NamedTuple):
    """Token ids; a token that stands for a frame has its codes in ``frames``, by its index."""

    token_ids: list[int]
    frames: dict[int, Tensor]

    def rows(self) -> list[int | Tensor]:
        """The token or the frame of each place."""
        return [self.frames.get(place, token) for place, token in enumerate(self.token_ids)]


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

    def write(
        self, text: list[int], voice: SpokenPassage | None, earlier: Sequence[SpokenPassage] = ()
    ) -> FishPrompt:
        """The prompt for a passage.

        Args:
            text: Its token ids.
            voice: A recording, whose voice is to speak.
            earlier: Passages that the same voice has spoken before.
        """
        prompt = FishPrompt([], {})
        if voice is None:
            prompt.token_ids.extend(self._plain)
        else:
            prompt.token_ids.extend([*self._before_voice, *voice.text, *self._before_codes])
            _add_speech(prompt, voice)
        for passage in earlier:
            prompt.token_ids.extend([*self._to_user, *passage.text, *self._to_speech])
            _add_speech(prompt, passage)
        prompt.token_ids.extend([*self._to_user, *text, *self._to_speech])
        return prompt


def _add_speech(prompt: FishPrompt, passage: SpokenPassage) -> None:
    start = len(prompt.token_ids)
    prompt.frames.update(enumerate(passage.frames, start=start))
    prompt.token_ids.extend(passage.first_codes)
