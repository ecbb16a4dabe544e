"""Checks that encoded audio holds the sound it should, by each decoder that people use for it."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

# What a format may have more than the sound: an encoder's delay, and its last frame filled up, in samples.
_MARGIN = 2 * 1152


def chirp(seconds: float = 1.5, rate: int = 24_000) -> NDArray[np.float32]:
    """A tone that rises, so that it is like itself at no other place. Shape (samples,)."""
    at = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * (200 + 700 * at) * at)).astype(np.float32)


def by_ffmpeg(data: bytes) -> tuple[NDArray[np.float32], int]:
    """Mono samples of shape (samples,), and their rate."""
    import av

    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        mono = av.AudioResampler(format="flt", layout="mono")
        frames = [out for frame in container.decode(stream) for out in mono.resample(frame)]
        return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), frames[0].sample_rate


def by_libsndfile(data: bytes) -> tuple[NDArray[np.float32], int]:
    """Samples of shape (samples,), and their rate."""
    import soundfile

    return soundfile.read(io.BytesIO(data), dtype="float32")


def assert_sounds_like(data: bytes, expected: NDArray[np.float32], rate: int = 24_000) -> None:
    """Every decoder finds this sound in it, all of it, and little else.

    Args:
        expected: Of shape (samples,).
        rate: Of ``expected``, in Hz; the file may have another.
    """
    import soxr

    decoders = [by_ffmpeg]
    # libsndfile knows no AAC, and no FLAC that does not tell its length.
    is_aac = data[0] == 0xFF and data[1] & 0xF6 == 0xF0
    is_flac_stream = data[:4] == b"fLaC" and int.from_bytes(data[21:26], "big") & (1 << 36) - 1 == 0
    if not is_aac and not is_flac_stream:
        decoders.append(by_libsndfile)
    for decode in decoders:
        samples, own_rate = decode(data)
        samples = soxr.resample(samples, own_rate, rate)
        seconds, all_seconds = len(expected) / rate, len(samples) / rate
        assert seconds - 0.001 <= all_seconds <= seconds + _MARGIN / own_rate, (
            decode.__name__,
            all_seconds,
            seconds,
        )
        likeness = _likeness(samples, expected)
        assert likeness > 0.99, (decode.__name__, likeness)


def _likeness(samples: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The correlation with ``expected`` at the place where it is most like it; 1 where it is the same."""
    size = len(samples) + len(expected)
    spectrum = np.fft.rfft(samples, size) * np.conj(np.fft.rfft(expected, size))
    return float(np.fft.irfft(spectrum, size).max() / np.linalg.norm(samples) / np.linalg.norm(expected))
