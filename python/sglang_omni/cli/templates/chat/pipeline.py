"""Three functions that answer a conversation: put your models in their places.

A factory (`load_...`) runs once, in the process of its stage, and may load a model. The function
that it returns gets each request.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sglang_omni.proto import StagePayload
from sglang_omni.tasks import AudioChunk, ChatRequest, TextChunk

SAMPLE_RATE = 24_000


def load_read() -> Callable[[StagePayload], Any]:
    def read(payload: StagePayload) -> dict[str, Any]:
        request = ChatRequest.of(payload)
        asked = sum(turn.role == "user" for turn in request.turns)
        return {"text": request.text, "asked": asked, "speak": "audio" in request.modalities}

    return read


def load_think(greeting: str) -> Callable[[StagePayload], Any]:
    def think(payload: StagePayload) -> dict[str, Any]:
        words = payload.data["text"].split()
        answer = f"{greeting}! That is question {payload.data['asked']}, and it has {len(words)} words."
        return {"answer": answer, "speak": payload.data["speak"]}

    return think


def load_say() -> Callable[[StagePayload], Any]:
    def say(payload: StagePayload) -> Iterator[TextChunk | AudioChunk]:
        # What is yielded reaches the caller at once; the whole answer is made of it.
        for index, word in enumerate(payload.data["answer"].split()):
            yield TextChunk(text=word if index == 0 else f" {word}")
            if payload.data["speak"]:
                yield AudioChunk(audio_data=tone(220 + 40 * len(word)), sample_rate=SAMPLE_RATE)

    return say


def tone(hertz: float, seconds: float = 0.2) -> np.ndarray:
    """A tone that fades in and out: float32 of shape (samples,)."""
    time = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (0.2 * np.sin(2 * np.pi * hertz * time) * np.hanning(len(time))).astype(np.float32)
