"""What is said: clips of speech, from WAV files or in the server's own voice."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_omni.bench.outcome import CallFailed
from sglang_omni.bench.prompts import BenchPrompts
from sglang_omni.bench.target import Target

RATE = 24_000
# As many different sentences as the server is asked to say.
_SPOKEN = 8
# What listeners say to show that they listen, and the file that has it.
_BACKCHANNEL = "Mhm."
_BACKCHANNEL_FILE = "backchannel.wav"


class SpokenClip(NamedTuple):
    """
    Attributes:
        samples: 16-bit mono sound, shape (n,), ``RATE`` samples a second.
        text: What is said in it; None if that is not known.
    """

    samples: NDArray[np.int16]
    text: str | None


@dataclass(frozen=True)
class Clips:
    """
    Attributes:
        spoken: All that is said, in turn.
    """

    spoken: list[SpokenClip]
    seed: int

    def clip(self, index: int) -> SpokenClip:
        """The clip of a request, with a noise far below hearing: no cache has heard it before."""
        samples, text = self.spoken[index % len(self.spoken)]
        noise = np.random.default_rng([self.seed, index]).integers(-2, 3, len(samples))
        return SpokenClip(np.clip(samples + noise, -(2**15), 2**15 - 1).astype(np.int16), text)


def wav(samples: NDArray[np.int16]) -> bytes:
    """As a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return file.getvalue()


def read_clips(path: Path) -> list[SpokenClip]:
    """The clips of a WAV file, or of a folder of them. A text is in a file of its clip's name with ``.txt``.

    Raises:
        ValueError: There is none, or one is no WAV file of 16 bits.
        OSError: One cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.glob("*.wav") if file.name != _BACKCHANNEL_FILE)
    if not files:
        raise ValueError(f"{path} holds no WAV files")
    return [SpokenClip(_read(file), _text(file.with_suffix(".txt"))) for file in files]


async def spoken_clips(
    target: Target, model: str, voice: str | None, prompts: BenchPrompts
) -> list[SpokenClip]:
    """Some texts of a dataset in the server's own voice.

    Raises:
        CallFailed: The server does not speak.
    """
    texts = [prompts(index).text for index in range(_SPOKEN)]
    return [SpokenClip(await spoken(target, model, voice, text), text) for text in texts]


async def spoken(target: Target, model: str, voice: str | None, text: str) -> NDArray[np.int16]:
    """A text in the server's own voice, shape (n,), ``RATE`` samples a second.

    Raises:
        CallFailed: The server does not speak.
    """
    body = {"model": model, "input": text, "response_format": "pcm"}
    try:
        async with target.sound(
            "/v1/audio/speech", {**body, **({"voice": voice} if voice else {})}
        ) as answer:
            rate = int(answer.headers.get("x-sample-rate", RATE))
            return _resampled(np.frombuffer(await answer.read(), "<i2"), rate)
    except CallFailed as exc:
        raise CallFailed(
            exc.kind,
            f"the server was to say the clips itself, and did not: {exc.message}; give WAV files with "
            "--dataset-path",
        ) from exc


async def backchannel_clip(
    target: Target, model: str, voice: str | None, clips: Path | None
) -> NDArray[np.int16]:
    """A listener's word: ``backchannel.wav`` beside the clips, or else in the server's own voice.

    Args:
        clips: A WAV file or a folder of them; None if the server says the clips.

    Raises:
        CallFailed: There is no such file, and the server does not speak.
        ValueError: It is no WAV file of 16 bits.
        OSError: It cannot be read.
    """
    if clips is not None:
        file = (clips if clips.is_dir() else clips.parent) / _BACKCHANNEL_FILE
        if file.exists():
            return _read(file)
    try:
        return await spoken(target, model, voice, _BACKCHANNEL)
    except CallFailed as exc:
        raise CallFailed(
            exc.kind, f"{exc.message}; a listener's word is {_BACKCHANNEL_FILE} beside the others"
        ) from exc


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _read(path: Path) -> NDArray[np.int16]:
    try:
        with wave.open(str(path)) as file:
            if file.getsampwidth() != 2:
                raise ValueError(f"{path} has {8 * file.getsampwidth()} bits a sample; give 16")
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            mono = samples.reshape(-1, file.getnchannels()).mean(axis=1)
            return _resampled(mono, file.getframerate())
    except (wave.Error, EOFError) as exc:
        raise ValueError(f"{path} is no WAV file: {exc}") from exc


def _resampled(samples: NDArray, rate: int) -> NDArray[np.int16]:
    """Linear interpolation: good enough to be understood, and no library is needed."""
    length = len(samples) * RATE // rate
    places = np.arange(length) * (rate / RATE)
    return np.interp(places, np.arange(len(samples)), samples).astype(np.int16)
