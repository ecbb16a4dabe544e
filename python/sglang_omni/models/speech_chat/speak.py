"""The speak stage: text, whole or as it is written, to speech, sentence by sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_omni.models.speech_chat.components.voice import DEFAULT_SEED, SAMPLE_RATE, Voice
from sglang_omni.preprocessing.request import stage_params, task_of
from sglang_omni.preprocessing.sentences import SentenceSplitter
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.scheduling.stream_scheduler import StreamSession

# Speech begins with the first clause of at least this length: about 1.5 s of sound, enough time to write the
# rest of the sentence.
_FIRST_CLAUSE_CHARS = 24


class SpeakSession(StreamSession):
    """One request: ``{"text": str}`` in its payload, or in each item of its stream.

    Each chunk is a sentence, or at first a clause, with its text as ``spoken_text``; the result is all speech
    and the text.
    """

    def __init__(self, voice: Voice) -> None:
        self._voice = voice
        self._speed = 1.0
        self._seed = DEFAULT_SEED
        self._must_speak = False
        self._sentences = SentenceSplitter(first_clause_chars=_FIRST_CLAUSE_CHARS)
        self._text: list[str] = []
        self._audio: list[NDArray[np.float32]] = []

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self._must_speak = task_of(payload.request) == "speech"
        params = stage_params(payload.request, "speak")
        speed, seed = params.get("speed"), params.get("seed")
        self._speed = 1.0 if speed is None else float(speed)
        # A chat's seed may be negative; the generator takes none below 0.
        self._seed = DEFAULT_SEED if seed is None else seed % 2**64
        text = payload.data.get("text")
        return iter(()) if text is None else self.feed({"text": text})

    def feed(self, data: Any) -> Iterator[Any]:
        self._text.append(data["text"])
        return self._speak(self._sentences.feed(data["text"]))

    def end(self) -> Iterator[Any]:
        return self._speak(self._sentences.flush())

    def result(self) -> dict[str, Any]:
        """
        Raises:
            RequestError: The voice has no sound for any of the text.
        """
        if self._must_speak and not self._audio:
            raise RequestError(
                "input holds nothing that this English voice can speak", param="input", code="invalid_value"
            )
        audio = np.concatenate(self._audio) if self._audio else np.zeros(0, np.float32)
        return {**_audio_chunk(audio), "text": "".join(self._text).strip()}

    def _speak(self, sentences: list[str]) -> Iterator[dict[str, Any]]:
        for sentence in sentences:
            audio = self._voice.speak(sentence, self._speed, self._seed)
            if len(audio):
                self._audio.append(audio)
                yield {**_audio_chunk(audio), "spoken_text": sentence}


def _audio_chunk(audio: NDArray[np.float32]) -> dict[str, Any]:
    return {"modality": "audio", "audio_data": audio, "sample_rate": SAMPLE_RATE}
