"""A function that speaks: put your model in its place.

The factory (`load_voice`) runs once, in the process of its stage, and may load a model. The
function that it returns gets each request.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.tasks import AudioChunk, SpeechRequest

SAMPLE_RATE = 24_000
PITCH = {"low": 110.0, "high": 220.0}  # the voices, in Hz


def load_voice(voice: str) -> Callable[[StagePayload], Any]:
    def speak(payload: StagePayload) -> Iterator[AudioChunk]:
        request = SpeechRequest.of(payload)
        words = request.text.split()
        if len(words) > 500:  # the caller's fault: HTTP 400
            raise RequestError(
                f"input has {len(words)} words; the limit is 500", param="input", code="invalid_value"
            )
        pitch = PITCH[(request.voice or voice).lower()]
        # What is yielded reaches the caller at once; the whole answer is made of it.
        for word in words:
            yield AudioChunk(audio_data=hum(pitch, 0.1 * len(word) / request.speed), sample_rate=SAMPLE_RATE)

    return speak


def hum(hertz: float, seconds: float) -> np.ndarray:
    """A sound that fades in and out: float32 of shape (samples,)."""
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    sound = sum(np.sin(2 * np.pi * hertz * n * time) / n for n in range(1, 8))
    return (0.2 * sound * np.hanning(len(time))).astype(np.float32)
