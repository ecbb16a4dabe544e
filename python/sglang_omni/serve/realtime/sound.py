"""Sound as realtime clients send and hear it, and as sessions work with it: float32, mono, at 24 kHz."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sglang_omni.generation.audio import Resampler, decode_pcm, encode_pcm
from sglang_omni.generation.samples import pcm16
from sglang_omni.serve.realtime import g711
from sglang_omni.serve.realtime.fields import RealtimeModel
from sglang_omni.serve.realtime.g711 import Law

# Of all samples in a session, in Hz.
RATE = 24_000
_LAWS: dict[str, Law] = {"audio/pcmu": "ulaw", "audio/pcma": "alaw"}

Samples = NDArray[np.float32]


class Pcm(RealtimeModel):
    """Little-endian 16-bit samples, mono."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24_000] = 24_000
    """In Hz."""


class Pcmu(RealtimeModel):
    """G.711's µ-law, mono at 8 kHz."""

    type: Literal["audio/pcmu"] = "audio/pcmu"


class Pcma(RealtimeModel):
    """G.711's A-law, mono at 8 kHz."""

    type: Literal["audio/pcma"] = "audio/pcma"


AudioFormat = Annotated[Pcm | Pcmu | Pcma, Field(discriminator="type")]


class SoundDecoder:
    """Decodes a stream that comes in pieces of any length."""

    def __init__(self, format: Pcm | Pcmu | Pcma) -> None:
        self._law = _LAWS.get(format.type)
        self._resampler = Resampler(RATE)
        self._left = b""

    def add(self, data: bytes) -> Samples:
        """The samples of the next piece, float32 of shape (n,) at ``RATE``."""
        if self._law is not None:
            return self._resampler.add(g711.decode(data, self._law), g711.RATE)
        data = self._left + data
        whole = len(data) // 2 * 2
        self._left = data[whole:]
        return decode_pcm(data[:whole])

    def finish(self) -> Samples:
        """The samples that waited for more; the next piece begins a new stream."""
        self._left = b""
        return self._resampler.finish()


def decoded(data: bytes, format: Pcm | Pcmu | Pcma) -> Samples:
    """The samples of a whole clip, float32 of shape (n,) at ``RATE``."""
    decoder = SoundDecoder(format)
    return np.concatenate([decoder.add(data), decoder.finish()])


class SoundEncoder:
    """Encodes a stream of samples that may come at another rate."""

    def __init__(self, format: Pcm | Pcmu | Pcma) -> None:
        self._law = _LAWS.get(format.type)
        self._resampler = Resampler(RATE if self._law is None else g711.RATE)

    def add(self, samples: Samples, rate: int) -> bytes:
        """The next bytes. ``samples``: float32 of shape (n,) at ``rate`` Hz."""
        return self._encode(self._resampler.add(samples, rate))

    def finish(self) -> bytes:
        """The bytes that waited for more samples."""
        return self._encode(self._resampler.finish())

    def _encode(self, samples: Samples) -> bytes:
        return encode_pcm(samples) if self._law is None else g711.encode(pcm16(samples), self._law)
