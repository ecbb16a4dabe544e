"""Sound as realtime clients send and hear it, and as sessions work with it: float32, mono, at 24 kHz."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sglang_omni.client.audio import Resampler, decode_pcm, encode_pcm
from sglang_omni.serve.realtime.fields import RealtimeModel

# Of all samples in a session, in Hz.
RATE = 24_000

Samples = NDArray[np.float32]


class Pcm(RealtimeModel):
    """Little-endian 16-bit samples, mono."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24_000] = 24_000


# With one format more, a union with the discriminator `type`.
AudioFormat = Pcm


class Decoder:
    """Decodes a stream that comes in pieces of any length."""

    def __init__(self, format: AudioFormat) -> None:
        self._left = b""

    def add(self, data: bytes) -> Samples:
        """The samples of the next piece, float32 of shape (n,) at ``RATE``."""
        data = self._left + data
        whole = len(data) // 2 * 2
        self._left = data[whole:]
        return decode_pcm(data[:whole])


class Encoder:
    """Encodes a stream of samples that may come at another rate."""

    def __init__(self, format: AudioFormat) -> None:
        self._resampler = Resampler(RATE)

    def add(self, samples: Samples, rate: int) -> bytes:
        """The next bytes. ``samples``: float32 of shape (n,) at ``rate`` Hz."""
        return encode_pcm(self._resampler.add(samples, rate))

    def finish(self) -> bytes:
        """The bytes that waited for more samples."""
        return encode_pcm(self._resampler.finish())
