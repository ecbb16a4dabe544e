"""The log-mel spectrogram that Whisper hears, and encoders of its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sglang_omni.models.recordings.recording import SAMPLE_RATE

# Below the loudest, all is equally quiet: 80 dB, in tenths of the logarithm.
_RANGE = 8.0
_LEAST_POWER = 1e-10


def in_relation(frames: Tensor, loudest: float) -> Tensor:
    """Features from ``MelFilters.log_power``, of which ``loudest`` is the highest that counts."""
    return (frames.clamp(min=loudest - _RANGE) + 4.0) / 4.0


class MelFilters:
    """The spectrogram's window and filters, as ``preprocessor_config.json`` has them.

    Attributes:
        num_bins: Mel bands.
        hop: Samples from one frame to the next.
        fft: Samples of a frame.
    """

    def __init__(self, num_bins: int, hop: int = 160, fft: int = 400) -> None:
        self.num_bins, self.hop, self.fft = num_bins, hop, fft
        self._window = torch.hann_window(fft)
        self._bands = torch.from_numpy(slaney_bands(num_bins, fft)).float()

    @classmethod
    def from_dir(cls, path: Path, num_bins: int) -> Self:
        """
        Args:
            num_bins: The encoder's number of mel bands.

        Raises:
            ValueError: The features are not those that the encoder hears.
        """
        file = path / "preprocessor_config.json"
        if not file.exists():
            return cls(num_bins)
        fields = json.loads(file.read_text(encoding="utf-8"))
        if fields.get("feature_size", num_bins) != num_bins or fields.get("sampling_rate") not in (
            None,
            SAMPLE_RATE,
        ):
            raise ValueError(
                f"{file}: {fields.get('feature_size')} bands at {fields.get('sampling_rate')} Hz, but the "
                f"encoder of config.json hears {num_bins} at {SAMPLE_RATE} Hz"
            )
        return cls(num_bins, fields.get("hop_length", 160), fields.get("n_fft", 400))

    def log_power(self, samples: Tensor) -> Tensor:
        """Log10 of the bands' power, (num_bins, (n - fft) // hop + 1), of samples (n,) float32."""
        found = torch.stft(
            samples, self.fft, self.hop, window=self._window, center=False, return_complex=True
        )
        return (self._bands @ found.abs().square()).clamp(min=_LEAST_POWER).log10()

    def features(self, samples: Tensor) -> Tensor:
        """Those of a whole recording (n,), (num_bins, n // hop), n at least ``fft``."""
        half = self.fft // 2
        reflected = pad(samples[None], (half, half), mode="reflect")[0]
        # The transform has a frame at the very end, which is left out.
        frames = self.log_power(reflected)[:, : len(samples) // self.hop]
        return in_relation(frames, float(frames.max()))


def slaney_bands(num_bins: int, fft: int, rate: int = SAMPLE_RATE) -> np.ndarray:
    """Triangles on Slaney's scale from 0 Hz to half of ``rate``, each of area 1: (num_bins, fft // 2 + 1)."""
    edges = _hertz(np.linspace(0.0, _mel(rate / 2), num_bins + 2))
    bins = np.linspace(0.0, rate / 2, fft // 2 + 1)
    slopes = edges[:, None] - bins[None]
    widths = np.diff(edges)
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]


# Slaney's scale: linear up to 1 kHz, logarithmic above.
_LINEAR_HZ, _BEND_HZ, _LOG_STEP = 200.0 / 3.0, 1000.0, np.log(6.4) / 27.0


def _mel(hertz: float) -> float:
    if hertz < _BEND_HZ:
        return hertz / _LINEAR_HZ
    return float(_BEND_HZ / _LINEAR_HZ + np.log(hertz / _BEND_HZ) / _LOG_STEP)


def _hertz(mels: np.ndarray) -> np.ndarray:
    bend = _BEND_HZ / _LINEAR_HZ
    return np.where(
        mels < bend, mels * _LINEAR_HZ, _BEND_HZ * np.exp(_LOG_STEP * (np.maximum(mels, bend) - bend))
    )
