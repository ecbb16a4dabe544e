"""Hibari, an English text-to-speech model."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from sglang_omni.models.speech_chat.components.packages import require
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE_RATE = 24_000
DEFAULT_VOICE = "heart"
# Seed of the voice's noise: the same text always sounds the same.
DEFAULT_SEED = 0

# What is this much below a sentence's loudest 10 ms is silence.
_SILENCE = 1e-3
_FRAME = SAMPLE_RATE // 100
# Kept before the onset, which may be soft.
_LEAD_IN_FRAMES = 4

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}\s+|[-*+•]\s+|>\s+)", re.MULTILINE)
_EMPHASIS = re.compile(r"\*+|`+|~~|(?<!\w)_+|_+(?!\w)")


class Voice:
    """A loaded voice; not thread-safe."""

    def __init__(self, *, num_threads: int) -> None:
        """
        Args:
            num_threads: CPU threads of the inference.

        Raises:
            ImportError: A package is missing; the text has the command that installs it.
        """
        require("hibari", purpose="speech synthesis")
        from hibari import Hibari

        self._model = Hibari(voice=DEFAULT_VOICE, threads=num_threads)
        # Call it once, to load the pronunciation tables.
        self._model("Ready.", seed=DEFAULT_SEED)

    def speak(self, sentence: str, speed: float = 1.0, seed: int = DEFAULT_SEED) -> NDArray[np.float32]:
        """Speech of one sentence.

        Args:
            sentence: Text; markup is not spoken.
            speed: 1 is the voice's own pace, 2 twice as fast.
            seed: Of the voice's noise, not negative.

        Returns:
            float32, shape (samples,), 24 kHz, within [-1, 1]; empty if nothing can be spoken.
        """
        import numpy as np

        return np.clip(self._model(speakable(sentence), speed=speed, seed=seed), -1.0, 1.0)


def from_onset(speech: NDArray[np.float32]) -> NDArray[np.float32]:
    """``speech`` without the silence that it begins with: about a quarter of a second of each sentence.

    Args:
        speech: float32, shape (samples,), 24 kHz.

    Returns:
        A view of its end, in whole 10 ms.
    """
    import numpy as np

    frames = speech[: len(speech) // _FRAME * _FRAME].reshape(-1, _FRAME)
    if not len(frames):
        return speech
    loudness = np.abs(frames).max(axis=1)
    onset = int(np.argmax(loudness > _SILENCE * loudness.max()))
    return speech[max(0, onset - _LEAD_IN_FRAMES) * _FRAME :]


def speakable(text: str) -> str:
    """``text`` without Markdown and pictographs."""
    text = _LINK.sub(r"\1", text)
    text = _LINE_MARK.sub("", text)
    text = _EMPHASIS.sub("", text)
    return "".join(
        character
        for character in text
        if character in "°%$€£¥+=<>^|~" or unicodedata.category(character) not in ("So", "Cs", "Co", "Cn")
    )


def check_voice(voice: str | None, *, param: str) -> None:
    """
    Raises:
        RequestError: The voice is unknown.
    """
    if voice is None or voice.lower() in (DEFAULT_VOICE, "default"):
        return
    raise RequestError(
        f"unknown voice {voice!r}: this model has one voice, {DEFAULT_VOICE!r}",
        param=param,
        code="unsupported_value",
    )
