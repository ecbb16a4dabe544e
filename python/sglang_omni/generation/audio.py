"""Encoding of samples as audio: whole files, and files in pieces while their samples come."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from sglang_omni.generation.samples import (
    DEFAULT_SAMPLE_RATE,
    Samples,
    decode_pcm,
    decode_wav,
    encode_pcm,
    encode_wav,
    pcm16,
    streamed_wav_header,
    to_mono,
    to_numpy,
)
from sglang_omni.packages import install_line

__all__ = [
    "DEFAULT_SAMPLE_RATE",
    "FORMAT_MIME_TYPES",
    "AudioFileEncoder",
    "Base64Pieces",
    "Resampler",
    "Samples",
    "audio_to_base64",
    "check_format",
    "decode_pcm",
    "decode_wav",
    "encodable_rate",
    "encode_audio",
    "encode_pcm",
    "encode_wav",
    "to_mono",
    "to_numpy",
]


P = ParamSpec("P")


class _Codec(NamedTuple):
    """FFmpeg's container, encoder, sample rates in Hz (empty: any) and container options of a format."""

    container: str
    encoder: str
    rates: tuple[int, ...] = ()
    options: Mapping[str, str] = {}


_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_CODECS = {
    "aac": _Codec("adts", "aac", (*_MP3_RATES, 64000, 88200, 96000)),
    "flac": _Codec("flac", "flac"),
    "mp3": _Codec("mp3", "libmp3lame", _MP3_RATES),
    # By default a page holds a second, and a listener would wait for it.
    "opus": _Codec("ogg", "libopus", (8000, 12000, 16000, 24000, 48000), {"page_duration": "20000"}),
}
FORMAT_MIME_TYPES = {
    "aac": "audio/aac",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "pcm": "audio/pcm",
    "pcm16": "audio/pcm",
    "wav": "audio/wav",
}


class Resampler:
    """Resamples a stream, whose pieces may have different rates, to one rate.

    Args:
        rate: The rate of the output, in Hz.
    """

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._from = rate
        self._stream: Any = None

    def add(self, samples: Samples, rate: int) -> Samples:
        """Adds mono samples of shape (samples,) at ``rate`` Hz; returns the output that is ready."""
        ended = self.finish() if rate != self._from else None
        if rate != self.rate:
            if self._stream is None:
                import soxr

                self._stream = soxr.ResampleStream(rate, self.rate, 1, dtype="float32")
            samples = self._stream.resample_chunk(samples)
        self._from = rate
        return samples if ended is None else np.concatenate([ended, samples])

    def finish(self) -> Samples:
        """Ends the stream; returns the output that waited for more samples."""
        stream, self._stream = self._stream, None
        nothing = np.zeros(0, np.float32)
        return nothing if stream is None else stream.resample_chunk(nothing, last=True)


class AudioFileEncoder:
    """Encodes one file in pieces while its samples come.

    Joined, the pieces are a file whose header does not tell its length. The file's rate is that of the first
    samples, or the format's next higher one; samples of other rates are resampled to it.

    Attributes:
        sample_rate: The file's rate in Hz; 0 before the first samples.
        compresses: Encoding takes long enough to be done in a thread.

    Raises:
        ValueError: The format is unknown, or its encoder is not installed.
    """

    def __init__(self, response_format: str) -> None:
        check_format(response_format)
        self.response_format = response_format
        self.compresses = response_format in _CODECS
        self.sample_rate = 0
        self._drain = _Drain()
        self._file: _CodecFile | None = None
        self._resampler: Resampler | None = None

    def encode(self, audio: Any, sample_rate: int) -> bytes:
        """Adds samples at ``sample_rate`` Hz, their channels averaged; returns the bytes that are ready."""
        samples = to_mono(audio)
        head = b""
        if self._resampler is None:
            self.sample_rate = encodable_rate(self.response_format, sample_rate)
            self._resampler = Resampler(self.sample_rate)
            if self.compresses:
                self._file = _CodecFile(self.response_format, self.sample_rate, 1, self._drain)
            elif self.response_format == "wav":
                head = streamed_wav_header(self.sample_rate)
        return head + self._write(self._resampler.add(samples, sample_rate))

    def finish(self) -> bytes:
        """The file's last bytes; empty if it has no samples."""
        if self._resampler is None:
            return b""
        end = self._write(self._resampler.finish())
        if self._file is not None:
            self._file.close()
            end += self._drain.take()
        return end

    async def off_loop(self, work: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Calls ``encode`` or ``finish``: in a thread if the format compresses, else directly."""
        if self.compresses:
            return await asyncio.to_thread(work, *args, **kwargs)
        return work(*args, **kwargs)

    def _write(self, samples: Samples) -> bytes:
        if self._file is None:
            return encode_pcm(samples)
        self._file.write(samples)
        return self._drain.take()


class Base64Pieces:
    """Base64 in pieces that may be decoded one by one or joined first.

    Joined pieces need no padding but at the end, and no piece cuts a 16-bit sample in two.
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes, *, last: bool = False) -> str:
        """The next piece; up to five bytes wait for the one after it unless this is the ``last``."""
        data = self._rest + data
        end = len(data) if last else len(data) - len(data) % 6
        self._rest = data[end:]
        return base64.b64encode(data[:end]).decode("ascii")


def encode_audio(
    audio: Any, *, response_format: str = "wav", sample_rate: int = DEFAULT_SAMPLE_RATE
) -> tuple[bytes, str]:
    """A whole encoded file (raw samples for ``pcm``) and its MIME type.

    Args:
        audio: Samples of shape (samples,) or (channels, samples).
        response_format: A key of ``FORMAT_MIME_TYPES``.
        sample_rate: In Hz. A rate that the format lacks is raised to its next higher one.

    Raises:
        ValueError: The format is unknown, or its encoder is not installed.
    """
    check_format(response_format)
    mime = FORMAT_MIME_TYPES[response_format]
    if response_format == "wav":
        return encode_wav(audio, sample_rate), mime
    if response_format not in _CODECS:
        return encode_pcm(audio, sample_rate), mime
    samples = to_numpy(audio)
    rate = encodable_rate(response_format, sample_rate)
    if rate != sample_rate:
        import soxr

        samples = soxr.resample(samples.T, sample_rate, rate).T
    buffer = io.BytesIO()
    file = _CodecFile(response_format, rate, samples.shape[0] if samples.ndim == 2 else 1, buffer)
    file.write(samples)
    file.close()
    return buffer.getvalue(), mime


def encodable_rate(response_format: str, sample_rate: int) -> int:
    """The rate of a file of this format, in Hz: the samples' rate, or the format's next higher one."""
    codec = _CODECS.get(response_format)
    if codec is None or not codec.rates:
        return sample_rate
    return next((rate for rate in codec.rates if rate >= sample_rate), codec.rates[-1])


def check_format(response_format: str) -> None:
    """
    Raises:
        ValueError: The format is unknown, or its encoder is not installed.
    """
    if response_format not in FORMAT_MIME_TYPES:
        raise ValueError(
            f"unknown audio format {response_format!r}; supported: {', '.join(sorted(FORMAT_MIME_TYPES))}"
        )
    if response_format in _CODECS:
        try:
            import av
            import soxr  # noqa: F401
        except ImportError as exc:
            raise ValueError(
                f"audio format {response_format!r} needs PyAV and soxr: {install_line('audio')}, or use wav "
                "or pcm"
            ) from exc
        if _CODECS[response_format].encoder not in av.codecs_available:
            raise ValueError(
                f"audio format {response_format!r} needs an FFmpeg with {_CODECS[response_format].encoder}; "
                "this PyAV's has none. Install PyAV from its own wheel, or use wav or pcm"
            )


def audio_to_base64(audio: Any, *, sample_rate: int = DEFAULT_SAMPLE_RATE, output_format: str = "wav") -> str:
    """Base64 of ``encode_audio``'s file, from samples at ``sample_rate`` Hz."""
    encoded, _ = encode_audio(audio, response_format=output_format, sample_rate=sample_rate)
    return base64.b64encode(encoded).decode("ascii")


class _CodecFile:
    """A file that FFmpeg writes. Once closed, its header has the length, if ``file`` can seek."""

    def __init__(self, response_format: str, rate: int, channels: int, file: Any) -> None:
        import av

        codec = _CODECS[response_format]
        # Write each packet when it is encoded: FFmpeg would collect 32 KiB, which is seconds of speech.
        options = {"flush_packets": "1", **codec.options}
        self._layout = {1: "mono", 2: "stereo"}.get(channels) or f"{channels}c"
        self._rate = rate
        self._samples = 0
        self._container: Any = av.open(file, "w", format=codec.container, options=options)
        self._stream: Any = self._container.add_stream(codec.encoder, rate=rate, layout=self._layout)
        if response_format == "mp3":
            # LAME's default, 32 kbit/s at 24 kHz, audibly harms speech.
            self._stream.bit_rate = channels * (64_000 if rate <= 24_000 else 96_000)

    def write(self, samples: Samples) -> None:
        """Samples of shape (samples,) or (channels, samples)."""
        import av

        if not samples.size:
            return
        frame: Any = av.AudioFrame.from_ndarray(
            pcm16(samples).reshape(1, -1), format="s16", layout=self._layout
        )
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._samples
        self._samples += frame.samples
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()

    def __del__(self) -> None:
        # A listener that left closes no file, and PyAV before 17.1 would then write to freed memory.
        if hasattr(self, "_container"):
            self._container.close()


class _Drain:
    """A file without seeking whose written bytes are taken out."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
