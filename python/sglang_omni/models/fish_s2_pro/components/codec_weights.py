"""Reading of ``codec.pth``: the parts of Fish Audio's codec, with every size as the tensors have it.

The file is a state dict of the authors' modules, by itself or under ``state_dict`` or ``generator``. Most
convolutions are stored by direction and length (weight norm). Tables that are computed, and what training
alone needs, are in it too and not read.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_omni.model_runner.norm import RMSNorm
from sglang_omni.models.codecs.convolutions import (
    CausalConv,
    CausalTransposedConv,
    ConvNeXtBlock,
    ResidualUnit,
)
from sglang_omni.models.codecs.residual_vq import Codebook, ResidualQuantizer
from sglang_omni.models.codecs.snake import Snake
from sglang_omni.models.codecs.window_transformer import WindowLayer, WindowTransformer

FILE = "codec.pth"
# What the authors' settings have and tensors do not show.
_DILATIONS = (1, 3, 9)
_ROPE_BASE, _NORM_EPS, _HEAD_DIM = 10_000.0, 1e-5, 64
# Added to a Snake's frequency where its inverse is taken.
_LEAST_FREQUENCY = 1e-9
# The lengths and the directions of a normed weight, as old and new versions of torch name them.
_NORMED = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)


class CodecWeights:
    """The tensors of ``codec.pth``, memory-mapped, and the parts that they are the weights of.

    Args:
        directory: Of the checkpoint.
        dtype: Of the parts.
        device: Of the parts.

    Raises:
        FileNotFoundError: There is no ``codec.pth``.
        ValueError: It is no file of tensors.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype, device: str) -> None:
        self.path = Path(directory) / FILE
        self._dtype = dtype
        self._device = device
        if not self.path.is_file():
            raise FileNotFoundError(f"{directory} lacks {FILE}, which holds the codec: download it again")
        try:
            stored = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as exc:
            # torch's own text is about its arguments.
            raise ValueError(f"{self.path} is corrupted, or no file of tensors: download it again") from exc
        self._tensors = _state_dict(stored, self.path)

    def __contains__(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._tensors)

    def count(self, prefix: str) -> int:
        """How many numbered parts there are under ``prefix``, the highest number + 1."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        numbers = [int(found[1]) for name in self._tensors if (found := pattern.match(name))]
        if not numbers:
            raise ValueError(f"{self.path} has no {prefix}0: it is the file of another codec")
        return max(numbers) + 1

    def take(self, name: str) -> Tensor:
        """
        Raises:
            ValueError: There is no such tensor.
        """
        if name not in self._tensors:
            raise ValueError(f"{self.path} lacks the tensor {name!r}")
        return self._tensors[name].to(self._device, self._dtype)

    def weight(self, name: str) -> Tensor:
        """The tensor ``name + ".weight"``, also if lengths and directions are stored instead."""
        for lengths, directions in _NORMED:
            if f"{name}.{lengths}" in self._tensors:
                # In float32: a norm in 16 bits would be off by a thousandth.
                length = self._tensors[f"{name}.{lengths}"].float()
                direction = self._stored(f"{name}.{directions}").float()
                norms = torch.linalg.vector_norm(direction, dim=tuple(range(1, direction.ndim)), keepdim=True)
                return (direction * (length / norms)).to(self._device, self._dtype)
        return self.take(f"{name}.weight")

    def conv(self, name: str, *, stride: int = 1, dilation: int = 1, groups: int = 1) -> CausalConv:
        bias = self.take(f"{name}.bias")
        return CausalConv(self.weight(name), bias, stride, dilation, groups)

    def strided(self, name: str, steps_per_stride: int) -> CausalConv:
        """A convolution whose kernel spans ``steps_per_stride`` times its stride."""
        conv = self.conv(name)
        return conv._replace(stride=self._stride(name, conv.weight, steps_per_stride))

    def transposed(self, name: str, steps_per_stride: int) -> CausalTransposedConv:
        """Likewise, a transposed one."""
        weight = self.weight(name)
        return CausalTransposedConv(
            weight, self.take(f"{name}.bias"), self._stride(name, weight, steps_per_stride)
        )

    def snake(self, name: str) -> Snake:
        frequency = self.take(f"{name}.alpha").view(-1, 1)
        return Snake(frequency, 1 / (frequency + _LEAST_FREQUENCY))

    def residual_units(self, name: str, first: int) -> list[ResidualUnit]:
        """The three units ``name.first`` and following."""
        units = []
        for number, dilation in enumerate(_DILATIONS, start=first):
            unit = f"{name}.{number}.block"
            units.append(
                ResidualUnit(
                    self.snake(f"{unit}.0"),
                    self.conv(f"{unit}.1.conv", dilation=dilation),
                    self.snake(f"{unit}.2"),
                    self.conv(f"{unit}.3.conv"),
                )
            )
        return units

    def convnext(self, name: str) -> ConvNeXtBlock:
        depthwise = self.conv(f"{name}.dwconv.conv")
        return ConvNeXtBlock(
            depthwise._replace(groups=len(depthwise.weight)),
            norm=self._layer(f"{name}.norm"),
            inner=self._layer(f"{name}.pwconv1"),
            outer=self._layer(f"{name}.pwconv2"),
            scale=self.take(f"{name}.gamma").view(-1, 1),
        )

    def transformer(self, name: str, window: int) -> WindowTransformer:
        """
        Args:
            window: Steps that a step sees, itself included.
        """
        layers = []
        for number in range(self.count(f"{name}.layers.")):
            layer = f"{name}.layers.{number}"
            layers.append(
                WindowLayer(
                    self._norm(f"{layer}.attention_norm"),
                    self.take(f"{layer}.attention.wqkv.weight"),
                    self.take(f"{layer}.attention.wo.weight"),
                    self.take(f"{layer}.attention_layer_scale.gamma"),
                    self._norm(f"{layer}.ffn_norm"),
                    self.take(f"{layer}.feed_forward.w1.weight"),
                    self.take(f"{layer}.feed_forward.w3.weight"),
                    self.take(f"{layer}.feed_forward.w2.weight"),
                    self.take(f"{layer}.ffn_layer_scale.gamma"),
                )
            )
        # The authors' table (positions, head_dim / 2, 2), in bfloat16, is as long as their longest input;
        # angles are computed here, rounded like it, so that nothing limits a speech.
        table = self._tensors.get(f"{name}.freqs_cis")
        return WindowTransformer(
            layers,
            self._norm(f"{name}.norm"),
            window=window,
            head_dim=_HEAD_DIM if table is None else 2 * table.shape[1],
            rope_base=_ROPE_BASE,
            table_dtype=torch.bfloat16,
        )

    def quantizer(self, prefixes: tuple[str, ...]) -> ResidualQuantizer:
        """The codebooks under ``prefixes``, in this order."""
        books = []
        for prefix in prefixes:
            for number in range(self.count(prefix)):
                name = f"{prefix}{number}"
                books.append(
                    Codebook(
                        self.take(f"{name}.codebook.weight"),
                        into=(self.weight(f"{name}.in_proj").squeeze(-1), self.take(f"{name}.in_proj.bias")),
                        out=(self.weight(f"{name}.out_proj").squeeze(-1), self.take(f"{name}.out_proj.bias")),
                    )
                )
        return ResidualQuantizer(books)

    def _layer(self, name: str) -> tuple[Tensor, Tensor]:
        return self.take(f"{name}.weight"), self.take(f"{name}.bias")

    def _norm(self, name: str) -> RMSNorm:
        return RMSNorm.of(self.take(f"{name}.weight"), _NORM_EPS)

    def _stored(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise ValueError(f"{self.path} lacks the tensor {name!r}")
        return self._tensors[name]

    def _stride(self, name: str, weight: Tensor, steps_per_stride: int) -> int:
        kernel = weight.shape[-1]
        if kernel % steps_per_stride:
            raise ValueError(
                f"{self.path}: {name} has a kernel of {kernel} steps, where a multiple of {steps_per_stride} "
                "is expected"
            )
        return kernel // steps_per_stride


def frame_length(directory: str | Path) -> int:
    """Samples of a frame, by the encoder's kernels.

    Raises:
        FileNotFoundError, ValueError: ``codec.pth`` is missing, or a tensor of it.
    """
    weights = CodecWeights(directory, torch.float32, "cpu")
    blocks = range(1, weights.count("encoder.block.") - 2)
    strides = [weights.strided(f"encoder.block.{number}.block.4.conv", 2).stride for number in blocks]
    rows = range(weights.count("quantizer.downsample."))
    strides += [weights.strided(f"quantizer.downsample.{number}.0.conv", 1).stride for number in rows]
    return math.prod(strides)


def _state_dict(stored: Any, path: Path) -> Mapping[str, Tensor]:
    for wrapper in ("state_dict", "generator"):
        if isinstance(stored, Mapping) and isinstance(stored.get(wrapper), Mapping):
            stored = stored[wrapper]
    if not isinstance(stored, Mapping):
        raise ValueError(f"{path} holds a {type(stored).__name__}, where a state dict is expected")
    # As a whole training's state names them.
    if any(name.startswith("generator.") for name in stored):
        stored = {
            name.removeprefix("generator."): tensor
            for name, tensor in stored.items()
            if name.startswith("generator.")
        }
    return stored
