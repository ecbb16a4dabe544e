"""What is said: clips of speech, from WAV files or in the server's own voice."""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sglang_omni.bench.outcome import CallFailed
from sglang_omni.bench.prompts import BenchPrompts
from sglang_omni.bench.target import Target

RATE = 24_000
# As many different sentences as the server is asked to say.
_SPOKEN = 8


@dataclass(frozen=True)
class Clips:
    """
    Attributes:
        samples: Clips of 16-bit mono sound, ``RATE`` samples a second.
    """

    samples: list[NDArray[np.int16]]
    seed: int

    def unheard(self, index: int) -> NDArray[np.int16]:
        """The clip of a request, with a noise far below hearing: no cache has heard it before."""
        clip = self.samples[index % len(self.samples)]
        noise = np.random.default_rng([self.seed, index]).integers(-2, 3, len(clip))
        return np.clip(clip + noise, -(2**15), 2**15 - 1).astype(np.int16)


def wav(samples: NDArray[np.int16]) -> bytes:
    """As a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return file.getvalue()


def read_clips(path: Path) -> list[NDArray[np.int16]]:
    """The clips of a WAV file, or of a folder of them.

    Raises:
        ValueError: There is none, or one is no WAV file of 16 bits.
        OSError: One cannot be read.
    """
    files = sorted(path.glob("*.wav")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no WAV files")
    return [_read(file) for file in files]


async def spoken_clips(
    target: Target, model: str, voice: str | None, prompts: BenchPrompts
) -> list[NDArray[np.int16]]:
    """Some texts of a dataset in the server's own voice.

    Raises:
        CallFailed: The server does not speak.
    """
    clips = []
    for index in range(_SPOKEN):
        body = {"model": model, "input": prompts(index).text, "response_format": "pcm"}
        try:
            async with target.sound(
                "/v1/audio/speech", {**body, **({"voice": voice} if voice else {})}
            ) as answer:
                rate = int(answer.headers.get("x-sample-rate", RATE))
                clips.append(_resampled(np.frombuffer(await answer.read(), "<i2"), rate))
        except CallFailed as exc:
            raise CallFailed(
                exc.kind,
                f"the server was to say the clips itself, and did not: {exc.message}; give WAV files with "
                "--dataset-path",
            ) from exc
    return clips


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
