"""Sound of answers beside an oracle's."""

from __future__ import annotations

import base64

import numpy as np

from sglang_omni.generation.audio import decode_wav, encode_wav


def check_sound(answered: str, waveform: np.ndarray) -> None:
    """Every sample of an answer's WAV file (base64, 24 kHz) is that of the oracle's float32 samples.

    As the WAV file of the oracle's samples: 16 bits, of which float32's last ones may round differently.
    """
    ours, _ = decode_wav(base64.b64decode(answered))
    theirs, _ = decode_wav(encode_wav(waveform, 24_000))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1.01 / 32768)
