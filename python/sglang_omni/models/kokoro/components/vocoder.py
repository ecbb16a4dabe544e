"""Phonemes' features, pitch and energy to samples: a source of harmonics and noise, and iSTFTNet.

After the authors' ``istftnet.py`` (kokoro 0.9.4; arXiv:2203.02395), whose names of weights these have.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from sglang_omni.models.kokoro.components.styled import StyledBlock, StyledSnakes

SAMPLE_RATE = 24_000
_HARMONICS = 9  # the pitch itself and 8 above it
_AMPLITUDE, _NOISE, _LEAST_HZ = 0.1, 0.003, 10


class InnerChannels(NamedTuple):
    """Of the decoder before the vocoder: its blocks', and those of what it is given beside each block.

    No config names them; published models have these.
    """

    blocks: int = 1024
    beside: int = 64


class VocoderShape(NamedTuple):
    """``istftnet`` of config.json."""

    upsample_kernel_sizes: list[int]
    upsample_rates: list[int]
    gen_istft_hop_size: int
    gen_istft_n_fft: int
    resblock_dilation_sizes: list[list[int]]
    resblock_kernel_sizes: list[int]
    upsample_initial_channel: int

    @property
    def rate(self) -> int:
        """Samples of one value of pitch."""
        return math.prod(self.upsample_rates) * self.gen_istft_hop_size


class VocoderDraws(NamedTuple):
    """The random numbers of n samples.

    Attributes:
        noise: Normal, float32 (1, harmonics, n).
    """

    noise: Tensor

    @classmethod
    def of(cls, generator: Generator, samples: int) -> VocoderDraws:
        """Draws in the authors' order, also what is not used: what follows depends on it."""
        torch.rand(1, _HARMONICS, generator=generator)
        # Other numbers are drawn for a tensor that lies in memory as it is indexed.
        noise = torch.empty(1, _HARMONICS, samples).transpose(1, 2).normal_(generator=generator)
        torch.randn(1, samples, 1, generator=generator)
        return cls(noise.transpose(1, 2))


class KokoroDecoder(nn.Module):
    def __init__(self, channels: int, style: int, shape: VocoderShape, inner: InnerChannels) -> None:
        super().__init__()
        given = inner.blocks + inner.beside + 2
        self.encode = StyledBlock(channels + 2, inner.blocks, style)
        self.decode = nn.ModuleList(
            [
                *(StyledBlock(given, inner.blocks, style) for _ in range(3)),
                StyledBlock(given, shape.upsample_initial_channel, style, doubles=True),
            ]
        )
        self.F0_conv = nn.Conv1d(1, 1, 3, 2, 1)
        self.N_conv = nn.Conv1d(1, 1, 3, 2, 1)
        self.asr_res = nn.Sequential(nn.Conv1d(channels, inner.beside, 1))
        self.generator = _Generator(style, shape)

    def forward(
        self, asr: Tensor, pitch: Tensor, energy: Tensor, style: Tensor, draws: VocoderDraws
    ) -> Tensor:
        """
        Args:
            asr: What the steps sound like, (1, channels, n).
            pitch, energy: Two values of each step, (1, 2 n).
            style: (1, style size).
            draws: Of the samples.

        Returns:
            Samples (2 n * ``VocoderShape.rate``,).
        """
        curves = [self.F0_conv(pitch[:, None]), self.N_conv(energy[:, None])]
        x = self.encode(torch.cat([asr, *curves], dim=1), style)
        beside = self.asr_res(asr)
        for block in self.decode:
            x = block(torch.cat([x, beside, *curves], dim=1), style)
        y: Tensor = self.generator(x, pitch, style, draws)
        return y


class _Generator(nn.Module):
    window: Tensor

    def __init__(self, style: int, shape: VocoderShape) -> None:
        super().__init__()
        self.shape = shape
        rates, bins = shape.upsample_rates, shape.gen_istft_n_fft + 2
        channels = [shape.upsample_initial_channel // 2**level for level in range(len(rates) + 1)]
        self.m_source = nn.ModuleDict({"l_linear": nn.Linear(_HARMONICS, 1)})
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(inner, outer, kernel, rate, (kernel - rate) // 2)
            for inner, outer, kernel, rate in zip(
                channels, channels[1:], shape.upsample_kernel_sizes, rates, strict=False
            )
        )
        self.resblocks = nn.ModuleList(
            StyledSnakes(outer, kernel, tuple(dilations), style)
            for outer in channels[1:]
            for kernel, dilations in zip(
                shape.resblock_kernel_sizes, shape.resblock_dilation_sizes, strict=True
            )
        )
        self.noise_convs, self.noise_res = nn.ModuleList(), nn.ModuleList()
        for level, outer in enumerate(channels[1:], start=1):
            stride = math.prod(rates[level:])
            is_last = level == len(rates)
            kernel, padding = (1, 0) if is_last else (2 * stride, (stride + 1) // 2)
            self.noise_convs.append(nn.Conv1d(bins, outer, kernel, stride, padding))
            self.noise_res.append(StyledSnakes(outer, 11 if is_last else 7, (1, 3, 5), style))
        self.conv_post = nn.Conv1d(channels[-1], bins, 7, padding=3)
        self.register_buffer("window", torch.hann_window(shape.gen_istft_n_fft), persistent=False)

    def forward(self, x: Tensor, pitch: Tensor, style: Tensor, draws: VocoderDraws) -> Tensor:
        source = self._spectrum(self._source(pitch, draws))
        kernels = len(self.shape.resblock_kernel_sizes)
        for level, (up, convolution, block) in enumerate(
            zip(self.ups, self.noise_convs, self.noise_res, strict=True), start=1
        ):
            x = up(F.leaky_relu(x, 0.1))
            if level == len(self.ups):
                x = F.pad(x, (1, 0), mode="reflect")
            x = x + block(convolution(source), style)
            found = [each(x, style) for each in self.resblocks[(level - 1) * kernels : level * kernels]]
            x = sum(found[1:], found[0]) / kernels
        size = self.shape.gen_istft_n_fft
        bins = size // 2 + 1
        x = self.conv_post(F.leaky_relu(x))
        magnitude, phase = torch.exp(x[:, :bins]), torch.sin(x[:, bins:])
        samples = torch.istft(
            magnitude * torch.exp(phase * 1j), size, self.shape.gen_istft_hop_size, size, self.window
        )
        return samples[0]

    def _source(self, pitch: Tensor, draws: VocoderDraws) -> Tensor:
        """Harmonics where there is a voice, and noise where there is none: (1, 2 n) to (1, samples)."""
        rate = self.shape.rate
        hertz = pitch[:, None].repeat_interleave(rate, dim=2)
        harmonics = torch.arange(1.0, _HARMONICS + 1, device=pitch.device)[:, None]
        turns = F.interpolate((hertz * harmonics / SAMPLE_RATE) % 1, scale_factor=1 / rate, mode="linear")
        phase = torch.cumsum(turns, dim=2) * 2 * torch.pi
        phase = F.interpolate(phase * rate, scale_factor=float(rate), mode="linear")
        sines = torch.sin(phase) * _AMPLITUDE
        voiced = (hertz > _LEAST_HZ).float()
        loudness = voiced * _NOISE + (1 - voiced) * _AMPLITUDE / 3
        sound = sines * voiced + loudness * draws.noise.to(pitch.device)
        return torch.tanh(self.m_source["l_linear"](sound.transpose(1, 2)))[..., 0]

    def _spectrum(self, sound: Tensor) -> Tensor:
        """Magnitudes, then phases: (1, samples) to (1, bins, frames)."""
        size = self.shape.gen_istft_n_fft
        found = torch.stft(sound, size, self.shape.gen_istft_hop_size, size, self.window, return_complex=True)
        return torch.cat([found.abs(), found.angle()], dim=1)
