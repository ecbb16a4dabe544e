"""Root-mean-square normalisation in few operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

# Devices on which torch's own RMSNorm is one kernel. On a CPU it is eight operations.
FUSED_ON = frozenset({"cuda"})


def norm_floor(size: int, eps: float, device: torch.device | str = "cpu") -> Tensor:
    """The ``floor`` of ``unit_norm`` for an RMSNorm of ``size`` channels and ``eps``: a 0-dim float32."""
    return torch.tensor((size * eps) ** 0.5).to(device)


def unit_norm(rows: Tensor, floor: Tensor) -> Tensor:
    """``rows`` (..., n) divided by their lengths: rows / sqrt(sum(rows ** 2) + floor ** 2).

    Times ``weight * sqrt(n)``, it is RMSNorm; that factor can be folded into the next projection. For a few
    rows on a CPU it takes a third of the time of torch's RMSNorm.
    """
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
    return (rows / lengths.hypot_(floor)).to(rows.dtype)


class PlainNorm(NamedTuple):
    """RMSNorm over ``size`` channels without its weight: times ``scale``, rows have a root mean square of 1.

    ``weight * scale`` can be folded into the next projection. ``floor`` is ``norm_floor``'s, None if torch's
    fused kernel computes the norm.
    """

    size: int
    eps: float
    scale: float
    floor: Tensor | None

    @classmethod
    def of(cls, size: int, eps: float, device: torch.device) -> PlainNorm:
        if device.type in FUSED_ON:
            return cls(size, eps, 1.0, None)
        return cls(size, eps, size**0.5, norm_floor(size, eps, device))

    def __call__(self, rows: Tensor) -> Tensor:
        if self.floor is None:
            return rms_norm(rows, (self.size,), None, self.eps)
        return unit_norm(rows, self.floor)


class RMSNorm(NamedTuple):
    """RMSNorm over the last dimension, ``rows / rms(rows) * weight``, computed in float32.

    ``weight`` may broadcast over other dimensions. On a CPU, ``scale`` is weight * sqrt(n) in float32 and
    ``floor`` is ``norm_floor``'s; None if torch's fused kernel computes the norm.
    """

    weight: Tensor
    eps: float
    scale: Tensor | None
    floor: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, eps: float) -> RMSNorm:
        if weight.device.type in FUSED_ON:
            return cls(weight, eps, None, None)
        size = weight.shape[-1]
        return cls(weight, eps, weight.float() * size**0.5, norm_floor(size, eps, weight.device))

    def __call__(self, rows: Tensor) -> Tensor:
        if self.scale is None or self.floor is None:
            size = rows.shape[-1:]
            if self.weight.ndim == 1:
                return rms_norm(rows, size, self.weight, self.eps)
            return rms_norm(rows, size, None, self.eps) * self.weight
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
        return (rows / lengths.hypot_(self.floor)).mul_(self.scale).to(rows.dtype)
