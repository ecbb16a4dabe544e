"""The speak stage: text, whole or as it is written, to speech, sentence by sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_omni.models.speech_chat.components.voice import DEFAULT_SEED, SAMPLE_RATE, Voice, from_onset
from sglang_omni.preprocessing.request import stage_params, task_of, wants_stream
from sglang_omni.preprocessing.sentences import SentenceSplitter
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.proto.tasks import AudioChunk, AudioResult, SpokenWord, later
from sglang_omni.scheduling.playback import Playback
from sglang_omni.scheduling.stream_scheduler import StreamSession

# Speech begins with the first clause of at least this length: about 1.5 s of sound, enough time to write the
# rest of the sentence.
FIRST_CLAUSE_CHARS = 24
# A listener who has less in hand hears the clauses that are written of a sentence, before its end.
LEAST_IN_HAND_S = 0.75


class SpeakSession(StreamSession):
    """One request: ``{"text": str}`` in its payload, or in each item of its stream.

    Each chunk is a sentence, or at first a clause, with its text as ``spoken_text`` and the times of its
    words; the result is all speech, the text and all words.

    Args:
        voice: Speaks.
        keeps_up: True if a sentence is also cut after a clause if its listener would have nothing to hear
            before it is written.
        clock: The time in seconds.
    """

    def __init__(
        self, voice: Voice, *, keeps_up: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._voice = voice
        self._keeps_up = keeps_up
        self._clock = clock
        self._playback: Playback | None = None
        self._speed = 1.0
        self._seed = DEFAULT_SEED
        self._must_speak = False
        self._sentences = SentenceSplitter(first_clause_chars=FIRST_CLAUSE_CHARS)
        self._text: list[str] = []
        self._audio: list[NDArray[np.float32]] = []
        self._words: list[SpokenWord] = []

    def begin(self, payload: StagePayload) -> Iterator[Any]:
        self._must_speak = task_of(payload.request) == "speech"
        params = stage_params(payload.request, "speak")
        speed, seed = params.get("speed"), params.get("seed")
        self._speed = 1.0 if speed is None else float(speed)
        # A chat's seed may be negative; the generator takes none below 0.
        self._seed = DEFAULT_SEED if seed is None else seed % 2**64
        if self._keeps_up and wants_stream(payload.request):
            self._playback = Playback(self._clock())
        text = payload.data.get("text")
        return iter(()) if text is None else self.feed({"text": text})

    def feed(self, data: Any) -> Iterator[Any]:
        self._text.append(data["text"])
        sentences = self._sentences.feed(data["text"])
        if not sentences and self._runs_dry():
            sentences = self._sentences.cut(FIRST_CLAUSE_CHARS)
        return self._speak(sentences)

    def end(self) -> Iterator[Any]:
        return self._speak(self._sentences.flush())

    def result(self) -> AudioResult:
        """
        Raises:
            RequestError: The voice has no sound for any of the text.
        """
        if self._must_speak and not self._audio:
            raise RequestError(
                "input holds nothing that this English voice can speak", param="input", code="invalid_value"
            )
        audio = np.concatenate(self._audio) if self._audio else np.zeros(0, np.float32)
        return AudioResult(
            modality="audio",
            audio_data=audio,
            sample_rate=SAMPLE_RATE,
            text="".join(self._text).strip(),
            words=self._words,
        )

    def _speak(self, sentences: list[str]) -> Iterator[AudioChunk]:
        for sentence in sentences:
            audio, words = self._voice.speak(sentence, self._speed, self._seed)
            if len(audio):
                if not self._audio:
                    # Between sentences silence is a pause; before the first one it is a wait.
                    audio, silent = from_onset(audio), len(audio)
                    words = later(words, (len(audio) - silent) / SAMPLE_RATE)
                self._words += later(words, sum(map(len, self._audio)) / SAMPLE_RATE)
                self._audio.append(audio)
                if self._playback is not None:
                    self._playback.feed(self._clock(), len(audio) / SAMPLE_RATE)
                yield AudioChunk(
                    modality="audio",
                    audio_data=audio,
                    sample_rate=SAMPLE_RATE,
                    spoken_text=sentence,
                    words=words,
                )

    def _runs_dry(self) -> bool:
        playback = self._playback
        return (
            playback is not None
            and playback.first_sound is not None
            and playback.in_hand_s(self._clock()) < LEAST_IN_HAND_S
        )
