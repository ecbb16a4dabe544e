"""Rotary position embeddings: the table, and its application to query and key heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sglang_omni.model_runner.config import DecoderConfig


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Radians a position for each pair of channels, (head_dim / 2,) float32.

    Raises:
        ValueError: the checkpoint scales its positions in a way that is not implemented.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    match scaling.get("rope_type", "default"):
        case "default":
            return frequencies
        case "linear":
            return frequencies / float(scaling["factor"])
        case "llama3":
            return _llama3(frequencies, scaling)
        case other:
            raise ValueError(f"rope_type {other!r} is not supported; known: default, linear, llama3")


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, blended)
    return torch.where(wavelengths < original / high, frequencies, stretched)


class RotaryTable:
    """Cosines and signed sines of every position, (positions, head_dim), in the model's dtype."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype) -> None:
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(config))
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), dim=-1).to(dtype)
        # rotate_half(x) * sin == roll(x, half) * signed sin: the sign sits in the table, not in every step.
        self._sin = torch.cat((-sin, sin), dim=-1).to(dtype)
        self._half = config.head_dim // 2

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows for ``positions`` (T,), shaped (T, 1, head_dim) to broadcast over heads."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``heads`` (T, heads, head_dim), turned by their positions' angles."""
        return (heads * cos).addcmul_(heads.roll(self._half, -1), sin)
