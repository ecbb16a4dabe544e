"""Hibari, an English text-to-speech model."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sglang_omni.models.speech_chat.components.packages import require
from sglang_omni.models.speech_chat.components.word_times import pronounced, with_frames, words_of
from sglang_omni.proto import RequestError
from sglang_omni.proto.tasks import SpokenWord, later

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
# In which the model counts how long phonemes last: two of its spectra, of ``hibari.dsp.HOP`` samples each.
_SECONDS_PER_FRAME = 600 / SAMPLE_RATE
# Kept before the onset, which may be soft.
_LEAD_IN_FRAMES = 4

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}\s+|[-*+•]\s+|>\s+)", re.MULTILINE)
_EMPHASIS = re.compile(r"\*+|`+|~~|(?<!\w)_+|_+(?!\w)")


class TimedSpeech(NamedTuple):
    """Speech of one sentence.

    Attributes:
        samples: float32, shape (samples,), 24 kHz, within [-1, 1]; empty if nothing can be spoken.
        words: Those of the text without its markup, timed from the first sample.
    """

    samples: NDArray[np.float32]
    words: list[SpokenWord]


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
        from hibari.voices import voice_path

        # The file as bytes is what onnxruntime also takes.
        model = with_frames(Path(voice_path(DEFAULT_VOICE)).read_bytes())
        self._model = Hibari(voice=DEFAULT_VOICE, model=model, threads=num_threads)
        # Once, to load the pronunciation tables.
        self.speak("Ready.")

    def speak(self, sentence: str, speed: float = 1.0, seed: int = DEFAULT_SEED) -> TimedSpeech:
        """Speech of one sentence: the samples are those of ``Hibari.__call__``.

        Args:
            sentence: Text; markup is not spoken.
            speed: 1 is the voice's own pace, 2 twice as fast.
            seed: Of the voice's noise, not negative.
        """
        import numpy as np
        from hibari.g2p.normalize import normalize

        model, noise = self._model, np.random.default_rng(seed)
        pieces = [np.zeros(0, np.float32)]
        words: list[SpokenWord] = []
        seconds = 0.0
        for text in model.split_sentences(speakable(sentence)):
            tokens = model.g2p.phonemize_tokens(model.g2p.tokenize(normalize(text)))
            phonemes = model.phonemize(text)
            frames = []
            for each in phonemes:
                samples, lasts = self._spoken(each, speed, noise)
                pieces.append(samples)
                frames.append(lasts)
            read = list(pronounced(tokens, phonemes, frames, model.vocab, _SECONDS_PER_FRAME))
            words += later(words_of(text, read), seconds)
            seconds = sum(map(len, pieces)) / SAMPLE_RATE
        return TimedSpeech(np.clip(np.concatenate(pieces), -1.0, 1.0), words)

    def _spoken(
        self, phonemes: str, speed: float, noise: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Samples of phonemes that the model speaks at once, as of ``Hibari.from_ids``, and their frames."""
        import numpy as np
        from hibari import dsp

        ids = np.asarray([self._model.ids(phonemes)], np.int64)
        *spectrum, frames = self._model.sess.run(None, {"ids": ids, "speed": np.asarray([speed], np.float32)})
        return dsp.synth(*(each[0] for each in spectrum), noise), frames


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
