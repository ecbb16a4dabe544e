"""Decoding of audio in any common format to mono float32 samples at a model's rate."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_omni.preprocessing.container import AUDIO_FORMATS, first_stream, opened
from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 384_000
MAX_CHANNELS = 32
# Limit of all channels together, for each second that a clip may last: eight channels at 48 kHz. Silence
# takes few bytes in most formats, but as much work as any sound.
_SAMPLES_PER_SECOND = 8 * 48_000
# Files for libsndfile: their first bytes, and libsndfile's names of their formats. FFmpeg decodes MP3,
# because libsndfile's decoder writes every flaw of a file to stderr.
_SOUNDFILE_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"FORM", b"fLaC", b"OggS")
_SOUNDFILE_FORMATS = ("WAV", "WAVEX", "RF64", "AIFF", "FLAC", "OGG")
# Read in blocks: a whole file would be in memory before its length is known to be acceptable.
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
    check: Check = go_on,
) -> AudioClip:
    """Decodes a whole file; see ``decode_blocks``, which raises the same errors."""
    blocks = decode_blocks(
        data,
        param=param,
        sample_rate=sample_rate,
        max_seconds=max_seconds,
        min_seconds=min_seconds,
        check=check,
    )
    return AudioClip(np.concatenate(list(blocks)), sample_rate)


def decode_blocks(
    data: bytes,
    *,
    param: str,
    sample_rate: int = 16_000,
    max_seconds: float = 300.0,
    min_seconds: float = 0.05,
    check: Check = go_on,
) -> Iterator[NDArray[np.float32]]:
    """Decodes WAV, FLAC and OGG (libsndfile) or MP3, M4A, WebM and the like (FFmpeg), mixes down and
    resamples, block by block: a recording of hours is never in memory as a whole.

    Args:
        data: The encoded file; its format is found from its content.
        param: The request's field, for error messages.
        sample_rate: Rate of the result, in Hz.
        max_seconds: Longest accepted clip. A file whose header claims more is refused at once, and decoding
            stops there, so that a small file cannot unfold into days.
        min_seconds: Shortest accepted clip.
        check: Called between the pieces of the work; an exception that it raises ends the work.

    Yields:
        float32, shape (n,), within [-1, 1], in order.

    Raises:
        RequestError: The data is not audio, or its length, rate or samples are not acceptable.
    """
    if not data:
        raise RequestError(f"{param} is empty: expected an audio file", param=param, code="invalid_audio")
    decoded = _Decoded(sample_rate, max_seconds, param, check)
    given = 0
    for decoder in (_decode_soundfile, _decode_ffmpeg):
        read = 0
        try:
            for block in chain(decoder(data, decoded), decoded.rest()):
                # What a decoder that gave up has read is not given twice.
                new = block[max(0, given - read) :]
                read += len(block)
                if not np.isfinite(new).all():
                    raise RequestError(
                        f"{param} holds samples that are not finite numbers",
                        param=param,
                        code="invalid_audio",
                    )
                if len(new):
                    given += len(new)
                    yield np.clip(new, -1.0, 1.0)
        except _OtherDecoder:
            continue
        break
    if decoded.seconds < min_seconds:
        raise RequestError(
            f"{param} is {decoded.seconds:.3f} s long; audio must last at least {min_seconds:g} s",
            param=param,
            code="audio_too_short",
        )


class _OtherDecoder(Exception):
    """The file is not one for this decoder."""


class _Decoded:
    """The decoded part of a file: mono, and resampled block by block.

    At the file's own rate, up to 24 times the model's, half an hour of silence would take gigabytes of
    memory, and a small file can hold it.
    """

    def __init__(self, sample_rate: int, max_seconds: float, param: str, check: Check) -> None:
        self.param = param
        self.check = check
        self._rate, self._read = sample_rate, 0
        self._sample_rate = sample_rate
        self._max_seconds = max_seconds

    def begin(self, rate: int, channels: int, claimed_seconds: float) -> None:
        """Starts, or starts again after a decoder that gave up.

        Args:
            claimed_seconds: The length in the file's header, which may be too small.

        Raises:
            RequestError: The rate, the number of channels or the length is not accepted.
        """
        import soxr

        _check_layout(rate, channels, param=self.param)
        self._rate, self._channels, self._read = rate, channels, 0
        if claimed_seconds > self._max_seconds:
            raise self._too_long(claimed_seconds)
        self._resampler: Any = None
        if rate != self._sample_rate:
            self._resampler = soxr.ResampleStream(rate, self._sample_rate, 1, dtype="float32")

    def add(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next mono samples at the model's rate.

        Raises:
            RequestError: The clip is too long, or has too many samples in all its channels.
        """
        self.check()
        self._read += len(block)
        if self.seconds > self._max_seconds:
            raise self._too_long(self.seconds)
        if self._read * self._channels > self._max_seconds * _SAMPLES_PER_SECOND:
            raise RequestError(
                f"{self.param} holds more than {self._max_seconds * _SAMPLES_PER_SECOND:.0f} samples in its "
                f"{self._channels} channels at {self._rate} Hz, the limit: send it at a lower rate or with "
                "fewer channels",
                param=self.param,
                code="audio_too_long",
            )
        return block if self._resampler is None else self._resampler.resample_chunk(block)

    def rest(self) -> Iterator[NDArray[np.float32]]:
        """The samples that the resampler holds, once all have been added."""
        if self._resampler is not None:
            yield self._resampler.resample_chunk(np.zeros(0, np.float32), last=True)

    @property
    def seconds(self) -> float:
        return self._read / self._rate

    def _too_long(self, seconds: float) -> RequestError:
        return RequestError(
            f"{self.param} is {seconds:.1f} s long; the limit is {self._max_seconds:g} s",
            param=self.param,
            code="audio_too_long",
        )


def _decode_soundfile(data: bytes, decoded: _Decoded) -> Iterator[NDArray[np.float32]]:
    """Raises _OtherDecoder if the file is not one for libsndfile."""
    import soundfile

    if not data.startswith(_SOUNDFILE_MAGIC):
        raise _OtherDecoder
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in _SOUNDFILE_FORMATS or file.subtype.startswith("MPEG"):
                raise _OtherDecoder
            decoded.begin(file.samplerate, file.channels, file.frames / file.samplerate)
            while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                yield decoded.add(block.mean(axis=1, dtype=np.float32))
    except soundfile.LibsndfileError as exc:
        raise _OtherDecoder from exc


def _decode_ffmpeg(data: bytes, decoded: _Decoded) -> Iterator[NDArray[np.float32]]:
    import av
    import av.error

    param = decoded.param
    try:
        with opened(data, AUDIO_FORMATS, decoded.check) as container:
            stream = first_stream(container, "audio")
            if stream is None:
                raise _not_audio(param)
            rate = stream.rate or 0
            decoded.begin(rate, stream.channels, (container.duration or 0) / av.time_base)
            mono = av.AudioResampler(format="flt", layout="mono", rate=rate)
            for frame in _frames(container, stream, decoded.check):
                for out in mono.resample(frame):
                    yield decoded.add(out.to_ndarray().reshape(-1))
            for out in mono.resample(None):
                yield decoded.add(out.to_ndarray().reshape(-1))
    except (av.error.FFmpegError, ValueError, IndexError) as exc:
        if isinstance(exc, RequestError):
            raise
        raise _not_audio(param) from exc


def _frames(container: Any, stream: Any, check: Check) -> Iterator[Any]:
    import av.error

    # MP3 has no index: players skip tags and other bytes between frames, and incomplete frames.
    skips_damage = container.format.name == "mp3"
    for packet in container.demux(stream):
        check()
        try:
            yield from packet.decode()
        except av.error.InvalidDataError:
            if not skips_damage:
                raise


def _check_layout(rate: int, channels: int, *, param: str) -> None:
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise RequestError(
            f"{param} has a sample rate of {rate} Hz; {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz are accepted",
            param=param,
            code="invalid_audio",
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise RequestError(
            f"{param} has {channels} channels; 1 to {MAX_CHANNELS} are accepted",
            param=param,
            code="invalid_audio",
        )


def _not_audio(param: str) -> RequestError:
    text = f"{param} is not audio that can be decoded; send WAV, FLAC, MP3, OGG, M4A or WebM"
    return RequestError(text, param=param, code="invalid_audio")
