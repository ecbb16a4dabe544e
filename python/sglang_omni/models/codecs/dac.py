"""DAC, the Descript audio codec: its encoder and decoder of whole waves, whose convolutions see both sides.

Kumar et al., "High-fidelity audio compression with improved RVQGAN" (2023), https://arxiv.org/abs/2306.06546.
Tensors have the names of transformers' ``DacModel``, without weight norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from sglang_omni.model_runner.loader import Checkpoint
from sglang_omni.models.codecs.snake import Snake

_KERNEL = 7
_DILATIONS = (1, 3, 9)


class CenteredConv(NamedTuple):
    """A convolution with as many zeros before its input as after it.

    Attributes:
        weight: (out channels, in channels, kernel).
        bias: (out channels,), or None.
    """

    weight: Tensor
    bias: Tensor | None
    stride: int = 1
    dilation: int = 1
    padding: int = 0

    def __call__(self, wave: Tensor) -> Tensor:
        """(n, in channels, steps) to (n, out channels, steps / stride)."""
        return F.conv1d(
            wave,
            self.weight,
            self.bias,
            stride=self.stride,
            dilation=self.dilation,
            padding=self.padding,
        )

    def length(self, steps: int) -> int:
        """Of the output of an input of ``steps``."""
        reach = (self.weight.shape[-1] - 1) * self.dilation + 1
        return (steps + 2 * self.padding - reach) // self.stride + 1


class UpsamplingConv(NamedTuple):
    """A transposed convolution whose output is exactly ``stride`` times as long as its input.

    Attributes:
        weight: (in channels, out channels, 2 * stride).
        bias: (out channels,).
    """

    weight: Tensor
    bias: Tensor
    stride: int

    @property
    def padding(self) -> int:
        return math.ceil(self.stride / 2)

    def __call__(self, wave: Tensor) -> Tensor:
        """(n, in channels, steps) to (n, out channels, steps * stride)."""
        return F.conv_transpose1d(
            wave,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.stride % 2,
        )


class _ResidualUnit(NamedTuple):
    before_wide: Snake
    wide: CenteredConv
    before_narrow: Snake
    narrow: CenteredConv

    def __call__(self, wave: Tensor) -> Tensor:
        return self.narrow(self.before_narrow(self.wide(self.before_wide(wave)))).add_(wave)


class _Block(NamedTuple):
    """A stride of the encoder, after its units, or of the decoder, before them."""

    snake: Snake
    strided: CenteredConv | UpsamplingConv
    units: list[_ResidualUnit]


class _Tensors:
    """Takes layers from a checkpoint by the names below ``prefix``."""

    def __init__(self, reader: Checkpoint, prefix: str) -> None:
        self._reader, self._prefix = reader, prefix

    def conv(
        self, name: str, out: int, into: int, kernel: int, *, stride: int = 1, dilation: int = 1
    ) -> CenteredConv:
        padding = math.ceil(stride / 2) if stride > 1 else (kernel - 1) * dilation // 2
        return CenteredConv(
            self._take(f"{name}.weight", out, into, kernel),
            self._take(f"{name}.bias", out),
            stride,
            dilation,
            padding,
        )

    def upsampling(self, name: str, out: int, into: int, stride: int) -> UpsamplingConv:
        weight = self._take(f"{name}.weight", into, out, 2 * stride)
        return UpsamplingConv(weight, self._take(f"{name}.bias", out), stride)

    def snake(self, name: str, channels: int) -> Snake:
        alpha = self._take(f"{name}.alpha", 1, channels, 1)[0]
        # 1e-9 is the reference's guard against a frequency of 0.
        return Snake(alpha, (alpha + 1e-9).reciprocal())

    def units(self, block: str, channels: int) -> list[_ResidualUnit]:
        names = [(f"{block}.res_unit{number}", dilation) for number, dilation in enumerate(_DILATIONS, 1)]
        return [
            _ResidualUnit(
                self.snake(f"{name}.snake1", channels),
                self.conv(f"{name}.conv1", channels, channels, _KERNEL, dilation=dilation),
                self.snake(f"{name}.snake2", channels),
                self.conv(f"{name}.conv2", channels, channels, 1),
            )
            for name, dilation in names
        ]

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._reader.take(f"{self._prefix}{name}", shape)


class DacEncoder:
    """From a wave (n, 1, samples) to rows (n, hidden_size, frames).

    Args:
        prefix: Of the names of its tensors.
        width: ``encoder_hidden_size``, the channels of the first convolution.
        ratios: ``downsampling_ratios``.

    Raises:
        ValueError: A tensor is missing or misshapen.
    """

    def __init__(
        self, reader: Checkpoint, prefix: str, *, width: int, ratios: Sequence[int], hidden_size: int
    ) -> None:
        take = _Tensors(reader, prefix)
        self._first = take.conv("conv1", width, 1, _KERNEL)
        self._blocks: list[_Block] = []
        for index, ratio in enumerate(ratios):
            name, channels = f"block.{index}", width * 2**index
            units, snake = take.units(name, channels), take.snake(f"{name}.snake1", channels)
            strided = take.conv(f"{name}.conv1", 2 * channels, channels, 2 * ratio, stride=ratio)
            self._blocks.append(_Block(snake, strided, units))
        channels = width * 2 ** len(ratios)
        self._snake = take.snake("snake1", channels)
        self._last = take.conv("conv2", hidden_size, channels, 3)

    def __call__(self, wave: Tensor) -> Tensor:
        wave = self._first(wave)
        for block in self._blocks:
            for unit in block.units:
                wave = unit(wave)
            wave = block.strided(block.snake(wave))
        return self._last(self._snake(wave))

    def frames(self, samples: int) -> int:
        """How many frames a wave of so many samples becomes."""
        for block in self._blocks:
            assert isinstance(block.strided, CenteredConv)
            samples = block.strided.length(samples)
        return samples


class DacDecoder:
    """From rows (n, hidden_size, frames) to a wave (n, 1, frames * prod(ratios)).

    Args:
        prefix: Of the names of its tensors.
        width: ``decoder_hidden_size``, the channels of the first convolution.
        ratios: ``upsampling_ratios``.

    Raises:
        ValueError: A tensor is missing or misshapen.
    """

    def __init__(
        self, reader: Checkpoint, prefix: str, *, width: int, ratios: Sequence[int], hidden_size: int
    ) -> None:
        take = _Tensors(reader, prefix)
        self._ratios = list(ratios)
        self._first = take.conv("conv1", width, hidden_size, _KERNEL)
        self._blocks: list[_Block] = []
        for index, ratio in enumerate(ratios):
            name, channels = f"block.{index}", width // 2**index
            snake = take.snake(f"{name}.snake1", channels)
            strided = take.upsampling(f"{name}.conv_t1", channels // 2, channels, ratio)
            self._blocks.append(_Block(snake, strided, take.units(name, channels // 2)))
        channels = width // 2 ** len(ratios)
        self._snake = take.snake("snake1", channels)
        self._last = take.conv("conv2", 1, channels, _KERNEL)

    def __call__(self, rows: Tensor) -> Tensor:
        wave = self._first(rows)
        for block in self._blocks:
            wave = block.strided(block.snake(wave))
            for unit in block.units:
                wave = unit(wave)
        return self._last(self._snake(wave))

    @property
    def context_frames(self) -> int:
        """How many frames before and after its own a sample depends on, at most."""
        reach = _KERNEL // 2
        # The first and the last step that the samples of frame 0 depend on, layer by layer from the last on.
        first, last = -reach, math.prod(self._ratios) - 1 + reach
        for ratio in reversed(self._ratios):
            first, last = first - reach * sum(_DILATIONS), last + reach * sum(_DILATIONS)
            padding = math.ceil(ratio / 2)
            first, last = math.ceil((first + padding - 2 * ratio + 1) / ratio), (last + padding) // ratio
        return max(reach - first, last + reach)
