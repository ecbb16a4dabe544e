"""ITU-T G.711: telephones' sound, 8 bits a sample at 8 kHz, in the µ-law and the A-law."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

Law = Literal["ulaw", "alaw"]

# Hz.
RATE = 8000
# Samples are 14 bits in the µ-law, whose smallest segment begins at this, and 13 bits in the A-law.
_ULAW_BIAS = 33
_ULAW_CLIP = 8158


def _decoded_ulaw() -> NDArray[np.int16]:
    code = ~np.arange(256) & 0xFF
    magnitude = ((((code & 0xF) << 1) + _ULAW_BIAS) << (code >> 4 & 7)) - _ULAW_BIAS
    return (np.where(code & 0x80, -magnitude, magnitude) << 2).astype(np.int16)


def _encoded_ulaw() -> NDArray[np.uint8]:
    """The code of each 16-bit sample, by the sample's bits."""
    sample = np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int64) >> 2
    magnitude = np.minimum(np.abs(sample), _ULAW_CLIP) + _ULAW_BIAS
    segment = np.log2(magnitude).astype(np.int64) - 5
    code = segment << 4 | (magnitude >> (segment + 1) & 0xF)
    return np.where(sample < 0, code ^ 0x7F, code ^ 0xFF).astype(np.uint8)


def _decoded_alaw() -> NDArray[np.int16]:
    code = np.arange(256) ^ 0x55
    segment, step = code >> 4 & 7, code & 0xF
    magnitude = np.where(segment == 0, (step << 1) + 1, ((step << 1) + 33) << np.maximum(segment - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) << 3).astype(np.int16)


def _encoded_alaw() -> NDArray[np.uint8]:
    """The code of each 16-bit sample, by the sample's bits."""
    sample = np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int64) >> 3
    # A negative number's complement: codes of both signs are steps of the same width.
    magnitude = np.where(sample < 0, ~sample, sample)
    segment = np.maximum(np.log2(np.maximum(magnitude, 1)).astype(np.int64) - 4, 0)
    code = segment << 4 | (magnitude >> np.maximum(segment, 1) & 0xF)
    return np.where(sample < 0, code ^ 0x55, code ^ 0xD5).astype(np.uint8)


_DECODED: dict[Law, NDArray[np.int16]] = {"ulaw": _decoded_ulaw(), "alaw": _decoded_alaw()}
_ENCODED: dict[Law, NDArray[np.uint8]] = {"ulaw": _encoded_ulaw(), "alaw": _encoded_alaw()}


def decode(data: bytes, law: Law) -> Samples:
    """Samples of shape (bytes,), within [-1, 1],."""
    return _DECODED[law][np.frombuffer(data, np.uint8)].astype(np.float32) / np.float32(1 << 15)


def encode(samples: NDArray[np.int16], law: Law) -> bytes:
    """A byte for each 16-bit sample."""
    return _ENCODED[law][samples.view(np.uint16)].tobytes()
