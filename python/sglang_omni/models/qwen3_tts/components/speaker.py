"""A voice as a vector: the speaker encoder of the Base models, an ECAPA-TDNN.

Desplanques et al., "ECAPA-TDNN: Emphasized channel attention, propagation and aggregation in TDNN based
speaker verification" (2020), https://arxiv.org/abs/2005.07143.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad, relu

from sglang_omni.model_runner.host_copies import to_device
from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.recordings.mel import slaney_bands
from sglang_omni.preprocessing.text import read_json

RATE = 24_000
# Samples of the spectrogram's windows, and from one to the next.
_FFT, _HOP = 1024, 256
# The convolutions mirror up to four frames at an end, which must be more.
_MIN_FRAMES = 5
# The shortest recording.
MIN_SAMPLES = _MIN_FRAMES * _HOP
_PREFIX = "speaker_encoder."
_LEAST_POWER, _LEAST_MAGNITUDE, _LEAST_VARIANCE = 1e-9, 1e-5, 1e-12


class SpeakerConfig(NamedTuple):
    """``speaker_encoder_config``, under the authors' names and with their defaults.

    Attributes:
        mel_dim: Bands of the spectrogram.
        enc_dim: Of the vector.
        enc_channels, enc_kernel_sizes, enc_dilations: Of the first layer, of each block, and of the layer
            over the outputs of all blocks.
        enc_attention_channels: Of the layer that weighs frames.
        enc_res2net_scale: Groups of a block's channels, each with a wider view than the one before.
        enc_se_channels: Of the layers that weigh channels.
    """

    mel_dim: int = 128
    enc_dim: int = 1024
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """
        Raises:
            ValueError: The sizes contradict one another, or a recording must be of another rate, or longer
                than ``MIN_SAMPLES``.
        """
        config = cls(**{name: fields[name] for name in cls._fields if name in fields})
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        if (
            not len(channels) == len(kernels) == len(dilations)
            or len(set(channels[:-1])) != 1
            or sum(channels[1:-1]) != channels[-1]
        ):
            raise ValueError(
                "speaker_encoder_config: enc_channels, enc_kernel_sizes and enc_dilations must be equally "
                "many, the channels of all layers but the last equal, and those of the last the blocks' sum"
            )
        # Mirrored at an end.
        reach = max(-((1 - k) * d // 2) for k, d in zip(kernels, dilations, strict=True))
        if reach >= _MIN_FRAMES or fields.get("sample_rate", RATE) != RATE:
            raise ValueError(
                "speaker_encoder_config: what is supported are convolutions that reach less than "
                f"{_MIN_FRAMES} frames to each side, and a sample_rate of {RATE}"
            )
        return config


class SpeakerEncoder:
    """From the samples of a recording to the vector of its voice.

    Args:
        checkpoint: In the dtype and on the device of the computation.

    Raises:
        ValueError: A tensor is missing, misshapen or unknown.
    """

    def __init__(self, checkpoint: Checkpoint, config: SpeakerConfig) -> None:
        weights = _Weights(checkpoint)
        channels, kernels, dilations = config.enc_channels, config.enc_kernel_sizes, config.enc_dilations
        self._first = weights.layer("blocks.0", config.mel_dim, channels[0], kernels[0], dilations[0])
        self._blocks = [
            weights.block(f"blocks.{i}", channels[i], kernels[i], dilations[i], config)
            for i in range(1, len(channels) - 1)
        ]
        wide = channels[-1]
        self._joined = weights.layer("mfa", wide, wide, kernels[-1], dilations[-1])
        self._attention = weights.layer("asp.tdnn", 3 * wide, config.enc_attention_channels)
        self._scores = weights.conv("asp.conv", config.enc_attention_channels, wide)
        self._last = weights.conv("fc", 2 * wide, config.enc_dim)
        checkpoint.finish()
        self._window = torch.hann_window(_FFT)
        self._bands = torch.from_numpy(slaney_bands(config.mel_dim, _FFT, RATE)).float()

    @classmethod
    def load(cls, path: str | Path, dtype: torch.dtype, device: str) -> Self:
        """Reads the speaker encoder of the checkpoint in ``path``.

        Raises:
            FileNotFoundError, ValueError: As for the class, or a file is missing, or the model has none.
        """
        fields = read_json(Path(path) / "config.json").get("speaker_encoder_config") or {}
        config = SpeakerConfig.from_fields(fields)
        return cls(Checkpoint(path, dtype, _PREFIX, device=device), config)

    @torch.inference_mode()
    def __call__(self, samples: Tensor) -> Tensor:
        """(enc_dim,) float32 on the host, of samples (n,) float32 at 24 kHz, n at least ``MIN_SAMPLES``."""
        weight = self._first.weight
        rows = self._first(to_device(self._log_mel(samples)[None], weight.device).to(weight.dtype))
        outputs = []
        for block in self._blocks:
            rows = block(rows)
            outputs.append(rows)
        pooled = self._pooled(self._joined(torch.cat(outputs, dim=1)))
        return conv1d(pooled.unsqueeze(2), *self._last).flatten().float().cpu()

    def _log_mel(self, samples: Tensor) -> Tensor:
        """(mel_dim, n // 256) of samples (n,)."""
        margin = (_FFT - _HOP) // 2
        reflected = pad(samples[None], (margin, margin), mode="reflect")[0]
        found = torch.stft(reflected, _FFT, _HOP, window=self._window, center=False, return_complex=True)
        magnitude = (found.real.square() + found.imag.square() + _LEAST_POWER).sqrt()
        return (self._bands @ magnitude).clamp(min=_LEAST_MAGNITUDE).log()

    def _pooled(self, rows: Tensor) -> Tensor:
        """Weighted mean and deviation over time, (n, 2 * channels), of rows (n, channels, frames)."""
        frames = rows.shape[2]
        alike = [each.unsqueeze(2).expand_as(rows) for each in _statistics(rows, 1 / frames)]
        scores = conv1d(self._attention(torch.cat((rows, *alike), dim=1)).tanh(), *self._scores)
        return torch.cat(_statistics(rows, scores.softmax(dim=2)), dim=1)


class _Layer(NamedTuple):
    """A dilated convolution over frames, which are mirrored at both ends, and a ReLU."""

    weight: Tensor
    bias: Tensor
    dilation: int

    def __call__(self, rows: Tensor) -> Tensor:
        reach = (self.weight.shape[2] - 1) * self.dilation
        if reach:
            rows = pad(rows, (reach // 2, reach - reach // 2), mode="reflect")
        return relu(conv1d(rows, self.weight, self.bias, dilation=self.dilation))


class _Block(NamedTuple):
    """Groups of channels, each convolved together with the output of the one before; then each channel is
    weighed by what the whole recording has in all of them, and added to the input.
    """

    into: _Layer
    groups: list[_Layer]
    out: _Layer
    squeeze: tuple[Tensor, Tensor]
    excite: tuple[Tensor, Tensor]

    def __call__(self, rows: Tensor) -> Tensor:
        first, *others = self.into(rows).chunk(len(self.groups) + 1, dim=1)
        outputs = [first]
        for layer, group in zip(self.groups, others, strict=True):
            # The first group's output is its input, which the second does without.
            outputs.append(layer(group if len(outputs) == 1 else group + outputs[-1]))
        hidden = self.out(torch.cat(outputs, dim=1))
        squeezed = relu(conv1d(hidden.mean(dim=2, keepdim=True), *self.squeeze))
        return torch.addcmul(rows, hidden, conv1d(squeezed, *self.excite).sigmoid())


class _Weights:
    """Takes layers from a checkpoint by the names below the prefix."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def block(self, name: str, channels: int, kernel: int, dilation: int, config: SpeakerConfig) -> _Block:
        group, squeezed = channels // config.enc_res2net_scale, config.enc_se_channels
        return _Block(
            self.layer(f"{name}.tdnn1", channels, channels),
            [
                self.layer(f"{name}.res2net_block.blocks.{i}", group, group, kernel, dilation)
                for i in range(config.enc_res2net_scale - 1)
            ],
            self.layer(f"{name}.tdnn2", channels, channels),
            self.conv(f"{name}.se_block.conv1", channels, squeezed),
            self.conv(f"{name}.se_block.conv2", squeezed, channels),
        )

    def layer(self, name: str, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> _Layer:
        return _Layer(*self.conv(f"{name}.conv", inputs, outputs, kernel), dilation)

    def conv(self, name: str, inputs: int, outputs: int, kernel: int = 1) -> tuple[Tensor, Tensor]:
        """Weight and bias."""
        weight = self._checkpoint.take(f"{_PREFIX}{name}.weight", (outputs, inputs, kernel))
        return weight, self._checkpoint.take(f"{_PREFIX}{name}.bias", (outputs,))


def _statistics(rows: Tensor, weights: Tensor | float) -> tuple[Tensor, Tensor]:
    """Mean and deviation, (n, channels) each, over the frames of rows (n, channels, frames)."""
    mean = (weights * rows).sum(dim=2)
    variance = (weights * (rows - mean.unsqueeze(2)).square()).sum(dim=2)
    return mean, variance.clamp(min=_LEAST_VARIANCE).sqrt()
