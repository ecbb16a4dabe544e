"""Root-mean-square normalisation in few operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def norm_floor(size: int, eps: float, device: torch.device | str = "cpu") -> Tensor:
    """The ``floor`` of ``unit_norm`` for an RMSNorm of ``size`` channels and ``eps``: a 0-dim float32."""
    return torch.tensor((size * eps) ** 0.5, device=device)


def unit_norm(rows: Tensor, floor: Tensor) -> Tensor:
    """``rows`` (..., n) divided by their lengths: rows / sqrt(sum(rows ** 2) + floor ** 2).

    Times ``weight * sqrt(n)``, it is RMSNorm; that factor can be folded into the next projection. For a few
    rows on a CPU it takes a third of the time of torch's RMSNorm, which is eight operations.
    """
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
    return (rows / lengths.hypot_(floor)).to(rows.dtype)


class RMSNorm(NamedTuple):
    """RMSNorm over the last dimension, ``rows / rms(rows) * weight``, computed in float32.

    ``scale`` is weight * sqrt(n) and may broadcast over other dimensions; ``floor`` is ``norm_floor``'s.
    """

    scale: Tensor
    floor: Tensor

    @classmethod
    def of(cls, weight: Tensor, eps: float) -> RMSNorm:
        size = weight.shape[-1]
        return cls(weight.float() * size**0.5, norm_floor(size, eps, weight.device))

    def __call__(self, rows: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
        return (rows / lengths.hypot_(self.floor)).mul_(self.scale).to(rows.dtype)
