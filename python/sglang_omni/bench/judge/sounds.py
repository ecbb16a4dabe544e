"""What is at the microphone beside the user's own words, made of clips of speech."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_omni.bench.clips import RATE

Samples = NDArray[np.int16]

# Of an answer's sound: 1 % of full scale, 40 dB below the loudest that 16 bits hold.
AUDIBLE = 328
_FRAME = RATE // 50
# Of a clip, what is 40 dB below its loudest sample counts as silence around it.
_EDGE = 0.01
# How much lower than the user another person speaks: a fourth.
_LOWER = 4 / 3


def audible(samples: Samples, least: float) -> list[tuple[float, float]]:
    """The spans of 20 ms frames that have a sample of at least ``least``, joined where they touch.

    Args:
        samples: int16 of shape (n,) at ``RATE`` Hz.

    Returns:
        In order, in seconds from the first sample.
    """
    padded = np.zeros(-(-len(samples) // _FRAME) * _FRAME, np.int32)
    padded[: len(samples)] = samples
    loud = np.abs(padded).reshape(-1, _FRAME).max(axis=1, initial=0) >= least
    edges = np.flatnonzero(np.diff(loud, prepend=False, append=False))
    ends = np.minimum(edges * _FRAME, len(samples)) / RATE
    return [(float(start), float(end)) for start, end in ends.reshape(-1, 2)]


def trimmed(samples: Samples) -> Samples:
    """A clip without the silence around it; a clip of silence alone stays as it is."""
    peak = int(np.abs(samples.astype(np.int32)).max(initial=0))
    spans = audible(samples, max(1.0, _EDGE * peak))
    if not spans:
        return samples
    return samples[round(spans[0][0] * RATE) : round(spans[-1][1] * RATE)]


def at_ratio(sound: Samples, speech: Samples, snr_db: float) -> Samples:
    """``sound`` at the level at which ``speech`` is ``snr_db`` louder, by their root mean squares."""
    scale = _rms(speech) / 10 ** (snr_db / 20) / max(_rms(sound), 1e-9)
    return np.clip(sound * scale, -(2**15), 2**15 - 1).astype(np.int16)


def second_voice(samples: Samples) -> Samples:
    """The clip as another person might say it: a fourth lower, and as much slower."""
    places = np.arange(int(len(samples) * _LOWER)) / _LOWER
    return np.interp(places, np.arange(len(samples)), samples).astype(np.int16)


def speech_shaped_noise(speech: Samples, seed: int) -> Samples:
    """Steady noise with the spectrum of the speech, as long and about as loud; it can be repeated."""
    spectrum = np.fft.rfft(speech)
    phases = np.random.default_rng(seed).uniform(0, 2 * np.pi, len(spectrum))
    noise = np.fft.irfft(np.abs(spectrum) * np.exp(1j * phases), len(speech))
    return np.clip(noise, -(2**15), 2**15 - 1).astype(np.int16)


def _rms(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
