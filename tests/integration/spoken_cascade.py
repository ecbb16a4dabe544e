"""Parts of a cascade under test: ears that tell a length, and a voice of a tone a letter; it keeps others."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from sglang_omni.config import PipelineConfig
from sglang_omni.preprocessing.audio import decode_audio
from sglang_omni.proto import RequestError, StagePayload
from sglang_omni.proto.tasks import VoiceResult
from sglang_omni.tasks import AudioChunk, SpeechRequest, Transcript, TranscriptionRequest, task_of

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


class KeepingConfig(PipelineConfig):
    def voice_encoder(self) -> str:
        return "toy"


def load_voice() -> Callable[[StagePayload], Iterator[AudioChunk]]:
    """A kept voice is this one upside down, as loud as the beginning of its recording."""

    def speak(payload: StagePayload) -> Generator[AudioChunk, None, VoiceResult | None]:
        if task_of(payload.request) == "voice":
            clip = decode_audio(payload.request.inputs["audio"], param="audio_sample")
            loud = np.array([[round(256 * clip.samples[0])]])
            return VoiceResult(voice={"codes": loud}, seconds=clip.duration)
        request = SpeechRequest.of(payload)
        if len(request.text) > _LONGEST:
            raise RequestError("input is too long for this voice", param="input", code="invalid_value")
        kept = request.encoded_voice
        scale = 1.0 if kept is None else -int(kept["codes"][0, 0]) / 256
        for letter in request.text:
            tone = np.full(LETTER, scale * ord(letter) / 256, np.float32)
            yield AudioChunk(audio_data=tone, sample_rate=RATE)
        return None

    return speak
