"""Blocks whose normalization depends on a voice's style, of the prosody's predictor and of the decoder.

As in StyleTTS 2 (arXiv:2306.07691); names of weights are those of its authors' modules, with the direction
and length of a normed convolution as one ``weight``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StyledNorm(nn.Module):
    """Normalizes each channel over time, then scales and shifts it by the style."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        # Published checkpoints leave its weights out: they are ones and zeros.
        self.norm = nn.InstanceNorm1d(channels, affine=True)
        self.fc = nn.Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """(1, channels, n), style (1, style size), to (1, channels, n)."""
        gain, shift = self.fc(style)[..., None].chunk(2, dim=1)
        y: Tensor = (1 + gain) * self.norm(x) + shift
        return y


class StyledBlock(nn.Module):
    """Two convolutions beside a shortcut; ``doubles`` if there are twice as many steps after it."""

    def __init__(self, channels: int, out: int, style: int, *, doubles: bool = False) -> None:
        super().__init__()
        self.doubles = doubles
        self.conv1 = nn.Conv1d(channels, out, 3, padding=1)
        self.conv2 = nn.Conv1d(out, out, 3, padding=1)
        self.norm1 = StyledNorm(style, channels)
        self.norm2 = StyledNorm(style, out)
        self.conv1x1 = nn.Conv1d(channels, out, 1, bias=False) if channels != out else None
        if doubles:
            self.pool = nn.ConvTranspose1d(channels, channels, 3, 2, 1, 1, groups=channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        y = F.leaky_relu(self.norm1(x, style), 0.2)
        if self.doubles:
            y = self.pool(y)
            x = x.repeat_interleave(2, dim=2)
        y = F.leaky_relu(self.norm2(self.conv1(y), style), 0.2)
        if self.conv1x1 is not None:
            x = self.conv1x1(x)
        return (self.conv2(y) + x) * torch.rsqrt(torch.tensor(2))


class StyledSnakes(nn.Module):
    """Residual pairs of convolutions, the first of each dilated, with Snakes between (arXiv:2006.08195)."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...], style: int) -> None:
        super().__init__()

        def convolution(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(
                channels, channels, kernel, dilation=dilation, padding=dilation * (kernel - 1) // 2
            )

        self.convs1 = nn.ModuleList(convolution(dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(convolution(1) for _ in dilations)
        self.adain1 = nn.ModuleList(StyledNorm(style, channels) for _ in dilations)
        self.adain2 = nn.ModuleList(StyledNorm(style, channels) for _ in dilations)
        self.alpha1 = nn.ParameterList(torch.ones(1, channels, 1) for _ in dilations)
        self.alpha2 = nn.ParameterList(torch.ones(1, channels, 1) for _ in dilations)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        for parts in zip(
            self.convs1, self.convs2, self.adain1, self.adain2, self.alpha1, self.alpha2, strict=True
        ):
            first, second, norm1, norm2, alpha1, alpha2 = parts
            y = first(_snake(norm1(x, style), alpha1))
            x = second(_snake(norm2(y, style), alpha2)) + x
        return x


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    return x + (1 / alpha) * torch.sin(alpha * x) ** 2
