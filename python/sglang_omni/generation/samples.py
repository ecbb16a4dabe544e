"""Audio samples, and their conversion to and from PCM16 and WAV."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

DEFAULT_SAMPLE_RATE = 24000

# Full scale of 16-bit samples for every encoder and decoder; 1.0 itself is clipped to 32767.
PCM16_SCALE = 32768


def to_numpy(audio: Any) -> Samples:
    """float32 samples of an array, a tensor, a sequence of numbers, or PCM16 bytes.

    Raises:
        TypeError: ``audio`` is of another type.
    """
    if isinstance(audio, np.ndarray):
        return audio.astype(np.float32, copy=False)
    if hasattr(audio, "detach"):
        return audio.detach().cpu().float().numpy()
    if isinstance(audio, (list, tuple)):
        return np.asarray(audio, dtype=np.float32)
    if isinstance(audio, (bytes, bytearray, memoryview)):
        return decode_pcm(audio)
    raise TypeError(f"audio must be an array, a tensor, numbers or PCM16 bytes, got {type(audio).__name__}")


def to_mono(audio: Any) -> Samples:
    """float32 samples of shape (samples,): the average over the channels, which are the shorter axis."""
    samples = to_numpy(audio)
    if samples.ndim > 1:
        samples = samples.squeeze()
    if samples.ndim > 1:
        samples = samples.mean(axis=int(np.argmin(samples.shape)), dtype=np.float32)
    return np.atleast_1d(samples)


def encode_pcm(audio: Any, sample_rate: int = DEFAULT_SAMPLE_RATE) -> bytes:
    """Little-endian PCM16, channels interleaved. ``sample_rate`` is not used."""
    return pcm16(to_numpy(audio)).tobytes()


def decode_pcm(data: bytes | bytearray | memoryview) -> Samples:
    """Samples in [-1, 1) of little-endian PCM16; ``encode_pcm`` restores the same bytes."""
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / np.float32(PCM16_SCALE)


def encode_wav(audio: Any, sample_rate: int = DEFAULT_SAMPLE_RATE) -> bytes:
    """A PCM16 WAV file at ``sample_rate`` Hz of samples of shape (samples,) or (channels, samples)."""
    pcm = pcm16(to_numpy(audio))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((pcm.shape[1] if pcm.ndim == 2 else 1, 2, sample_rate, 0, "NONE", ""))
        file.writeframes(pcm.tobytes())
    return buffer.getvalue()


def streamed_wav_header(sample_rate: int) -> bytes:
    """The header of a mono PCM16 WAV file whose length is not known yet: readers go on to the file's end."""
    header = bytearray(encode_wav(np.zeros(0, np.float32), sample_rate))
    for length in (slice(4, 8), slice(40, 44)):  # of the file, and of its samples
        header[length] = b"\xff\xff\xff\xff"
    return bytes(header)


def decode_wav(data: bytes) -> tuple[Samples, int]:
    """Samples of shape (samples,), channels averaged, and the sample rate in Hz of a PCM16 WAV file.

    Raises:
        ValueError: ``data`` is not a PCM16 WAV file.
    """
    try:
        with wave.open(io.BytesIO(data)) as file:
            if file.getsampwidth() != 2:
                raise ValueError(f"a PCM16 WAV file is needed, got {8 * file.getsampwidth()} bits a sample")
            samples = decode_pcm(file.readframes(file.getnframes()))
            channels, rate = file.getnchannels(), file.getframerate()
    except (wave.Error, EOFError) as exc:
        raise ValueError(f"not a PCM WAV file: {exc}") from exc
    return (samples.reshape(-1, channels).mean(axis=1) if channels > 1 else samples), rate


def pcm16(samples: Samples) -> NDArray[np.int16]:
    """int16 (samples,) or (samples, channels) of samples (samples,) or (channels, samples)."""
    finite = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)
    scaled = np.rint(np.multiply(finite, PCM16_SCALE, dtype=np.float32))
    return np.ascontiguousarray(np.clip(scaled, -PCM16_SCALE, PCM16_SCALE - 1).astype("<i2").T)
