"""The preprocess stage: a text to parts of phonemes. Imports no torch."""

from __future__ import annotations

from itertools import accumulate
from typing import TypedDict

from sglang_omni.models.kokoro.components.checkpoint import KokoroCheckpoint
from sglang_omni.models.kokoro.languages import language_of
from sglang_omni.models.kokoro.parts import SpokenPart, SpokenSpan
from sglang_omni.models.kokoro.phonemes import KokoroPhonemes
from sglang_omni.models.kokoro.request_params import REQUEST_PARAMS
from sglang_omni.preprocessing.request import without_inputs
from sglang_omni.preprocessing.request_params import check_request
from sglang_omni.preprocessing.voice_blends import VoicePart, voice_parts
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.tasks import SpeechRequest

_SEEDS = 2**63


class PhonemePart(TypedDict):
    """
    Attributes:
        text: What it is of.
        ids: Of the phonemes that the model knows.
        length: Of all phonemes: by it a voice's style is chosen.
        words: Of the text, by the places of their ids.
    """

    text: str
    ids: list[int]
    length: int
    words: list[SpokenSpan]


class KokoroSpeech(TypedDict):
    """What the voice stage gets of a request."""

    parts: list[PhonemePart]
    voice: list[VoicePart]
    speed: float
    seed: int


class KokoroPreprocessor:
    """Converts the entry payload to ``KokoroSpeech``. The request's own inputs are dropped."""

    def __init__(self, checkpoint: KokoroCheckpoint, phonemes: KokoroPhonemes, max_chars: int) -> None:
        self._vocab, self._voices = checkpoint.vocab, checkpoint.voices
        self._phonemes = phonemes
        self._max_chars = max_chars

    def __call__(self, payload: StagePayload) -> StagePayload:
        """
        Raises:
            RequestError: An input or parameter is not acceptable, or nothing of the text can be spoken.
        """
        check_request(payload.request, REQUEST_PARAMS)
        speech = SpeechRequest.of(payload)
        if len(speech.text) > self._max_chars:
            problem = f"input is {len(speech.text)} characters long; the limit is {self._max_chars}"
            raise RequestError(problem, param="input", code="invalid_value")
        voice = voice_parts(speech.voice or self._voices[0])
        for part in voice:
            if part.name not in self._voices:
                raise RequestError(
                    f"unknown voice {part.name!r}: this model's are {', '.join(self._voices)}",
                    param="voice",
                    code="unsupported_value",
                )
        language = language_of(voice[0].name, speech.params.get("language"))
        found = [self._known(part) for part in self._phonemes(speech.text, language)]
        parts = [part for part in found if part["ids"]]
        if not parts:
            raise RequestError(
                "input holds nothing that this model can speak: write words of the voice's language, or name "
                "theirs in language",
                param="input",
                code="invalid_value",
            )
        seed = speech.params.get("seed")
        data = KokoroSpeech(parts=parts, voice=voice, speed=speech.speed, seed=(seed or 0) % _SEEDS)
        return without_inputs(payload, data)

    def _known(self, part: SpokenPart) -> PhonemePart:
        """A part without the phonemes that the model does not know."""
        ids = [self._vocab.get(phoneme) for phoneme in part.phonemes]
        # How many are known before each place.
        places = [0, *accumulate(each is not None for each in ids)]
        return PhonemePart(
            text=part.text,
            ids=[each for each in ids if each is not None],
            length=len(part.phonemes),
            words=[SpokenSpan(word, places[first], places[end]) for word, first, end in part.words],
        )
