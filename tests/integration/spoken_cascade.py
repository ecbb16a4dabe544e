"""Parts of a cascade under test: ears that tell a length, and a voice of a tone a letter that keeps others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def load_voice() -> Callable[[StagePayload], Iterator[AudioChunk] | VoiceResult]:
    """Kept voices are those of ``load_voice`` upside down, as loud as their recording's first sample."""

    def keep(payload: StagePayload) -> VoiceResult:
        samples = decode_audio(payload.request.inputs["audio"], param="audio_sample").samples
        loud = np.array([[round(256 * samples[0])]])
        return VoiceResult(voice={"codes": loud}, seconds=len(samples) / RATE)

    def answer(payload: StagePayload) -> Iterator[AudioChunk] | VoiceResult:
        return keep(payload) if task_of(payload.request) == "voice" else speak(payload)

    def speak(payload: StagePayload) -> Iterator[AudioChunk]:
        request = SpeechRequest.of(payload)
        kept, text = request.encoded_voice, request.text
        scale = 256 if kept is None else -int(kept["codes"][0, 0])
        if len(text) > _LONGEST:
            raise RequestError("input is too long for this voice", param="input", code="invalid_value")
        for letter in text:
            yield AudioChunk(
                audio_data=np.full(LETTER, ord(letter) / 256 * scale / 256, np.float32), sample_rate=RATE
            )

    return answer
