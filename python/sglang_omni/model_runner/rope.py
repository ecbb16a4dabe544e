"""Rotary position embeddings: the table, and its application to query and key heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sglang_omni.model_runner.config import ROPE_TYPES, DecoderConfig


class RotaryShape(Protocol):
    """What the frequencies depend on; names as in ``DecoderConfig``."""

    @property
    def head_dim(self) -> int: ...

    @property
    def rope_theta(self) -> float: ...

    @property
    def rope_scaling(self) -> Mapping[str, Any]: ...


def inverse_frequencies(config: RotaryShape) -> Tensor:
    """Radians per position for each pair of channels, (head_dim / 2,) float32.

    Raises:
        ValueError: The checkpoint scales its positions in a way that is not implemented.
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
        case "yarn":
            return _yarn(config)
        case other:
            raise ValueError(f"rope_type {other!r} is not supported; known: {', '.join(ROPE_TYPES)}")


def attention_factor(config: RotaryShape) -> float:
    """What cosines and sines are multiplied with: YaRN's sharper attention over longer texts, else 1.

    The checkpoint's own ``attention_factor``, or what its ``factor`` implies (Peng et al., "YaRN", 2023).
    """
    scaling = config.rope_scaling
    if scaling.get("rope_type") != "yarn":
        return 1.0
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)
    return implied_attention_factor(scaling)


def implied_attention_factor(scaling: Mapping[str, Any]) -> float:
    """YaRN's, of parameters that do not give it."""

    def of(scale: float) -> float:
        return 0.1 * scale * math.log(scaling["factor"]) + 1.0 if scaling["factor"] > 1 else 1.0

    scale, of_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return of(scale) / of(of_all) if scale and of_all else of(1.0)


def _yarn(config: RotaryShape) -> Tensor:
    """Keeps what turns often within the original context, stretches by ``factor`` what turns rarely, and
    blends those between.

    As transformers computes it (``modeling_rope_utils._compute_yarn_parameters``), to the last bit.
    """
    scaling, dim = config.rope_scaling, config.head_dim
    original = scaling["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = pair_that_turns(scaling.get("beta_fast") or 32)
    high = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    wavelengths = config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    kept = 1 - stretched
    return 1.0 / (scaling["factor"] * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Stretches long wavelengths by ``factor``, keeps short ones, and blends those between."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, blended)
    return torch.where(wavelengths < original / high, frequencies, stretched)


class RotaryEmbedding:
    """Turns query and key heads by the angles of their positions, of one axis or of three.

    rotate_half(x) * sin == roll(x, half) * signed sin: the sign sits in the sines.
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self._half = config.head_dim // 2
        self._dtype = dtype
        frequencies = inverse_frequencies(config)
        self._factor = attention_factor(config)
        self._frequencies = frequencies.to(device)
        if config.mrope_section is not None:
            axes = _interleaved_axes if config.mrope_interleaved else _adjacent_axes
            self._axis_of_pair = axes(config.mrope_section, self._half).to(device)
        else:
            positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
            # Computed on the CPU, so that every device has the same table.
            cos, sin = self._of_angles(torch.outer(positions, frequencies))
            self._cos, self._sin = cos.to(device), sin.to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of ``positions`` (T,) or (3, T), each (T, 1, head_dim)."""
        if positions.dim() == 1:
            cos, sin = self._cos[positions], self._sin[positions]
        else:
            # No table: positions in a video may exceed every context length.
            angles = positions.index_select(0, self._axis_of_pair).t() * self._frequencies
            cos, sin = self._of_angles(angles)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``heads`` (T, heads, head_dim), turned by their positions' angles."""
        return (heads * cos).addcmul_(heads.roll(self._half, -1), sin)

    def _of_angles(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        return torch.cat((cos, cos), dim=-1).to(self._dtype), torch.cat((-sin, sin), dim=-1).to(self._dtype)


def _interleaved_axes(section: tuple[int, int, int], pairs: int) -> Tensor:
    """The axis that turns each pair of channels, (pairs,) int64: T H W T H W ..., at the end only T."""
    pair = torch.arange(pairs)
    axis = pair % 3
    _, height, width = section
    limit = torch.tensor([pairs, 3 * height, 3 * width])
    return torch.where(pair < limit[axis], axis, 0)


def _adjacent_axes(section: tuple[int, int, int], pairs: int) -> Tensor:
    """The axis that turns each pair of channels, (pairs,) int64: T T ... H H ... W W ..."""
    axes = torch.repeat_interleave(torch.arange(3), torch.tensor(section))
    if len(axes) != pairs:
        raise ValueError(f"mrope_section {list(section)} must sum up to {pairs}, half of a head's channels")
    return axes
