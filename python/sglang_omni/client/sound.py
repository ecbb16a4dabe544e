"""Sound in memory, and its ways to files: ``Sound``, ``save``."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from sglang_omni.client.media import media_kind
from sglang_omni.generation.answer import Delivered, GenerateChunk
from sglang_omni.generation.audio import FORMAT_MIME_TYPES, Resampler, check_format, encode_audio
from sglang_omni.generation.results import CompletionResult, SpeechResult
from sglang_omni.generation.samples import Samples, decode_pcm, decode_wav, to_mono
from sglang_omni.packages import install_line

# Formats by the ending of a file's name.
_ENDINGS = {**{name: name for name in FORMAT_MIME_TYPES}, "ogg": "opus"}


@dataclass
class Sound:
    """A piece of sound.

    Attributes:
        samples: float32 of shape (samples,), from -1 to 1.
        sample_rate: In Hz.
    """

    samples: Samples = field(repr=False)
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The sound of an encoded file.

        Raises:
            ValueError: It is no sound file; or it is no PCM16 WAV file, and PyAV is not installed.
        """
        kind = media_kind(data)
        if kind is not None and kind.ending == "wav":
            try:
                return cls(*decode_wav(data))
            except ValueError:
                # WAV files hold other codes than PCM16, too.
                pass
        return cls(*_decode_with_av(data))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The sound of a file.

        Raises:
            OSError, ValueError: It cannot be read, or is no sound file.
        """
        return cls.decode(Path(path).read_bytes())

    def encode(self, response_format: str = "wav") -> bytes:
        """A whole file.

        Raises:
            ValueError: The format is unknown, or its encoder is not installed.
        """
        return encode_audio(self.samples, response_format=response_format, sample_rate=self.sample_rate)[0]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a file in the format of its name's ending."""
        save(path, self)


# What has sound: one piece of it, or a result, or pieces as they come.
Audible = Any


def pieces(sound: Audible) -> Iterator[Sound]:
    """The pieces of a ``Sound``, a result or an answer with sound, or of an iterable of such.

    Raises:
        TypeError: It is of another kind.
        ValueError: A result has no sound.
    """
    whole = _whole(sound)
    if whole is not None:
        yield whole
        return
    if isinstance(sound, (str, bytes)) or not isinstance(sound, Iterable):
        raise TypeError(f"a {type(sound).__name__} is no sound, and no iterable of sound")
    delivered = Delivered()
    for chunk in sound:
        if isinstance(chunk, GenerateChunk):
            # The last one is the whole answer again.
            part = chunk if chunk.finish_reason is None else delivered.rest_of(chunk)
            delivered.add(part)
            if (samples := part.samples) is not None:
                yield Sound(samples, delivered.sample_rate)
        else:
            yield from pieces(chunk)


def joined(sound: Audible) -> Sound:
    """All pieces as one, at the rate of the first.

    Raises:
        ValueError: There are none.
    """
    resampler: Resampler | None = None
    parts: list[Samples] = []
    for piece in pieces(sound):
        resampler = resampler or Resampler(piece.sample_rate)
        parts.append(resampler.add(piece.samples, piece.sample_rate))
    if resampler is None:
        raise ValueError("there is no sound in it")
    return Sound(np.concatenate([*parts, resampler.finish()]), resampler.rate)


def save(path: str | PathLike[str], sound: Audible) -> None:
    """Writes sound to a file in the format of its name's ending: wav, mp3, flac, opus, ogg, aac or pcm.

    Args:
        sound: A ``Sound``, a ``SpeechResult``, a ``CompletionResult`` or a ``RealtimeAnswer`` with sound, or
            an iterable of ``SpeechStreamChunk``, ``GenerateChunk``, ``AnswerSound`` or ``Sound``.

    Raises:
        ValueError: The ending is of no format, its encoder is not installed, or there is no sound.
    """
    target = Path(path)
    response_format = format_of(target)
    if isinstance(sound, SpeechResult) and sound.format == response_format:
        data = sound.audio_bytes
    else:
        data = joined(sound).encode(response_format)
    target.write_bytes(data)


def format_of(path: Path) -> str:
    """The format of a file by its name's ending.

    Raises:
        ValueError: It is of no format, or its encoder is not installed.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in _ENDINGS:
        known = ", ".join(f".{name}" for name in sorted(_ENDINGS))
        raise ValueError(f"{path}: its ending says no format of sound; it may be {known}")
    check_format(_ENDINGS[ending])
    return _ENDINGS[ending]


def _whole(sound: Audible) -> Sound | None:
    """What is one piece, as such."""
    if isinstance(sound, Sound):
        return sound
    if isinstance(sound, SpeechResult):
        if sound.format in ("pcm", "pcm16"):
            return Sound(decode_pcm(sound.audio_bytes), sound.sample_rate or 24_000)
        return Sound.decode(sound.audio_bytes)
    if isinstance(sound, CompletionResult):
        if sound.audio is None:
            raise ValueError("the completion has no sound: ask for output_modalities=['text', 'audio']")
        return Sound.decode(base64.b64decode(sound.audio.data))
    if hasattr(sound, "samples") and hasattr(sound, "sample_rate"):
        if sound.samples is None:
            raise ValueError("the answer has no sound")
        return Sound(to_mono(sound.samples), sound.sample_rate)
    return None


def _decode_with_av(data: bytes) -> tuple[Samples, int]:
    try:
        import av
    except ImportError as exc:
        raise ValueError(
            f"this sound is no PCM16 WAV file, and to read others PyAV is needed: {install_line('audio')}"
        ) from exc
    try:
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.audio[0]
            rate = stream.codec_context.sample_rate
            resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            frames = [each for frame in container.decode(stream) for each in resampler.resample(frame)]
            frames += resampler.resample(None)
    except (av.FFmpegError, IndexError) as exc:
        raise ValueError(f"this is no sound file: {exc}") from exc
    if not frames:
        raise ValueError("this sound file is empty")
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]), rate
