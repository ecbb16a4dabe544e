"""Encoded audio of any common kind -> mono float32 at the rate a model reads."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 384_000
MAX_CHANNELS = 32
# soundfile reads the whole file into memory otherwise, before its length is known to be acceptable.
_BLOCK_FRAMES = 1 << 18


@dataclass(frozen=True)
class AudioClip:
    """Mono audio.

    Attributes:
        samples: float32, shape (n,), within [-1, 1].
        sample_rate: Hz.
    """

    samples: NDArray[np.float32]
    sample_rate: int

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sample_rate


def decode_audio(
    data: bytes,
    *,
    param: str,
    sample_rate: int = 16_000,
    max_seconds: float = 300.0,
    min_seconds: float = 0.05,
) -> AudioClip:
    """Decode WAV, FLAC, MP3, OGG (libsndfile) or M4A, WebM and the like (FFmpeg); mix down and resample.

    Args:
        data: The encoded file; its kind is found from its content.
        param: The request field it came from, for error messages.
        sample_rate: Rate of the result, Hz.
        max_seconds: Longest clip accepted. Decoding stops there, so a small file that unfolds into
            hours costs no more than that.
        min_seconds: Shortest clip accepted.

    Raises:
        RequestError: The data is no audio, or its length, rate or samples are not acceptable.
    """
    if not data:
        raise RequestError(f"{param} is empty: expected an audio file", param=param)
    decoded = _decode_soundfile(data, param=param, max_seconds=max_seconds)
    if decoded is None:
        decoded = _decode_ffmpeg(data, param=param, max_seconds=max_seconds)
    samples, source_rate = decoded
    seconds = len(samples) / source_rate
    if seconds < min_seconds:
        raise RequestError(
            f"{param} is {seconds:.3f} s long; audio must last at least {min_seconds:g} s", param=param
        )
    if not np.isfinite(samples).all():
        raise RequestError(f"{param} holds samples that are not finite numbers", param=param)
    return AudioClip(resample(samples, source_rate, sample_rate), sample_rate)


def resample(samples: NDArray[np.float32], source_rate: int, target_rate: int) -> NDArray[np.float32]:
    """Mono float32 at ``target_rate``, clipped to [-1, 1]."""
    if source_rate != target_rate:
        import soxr

        samples = soxr.resample(samples, source_rate, target_rate)
    return np.clip(samples, -1.0, 1.0).astype(np.float32, copy=False)


def _decode_soundfile(
    data: bytes, *, param: str, max_seconds: float
) -> tuple[NDArray[np.float32], int] | None:
    """Mono samples and their rate, or None where libsndfile does not know the format."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = file.samplerate
            _check_layout(rate, file.channels, param=param)
            limit = int(max_seconds * rate)
            blocks: list[NDArray[np.float32]] = []
            read = 0
            while read <= limit:
                block = file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)
                if not len(block):
                    break
                blocks.append(block.mean(axis=1, dtype=np.float32))
                read += len(block)
            if read > limit:
                # The header may claim anything (streamed files say 2**32 or so): never less than was read.
                _refuse_length(max(file.frames, read) / rate, max_seconds, param=param)
    except soundfile.LibsndfileError:
        return None
    return (np.concatenate(blocks) if blocks else np.zeros(0, np.float32)), rate


def _decode_ffmpeg(data: bytes, *, param: str, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    import av
    import av.error

    try:
        with av.open(io.BytesIO(data), mode="r", metadata_errors="ignore") as container:
            if not container.streams.audio:
                _refuse_content(param)
            stream = container.streams.audio[0]
            if stream.codec_context is None:  # a codec FFmpeg does not know has no attributes either
                _refuse_content(param)
            rate = stream.rate or 0
            _check_layout(rate, stream.channels, param=param)
            mono = av.AudioResampler(format="flt", layout="mono", rate=rate)
            limit = int(max_seconds * rate)
            blocks: list[NDArray[np.float32]] = []
            read = 0
            for frame in container.decode(stream):
                for out in mono.resample(frame):
                    blocks.append(out.to_ndarray().reshape(-1))
                    read += len(blocks[-1])
                if read > limit:
                    claimed = (container.duration or 0) / av.time_base
                    _refuse_length(max(claimed, read / rate), max_seconds, param=param)
            blocks.extend(out.to_ndarray().reshape(-1) for out in mono.resample(None))
    except (av.error.FFmpegError, ValueError, IndexError) as exc:
        if isinstance(exc, RequestError):
            raise
        raise RequestError(_not_audio(param), param=param) from exc
    return (np.concatenate(blocks) if blocks else np.zeros(0, np.float32)), rate


def _check_layout(rate: int, channels: int, *, param: str) -> None:
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise RequestError(
            f"{param} has a sample rate of {rate} Hz; {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz are accepted",
            param=param,
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise RequestError(f"{param} has {channels} channels; 1 to {MAX_CHANNELS} are accepted", param=param)


def _refuse_length(seconds: float, max_seconds: float, *, param: str) -> NoReturn:
    raise RequestError(
        f"{param} is {seconds:.1f} s long; the limit is {max_seconds:g} s", param=param, code="audio_too_long"
    )


def _not_audio(param: str) -> str:
    return f"{param} is not audio that can be decoded; send WAV, FLAC, MP3, OGG, M4A or WebM"


def _refuse_content(param: str) -> NoReturn:
    raise RequestError(_not_audio(param), param=param)
