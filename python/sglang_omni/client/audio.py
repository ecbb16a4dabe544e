"""Samples to encoded audio and back."""

from __future__ import annotations

import base64
import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_omni.packages import install_line

Samples = NDArray[np.float32]

DEFAULT_SAMPLE_RATE = 24000

FORMAT_MIME_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "pcm16": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
}
# Format -> container and codec of libsndfile, for those that need it.
_SOUNDFILE_FORMATS = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}


def to_numpy(audio: Any) -> Samples:
    """float32 samples of an array, a tensor, a sequence of numbers, or PCM16 bytes.

    Raises:
        TypeError: ``audio`` is none of them.
    """
    if isinstance(audio, np.ndarray):
        return audio.astype(np.float32, copy=False)
    if hasattr(audio, "detach"):
        return audio.detach().cpu().float().numpy()
    if isinstance(audio, (list, tuple)):
        return np.asarray(audio, dtype=np.float32)
    if isinstance(audio, (bytes, bytearray, memoryview)):
        return np.frombuffer(audio, dtype="<i2").astype(np.float32) / 32768.0
    raise TypeError(f"audio must be an array, a tensor, numbers or PCM16 bytes, got {type(audio).__name__}")


def to_mono(audio: Any) -> Samples:
    """float32 samples of shape (samples,), channels averaged; the shorter axis is the channels'."""
    samples = to_numpy(audio)
    if samples.ndim > 1:
        samples = samples.squeeze()
    if samples.ndim > 1:
        samples = samples.mean(axis=int(np.argmin(samples.shape)), dtype=np.float32)
    return np.atleast_1d(samples)


def encode_pcm(audio: Any, sample_rate: int = DEFAULT_SAMPLE_RATE) -> bytes:
    """Little-endian PCM16, channels interleaved. ``sample_rate`` does not change the bytes."""
    return _pcm16(to_numpy(audio)).tobytes()


def decode_pcm(data: bytes) -> Samples:
    """The samples that ``encode_pcm`` turned into ``data``."""
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / np.float32(32767)


def encode_wav(audio: Any, sample_rate: int = DEFAULT_SAMPLE_RATE) -> bytes:
    """A PCM16 WAV file of samples of shape (samples,) or (channels, samples)."""
    pcm = _pcm16(to_numpy(audio))
    channels = pcm.shape[1] if pcm.ndim == 2 else 1
    data = pcm.tobytes()
    header = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", 36 + len(data), b"WAVE"),
        *(b"fmt ", 16, 1, channels, sample_rate, sample_rate * channels * 2, channels * 2, 16),
        *(b"data", len(data)),
    )
    return header + data


def decode_wav(data: bytes) -> tuple[Samples, int]:
    """Samples of shape (samples,) and the sample rate of a PCM16 WAV file.

    Raises:
        ValueError: It is no such file.
    """
    import wave

    try:
        with wave.open(io.BytesIO(data)) as file:
            if file.getsampwidth() != 2:
                raise ValueError(f"a PCM16 WAV file is needed, got {8 * file.getsampwidth()} bits a sample")
            samples = decode_pcm(file.readframes(file.getnframes()))
            channels, rate = file.getnchannels(), file.getframerate()
    except (wave.Error, EOFError) as exc:
        raise ValueError(f"not a PCM WAV file: {exc}") from exc
    return (samples.reshape(-1, channels).mean(axis=1) if channels > 1 else samples), rate


def encode_audio(
    audio: Any, *, response_format: str = "wav", sample_rate: int = DEFAULT_SAMPLE_RATE
) -> tuple[bytes, str]:
    """An encoded file (raw samples for ``pcm``) and its MIME type.

    Raises:
        ValueError: The format is unknown, or what encodes it is not installed.
    """
    check_format(response_format)
    mime = FORMAT_MIME_TYPES[response_format]
    if response_format == "wav":
        return encode_wav(audio, sample_rate), mime
    if response_format in ("pcm", "pcm16"):
        return encode_pcm(audio, sample_rate), mime

    import soundfile

    container, subtype = _SOUNDFILE_FORMATS[response_format]
    samples = to_numpy(audio)
    buffer = io.BytesIO()
    soundfile.write(
        buffer, samples.T if samples.ndim == 2 else samples, sample_rate, format=container, subtype=subtype
    )
    return buffer.getvalue(), mime


def check_format(response_format: str) -> None:
    """
    Raises:
        ValueError: ``encode_audio`` could not encode this format here.
    """
    if response_format not in FORMAT_MIME_TYPES:
        raise ValueError(
            f"unknown audio format {response_format!r}; supported: {', '.join(sorted(FORMAT_MIME_TYPES))}"
        )
    if response_format in _SOUNDFILE_FORMATS:
        try:
            import soundfile  # noqa: F401
        except (ImportError, OSError) as exc:
            raise ValueError(
                f"audio format {response_format!r} needs soundfile: {install_line('serve')}"
            ) from exc


def audio_to_base64(audio: Any, *, sample_rate: int = DEFAULT_SAMPLE_RATE, output_format: str = "wav") -> str:
    encoded, _ = encode_audio(audio, response_format=output_format, sample_rate=sample_rate)
    return base64.b64encode(encoded).decode("ascii")


def _pcm16(samples: Samples) -> NDArray[np.int16]:
    """Shape (samples,) or (channels, samples) to int16 of shape (samples,) or (samples, channels)."""
    scaled = np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)
    pcm = np.rint(np.clip(scaled, -1.0, 1.0) * 32767.0).astype("<i2")
    return np.ascontiguousarray(pcm.T)
