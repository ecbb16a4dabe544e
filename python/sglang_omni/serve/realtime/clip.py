"""Sound that a conversation keeps."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import dataclass

from sglang_omni.generation.audio import decode_pcm, encode_pcm
from sglang_omni.serve.realtime.sound import RATE, AudioFormat, Samples, SoundEncoder


@dataclass(frozen=True)
class Clip:
    """Mono 16-bit samples: half the size of those that are worked with."""

    pcm: bytes
    rate: int = RATE

    @classmethod
    def of(cls, samples: Samples, rate: int = RATE) -> Clip:
        return cls(encode_pcm(samples), rate)

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / self.rate

    def wav(self) -> bytes:
        """A WAV file of it, whose reading costs a stage next to nothing."""
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setparams((1, 2, self.rate, 0, "NONE", ""))
            file.writeframes(self.pcm)
        return buffer.getvalue()

    def until(self, seconds: float) -> Clip:
        return Clip(self.pcm[: 2 * round(seconds * self.rate)], self.rate)

    def encoded(self, sound: AudioFormat) -> str:
        """In this format, as base64."""
        encoder = SoundEncoder(sound)
        return base64.b64encode(encoder.add(decode_pcm(self.pcm), self.rate) + encoder.finish()).decode()
