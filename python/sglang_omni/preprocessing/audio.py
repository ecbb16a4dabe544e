"""Encoded audio of any common kind -> mono float32 at the rate a model reads."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sglang_omni.preprocessing.container import AUDIO_FORMATS, first_stream, opened
from sglang_omni.preprocessing.deadline import Check, go_on
from sglang_omni.proto import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 4_000, 384_000
MAX_CHANNELS = 32
# Of all channels together, for each second that a clip may last: eight channels at 48 kHz. Silence takes next
# to no bytes in most formats, and as much work as anything else.
_SAMPLES_PER_SECOND = 8 * 48_000
# What libsndfile is given: how the file begins, and what libsndfile then calls it. Its MP3 decoder writes to
# stderr whatever it does not like of a file, so FFmpeg decodes those.
_SOUNDFILE_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"FORM", b"fLaC", b"OggS")
_SOUNDFILE_FORMATS = ("WAV", "WAVEX", "RF64", "AIFF", "FLAC", "OGG")
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
    check: Check = go_on,
) -> AudioClip:
    """Decode WAV, FLAC, MP3, OGG (libsndfile) or M4A, WebM and the like (FFmpeg); mix down and resample.

    Args:
        data: The encoded file; its kind is found from its content.
        param: The request field it came from, for error messages.
        sample_rate: Rate of the result, Hz.
        max_seconds: Longest clip accepted. Decoding stops there, so a small file that unfolds into
            hours costs no more than that.
        min_seconds: Shortest clip accepted.
        check: Called between the pieces of the work; what it raises ends that.

    Raises:
        RequestError: The data is no audio, or its length, rate or samples are not acceptable.
    """
    if not data:
        raise RequestError(f"{param} is empty: expected an audio file", param=param, code="invalid_audio")
    decoded = _Decoded(sample_rate, max_seconds, param, check)
    if not _decode_soundfile(data, decoded):
        _decode_ffmpeg(data, decoded)
    if decoded.seconds < min_seconds:
        raise RequestError(
            f"{param} is {decoded.seconds:.3f} s long; audio must last at least {min_seconds:g} s",
            param=param,
            code="audio_too_short",
        )
    samples = decoded.samples()
    if not np.isfinite(samples).all():
        raise RequestError(
            f"{param} holds samples that are not finite numbers", param=param, code="invalid_audio"
        )
    return AudioClip(np.clip(samples, -1.0, 1.0), sample_rate)


class _Decoded:
    """What has been decoded of a file, mono, already at the rate that is wanted: at its own, up to 24 times
    that, half an hour of silence takes gigabytes, and a small file holds it."""

    def __init__(self, sample_rate: int, max_seconds: float, param: str, check: Check) -> None:
        self.param = param
        self.check = check
        self._sample_rate = sample_rate
        self._max_seconds = max_seconds

    def begin(self, rate: int, channels: int) -> None:
        """Forgets what a decoder has made of the file that then gave up.

        Raises:
            RequestError: Such a layout is not accepted.
        """
        import soxr

        _check_layout(rate, channels, param=self.param)
        self._rate, self._channels, self._read = rate, channels, 0
        self._blocks: list[NDArray[np.float32]] = []
        self._resampler: Any = None
        if rate != self._sample_rate:
            self._resampler = soxr.ResampleStream(rate, self._sample_rate, 1, dtype="float32")

    def add(self, block: NDArray[np.float32], claimed_seconds: float) -> None:
        """
        Args:
            block: The next samples, mono.
            claimed_seconds: The length that the file says it has, which may be anything.

        Raises:
            RequestError: The clip is too long, or has too many samples in all its channels.
        """
        self.check()
        self._read += len(block)
        if self.seconds > self._max_seconds:
            _refuse_length(max(claimed_seconds, self.seconds), self._max_seconds, param=self.param)
        if self._read * self._channels > self._max_seconds * _SAMPLES_PER_SECOND:
            raise RequestError(
                f"{self.param} holds more than {self._max_seconds * _SAMPLES_PER_SECOND:.0f} samples in its "
                f"{self._channels} channels at {self._rate} Hz, the limit: send it at a lower rate or with "
                "fewer channels",
                param=self.param,
                code="audio_too_long",
            )
        self._blocks.append(block if self._resampler is None else self._resampler.resample_chunk(block))

    @property
    def seconds(self) -> float:
        return self._read / self._rate

    def samples(self) -> NDArray[np.float32]:
        if self._resampler is not None:
            self._blocks.append(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        return np.concatenate([np.zeros(0, np.float32), *self._blocks])


def _decode_soundfile(data: bytes, decoded: _Decoded) -> bool:
    """False if the file is none of those that libsndfile is to decode."""
    import soundfile

    if not data.startswith(_SOUNDFILE_MAGIC):
        return False
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in _SOUNDFILE_FORMATS or file.subtype.startswith("MPEG"):
                return False
            decoded.begin(file.samplerate, file.channels)
            while len(block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                decoded.add(block.mean(axis=1, dtype=np.float32), file.frames / file.samplerate)
    except soundfile.LibsndfileError:
        return False
    return True


def _decode_ffmpeg(data: bytes, decoded: _Decoded) -> None:
    import av
    import av.error

    param = decoded.param
    try:
        with opened(data, AUDIO_FORMATS, decoded.check) as container:
            stream = first_stream(container, "audio")
            if stream is None:
                _refuse_content(param)
            rate = stream.rate or 0
            decoded.begin(rate, stream.channels)
            mono = av.AudioResampler(format="flt", layout="mono", rate=rate)
            claimed = (container.duration or 0) / av.time_base
            for frame in _frames(container, stream, decoded.check):
                for out in mono.resample(frame):
                    decoded.add(out.to_ndarray().reshape(-1), claimed)
            for out in mono.resample(None):
                decoded.add(out.to_ndarray().reshape(-1), claimed)
    except (av.error.FFmpegError, ValueError, IndexError) as exc:
        if isinstance(exc, RequestError):
            raise
        raise RequestError(_not_audio(param), param=param, code="invalid_audio") from exc


def _frames(container: Any, stream: Any, check: Check) -> Iterator[Any]:
    import av.error

    # MP3 has no index: players skip what lies between its frames, such as tags, and frames cut short.
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


def _refuse_length(seconds: float, max_seconds: float, *, param: str) -> NoReturn:
    raise RequestError(
        f"{param} is {seconds:.1f} s long; the limit is {max_seconds:g} s", param=param, code="audio_too_long"
    )


def _not_audio(param: str) -> str:
    return f"{param} is not audio that can be decoded; send WAV, FLAC, MP3, OGG, M4A or WebM"


def _refuse_content(param: str) -> NoReturn:
    raise RequestError(_not_audio(param), param=param, code="invalid_audio")
