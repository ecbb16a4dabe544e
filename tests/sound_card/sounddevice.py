"""A sound card in files, under the names of the package sounddevice that are used.

What is played goes as PCM16 to the file ``$SOUND_CARD_PLAYED``, in real time if ``$SOUND_CARD_PACE`` is set.
The microphone hears the WAV file ``$SOUND_CARD_HEARS``, then silence. Without its file a device is not there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from sglang_omni.generation.samples import decode_wav, encode_pcm


class PortAudioError(Exception):
    pass


def query_devices(device: Any = None, kind: str | None = None) -> dict[str, str]:
    if os.environ.get(_variable(kind)) is None:
        raise PortAudioError("Error querying device -1")
    return {"name": "files"}


def _variable(kind: str | None) -> str:
    return "SOUND_CARD_HEARS" if kind == "input" else "SOUND_CARD_PLAYED"


class OutputStream:
    def __init__(self, *, samplerate: int, channels: int, dtype: str) -> None:
        assert (channels, dtype) == (1, "float32")
        self._rate = samplerate

    def start(self) -> None:
        self._path = Path(os.environ["SOUND_CARD_PLAYED"])

    def write(self, samples: np.ndarray) -> bool:
        assert samples.ndim == 2
        if "SOUND_CARD_PACE" in os.environ:
            time.sleep(len(samples) / self._rate)
        with self._path.open("ab") as file:
            file.write(encode_pcm(samples[:, 0]))
        return False

    def stop(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class InputStream:
    def __init__(self, *, samplerate: int, channels: int, dtype: str) -> None:
        samples, rate = decode_wav(Path(os.environ["SOUND_CARD_HEARS"]).read_bytes())
        assert (rate, channels, dtype) == (samplerate, 1, "float32")
        self._samples = samples

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def read(self, frames: int) -> tuple[np.ndarray, bool]:
        block, self._samples = self._samples[:frames], self._samples[frames:]
        return np.pad(block, (0, frames - len(block))).reshape(-1, 1), False
