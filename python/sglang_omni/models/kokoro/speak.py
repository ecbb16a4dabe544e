"""The voice stage: parts of phonemes to speech, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from sglang_omni.models.kokoro.components.vocoder import SAMPLE_RATE
from sglang_omni.proto import StagePayload
from sglang_omni.proto.tasks import AudioChunk, AudioResult, SpokenWord, later
from sglang_omni.scheduling.stream_scheduler import StreamSession

if TYPE_CHECKING:
    from sglang_omni.models.kokoro.components.model import KokoroModel
    from sglang_omni.models.kokoro.components.weights import KokoroVoices
    from sglang_omni.models.kokoro.preprocess import KokoroSpeech, PhonemePart

# Half steps of a duration, 12.5 ms each, so that a pause between words can be halved.
_HALVES = 80
# The steps of what begins a text that are not heard before it, as its authors count.
_EARLY = 3


class KokoroSession(StreamSession):
    """One request. Each chunk is a part, with its text as ``spoken_text`` and the times of its words.

    Parts of one text go on with one row of random numbers, as in the authors' pipeline.
    """

    def __init__(self, model: KokoroModel, voices: KokoroVoices, space: int) -> None:
        self._model, self._voices, self._space = model, voices, space
        self._sound: list[Tensor] = []
        self._text: list[str] = []
        self._words: list[SpokenWord] = []

    def begin(self, payload: StagePayload) -> Iterator[AudioChunk]:
        speech: KokoroSpeech = payload.data
        styles = self._voices(speech["voice"])
        generator = Generator().manual_seed(speech["seed"])
        spoken = 0
        for part in speech["parts"]:
            style = styles[part["length"] - 1]
            said = self._model.speak(part["ids"], style, speech["speed"], generator)
            samples = said.samples.cpu()
            words = word_times(part, said.durations, self._space)
            self._words += later(words, spoken / SAMPLE_RATE)
            spoken += len(samples)
            self._sound.append(samples)
            self._text.append(part["text"])
            yield AudioChunk(
                audio_data=samples,
                sample_rate=SAMPLE_RATE,
                spoken_text=part["text"],
                words=words,
                modality="audio",
            )

    def result(self) -> AudioResult:
        return AudioResult(
            audio_data=torch.cat(self._sound),
            sample_rate=SAMPLE_RATE,
            text=" ".join(filter(None, self._text)),
            words=self._words,
            modality="audio",
        )


def word_times(part: PhonemePart, durations: list[int], space: int) -> list[SpokenWord]:
    """When the words of a part are spoken: ``join_timestamps`` of the authors' pipeline.

    Args:
        durations: Of the beginning, each phoneme and the end, in steps of 25 ms.
        space: The id of the space; half of it belongs to each of the words beside it.
    """
    ids = part["ids"]
    halves = [2 * max(0, durations[0] - _EARLY)]
    for duration in durations[1:]:
        halves.append(halves[-1] + 2 * duration)

    def time(place: int, beside: int) -> float:
        """Of the beginning of a phoneme; to the middle of the space at the place ``beside``, if one is."""
        half = durations[beside + 1] if 0 <= beside < len(ids) and ids[beside] == space else 0
        return (halves[place] + (half if beside == place else -half)) / _HALVES

    return [
        SpokenWord(word=word, start=time(first, first - 1), end=time(end, end))
        for word, first, end in part["words"]
        if end > first
    ]
