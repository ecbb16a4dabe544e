"""Parts of a cascade under test: ears that tell a length, and a voice of a tone a letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.tasks import AudioChunk, SpeechRequest, Transcript, TranscriptionRequest

RATE = 16_000
# Samples of a letter.
LETTER = 160
_LONGEST = 1000


def load_ears() -> Callable[[StagePayload], Transcript]:
    def listen(payload: StagePayload) -> Transcript:
        seconds = len(TranscriptionRequest.of(payload).samples(RATE)) / RATE
        # A word of the tiny checkpoints.
        text = f"t{round(seconds * 10)}"
        return Transcript(
            text=text,
            language="en",
            duration=seconds,
            segments=[{"start": 0.0, "end": seconds, "text": text}],
        )

    return listen


def load_voice() -> Callable[[StagePayload], Iterator[AudioChunk]]:
    def speak(payload: StagePayload) -> Iterator[AudioChunk]:
        text = SpeechRequest.of(payload).text
        if len(text) > _LONGEST:
            raise RequestError("input is too long for this voice", param="input", code="invalid_value")
        for letter in text:
            yield AudioChunk(audio_data=np.full(LETTER, ord(letter) / 256, np.float32), sample_rate=RATE)

    return speak
