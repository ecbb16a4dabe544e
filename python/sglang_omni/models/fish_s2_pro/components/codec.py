"""Fish Audio's codec: waves at 44.1 kHz to frames of codes, and frames to waves, piece by piece.

Everything in it is causal. A frame is 2,048 samples in the published codec: the encoder's convolutions make
one row of 512 samples, two more halve the rate twice, and a quantizer gives each row one semantic code and
several residual ones. The decoder goes the same way back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_omni.models.codecs.convolutions import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    ResidualUnit,
)
from sglang_omni.models.codecs.snake import Snake
from sglang_omni.models.codecs.streamed import StreamedDecoder, StreamedNetwork, StreamMemory
from sglang_omni.models.codecs.window_transformer import WindowTransformer
from sglang_omni.models.fish_s2_pro.components.codec_weights import CodecWeights

SAMPLE_RATE = 44_100
# Steps that the transformers see: of the encoder's rows, and of frames.
_ENCODER_WINDOW, _FRAME_WINDOW = 512, 128
# The semantic codebook, then those of the residual.
_CODEBOOKS = ("quantizer.semantic_quantizer.quantizers.", "quantizer.quantizer.quantizers.")


class _UpBlock(NamedTuple):
    snake: Snake
    transposed: CausalTransposedConv
    units: list[ResidualUnit]


class _DownBlock(NamedTuple):
    """``transformer`` is None in all blocks but, as published, the last."""

    units: list[ResidualUnit]
    snake: Snake
    conv: CausalConv
    transformer: WindowTransformer | None


class FishCodecDecoder(StreamedDecoder):
    """From codes (n, groups, frames) to samples (n, 1, frames * total_upsample).

    Attributes:
        total_upsample: Samples of a frame.
        codebook_sizes: Codes of each group; a larger code counts as the last of its group.

    Raises:
        FileNotFoundError, ValueError: ``codec.pth`` is missing, or a tensor of it.
    """

    def __init__(self, weights: CodecWeights) -> None:
        self._quantizer = weights.quantizer(_CODEBOOKS)
        self.codebook_sizes = self._quantizer.sizes
        self._transformer = weights.transformer("quantizer.post_module", _FRAME_WINDOW)
        self._upsample: list[tuple[CausalTransposedConv, ConvNeXtBlock]] = [
            (
                weights.transposed(f"quantizer.upsample.{number}.0.conv", 1),
                weights.convnext(f"quantizer.upsample.{number}.1"),
            )
            for number in range(weights.count("quantizer.upsample."))
        ]
        last = weights.count("decoder.model.") - 1
        self._first = weights.conv("decoder.model.0.conv")
        self._blocks = [
            _UpBlock(
                weights.snake(f"decoder.model.{number}.block.0"),
                weights.transposed(f"decoder.model.{number}.block.1.conv", 2),
                weights.residual_units(f"decoder.model.{number}.block", 2),
            )
            for number in range(1, last - 1)
        ]
        self._snake = weights.snake(f"decoder.model.{last - 1}")
        self._last = weights.conv(f"decoder.model.{last}.conv")
        self.total_upsample = math.prod(part.stride for part, _ in self._upsample) * math.prod(
            block.transposed.stride for block in self._blocks
        )
        device = self._first.weight.device
        probe = torch.zeros(1, len(self.codebook_sizes), 1, dtype=torch.int64, device=device)
        super().__init__("the codec", probe)

    @classmethod
    def load(cls, directory: str | Path, dtype: torch.dtype, device: str) -> FishCodecDecoder:
        return cls(CodecWeights(directory, dtype, device))

    def __call__(self, codes: Tensor) -> Tensor:
        """The samples (n, 1, samples) of whole speeches at once."""
        return self.advance([self.open_stream() for _ in codes], codes)

    @property
    def dtype(self) -> torch.dtype:
        return self._first.weight.dtype

    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        rows = self._transformer(self._quantizer.decode(inputs), positions, memory)
        wave = rows.transpose(1, 2)
        for transposed, convnext in self._upsample:
            wave = convnext(transposed(wave, memory), memory)
        wave = self._first(wave, memory)
        for block in self._blocks:
            wave = block.transposed(block.snake(wave), memory)
            for unit in block.units:
                wave = unit(wave, memory)
        return self._last(self._snake(wave), memory).tanh_()


class FishCodecEncoder(StreamedNetwork):
    """From samples (n, 1, frames * frame_length) to codes (n, groups, frames) int64.

    Attributes:
        frame_length: Samples of a frame.
        codebook_sizes: Codes of each group.

    Raises:
        FileNotFoundError, ValueError: ``codec.pth`` is missing, or a tensor of it.
    """

    def __init__(self, weights: CodecWeights) -> None:
        last = weights.count("encoder.block.") - 1
        self._first = weights.conv("encoder.block.0.conv")
        self._blocks = []
        for number in range(1, last - 1):
            name = f"encoder.block.{number}.block"
            transformer = f"{name}.5"
            self._blocks.append(
                _DownBlock(
                    weights.residual_units(name, 0),
                    weights.snake(f"{name}.3"),
                    weights.strided(f"{name}.4.conv", 2),
                    weights.transformer(transformer, _ENCODER_WINDOW)
                    if f"{transformer}." in weights
                    else None,
                )
            )
        self._snake = weights.snake(f"encoder.block.{last - 1}")
        self._last = weights.conv(f"encoder.block.{last}.conv")
        self._downsample = [
            (
                weights.strided(f"quantizer.downsample.{number}.0.conv", 1),
                weights.convnext(f"quantizer.downsample.{number}.1"),
            )
            for number in range(weights.count("quantizer.downsample."))
        ]
        self._transformer = weights.transformer("quantizer.pre_module", _FRAME_WINDOW)
        self._quantizer = weights.quantizer(_CODEBOOKS)
        self.codebook_sizes = self._quantizer.sizes
        strides = [block.conv.stride for block in self._blocks]
        strides += [conv.stride for conv, _ in self._downsample]
        self.frame_length = math.prod(strides)
        # Steps of a frame after each block.
        self._steps_of_frame = [
            self.frame_length // math.prod(strides[: i + 1]) for i in range(len(self._blocks))
        ]
        device = self._first.weight.device
        super().__init__("the codec's encoder", torch.zeros(1, 1, self.frame_length, device=device))

    @classmethod
    def load(cls, directory: str | Path, dtype: torch.dtype, device: str) -> FishCodecEncoder:
        return cls(CodecWeights(directory, dtype, device))

    @property
    def dtype(self) -> torch.dtype:
        return self._first.weight.dtype

    def encode(self, clips: Sequence[Tensor], frames_at_once: int) -> list[Tensor]:
        """The codes (frames, groups) of each clip; its last frame is filled up with silence.

        Args:
            clips: (samples,) float32 each, at least one sample.
            frames_at_once: Frames of a piece, which bounds the memory that long clips take.
        """
        counts = [-(-len(clip) // self.frame_length) for clip in clips]
        # What comes behind a clip changes nothing in it.
        waves = torch.zeros(len(clips), 1, max(counts) * self.frame_length)
        for wave, clip in zip(waves, clips, strict=True):
            wave[0, : len(clip)] = clip
        streams = [self.open_stream() for _ in clips]
        pieces = waves.split(frames_at_once * self.frame_length, dim=-1)
        codes = torch.cat([self.advance(streams, piece) for piece in pieces], dim=-1)
        return [row[:, :count].t().contiguous() for row, count in zip(codes.cpu(), counts, strict=True)]

    def run(self, inputs: Tensor, positions: Tensor, memory: StreamMemory) -> Tensor:
        wave = self._first(inputs.to(self.dtype), memory)
        for block, steps in zip(self._blocks, self._steps_of_frame, strict=True):
            for unit in block.units:
                wave = unit(wave, memory)
            wave = block.conv(block.snake(wave), memory)
            if block.transformer is not None:
                rows = block.transformer(wave.transpose(1, 2), positions * steps, memory)
                wave = rows.transpose(1, 2)
        wave = self._last(self._snake(wave), memory)
        for conv, convnext in self._downsample:
            wave = convnext(conv(wave, memory), memory)
        return self._quantizer.encode(self._transformer(wave.transpose(1, 2), positions, memory))
