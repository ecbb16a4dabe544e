"""Causal convolutions of waves and of rows in time, computed piece by piece."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sglang_omni.models.codecs.snake import Snake
from sglang_omni.models.codecs.streamed import StreamMemory


class CausalConv(NamedTuple):
    """A convolution whose output ends where its input does; before the first input are zeros.

    Attributes:
        weight: (out channels, in channels / groups, kernel).
        bias: (out channels,).
    """

    weight: Tensor
    bias: Tensor
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    def __call__(self, wave: Tensor, memory: StreamMemory) -> Tensor:
        """(n, in channels, steps * stride) to (n, out channels, steps)."""
        reach = (self.weight.shape[-1] - 1) * self.dilation + 1 - self.stride
        if reach:
            wave = memory.extend(wave, reach)
        return F.conv1d(
            wave, self.weight, self.bias, stride=self.stride, dilation=self.dilation, groups=self.groups
        )


class CausalTransposedConv(NamedTuple):
    """A transposed convolution, cut such that each step of the input completes ``stride`` of the output.

    Attributes:
        weight: (in channels, out channels / groups, kernel).
        bias: (out channels,), or None.
    """

    weight: Tensor
    bias: Tensor | None
    stride: int
    groups: int = 1

    def __call__(self, wave: Tensor, memory: StreamMemory) -> Tensor:
        """(n, in channels, steps) to (n, out channels, steps * stride)."""
        length = wave.shape[-1] * self.stride
        # Earlier steps that reach into the output of this piece.
        before = -(-self.weight.shape[-1] // self.stride) - 1
        if before:
            wave = memory.extend(wave, before)
        wave = F.conv_transpose1d(wave, self.weight, self.bias, stride=self.stride, groups=self.groups)
        return wave.narrow(-1, before * self.stride, length)


class ConvNeXtBlock(NamedTuple):
    """A depthwise convolution, and a two-layer network of each step's channels, added to the input.

    Attributes:
        norm: Weight and bias, (channels,) each.
        inner: Weight and bias of the first layer, (inner channels, channels) and (inner channels,).
        outer: Of the second layer.
        scale: (channels, 1).
    """

    depthwise: CausalConv
    norm: tuple[Tensor, Tensor]
    inner: tuple[Tensor, Tensor]
    outer: tuple[Tensor, Tensor]
    scale: Tensor
    eps: float = 1e-6

    def __call__(self, wave: Tensor, memory: StreamMemory) -> Tensor:
        rows = self.depthwise(wave, memory).transpose(1, 2)
        rows = F.layer_norm(rows, rows.shape[-1:], *self.norm, eps=self.eps)
        rows = F.linear(F.gelu(F.linear(rows, *self.inner)), *self.outer)
        return torch.addcmul(wave, rows.transpose(1, 2), self.scale)


class ResidualUnit(NamedTuple):
    """Two convolutions, each after a Snake, added to the input."""

    before_wide: Snake
    wide: CausalConv
    before_narrow: Snake
    narrow: CausalConv

    def __call__(self, wave: Tensor, memory: StreamMemory) -> Tensor:
        hidden = self.wide(self.before_wide(wave), memory)
        return self.narrow(self.before_narrow(hidden), memory).add_(wave)
