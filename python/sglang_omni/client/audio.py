"""Samples to encoded audio: whole files, and streams that are one file however many pieces they come in."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from sglang_omni.client.samples import (
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
    """How FFmpeg encodes a format: container, encoder, the sample rates it has (any, if none are
    given), and options of the container."""

    container: str
    encoder: str
    rates: tuple[int, ...] = ()
    options: Mapping[str, str] = {}


_MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_CODECS = {
    "aac": _Codec("adts", "aac", (*_MP3_RATES, 64000, 88200, 96000)),
    "flac": _Codec("flac", "flac"),
    "mp3": _Codec("mp3", "libmp3lame", _MP3_RATES),
    # A page holds a second otherwise, which a listener would wait for.
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
    """A stream of samples at one rate, made of pieces that may each have another.

    Args:
        rate: The rate of what is given out, in Hz.
    """

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._from = rate
        self._stream: Any = None

    def add(self, samples: Samples, rate: int) -> Samples:
        """What is ready of all so far; ``samples`` are mono, of shape (samples,)."""
        ended = self.finish() if rate != self._from else None
        if rate != self.rate:
            if self._stream is None:
                import soxr

                self._stream = soxr.ResampleStream(rate, self.rate, 1, dtype="float32")
            samples = self._stream.resample_chunk(samples)
        self._from = rate
        return samples if ended is None else np.concatenate([ended, samples])

    def finish(self) -> Samples:
        """What was held back for samples to come."""
        stream, self._stream = self._stream, None
        nothing = np.zeros(0, np.float32)
        return nothing if stream is None else stream.resample_chunk(nothing, last=True)


class AudioFileEncoder:
    """One encoded file, given out in pieces while its samples come.

    The pieces, put together, are a file whose head says nothing of its length. Its rate is that of the first
    samples, or the next one above that the format has; samples of any other rate are resampled to it.

    Attributes:
        sample_rate: The file's rate in Hz; 0 before the first samples.
        compresses: Whether encoding takes long enough to leave the event loop for it.

    Raises:
        ValueError: The format is unknown, or what encodes it is not installed.
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
        """What is ready of the file with these samples added; channels are averaged."""
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
        """The file's end; empty if it has not begun."""
        if self._resampler is None:
            return b""
        end = self._write(self._resampler.finish())
        if self._file is not None:
            self._file.close()
            end += self._drain.take()
        return end

    async def off_loop(self, work: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs) -> bytes:
        """``encode`` or ``finish`` in a thread if it compresses, and at once if it only copies."""
        if self.compresses:
            return await asyncio.to_thread(work, *args, **kwargs)
        return work(*args, **kwargs)

    def _write(self, samples: Samples) -> bytes:
        if self._file is None:
            return encode_pcm(samples)
        self._file.write(samples)
        return self._drain.take()


class Base64Pieces:
    """Bytes as base64 in pieces, which are right decoded one by one, and joined before they are decoded.

    For the latter no piece but the last may need padding; for the former none may cut a 16 bit sample in two.
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes, *, last: bool = False) -> str:
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
        sample_rate: In Hz. At a rate that the format lacks, the samples are resampled to the next one above.

    Raises:
        ValueError: The format is unknown, or what encodes it is not installed.
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
    """The rate a file of this format has, in Hz: the samples' own, or else the next one above that it has."""
    codec = _CODECS.get(response_format)
    if codec is None or not codec.rates:
        return sample_rate
    return next((rate for rate in codec.rates if rate >= sample_rate), codec.rates[-1])


def check_format(response_format: str) -> None:
    """
    Raises:
        ValueError: ``encode_audio`` could not encode this format here.
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
                f"audio format {response_format!r} needs PyAV and soxr: {install_line('serve')}, or use wav "
                "or pcm"
            ) from exc
        if _CODECS[response_format].encoder not in av.codecs_available:
            raise ValueError(
                f"audio format {response_format!r} needs an FFmpeg with {_CODECS[response_format].encoder}; "
                "this PyAV's has none. Install PyAV from its own wheel, or use wav or pcm"
            )


def audio_to_base64(audio: Any, *, sample_rate: int = DEFAULT_SAMPLE_RATE, output_format: str = "wav") -> str:
    encoded, _ = encode_audio(audio, response_format=output_format, sample_rate=sample_rate)
    return base64.b64encode(encoded).decode("ascii")


class _CodecFile:
    """A file that FFmpeg writes. If ``file`` can seek, its head tells the length in the end."""

    def __init__(self, response_format: str, rate: int, channels: int, file: Any) -> None:
        import av

        codec = _CODECS[response_format]
        # Each packet leaves as it is encoded: FFmpeg would collect 32 KiB of them, seconds of speech.
        options = {"flush_packets": "1", **codec.options}
        self._layout = {1: "mono", 2: "stereo"}.get(channels) or f"{channels}c"
        self._rate = rate
        self._samples = 0
        self._container: Any = av.open(file, "w", format=codec.container, options=options)
        self._stream: Any = self._container.add_stream(codec.encoder, rate=rate, layout=self._layout)
        if response_format == "mp3":
            # LAME's own choice, 32 kbit/s at 24 kHz, is heard in speech.
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
        # Where a listener has left, nothing else ends the file: PyAV before 17.1 then writes to freed memory.
        if hasattr(self, "_container"):
            self._container.close()


class _Drain:
    """A file that cannot seek, whose bytes are taken as they come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
